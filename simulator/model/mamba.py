"""The Mamba-2 block of a layer, operation by operation: first matrix, convolution and scan, second matrix.

Only counts (FLOPs, bytes, saved tensors), as in operation.py. The scan is a product of matrices inside chunks of Q
tokens, and passes a state of P x N numbers per head from chunk to chunk [1]_:

    first matrix -> z, x, B, C, dt
    x, B, C      -> causal convolution of each channel, SiLU
    chunk states    x^T B, of Q tokens                                          2 Q P N FLOP per chunk and head
    passing         states of all earlier chunks                                limited by HBM
    chunk products  C B^T, for every pair of a chunk's tokens                   2 Q Q N FLOP per chunk and group
    chunk scan      C states + (decayed C B^T) x                                2 Q P (N + Q) FLOP per chunk and head
    gated norm      norm(y SiLU(z)) -> second matrix

Convolution, scan and norm are a single function of autograd, which saves its input, the scan's output and the norm's
statistics. Its backward pass computes everything else again [2]_. Each kernel reads and writes its arrays once.

References
----------
.. [1] Dao & Gu, "Transformers are SSMs", 2024, arXiv:2405.21060, section 6.
.. [2] state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py: MambaSplitConv1dScanCombinedFn,
   _mamba_chunk_scan_combined_fwd and _mamba_chunk_scan_combined_bwd, in the order of their kernels. Small kernels that
   turn and add arrays with a number per token and head are neglected.
.. [3] NVIDIA/Megatron-LM, megatron/core/ssm/mamba_mixer.py: the first matrix is cut by columns, the second by rows, and
   a tensor-parallel rank has a part of the heads and of the groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, cast

from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.operation import Batch, Operation, Saved, columns, rows
from simulator.model.programs.bare import Parts, saved_as
from simulator.model.programs.tape import Array
from simulator.model.shape import Mamba

_FLOAT32: Final = 4  # bytes of an element [B]
_HALF: Final = 2


def mamba_block(parts: Parts, hidden: Array) -> Array:
    """Return the output of a layer's Mamba-2 mixer, without norm and residual addition [3]_."""
    model, batch = parts.model, parts.batch.stream
    sizes = cast("Mamba", model.mamba)
    here = sizes.over(batch.cut.tensor)
    first = columns("mamba in", sizes.projected, model.hidden_size, batch, saved_as(hidden), bias=False)
    (projected,) = parts.run(first, [hidden], [parts.inside(here.projected)])
    del hidden
    # Matrix units take operands of two bytes as they are; with wider operands the step's dtype counts.
    dtype = ("float16" if batch.float16 else projected.dtype) if batch.itemsize == _HALF else None
    scan = _Scan(here, batch, dtype).operation(saved_as(projected))
    (scanned,) = parts.run(scan, [projected], [parts.inside(here.inner)])
    del projected
    second = rows("mamba out", model.hidden_size, sizes.inner, batch, saved_as(scanned), bias=False)
    return parts.run(second, [scanned], [parts.between(model.hidden_size)])[0]


