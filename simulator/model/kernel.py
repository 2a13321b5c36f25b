"""Kernels: a GPU's units of work, recorded without times.

A kernel only counts FLOPs and bytes; step/kernels/kernel_time.py knows how long a GPU takes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

# Bytes of a sum's elements, and of the elements that are added.
_FLOAT32: Final = 4
_HALF: Final = 2


# A product of matrices; groups of rows, each by a matrix of its own (experts); a convolution.
MatmulKind = Literal["matmul", "grouped", "convolution"]


@dataclass(frozen=True, slots=True)
class Matmul:
    """A matmul kernel without its duration: out[m, n] = a[m, k] b[k, n], `batch` times."""

    name: str
    # `m`, `n`, `k`, `batch`: Sizes of the matrices, and number of independent products.
    m: int
    n: int
    k: int
    batch: int = 1
    of_weights: bool = False  # True for weight gradients, which nothing needs before the update
    dtype: str | None = None  # dtype of the inputs; None for the step's dtype of matmuls
    # Elements of the operands that repeat other elements of the same operand and are read from HBM only once: those of
    # overlapping patches, if the matmul computes a convolution. Less than 0 for a fused kernel that moves more arrays.
    reread: int = 0
    # What the kernel computes as a matmul; each kind has constants of its own where it was measured.
    kind: MatmulKind = "matmul"

    @property
    def flops(self) -> float:
        """Floating-point operations of the matmul: a multiplication and an addition for each of batch x m n k
        [FLOP].
        """
        return 2.0 * self.batch * self.m * self.n * self.k

    def nbytes(self, itemsize: float) -> float:
        """Return the bytes of the matmul's inputs and output, each moved once, for elements of `itemsize` bytes [B]."""
        return itemsize * (self.batch * (self.m * self.k + self.k * self.n + self.m * self.n) - self.reread)


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax(Q K^T) V as a single kernel that keeps the score matrix on chip (flash attention).

    Attributes
    ----------
    batch, heads, kv_heads, seq_len, head_dim : int
        Sequences, query heads, key heads, queries per sequence, width of a head.
    causal : bool
        If True, half of the scores are not computed.
    backward : bool
        If True, five matmuls instead of the forward's two, including a second QK^T.
    keys : int or None
        Keys per sequence; None: `seq_len`.
    summed : bool
        True if the results are added to those of earlier steps of a ring.
    opens, closes : bool
        True for the first and for the last step of a ring.
    window : int
        Keys that a query sees in a causal kernel, 0 for every earlier key.
    chunked : bool
        True if windows cut a sequence into chunks, and a query sees the earlier keys of its own chunk.
    capped : bool
        True if a scaled tanh limits the scores, a second exponential per score.
    documents : tuple of int
        Tokens of each document in the sequences together, if queries see keys of their own document alone (packing);
        empty if every sequence is one document. Tokens of no document are padding, without scores.
    """

    name: str
    batch: int
    heads: int
    kv_heads: int
    seq_len: int
    head_dim: int
    causal: bool
    backward: bool
    keys: int | None = None
    summed: bool = False
    opens: bool = False
    closes: bool = False
    window: int = 0
    chunked: bool = False
    capped: bool = False
    documents: tuple[int, ...] = ()

    @property
    def blocks(self) -> Iterator[tuple[int, int, int]]:
        """Blocks of scores that are computed: a number of equal blocks, and the queries and keys of each.

        >>> attention = Attention("packed", 1, 32, 8, 8192, 128, True, False, documents=(2048, 2048, 4096))
        >>> list(attention.blocks)
        [(2, 2048, 2048), (1, 4096, 4096)]
        """
        if not self.documents:
            yield self.batch, self.seq_len, self.attended
        # A ring's other steps have fewer keys than queries, of each document.
        for tokens, count in Counter(self.documents).items():
            yield count, tokens, max(1, tokens * self.attended // self.seq_len)

    def merging(self, *, half: bool = False) -> tuple[Elementwise, ...]:
        """Return the kernels that merge the results of a ring's step with those of earlier steps; none without a ring.

        Forward merges the output and the log-sum-exp of each row, backward the gradients of queries, keys and values. A
        step's own results have two bytes per element.

        Parameters
        ----------
        half : bool
            Whether sums have two bytes per element, too (NVIDIA/TransformerEngine d0067d0da6, context_parallel.py,
            `flash_attn_fwd_out_correction`, one fused kernel each); otherwise they are in float32
            (zhuzilin/ring-flash-attention 899628238f, utils.py, `_update_out_and_lse`, and zigzag_ring_flash_attn.py;
            PyTorch, `_SDPAMerger` with `convert_to_f32`).
        """
        queries = float(self.batch * self.seq_len * self.heads * self.head_dim)
        keys = float(self.batch * self.attended * self.kv_heads * self.head_dim)
        merged = (queries, keys, keys) if self.backward else (queries,)
        width = _HALF if half else _FLOAT32
        kernels: list[Elementwise] = []
        if self.opens:
            what = "first results" if half else "widening"
            kernels += [self._alone(what, _HALF * elements, width * elements) for elements in merged]
        if self.summed:
            total, rows = sum(merged), float(_FLOAT32 * self.batch * self.seq_len * self.heads)
            if not half and not self.backward:
                # A kernel widens a step's output; another one (TorchScript's) merges it.
                kernels.append(self._alone("step widening", _HALF * total, width * total))
            added = _HALF if half or self.backward else width
            kernels.append(self._alone("sum", (width + added) * total, width * total))
            kernels += [] if self.backward else [self._alone("log-sum-exps", 2 * rows, rows)]
        if self.closes and not half:
            # Gradients of keys return home as a whole, whichever part of them the last step computed.
            home = (queries, *(2 * [queries * self.kv_heads / self.heads])) if self.backward else merged
            kernels += [self._alone("narrowing", _FLOAT32 * elements, _HALF * elements) for elements in home]
        return tuple(kernels)

    def _alone(self, what: str, read: float, written: float) -> Elementwise:
        return Elementwise(f"{self.name} {what}", read, written)

    @property
    def attended(self) -> int:
        """Number of keys per sequence in the attention kernel."""
        return self.seq_len if self.keys is None else self.keys

    @property
    def of_weights(self) -> bool:
        """False: attention computes no weight gradients."""
        return False

    @property
    def flops(self) -> float:
        """FLOPs really computed: 4 b h s^2 hd forward, 10 b h s^2 hd backward, half if causal, less with a window
        [FLOP].
        """
        matmuls = 5 if self.backward else 2
        scores = 0.0
        for count, queries, attended in self.blocks:
            keys = keys_of_query(attended, self.window, chunked=self.chunked) if self.causal else attended
            scores += count * queries * keys
        return 2.0 * matmuls * self.heads * scores * self.head_dim

    def nbytes(self, itemsize: float) -> float:
        """Return the bytes of Q, K, V and the output, each moved once, for elements of `itemsize` bytes; backward also
        their gradients [B].
        """
        q = self.batch * self.seq_len * self.heads * self.head_dim
        kv = self.batch * self.attended * self.kv_heads * self.head_dim
        # The last term is the log-sum-exp, a float32 number per row and head.
        once = itemsize * (2 * q + 2 * kv) + 4.0 * self.batch * self.heads * self.seq_len
        # Four tensors, four gradients, and a further array with the queries' size.
        return once if not self.backward else 2 * once + itemsize * q


def keys_of_query(keys: int, window: int = 0, *, chunked: bool = False, diagonal: int = 0) -> float:
    """Return the mean number of keys that a query computes under a causal mask.

    The n-th query has n keys, and at most `window` keys: w (1 - w / 2 s) on average, s / 2 without a window. In chunks
    of w keys the count begins again: w / 2.

    Parameters
    ----------
    keys : int
        Keys of a sequence, s, or tiles of keys.
    window : int
        Largest number of keys of a query, w, or of tiles before the diagonal's tile; 0 for no limit.
    diagonal : int
        1 if whole tiles on the diagonal are computed.

    Examples
    --------
    >>> keys_of_query(8192), keys_of_query(8192, 4096), keys_of_query(8192, 4096, chunked=True)
    (4096.0, 3072.0, 2048.0)

    Tiles of 4 queries with at most one tile before the diagonal's: 1, 2, 2 and 2.

    >>> keys_of_query(4, 1, diagonal=1)
    1.75
    """
    most = min(window or keys, keys)
    if chunked:
        chunks, rest = divmod(keys, most)
        return (chunks * most * (most + diagonal) + rest * (rest + diagonal)) / (2 * keys)
    return (most + diagonal) * (1 - most / (2 * keys))


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A kernel limited by HBM traffic: norms, activations, softmax, dropout, casts, optimizers."""

    name: str
    # `read`, `written`: HBM traffic [B].
    read: float
    written: float
    fusible: bool = False  # True if a compiler would fuse the kernel with its neighbours and remove its traffic
    of_weights: bool = False  # True for weight gradients, which nothing needs before the update
    # Elements that the kernel decodes from four bits with a table. SMs may limit such a kernel before HBM does.
    decoded: float = 0.0
    # Elements that the kernel reads and writes one by one, because of a broadcast, a cast or an order in memory. SMs
    # may limit such a kernel before HBM does.
    scattered: float = 0.0

    @property
    def flops(self) -> float:
        """Floating-point operations of an elementwise kernel: 0, because a matmul has a thousand times more [FLOP]."""
        return 0.0

    def nbytes(self, itemsize: float) -> float:
        """Return the bytes that the kernel reads and writes [B]; the argument `itemsize` has no effect."""
        return self.read + self.written


Kernel = Matmul | Attention | Elementwise


def bytes_written(kernel: Kernel, itemsize: float) -> float:
    """Return the part of a kernel's bytes that it writes, for elements of `itemsize` bytes [B].

    Attention writes its output and the log-sum-exps; backward three gradients, and what it prepares for them.

    >>> bytes_written(Matmul("up", 4, 8, 16), 2), Matmul("up", 4, 8, 16).nbytes(2)
    (64, 448)
    """
    match kernel:
        case Elementwise():
            return kernel.written
        case Matmul():
            return itemsize * kernel.batch * kernel.m * kernel.n
        case Attention():
            queries, keys = (
                itemsize * kernel.batch * count * kernel.head_dim
                for count in (kernel.heads * kernel.seq_len, kernel.kv_heads * kernel.attended)
            )
            sums = float(_FLOAT32) * kernel.batch * kernel.heads * kernel.seq_len
            # Gradients of queries, keys and values, and an array of the queries' size.
            return sums + (2 * queries + 2 * keys if kernel.backward else queries)
