"""How long does a kernel take on a GPU? `duration` dispatches to matmul, attention and elementwise kernels.

This is the only way from a kernel's counts to seconds; constants come from the GPU's catalog file.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from simulator.basics import dtypes
from simulator.cluster.cluster import Gpu
from simulator.model.kernel import Elementwise, Kernel, Matmul, MatmulKind
from simulator.step.kernels.attention_time import AttentionConstants, Generation, attention_time
from simulator.step.kernels.kernel_model import Constant, KernelModel, kernel_model, sm_rate
from simulator.step.kernels.matmul_time import MatmulConstants, grouped_time, matmul_time

__all__ = ["Constant", "KernelModel", "MatmulKind", "communication_sms", "duration", "kernel_model"]

# Default on-chip memory: an A100's 192 KiB of L1 and shared memory, without L1's part (recalled).
_ON_CHIP: Final = 164 * 1024
# Exponentials per SM and clock cycle, CUDA C++ Programming Guide, arithmetic instructions: 16 for compute capability
# 7.0 to 9.0. Shah et al., FlashAttention-3, 2024, count 3.9 T/s on an H100, which agrees.
_EXPONENTIALS: Final = 16
# Elements per SM and clock cycle that a kernel decodes from NF4. bitsandbytes' kernel of 2023 to 2025, with branches,
# takes up to 2.07 times as long on an A100 and an H100 as a kernel with a lookup table (bitsandbytes-foundation/
# bitsandbytes, pull request 1747), which is taken to be limited by bytes: 2.5 B an element at 0.88 x 2039 GB/s, times
# 2.07, on 108 SMs of 1.41 GHz give 2.26, an H100 gives 2.17. On an RTX 4090, with more cycles for each byte of HBM,
# large matrices gained nothing: bytes limited both kernels, as this rate predicts. torchao's NF4Tensor, compiled, takes
# 0.90 to 0.95 times the time of the kernel with branches (pytorch/ao, issue 1686: 52.7 and 58.8 us for 4096 x 4096, 230
# and 242 us for 8192 x 8192, matmul included).
_DECODES: Final = 2.2
# Elements per SM and clock cycle of PyTorch's elementwise kernels that cannot read several elements at once (casts,
# broadcasts, other orders in memory). Fitted to Transformers' RMSNorm and rotary positions, forward and backward, on an
# A100 (linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv, provider huggingface): with the other
# kernels at 1.62 TB/s, 203e9 elements a second on 108 SMs of 1.41 GHz; 25 times within 18 %, 7 % in the mean.
_SCATTERED: Final = 1.33


@dataclass(frozen=True, slots=True, eq=False)
class _HashableGpu:
    """A Gpu made hashable for caches, equal only to itself; holding it keeps its id unique."""

    gpu: Gpu

    def __hash__(self) -> int:
        return id(self.gpu)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashableGpu) and other.gpu is self.gpu


def duration(
    kernel: Kernel,
    gpu: Gpu,
    dtype: str,
    *,
    sms_taken: int = 0,
    hbm_share: float = 1.0,
    attention_generation: int | None = None,
    compiled: bool = False,
    blocks: bool = False,
    ordered: bool = False,
) -> float:
    """Return a kernel's duration on a GPU [s].

    Parameters
    ----------
    dtype : str
        Dtype of the inputs: "bfloat16", "tf32", "float8_e4m3fn", ... "float32" is true float32, on most GPUs at the
        vector units' rate; "tf32" is float32 on matrix units. Elementwise kernels already count bytes and ignore the
        dtype.
    sms_taken : int
        SMs taken by a collective in flight.
    hbm_share : float
        Share of HBM bandwidth left to the kernel, above 0, at most 1.
    attention_generation : {1, 2, 3, 4} or None
        Generation of the flash attention kernels; None for the GPU's default (`default_attention`).
    compiled : bool
        Whether fusible kernels are merged into their neighbours and take no time.
    blocks : bool
        Whether inputs of eight bits have a scale for each block of elements.
    ordered : bool
        Whether operands are stored in the order that a matmul's kernel needs, so that no copy turns them first.

    Returns
    -------
    float
        Duration, never below the roofline of the GPU's peak (or the best matmul measured above it) and HBM bandwidth
        [s].

    Raises
    ------
    UnknownNameError
        The GPU has no rate for the dtype.
    ValueError
        No SM or no bandwidth is left, or the GPU cannot run the attention generation.

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
        launch, bandwidth = _streaming(_HashableGpu(gpu))
        # A merged kernel's arrays stay on chip.
        if compiled and kernel.fusible:
            return 0.0
        # Elementwise kernels are memory-bound: SMs limit those alone that decode, or handle elements one by one.
        moved = (kernel.read + kernel.written) / (bandwidth * hbm_share)
        if kernel.scattered:
            moved = max(moved, kernel.scattered / (_SCATTERED * sm_rate(gpu) * (1 - sms_taken / gpu.sms)))
        if not kernel.decoded:
            return launch + moved
        return launch + max(moved, kernel.decoded / (_DECODES * sm_rate(gpu) * (1 - sms_taken / gpu.sms)))
    if isinstance(kernel, Matmul):
        constants = _matmul(_HashableGpu(gpu), dtype, blocks, kernel.kind, ordered)
        sizes = kernel.m, kernel.n, kernel.k, kernel.batch
        return matmul_time(constants, *sizes, sms_taken, hbm_share, kernel.reread)
    attention = _attention(_HashableGpu(gpu), dtype, attention_generation, kernel.backward, blocks)
    return attention_time(attention, kernel, sms_taken, hbm_share)


