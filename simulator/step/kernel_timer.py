"""How long do a step's kernels take on its GPU, with no collective in flight and beside a collective?

The timer adds the step's settings (dtypes, framework, compiler) to a bare kernel's time; it knows no unit and no
sharding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.dtypes import find, is_narrow
from simulator.cluster.cluster import Gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.records.operation import KernelParts
from simulator.step.kernels.contention import left_by_user_buffers
from simulator.step.kernels.framework_operations import block_scaled, narrow_casts
from simulator.step.kernels.kernel_time import communication_sms, duration, elementwise_share
from simulator.step.spec import TrainingStep

_KINDS: Final = {Matmul: "matmul", Attention: "attention", Elementwise: "elementwise"}


@dataclass(frozen=True, slots=True)
class KernelCost:
    """Cost of kernels run in sequence on a GPU."""

    # `alone`, `contended`: Duration without collectives, and with a collective in flight all the time [s].
    alone: float
    contended: float
    # `flops`, `nbytes`: Operations [FLOP] and HBM traffic [B].
    flops: float
    nbytes: float
    launches: int = 0  # kernels issued by the host
    parts: KernelParts = ()  # kinds of kernels, each with its part of `alone` [s]
    host: float = 0.0  # time of the host to issue them [s]

    def __add__(self, other: KernelCost) -> KernelCost:
        """Return the added costs for running both sets of kernels in sequence."""
        return KernelCost(
            self.alone + other.alone,
            self.contended + other.contended,
            self.flops + other.flops,
            self.nbytes + other.nbytes,
            self.launches + other.launches,
            in_sequence([*self.parts, *other.parts]),
            self.host + other.host,
        )

    def times(self, count: float) -> KernelCost:
        """Return the cost of running the kernels `count` times in sequence, or of a share of their work."""
        return KernelCost(
            count * self.alone,
            count * self.contended,
            count * self.flops,
            count * self.nbytes,
            math.ceil(count * self.launches),
            tuple((kind, count * seconds) for kind, seconds in self.parts),
            count * self.host,
        )


@dataclass(frozen=True, slots=True)
class _Contention:
    """Resources that a collective in flight leaves: number of SMs taken, and the share of HBM bandwidth left."""

    sms_taken: int
    hbm_left: float


_NO_CONTENTION: Final = _Contention(0, 1.0)


@dataclass(frozen=True, slots=True)
class KernelTimer:
    """Computes durations and costs of kernels on a GPU, under a training step's dtypes, framework and compiler."""

    gpu: Gpu
    step: TrainingStep
    hbm_left: float = 1.0  # share of HBM bandwidth that a collective in flight leaves to kernels

    def cost(self, kernels: Iterable[Kernel], sms_taken: int | None = None) -> KernelCost:
        """Return the cost of kernels in sequence, alone and beside a collective on `sms_taken` SMs (default: the SMs of
        the library's collectives); exchanges through user buffers alone have a number of their own.
        """
        contention, total = self._contention, KernelCost(0.0, 0.0, 0.0, 0.0)
        if sms_taken is not None:
            left = left_by_user_buffers(contention.hbm_left)
            contention = _Contention(min(sms_taken, self.gpu.sms - 1), left)
        size = find(self.step.precision.params).itemsize
        parts = []
        for kernel in with_merging(kernels, half=self.step.framework.kernels.half_rings):
            seconds = self._duration(kernel, _NO_CONTENTION)
            contended = self._duration(kernel, contention)
            # The host does not issue kernels that a compiler has merged.
            total += KernelCost(seconds, contended, kernel.flops, kernel.nbytes(size), int(seconds > 0.0))
            parts.append((_KINDS[type(kernel)], seconds))
        return replace(total, parts=in_sequence(parts), host=self.step.framework.host.issue * total.launches)

    def seconds(self, kernel: Kernel, sms_taken: int = 0, hbm_left: float = 1.0) -> float:
        """Return a kernel's duration [s] while `sms_taken` SMs are taken and the share `hbm_left` of HBM bandwidth is
        left.
        """
        return self._duration(kernel, _Contention(sms_taken, hbm_left))

    @property
    def launch(self) -> float:
        """Launch overhead of a kernel [s]."""
        return self.seconds(Elementwise("nothing", 0.0, 0.0))

    def copies(self, nbytes: float) -> KernelCost:
        """Return the cost of plain memory copies that read and write `nbytes` bytes in total."""
        kernel = Elementwise("copies", nbytes / 2, nbytes / 2)
        # Copies are limited by bandwidth, not by SMs.
        contention = replace(self._contention, sms_taken=0)
        seconds = self._bare(kernel, _NO_CONTENTION)
        return KernelCost(
            seconds, self._bare(kernel, contention), 0.0, nbytes, parts=in_sequence([(_KINDS[Elementwise], seconds)])
        )

    def one_pass(self, name: str, read: float, written: float) -> KernelCost:
        """Return the cost of an elementwise kernel that reads `read` bytes and writes `written` bytes."""
        return self.cost([Elementwise(name, read, written)])

    def streamed(self, name: str, nbytes: float, launches: int) -> KernelCost:
        """Return the cost of `launches` elementwise kernels with `nbytes` bytes of HBM traffic in total, without a
        framework's slowdown.
        """
        share = elementwise_share(self.gpu)
        kernel, nothing = (Elementwise(name, count, 0.0) for count in (nbytes, 0.0))
        seconds, contended = (
            (self._bare(kernel, beside) + (launches - 1) * self._bare(nothing, beside)) / share
            for beside in (_NO_CONTENTION, self._contention)
        )
        parts = in_sequence([(_KINDS[Elementwise], seconds)])
        return KernelCost(seconds, contended, 0.0, nbytes, launches, parts, self.step.framework.host.issue * launches)

    def bytes_left(self, kernel: Kernel) -> float:
        """Return the share of a kernel's bytes that moves through HBM: below 1 if a compiler merges the kernel."""
        merged = self.step.keys.compile and isinstance(kernel, Elementwise) and kernel.fusible
        return min(self.step.framework.kernels.compiled, 1.0) if merged else 1.0

    @property
    def _contention(self) -> _Contention:
        """SMs that a communication library's collective takes, and the share of HBM bandwidth that it leaves."""
        return _Contention(communication_sms(self.gpu), self.hbm_left)

    def _duration(self, kernel: Kernel, contention: _Contention) -> float:
        """Return a kernel's duration [s] under contention, with the framework's overheads and the sustained load."""
        framework = self.step.framework
        if isinstance(kernel, Elementwise):
            share = elementwise_share(self.gpu)
            # Merged kernels still move the group's inputs and outputs: `compiled` is their share of the separate
            # traffic.
            if self.step.keys.compile and kernel.fusible:
                return framework.kernels.compiled / share * self._bare(replace(kernel, fusible=False), contention)
            return self._bare(kernel, contention) / share
        if isinstance(kernel, Attention):
            seconds = self._bare(kernel, contention)
            # Some frameworks' kernels compute part of the masked scores.
            if kernel.causal and framework.kernels.attention_masked:
                unmasked = self._bare(replace(kernel, causal=False), contention)
                seconds += framework.kernels.attention_masked * (unmasked - seconds)
            return framework.attention_time(self.gpu) * seconds
        # A matmul with a dtype of its own needs no casts.
        if kernel.dtype is not None:
            return framework.matmul_time(self.gpu, kernel.dtype) * self._bare(kernel, contention)
        slower = framework.matmul_time(self.gpu, self.step.precision.matmul) * self._scaled(kernel)
        return slower * self._bare(kernel, contention) + self._casts(kernel, contention)

    def _scaled(self, kernel: Matmul) -> float:
        """Return a matmul's duration with the step's scales of eight-bit inputs, relative to one scale a tensor."""
        precision = self.step.precision
        # The scales of four-bit inputs are part of their format.
        if find(precision.matmul, stored=False).bits != 8 or precision.scaling == "tensor":
            return 1.0
        return self.step.framework.kernels.row_scaled if precision.scaling == "row" else block_scaled(kernel)

    def _casts(self, kernel: Matmul, contention: _Contention) -> float:
        """Return the time to cast a matmul's operands to 8 or 4 bits [s]; 0 for wider dtypes and 8-bit parameters."""
        precision = self.step.precision
        if not is_narrow(precision.matmul) or is_narrow(precision.params):
            return 0.0
        once = self.step.framework.kernels.casts_once
        # Transformer Engine casts the tokens of each expert by a kernel of their own (csrc/extensions/cast.cpp,
        # split_quantize; recalled).
        each, times = (replace(kernel, batch=1), kernel.batch) if once and kernel.kind == "grouped" else (kernel, 1)
        casts = narrow_casts(each, precision.matmul, once=once)
        # Casts are memory-bound.
        return times * self._bare(casts, replace(contention, sms_taken=0)) if casts.read else 0.0

    def _bare(self, kernel: Kernel, contention: _Contention) -> float:
        """Return a kernel's duration under contention [s], with `kernel_time` alone of the framework's overheads."""
        precision = self.step.precision
        # Only linear maps use eight or four bits; attention keeps the activations' dtype.
        wide = isinstance(kernel, Elementwise) or (isinstance(kernel, Attention) and is_narrow(precision.matmul))
        dtype = kernel.dtype if isinstance(kernel, Matmul) else None
        generation = self.step.keys.attention_generation
        return self.step.framework.kernel_time * duration(
            kernel,
            self.gpu,
            dtype or (precision.params if wide else precision.matmul),
            sms_taken=contention.sms_taken,
            hbm_share=contention.hbm_left,
            attention_generation=None if generation == "auto" else generation,
            compiled=self.step.keys.compile,
            blocks=precision.scaling == "block",
            # A cast in both orders leaves nothing to copy.
            ordered=self.step.framework.kernels.casts_once,
        )


def in_sequence(parts: Iterable[tuple[str, float]]) -> KernelParts:
    """Return kinds of kernels with seconds, in order: neighbours of a kind as a single part, no part without duration.

    >>> in_sequence([("matmul", 1.0), ("matmul", 2.0), ("attention", 0.0), ("matmul", 0.5)])
    (('matmul', 3.5),)
    """
    runs: list[tuple[str, float]] = []
    for kind, seconds in parts:
        if runs and runs[-1][0] == kind:
            runs[-1] = kind, runs[-1][1] + seconds
        elif seconds > 0.0:
            runs.append((kind, seconds))
    return tuple(runs)


def with_merging(kernels: Iterable[Kernel], *, half: bool) -> Iterator[Kernel]:
    """Yield kernels in sequence; the kernels that merge a step of ring attention follow the step's kernel (`half`: see
    `Attention.merging`).
    """
    for kernel in kernels:
        yield kernel
        if isinstance(kernel, Attention):
            yield from kernel.merging(half=half)
