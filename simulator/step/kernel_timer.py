"""How long a step's kernels take on its GPU, with nothing in flight and while a collective is in flight.

Rule: puts the step's settings (dtypes, framework, compiler) on top of a bare kernel's time; knows no unit and no
sharding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.step.kernels.framework_operations import eight_bit_casts
from simulator.step.kernels.kernel_time import communication_sms, duration, elementwise_share
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class KernelCost:
    """What kernels that run one after the other cost on one GPU.

    Attributes
    ----------
    alone, contended : float
        How long they take with no collective in flight, and with one in flight all the time [s].
    flops, nbytes : float
        [FLOP], [B]
    launches : int
        Kernels that the host issues.
    """

    alone: float
    contended: float
    flops: float
    nbytes: float
    launches: int = 0

    def __add__(self, other: KernelCost) -> KernelCost:
        return KernelCost(
            self.alone + other.alone,
            self.contended + other.contended,
            self.flops + other.flops,
            self.nbytes + other.nbytes,
            self.launches + other.launches,
        )


@dataclass(frozen=True, slots=True)
class _Contention:
    """SMs that a collective in flight takes, and the share of HBM bandwidth that it leaves."""

    sms_taken: int
    hbm_left: float


_NO_CONTENTION: Final = _Contention(0, 1.0)


@dataclass(frozen=True, slots=True)
class KernelTimer:
    """Times kernels on one GPU under one step's settings.

    Attributes
    ----------
    gpu : Gpu
    step : TrainingStep
    hbm_left : float
        Share of HBM bandwidth that a collective in flight leaves to kernels.
    """

    gpu: Gpu
    step: TrainingStep
    hbm_left: float = 1.0

    def cost(self, kernels: Iterable[Kernel], sms_taken: int | None = None) -> KernelCost:
        """Kernels one after the other; a collective beside them takes so many SMs, or as many as a library's."""
        contention, total = self._contention, KernelCost(0.0, 0.0, 0.0, 0.0)
        if sms_taken is not None:
            contention = replace(contention, sms_taken=min(sms_taken, self.gpu.sms - 1))
        size = find(self.step.precision.params).itemsize
        for kernel in kernels:
            alone = self._duration(kernel, _NO_CONTENTION)
            contended = self._duration(kernel, contention)
            # What a compiler has merged into another kernel is not issued.
            total += KernelCost(alone, contended, kernel.flops, kernel.nbytes(size), int(alone > 0.0))
        return total

    def seconds(self, kernel: Kernel, sms_taken: int = 0, hbm_left: float = 1.0) -> float:
        """One kernel's time where others hold so many SMs, or leave such a share of HBM's bandwidth [s]."""
        return self._duration(kernel, _Contention(sms_taken, hbm_left))

    @property
    def launch(self) -> float:
        """What every kernel takes to begin and to end [s]."""
        return self.seconds(Elementwise("nothing", 0.0, 0.0))

    def copies(self, nbytes: float) -> KernelCost:
        """Plain copies of so many bytes, read and written together [B]."""
        kernel = Elementwise("copies", nbytes / 2, nbytes / 2)
        # A copy asks for bandwidth, not for SMs.
        contention = replace(self._contention, sms_taken=0)
        return KernelCost(self._bare(kernel, _NO_CONTENTION), self._bare(kernel, contention), 0.0, nbytes)

    def one_pass(self, name: str, read: float, written: float) -> KernelCost:
        """One elementwise kernel that reads and writes so many bytes of HBM [B]."""
        return self.cost([Elementwise(name, read, written)])

    def streamed(self, name: str, nbytes: float, launches: int) -> KernelCost:
        """Return the cost of kernels that read and write `nbytes` of HBM in all [B], without a framework's slowdown."""
        share = elementwise_share(self.gpu)
        kernel, nothing = (Elementwise(name, count, 0.0) for count in (nbytes, 0.0))
        alone, contended = (
            (self._bare(kernel, beside) + (launches - 1) * self._bare(nothing, beside)) / share
            for beside in (_NO_CONTENTION, self._contention)
        )
        return KernelCost(alone, contended, 0.0, nbytes, launches)

    @property
    def _contention(self) -> _Contention:
        return _Contention(communication_sms(self.gpu), self.hbm_left)

    def _duration(self, kernel: Kernel, contention: _Contention) -> float:
        """A kernel's time with what the framework and the chip's sustained load make of it [s]."""
        framework = self.step.framework
        if isinstance(kernel, Elementwise):
            share = elementwise_share(self.gpu)
            if self.step.compiled and kernel.fusible:
                return framework.compiled / share * self._bare(replace(kernel, fusible=False), contention)
            return framework.elementwise / share * self._bare(kernel, contention)
        if isinstance(kernel, Attention):
            seconds = self._bare(kernel, contention)
            if kernel.causal and framework.attention_masked:
                whole = self._bare(replace(kernel, causal=False), contention)
                seconds += framework.attention_masked * (whole - seconds)
            return seconds
        return framework.matmul_time(self.gpu) * self._bare(kernel, contention) + self._casts(kernel, contention)

    def _casts(self, kernel: Matmul, contention: _Contention) -> float:
        """Time to bring operands to eight bits, where the matmul takes them so and activations do not [s]."""
        precision = self.step.precision
        if not is_eight_bit(precision.matmul) or is_eight_bit(precision.params):
            return 0.0
        casts = eight_bit_casts(kernel, once=self.step.framework.casts_once)
        return self._bare(casts, replace(contention, sms_taken=0)) if casts.read else 0.0

    def _bare(self, kernel: Kernel, contention: _Contention) -> float:
        precision = self.step.precision
        # Eight bits are for the layers' linear maps; attention keeps the activations' dtype.
        wide = isinstance(kernel, Elementwise) or (isinstance(kernel, Attention) and is_eight_bit(precision.matmul))
        return duration(
            kernel,
            self.gpu,
            precision.params if wide else precision.matmul,
            sms_taken=contention.sms_taken,
            hbm_share=contention.hbm_left,
            attention_generation=self.step.attention_generation,
            compiled=self.step.compiled,
            sustained=bool(self.step.framework.sustained),
        )


def is_eight_bit(dtype: str) -> bool:
    """Whether numbers of a dtype take one byte."""
    return find(dtype, stored=False).itemsize == 1