@dataclass(frozen=True, slots=True)
class _Scan:
    """Convolution, scan and gated norm of a rank's heads on a micro-batch."""

    sizes: Mamba
    batch: Batch
    dtype: str | None  # dtype of the products' operands

    def operation(self, projected: Saved) -> Operation:
        """Return the operation, whose input `projected` is saved."""
        # Arrays [B]: x; B or C; all that is convolved; step sizes or sums of their decays; states and products of a
        # chunk's tokens in float32; states in the activations' dtype; statistics of a norm per group.
        sizes, batch, item = self.sizes, self.batch, self.batch.itemsize
        x, b = (item * batch.tokens * width for width in (sizes.inner, sizes.groups * sizes.state))
        convolved, decays = x + 2 * b, _FLOAT32 * batch.tokens * sizes.heads
        states = _FLOAT32 * self._chunks * sizes.inner * sizes.state
        pairs = _FLOAT32 * self._chunks * sizes.groups * sizes.chunk**2
        narrow, statistics = item * states // _FLOAT32, _FLOAT32 * batch.tokens * sizes.groups
        # Forward, the states enter the scan in the activations' dtype.
        convolution, cumsum, state, product = self._begin(x, b, decays, states, pairs)
        scan = self._product("chunk scan", "QP", sizes.state + sizes.chunk, pairs + 2 * x + b + 2 * decays + narrow)
        norm = _moved("gated norm", 2 * x, x + statistics)
        saved = projected, Saved("scan output", x, "mamba scan"), Saved("scan statistics", statistics, "mamba scan")
        started = convolved + 2 * decays
        return Operation(
            "mamba scan",
            (convolution, cumsum, state, _moved("state passing", states, narrow), product, scan, norm),
            (
                _moved("gated norm gradient", 3 * x + statistics, 2 * x),
                convolution, cumsum, product, state,
                *self._gradients(x, b, decays, states, pairs, narrow),
                _moved("convolution gradient", 2 * convolved, convolved),
            ),
            saved,
            x,
            forward_peak=started + narrow + max(states, pairs + x, 2 * x + statistics),
            # The gradients of input, convolved channels and scan, beside states and their gradients in both dtypes.
            backward_peak=projected.nbytes + started + convolved + x + pairs + 2 * (states + narrow),
        )  # fmt: skip

    @property
    def _chunks(self) -> int:
        """Number of chunks of all sequences together."""
        return self.batch.sequences * -(-self.batch.seq_len // self.sizes.chunk)

    def _begin(self, x: int, b: int, decays: int, states: int, pairs: int) -> tuple[Kernel, ...]:
        """Return the kernels that both passes begin with: convolution, decays, chunk states and chunk products."""
        step_sizes = decays * self.batch.itemsize // _FLOAT32
        return (
            _moved("convolution", x + 2 * b, x + 2 * b),
            _moved("chunk cumsum", step_sizes, 2 * decays),
            self._product("chunk state", "PN", self.sizes.chunk, x + b + 2 * decays + states),
            self._product("chunk product", "QQ", self.sizes.state, 2 * b + pairs, groups=True),
        )

    def _gradients(self, x: int, b: int, decays: int, states: int, pairs: int, narrow: int) -> tuple[Kernel, ...]:
        """Return the scan's backward kernels after those that repeat the forward pass."""
        sizes, item = self.sizes, self.batch.itemsize
        step_sizes, wide = decays * item // _FLOAT32, b * _FLOAT32 // item
        return (
            _moved("state passing", states, states),
            self._product("chunk scan states gradient", "PN", sizes.chunk, x + b + decays + states),
            _moved("state passing gradient", 2 * states, 2 * narrow),
            self._product(
                "chunk scan x gradient", "QP", sizes.state + sizes.chunk, 3 * x + b + 3 * decays + pairs + narrow
            ),
            self._product("chunk state B gradient", "QN", sizes.head_dim, x + b + 3 * decays + narrow + wide),
            self._product("chunk scan C gradient", "QN", sizes.head_dim, x + b + 2 * decays + narrow + wide),
            self._product("chunk product gradient", "QQ", sizes.head_dim, 2 * x + 2 * decays + pairs),
            self._product("B gradient", "QN", sizes.chunk, 2 * b + pairs + wide, groups=True),
            self._product("C gradient", "QN", sizes.chunk, 2 * b + pairs + wide, groups=True),
            self._product("decays gradient", "QQ", sizes.head_dim, 2 * x + 3 * decays + pairs),
            _moved("chunk cumsum gradient", 2 * decays + step_sizes, step_sizes),
        )

    def _product(self, name: str, shape: str, k: int, nbytes: int, *, groups: bool = False) -> Matmul:
        """Return the kernel of a product for each chunk and head (or group), with an output of the shape that two
        letters name, which moves `nbytes` bytes: heads of a group share B and C.
        """
        sizes = self.sizes
        m, n = ({"Q": sizes.chunk, "P": sizes.head_dim, "N": sizes.state}[letter] for letter in shape)
        batch = self._chunks * (sizes.groups if groups else sizes.heads)
        shared = batch * (m * k + k * n + m * n) - nbytes // self.batch.itemsize
        return Matmul(f"mamba {name}", m, n, k, batch, dtype=self.dtype, reread=shared)


def _moved(name: str, read: int, written: int) -> Elementwise:
    return Elementwise(f"mamba {name}", read, written)
