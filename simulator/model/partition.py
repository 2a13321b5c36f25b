"""Which part of a model does a rank compute and hold, with which exchanges, and which numbers of ranks are allowed?

Matrices are cut by tensor parallelism, sequences by context parallelism, experts by expert parallelism. Only sizes are
decided here; ranks and times are unknown.

A layer's pairs of matrices on t tensor-parallel ranks [1]_ [2]_:

    norm -> qkv (columns: 1 / t of the outputs) -> attention (1 / t of the heads) -> proj (rows: 1 / t of the inputs) ->
    +
    norm -> up  (columns)                       -> activation                     -> down (rows)                      ->
    +

Without sequence parallelism, outputs of rows are all-reduced. With it, tokens between the pairs are cut along the
sequence: gather before columns, reduce-scatter after rows.

References
----------
.. [1] Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model parallelism", 2019.
.. [2] Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023, section 4.2.
.. [3] NVIDIA/Megatron-LM, core/transformer/transformer_config.py: cp_comm_type.
.. [4] Jacobs et al., "DeepSpeed Ulysses", 2023, arXiv:2309.14509.
.. [5] Liu, Zaharia & Abbeel, "Ring attention with blockwise transformers", 2023, arXiv:2310.01889.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from simulator.basics.dtypes import find
from simulator.model.expert_partition import ExpertPartition
from simulator.model.shape import Transformer

# Megatron-LM's default for make-vocab-size-divisible-by.
_ROWS_TOGETHER: Final = 128
Overlap = Literal["none", "ring_exchange", "bulk"]


@dataclass(frozen=True, slots=True)
class Context:
    """How context-parallel ranks cut sequences, and how attention sees every key [3]_.

    Attributes
    ----------
    ulysses : int
        Ranks that exchange heads for tokens, so that each has every token of a part of the heads [4]_.
    ring : int
        Groups of such ranks; keys and values travel round a ring of groups [5]_, or are gathered.
    """

    ulysses: int = 1
    ring: int = 1
    gathers: bool = False  # if True, keys and values are gathered
    # If True, each group has an early and a late piece of the sequence, which equalises work under a causal mask
    balanced: bool = True
    place: int = 0  # place of this rank's group in the ring; matters only if not balanced

    @property
    def ranks(self) -> int:
        """Number of context-parallel ranks, c."""
        return self.ulysses * self.ring

    @property
    def uneven(self) -> bool:
        """True if context-parallel ranks at different places in a sequence have different work."""
        return self.ring > 1 and not self.balanced


ONE_PIECE: Final = Context()
ONE_PLACE: Final = ExpertPartition()


@dataclass(frozen=True, slots=True)
class ModelPartition:
    """How a model is cut over ranks."""

    tensor: int = 1  # tensor-parallel ranks, t: the first matrix of a pair is cut by columns, the second by rows
    # If True, activations between pairs (norms, dropout, the residual stream) are cut along the sequence [2]_.
    sequence: bool = False
    context: Context = ONE_PIECE  # context parallelism
    experts: ExpertPartition = ONE_PLACE  # expert parallelism
    # Way of hiding tensor-parallel exchanges behind matmuls with user buffers; see overlap.py.
    overlap: Overlap = "none"
    # Dtype in which inputs and output gradients of layers' matrices are gathered; None: the activations' dtype
    gather_dtype: str | None = None

    def gathered(self, elements: int) -> tuple[int, str | None]:
        """Return the number of elements that are gathered for a matrix's `elements`, and their dtype: elements of less
        than a byte travel as bytes, with their scales.

        Two elements of four bits make a byte, and 16 have a scale of a byte: 9 bytes for 16 elements.

        >>> ModelPartition(gather_dtype="float4_e2m1fn").gathered(32)
        (18, 'float8_e4m3fn')
        """
        if self.gather_dtype is None:
            return elements, None
        dtype = find(self.gather_dtype, stored=False)
        if dtype.itemsize or dtype.matmul is None:
            return elements, self.gather_dtype
        return math.ceil(dtype.matmul.cast_bytes * elements), "float8_e4m3fn"

    @property
    def experts_apart(self) -> bool:
        """True if experts have another process group than the rest of a layer."""
        return self.experts.ranks > 1 or self.experts.tensor != self.tensor

    @property
    def along_sequence(self) -> int:
        """Number of tensor-parallel ranks that share a sequence between matrices (sequence parallelism)."""
        return self.tensor if self.sequence else 1

    def vocabulary(self, model: Transformer) -> int:
        """Return the number of rows in the token table, padded if ranks cut the table.

        >>> from simulator.model.load import load_model
        >>> [ModelPartition(tensor).vocabulary(load_model("gpt2")) for tensor in (1, 2, 8)]
        [50257, 50432, 51200]
        """
        together = _ROWS_TOGETHER * self.tensor
        return model.vocab_size if self.tensor == 1 else -(-model.vocab_size // together) * together

    def kv_heads(self, model: Transformer) -> int:
        """Return the number of key (or value) heads on a tensor-parallel rank: at least one, which several ranks may
        share.
        """
        return max(1, model.num_kv_heads // self.tensor)

    def gathers_queries(self, model: Transformer) -> bool:
        """Return True if the model has fewer key heads than tensor-parallel ranks; the output of the qkv matrix is then
        gathered.
        """
        return model.num_kv_heads < self.tensor


WHOLE: Final = ModelPartition()


@dataclass(frozen=True, slots=True)
class Communication:
    """An exchange among model-parallel ranks during an operation of the model.

    Attributes
    ----------
    operation : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift"}
        A ring shift sends each rank's array to the next rank.
    group : {"tensor", "context", "context ring", "experts", "experts node", "experts rail", "expert tensor"}
        Process group: tensor-parallel ranks; ranks that exchange heads for tokens (Ulysses); ranks of a context ring;
        expert-parallel ranks, those of a node, and those at equal places of the nodes; ranks that cut an expert's
        matrices.
    """

    name: str  # name of the exchange; numerics uses the same names
    operation: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "ring_shift"]
    elements: int  # elements of the whole array; for all_to_all, elements on each rank
    backward: bool  # True in the backward pass
    before: int  # index of the kernel before which the exchange starts; the number of kernels if after the last
    # Index of the kernel that waits for the exchange; the number of kernels for the next operation's first kernel
    awaited: int
    dtype: str | None = None  # None: the activations' dtype
    group: Literal["tensor", "context", "context ring", "experts", "experts node", "experts rail", "expert tensor"] = (
        "tensor"
    )
    # Streaming multiprocessors that the exchange takes from concurrent kernels; None: a library collective's number
    sms: int | None = None


def around_columns(
    name: str, elements: int, cut: ModelPartition, inputs: int, kernels: int, *, again: bool = True
) -> tuple[Communication, ...]:
    """Return the exchanges for a linear layer with a matrix cut by columns over tensor-parallel ranks; its input has
    `elements` elements.

    `kernels` is the number of its backward kernels, of which the first `inputs` compute the input's gradient. Without
    sequence parallelism the input is whole, and its gradient is all-reduced during the weight gradient. With sequence
    parallelism:

        forward             gather input, then the matmul
        backward kernels    [input gradient    ][weight gradient       ]
        backward exchanges  [gather input again][scatter input gradient]

    If not `again`, each rank has kept the whole input for the weight gradient.
    """
    return tuple(_around_columns(name, elements, cut, inputs, kernels, again=again)) if cut.tensor > 1 else ()


def _around_columns(
    name: str, elements: int, cut: ModelPartition, inputs: int, kernels: int, *, again: bool
) -> Iterator[Communication]:
    """Yield the exchanges for a linear layer with a matrix cut by columns over at least 2 tensor-parallel ranks."""
    if not cut.sequence:
        # Starts after the input gradient, runs beside the weight gradient, awaited by the next operation.
        yield Communication(f"sum {name} input gradient", "all_reduce", elements, True, inputs, kernels)
        return
    gathered, dtype = cut.gathered(elements)
    yield Communication(f"gather {name} input", "all_gather", gathered, False, 0, 0, dtype)
    # Only this rank's tokens were saved; a weight gradient needs every token. A frozen matrix has none.
    if again and kernels > inputs:
        yield Communication(f"gather {name} input again", "all_gather", gathered, True, 0, inputs, dtype)
    yield Communication(f"scatter {name} input gradient", "reduce_scatter", elements, True, inputs, kernels)


def around_rows(name: str, elements: int, cut: ModelPartition, kernels: int = 1) -> tuple[Communication, ...]:
    """Return the exchanges for a linear layer with a matrix cut by rows over ranks: its output of `elements` is
    all-reduced, or reduce-scattered, after its `kernels` forward kernels.
    """
    if cut.tensor == 1:
        return ()
    if not cut.sequence:
        # Without sequence parallelism the backward pass needs no exchange: every rank has the whole output gradient.
        return (Communication(f"sum {name} output", "all_reduce", elements, False, kernels, kernels),)
    gathered, dtype = cut.gathered(elements)
    return (
        Communication(f"scatter {name} output", "reduce_scatter", elements, False, kernels, kernels),
        Communication(f"gather {name} output gradient", "all_gather", gathered, True, 0, 0, dtype),
    )


def refusal(model: Transformer, cut: ModelPartition, seq_len: int) -> str:
    """Return a sentence telling why a model cannot be cut over this number of tensor-parallel ranks; "" if possible."""
    t = cut.tensor
    sizes = {"heads": model.num_heads}
    # Every size that is cut must divide evenly; experts' widths have a separate check (expert_tensor_refusal).
    if not model.num_experts:
        sizes["feed-forward width"] = model.ffn_size
    elif model.expert_layers < model.num_layers:
        sizes["feed-forward width of dense layers"] = model.dense_ffn_size
    if model.shared_experts:
        sizes["feed-forward width of shared experts"] = model.shared_experts * model.ffn_size
    if model.mamba is not None:
        sizes |= {"heads of Mamba-2": model.mamba.heads, "groups of Mamba-2": model.mamba.groups}
    if cut.sequence:
        sizes["tokens of a sequence"] = seq_len // cut.context.ranks
    for name, size in sizes.items():
        if size % t:
            return f"got {t}; must divide the {size} {name} of {model.name}: {divisors(size)}"
    # Fewer key heads than ranks are fine if several ranks share a head evenly.
    if model.num_kv_heads % t and t % model.num_kv_heads:
        return f"got {t}; must divide the {model.num_kv_heads} heads of keys of {model.name}, or be a multiple of them"
    return ""


def context_refusal(model: Transformer, cut: ModelPartition, seq_len: int) -> str:
    """Return a sentence telling why context-parallel ranks cannot cut sequences of `seq_len` tokens this way; "" if
    possible.
    """
    context = cut.context
    if context.ranks > 1 and model.mamba is not None:
        return f"got {context.ranks}; context-parallel ranks cannot cut the scans of {model.name} yet; write 1"
    # A balanced ring deals out two pieces per rank.
    pieces = context.ranks * (2 if context.balanced and context.ring > 1 else 1)
    if seq_len % pieces:
        return f"got {context.ranks}; sequences of {seq_len} tokens cannot be cut into {pieces} pieces"
    # Transformer Engine allows windows with gathered keys and with Ulysses only (`attn_forward_func_with_cp`).
    if context.ring > 1 and not (context.gathers and context.balanced) and any(0 < w < seq_len for w in model.windows):
        most = max(model.windows)
        return (
            f"got a ring of {context.ring}; layers of {model.name} have windows of {most} tokens, which a ring of keys "
            "does not support; write context: ulysses, or all_gather in the balanced order"
        )
    for name, heads in (("heads", model.num_heads), ("heads of keys", cut.kv_heads(model) * cut.tensor)):
        if (heads // cut.tensor) % context.ulysses:
            each = f" that each of {cut.tensor} tensor-parallel ranks has" if cut.tensor > 1 else ""
            of_rank = heads // cut.tensor
            return f"got ulysses {context.ulysses}; must divide the {of_rank} {name}{each}: {divisors(of_rank)}"
    return ""


def experts_refusal(model: Transformer, cut: ModelPartition, ranks: int | None = None) -> str:
    """Return a sentence telling why a model's experts cannot be distributed over this number of ranks; "" if
    possible.

    The sentence lists numbers that divide the experts; with `ranks`, the ranks of a stage that share them, only those
    that divide `ranks` as well.
    """
    e = cut.experts.ranks
    if e > 1 and not model.num_experts:
        return f"got {e}; {model.name} has no experts; leave it at 1"
    if model.num_experts % e:
        also = "" if ranks is None else f" and the {ranks} ranks of a stage"
        fits = divisors(model.num_experts if ranks is None else math.gcd(model.num_experts, ranks), e)
        return f"got {e}; must divide the {model.num_experts} experts of {model.name}{also}: {fits}"
    return ""


def expert_tensor_refusal(model: Transformer, cut: ModelPartition) -> str:
    """Return a sentence telling why the matrices of a model's experts cannot be cut over this number of ranks; "" if
    possible.
    """
    t = cut.experts.tensor
    if model.num_experts and model.ffn_size % t:
        return f"got {t}; must divide the {model.ffn_size} feed-forward width of {model.name}'s experts: " + divisors(
            model.ffn_size
        )
    return ""


def divisors(size: int, near_to: int = 0) -> str:
    """Return the divisors of a size up to 64 as text, and the two around a given number that is none.

    >>> divisors(32, 12)
    '1, 2, 4, 8, 16, 32; nearest: 8, 16'
    """
    numbers = [n for n in range(1, max(64, min(size, 2 * near_to)) + 1) if size % n == 0]
    near = [*[n for n in numbers if n < near_to][-1:], *[n for n in numbers if n > near_to][:1]] if near_to else []
    listed = ", ".join(str(n) for n in numbers if n <= 64)
    return f"{listed}; nearest: {near[0]}, {near[1]}" if len(near) == 2 else listed