def communication_sms(gpu: Gpu) -> int:
    """Return the number of SMs that a collective in flight takes from a GPU's kernels.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> communication_sms(load_gpu("h100_sxm"))
    20
    """
    # Kernels keep at least one SM.
    return min(round(gpu.sms * _model(_HashableGpu(gpu)).value("communication_sms")), gpu.sms - 1)


def host_copy_share(gpu: Gpu) -> float:
    """Return the share of a GPU's link to its host that pinned copies reach, 0 to 1.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> host_copy_share(load_gpu("gb200"))
    0.44
    """
    return _model(_HashableGpu(gpu)).value("host_copies")


def elementwise_share(gpu: Gpu) -> float:
    """Return the bandwidth in a GPU's elementwise kernels (norms, activations) relative to a plain copy's; 1 if
    unknown.
    """
    return _model(_HashableGpu(gpu)).value("elementwise", 1.0)


@lru_cache(maxsize=64)
def _model(same: _HashableGpu) -> KernelModel:
    """Return the constants of a GPU's kernel times; cached, because a step times thousands of kernels."""
    return kernel_model(same.gpu)


@lru_cache(maxsize=64)
def _streaming(same: _HashableGpu) -> tuple[float, float]:
    """Return a GPU's launch overhead [s] and reachable HBM bandwidth [B/s]; cached."""
    model = _model(same)
    return model.value("launch"), same.gpu.hbm_bandwidth * model.value("hbm_efficiency")


def grouped_duration(gpu: Gpu, dtype: str, rows: Iterable[int], n: int, k: int, *, blocks: bool = False) -> float:
    """Return the duration of a kernel that multiplies groups of rows [rows, k] by a matrix [k, n] of each group [s].

    Parameters
    ----------
    rows : iterable of int
        Rows of each group: the tokens of each expert.
    dtype, blocks
        As in `duration`.
    """
    return grouped_time(_matmul(_HashableGpu(gpu), dtype, blocks, "grouped", ordered=True), rows, n, k)


@lru_cache(maxsize=256)
def _matmul(same: _HashableGpu, dtype: str, blocks: bool, kind: MatmulKind, ordered: bool) -> MatmulConstants:
    """Return a GPU's constants for matmuls in a dtype; cached."""
    constants = _model(same).matmul(dtype, blocks=blocks, kind=kind)
    return replace(constants, copies=0.0) if ordered else constants


@lru_cache(maxsize=256)
def _attention(
    same: _HashableGpu, dtype: str, generation: int | None, backward: bool, blocks: bool
) -> AttentionConstants:
    """Return a GPU's constants of attention kernels for a dtype, generation and pass; cached."""
    model = _model(same)
    kernel_generation = _generation(model, generation)
    name = attention_family(model, kernel_generation, dtype, backward=backward, blocks=blocks)
    launch, bandwidth = _streaming(same)
    return AttentionConstants(
        peak_flops=model.peak_flops(dtype),
        sms=same.gpu.sms,
        hbm_bandwidth=bandwidth,
        launch=launch,
        efficiency=model.value(f"{name}_efficiency" if f"{name}_efficiency" in model.constants else name),
        softmax=model.value(f"{name}_softmax") if f"{name}_softmax" in model.constants else None,
        prologue=model.value(f"{name}_prologue", 0.0),
        masked=model.value(f"{name}_masked", 0.0),
        # Every SM computes this number per clock cycle.
        exponentials=_EXPONENTIALS * sm_rate(same.gpu),
        generation=kernel_generation,
        on_chip=same.gpu.facts.get("shared_memory_per_sm", _ON_CHIP),
        itemsize=dtypes.find(dtype, stored=False).itemsize,
    )


def attention_family(model: KernelModel, generation: int, dtype: str, *, backward: bool, blocks: bool = False) -> str:
    """Return the name before the constants of an attention kernel: of its dtype and pass if these were fitted.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> model = kernel_model(load_gpu("gb200"))
    >>> [attention_family(model, generation, "float16", backward=True) for generation in (2, 4)]
    ['attention_2', 'attention_4_backward']
    """
    each_pass = f"attention_{generation}_{'backward' if backward else 'forward'}"
    names = (*([f"{each_pass}_{dtype}_block"] if blocks else []), f"{each_pass}_{dtype}", each_pass)
    return next((name for name in names if f"{name}_efficiency" in model.constants), f"attention_{generation}")


def attention_generations(gpu: Gpu) -> tuple[Generation, ...]:
    """Return the generations of flash attention (1 to 4) that have kernels for a GPU."""
    return _generations(_model(_HashableGpu(gpu)))


def default_attention(gpu: Gpu) -> Generation:
    """Return the generation of flash attention that libraries take on a GPU: 4 on Blackwell, else 2 (FlashAttention-2).

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> [default_attention(load_gpu(name)) for name in ("b200", "h100_sxm")]
    [4, 2]
    """
    return _generation(_model(_HashableGpu(gpu)), None)


def _generations(model: KernelModel) -> tuple[Generation, ...]:
    """Return the generations of flash attention found in a GPU's kernel constants."""
    every: tuple[Generation, ...] = (1, 2, 3, 4)
    return tuple(number for number in every if any(name.startswith(f"attention_{number}") for name in model.constants))


def _generation(model: KernelModel, generation: int | None) -> Generation:
    """Return the given generation, or the default, if the GPU has kernels of it; otherwise raise ValueError."""
    generations = _generations(model)
    if generation is None:
        generation = 4 if 4 in generations else 2
    for candidate in generations:
        if candidate == generation:
            return candidate
    allowed = ", ".join(map(str, generations))
    raise ValueError(f"got flash attention generation {generation}; {model.gpu.name} has kernels of {allowed}")
