"""How long a kernel takes on a GPU.

Rule: the one door from a kernel's counts to seconds; constants come from the GPU's catalog file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from simulator.basics import dtypes
from simulator.cluster.cluster import Gpu
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.step.kernels.attention_time import AttentionConstants, Generation, attention_time
from simulator.step.kernels.kernel_model import Constant, KernelModel, kernel_model, sm_rate
from simulator.step.kernels.matmul_time import MatmulConstants, matmul_time

__all__ = ["Constant", "KernelModel", "communication_sms", "duration", "kernel_model"]

# For a GPU whose file is silent: an A100's 192 KiB of L1 and shared memory, less what L1 keeps (recalled).
_ON_CHIP: Final = 164 * 1024
# Exponentials of an SM in a clock, CUDA C++ Programming Guide, arithmetic instructions: 16 from compute capability 7.0
# to 9.0. Shah et al., FlashAttention-3, 2024, count 3.9 T/s on an H100, which agrees.
_EXPONENTIALS: Final = 16


@dataclass(frozen=True, slots=True, eq=False)
class _Same:
    """A GPU that is equal to itself alone: its mappings cannot be hashed. Holding it keeps its id from being reused."""

    gpu: Gpu

    def __hash__(self) -> int:
        return id(self.gpu)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.gpu is self.gpu


def duration(
    kernel: Kernel,
    gpu: Gpu,
    dtype: str,
    *,
    sms_taken: int = 0,
    hbm_share: float = 1.0,
    attention_generation: int = 2,
    compiled: bool = False,
    sustained: bool = False,
) -> float:
    """Time one kernel.

    Parameters
    ----------
    kernel : Matmul, Attention or Elementwise
    gpu : Gpu
    dtype : str
        Of the inputs: "bfloat16", "tf32", "float8_e4m3fn", ... "float32" is true float32: on most GPUs that is the
        vector units' rate; "tf32" is float32 on matrix units. An Elementwise has its bytes counted already.
    sms_taken : int
        SMs that communication holds meanwhile.
    hbm_share : float
        Share of HBM bandwidth that is left, above 0, at most 1.
    attention_generation : {1, 2, 3}
        Of flash attention's kernels.
    compiled : bool
        Whether fusible kernels are merged into their neighbours, and take no time of their own.
    sustained : bool
        Whether matmuls follow one another for longer than a chip holds its highest clock.

    Returns
    -------
    float
        [s]; never faster than the GPU's peak or its HBM.

    Raises
    ------
    UnknownNameError
        The GPU has no rate for the dtype.
    ValueError
        No SM or no bandwidth left; a generation of attention kernels that the GPU cannot run.

    Examples
    --------
    >>> from simulator.cluster.gpu_file import load_gpu
    >>> h100 = load_gpu("h100_sxm")
    >>> seconds = duration(Matmul("", 4096, 4096, 4096), h100, "bfloat16")
    >>> 700e12 < 2 * 4096**3 / seconds < 989.4e12
    True
    """
    if not 0 <= sms_taken < gpu.sms:
        raise ValueError(f"got {sms_taken} SMs taken; must be from 0 to {gpu.sms - 1} on {gpu.name}")
    if not 0.0 < hbm_share <= 1.0:
        raise ValueError(f"got an HBM share of {hbm_share}; must be above 0 and at most 1")
    if isinstance(kernel, Elementwise):
        launch, bandwidth = _streaming(_Same(gpu))
        fused = compiled and kernel.fusible
        return 0.0 if fused else launch + (kernel.read + kernel.written) / (bandwidth * hbm_share)
    if isinstance(kernel, Matmul):
        constants = _matmul(_Same(gpu), dtype, sustained)
        return matmul_time(constants, kernel.m, kernel.n, kernel.k, kernel.batch, sms_taken, hbm_share)
    attention = _attention(_Same(gpu), dtype, attention_generation)
    return attention_time(attention, kernel, sms_taken, hbm_share)


def communication_sms(gpu: Gpu) -> int:
    """SMs that a collective in flight takes from the kernels of a GPU.

    Examples
    --------
    >>> from simulator.cluster.gpu_file import load_gpu
    >>> communication_sms(load_gpu("h100_sxm"))
    20
    """
    return min(round(gpu.sms * _model(_Same(gpu)).value("communication_sms")), gpu.sms - 1)


def elementwise_share(gpu: Gpu) -> float:
    """Share of the bandwidth of plain copies that norms, activations and the like reach, where a GPU's file says so."""
    constants = _model(_Same(gpu)).constants
    return constants["elementwise"].value if "elementwise" in constants else 1.0


@lru_cache(maxsize=64)
def _model(same: _Same) -> KernelModel:
    return kernel_model(same.gpu)


@lru_cache(maxsize=64)
def _streaming(same: _Same) -> tuple[float, float]:
    """Launch [s] and reachable HBM bandwidth [B/s]."""
    model = _model(same)
    return model.value("launch"), same.gpu.hbm_bandwidth * model.value("hbm_efficiency")


@lru_cache(maxsize=256)
def _matmul(same: _Same, dtype: str, sustained: bool) -> MatmulConstants:
    return _model(same).matmul(dtype, sustained=sustained)


@lru_cache(maxsize=256)
def _attention(same: _Same, dtype: str, generation: int) -> AttentionConstants:
    model = _model(same)
    known = _generation(model, generation)
    launch, bandwidth = _streaming(same)
    return AttentionConstants(
        peak_flops=model.peak_flops(dtype),
        sms=same.gpu.sms,
        hbm_bandwidth=bandwidth,
        launch=launch,
        efficiency=model.value(f"attention_{known}"),
        exponentials=_EXPONENTIALS * sm_rate(same.gpu),
        generation=known,
        on_chip=same.gpu.facts.get("shared_memory_per_sm", _ON_CHIP),
        itemsize=dtypes.find(dtype, stored=False).itemsize,
    )


def attention_generations(gpu: Gpu) -> tuple[Generation, ...]:
    """The generations of flash attention of which a GPU has kernels."""
    return _generations(_model(_Same(gpu)))


def _generations(model: KernelModel) -> tuple[Generation, ...]:
    all_of_them: tuple[Generation, ...] = (1, 2, 3)
    return tuple(one for one in all_of_them if f"attention_{one}" in model.constants)


def _generation(model: KernelModel, generation: int) -> Generation:
    known = _generations(model)
    for one in known:
        if one == generation:
            return one
    allowed = ", ".join(map(str, known))
    raise ValueError(f"got flash attention generation {generation}; {model.gpu.name} has kernels of {allowed}")
