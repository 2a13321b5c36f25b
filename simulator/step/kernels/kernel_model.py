"""Which constants determine kernel times on a GPU? Its own fitted constants, otherwise the reference GPU's, scaled.

Every constant has a source. A constant missing in a GPU's catalog file comes from the reference GPU, scaled by SMs and
clock, and is marked as unsure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from simulator.basics import dtypes
from simulator.basics.errors import UnknownNameError
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.step.kernels.matmul_time import MatmulConstants, efficiency_of

# The GPU with the most public figures; other GPUs borrow missing constants from it.
REFERENCE: Final = "h100_sxm"
# Constants fitted separately for each dtype; see `MatmulConstants`.
BY_DTYPE: Final = ("overlap", "operand_rate", "copies")


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a GPU's kernel times: value, source, and whether the value was verified on this GPU."""

    value: float
    source: str
    sure: bool


@dataclass(frozen=True, slots=True)
class KernelModel:
    """Constants of a GPU's kernel times."""

    gpu: Gpu
    constants: Mapping[str, Constant]  # "matmul_bfloat16_overlap" and so on; times [s], rates [B/s], shares 0 to 1

    def value(self, name: str) -> float:
        """Return the value of the constant with this name."""
        return self.constants[name].value

    def matmul(self, dtype: str, *, sustained: bool = False) -> MatmulConstants:
        """Return the constants that determine matmul times in a dtype, in short runs or under sustained load.

        Raises
        ------
        UnknownNameError
            The GPU has no rate for the dtype.

        Notes
        -----
        No matmul is faster than the best matmul found by a search on this GPU. If even main loops at the peak are
        slower than this figure at its shape, the table's short runs contradict it by being faster, and the bound
        applies only under sustained load.
        """
        bare, efficiency, best = self._matmul(dtype), self._efficiency(_fitted(dtype)), self._best(_fitted(dtype))
        # Efficiency 1 means the search's figure contradicts the table.
        if best is None or (efficiency == 1.0 and not sustained):
            return replace(bare, efficiency=efficiency)
        # A best matmul in bfloat16 limits another dtype in proportion to the peaks.
        _, flops, best_dtype = best
        return replace(bare, efficiency=efficiency, best_flops=flops / self.peak_flops(best_dtype) * bare.peak_flops)

    def _matmul(self, dtype: str) -> MatmulConstants:
        """Return the constants of a dtype's matmuls, with the main loop at the peak and no bound by a best matmul."""
        constants = {name: self.constants.get(f"matmul_{_fitted(dtype)}_{name}") for name in BY_DTYPE}
        itemsize = dtypes.find(dtype, stored=False).bits / 8
        return MatmulConstants(
            peak_flops=self.peak_flops(dtype),
            sms=self.gpu.sms,
            hbm_bandwidth=self.gpu.hbm_bandwidth * self.value("hbm_efficiency"),
            itemsize=itemsize,
            output_itemsize=_format(dtype).output_bytes,
            launch=self.value("launch"),
            prologue=self.value("matmul_prologue"),
            efficiency=1.0,
            **{name: constant.value for name, constant in constants.items() if constant is not None},
        )

    def _best(self, dtype: str) -> tuple[tuple[int, int, int], float, str] | None:
        """Return the best measured matmul in the dtype, else in bfloat16: (m, n, k), rate [FLOP/s], dtype; or None."""
        best = self.gpu.facts.get("best_matmul", {})
        return next(((*best[candidate], candidate) for candidate in (dtype, "bfloat16") if candidate in best), None)

    def _efficiency(self, dtype: str) -> float:
        """Return the peak's share reached in a dtype's matmul main loops, such that the best matmul found takes the
        measured time.

        Without a search in this dtype: the reference GPU's share, times the ratio of both GPUs' shares in bfloat16.
        """
        best = self._best(dtype)
        reference = _reference()
        searched = reference.facts["best_matmul"]
        # Without a search for this dtype, only the reference GPU tells how far the dtype is from its peak.
        if best is None or (best[2] != dtype and dtype in searched):
            other = kernel_model(reference)
            # bfloat16 is searched on most GPUs and shows how a GPU compares with the reference.
            by_bfloat16 = 1.0 if best is None else self._efficiency("bfloat16") / other._efficiency("bfloat16")
            return min(1.0, other._efficiency(dtype) * by_bfloat16)
        shape, flops, best_dtype = best
        return efficiency_of(self._matmul(best_dtype), shape, flops)

    def changed(self, values: Mapping[str, float]) -> KernelModel:
        """Return a copy of the kernel constants in which the named constants have new values."""
        other = {name: replace(self.constants[name], value=value) for name, value in values.items()}
        return replace(self, constants={**self.constants, **other})

    def peak_flops(self, dtype: str) -> float:
        """Return the highest rate that the GPU's units reach in a kernel dtype [FLOP/s].

        Notes
        -----
        Data sheets print peaks at the boost clock. A board that was measured above its peak runs faster than this clock
        (GeForce cards do), with every unit.

        Raises
        ------
        UnknownNameError
            The GPU has no rate for the dtype; the message lists its dtypes.
        """
        if dtype not in self.gpu.peak_flops or dtypes.find(dtype, stored=False).matmul is None:
            names = {name for name in self.gpu.peak_flops if dtypes.find(name, stored=False).matmul is not None}
            raise UnknownNameError(f"dtype of kernels on {self.gpu.name}", dtype, names)
        measured = self.gpu.facts.get("best_matmul_flops", {})
        above = max((rate / self.gpu.peak_flops[name] for name, rate in measured.items()), default=1.0)
        return self.gpu.peak_flops[dtype] * max(1.0, above)


def kernel_model(gpu: Gpu) -> KernelModel:
    """Return a GPU's kernel constants: its own, then constants derived from its other figures, then the reference
    GPU's, scaled.

    >>> model = kernel_model(load_gpu("a100_sxm_80gb"))
    >>> model.constants["matmul_prologue"].sure
    False
    """
    gpu_constants = _file_constants(gpu)
    reference = _reference()
    # A GPU file that lists attention generations lists every generation: the reference's must not be added.
    lists_generations = any(name.startswith("attention_") for name in gpu_constants)
    constants = dict(gpu_constants)
    for name in _file_constants(reference):
        if name not in gpu_constants and not (lists_generations and name.startswith("attention_")):
            # A benchmark of this GPU is better than the reference's efficiency.
            constants[name] = _stream(gpu) if name == "hbm_efficiency" and _has_stream(gpu) else _scaled(name, gpu)
    return KernelModel(gpu, constants)


@cache
def _reference() -> Gpu:
    """Return the reference GPU, from which missing constants are scaled; cached."""
    return load_gpu(REFERENCE)


def _file_constants(gpu: Gpu) -> dict[str, Constant]:
    """Return the kernel constants stated in a GPU's catalog file, by name, with their sources."""
    sources, unsure = gpu.facts.get("sources", {}), gpu.facts.get("unsure", ())
    return {
        name: Constant(value, sources.get(f"constants.{name}", ""), f"constants.{name}" not in unsure)
        for name, value in gpu.facts.get("constants", {}).items()
    }


def _has_stream(gpu: Gpu) -> bool:
    """Return True if the GPU's catalog file has a bandwidth measured by a STREAM benchmark."""
    return "stream_bandwidth" in gpu.facts


def _stream(gpu: Gpu) -> Constant:
    """Return the share of a GPU's HBM bandwidth reached by a STREAM benchmark, as a Constant."""
    source = gpu.facts.get("sources", {}).get("stream_bandwidth", "")
    share = min(1.0, gpu.facts["stream_bandwidth"] / gpu.hbm_bandwidth)
    return Constant(
        share, f"stream_bandwidth / hbm_bandwidth: {source}", "stream_bandwidth" not in gpu.facts.get("unsure", ())
    )


def _scaled(name: str, gpu: Gpu) -> Constant:
    """Return the reference GPU's constant; an operand rate is scaled to another GPU by SMs and clock."""
    reference = _reference()
    constant = _file_constants(reference)[name]
    factor, how = 1.0, "as on"
    # Operands reach SMs at a rate per SM and clock; other constants do not scale.
    if name.endswith("operand_rate"):
        factor, how = sm_rate(gpu) / sm_rate(reference), "by SMs and clock, from"
    return Constant(constant.value * factor, f"{how} {REFERENCE}: {constant.source}", sure=False)


def sm_rate(gpu: Gpu) -> float:
    """Return the clock cycles per second of a GPU's SMs together [1/s]: SMs x clock; the reference GPU's clock if
    unknown.
    """
    return float(gpu.sms * gpu.facts.get("clock", _reference().facts["clock"]))


def _format(dtype: str) -> dtypes.MatmulFormat:
    """Return the facts of matmuls with inputs of a dtype; ValueError if none are simulated."""
    matmul_format = dtypes.find(dtype, stored=False).matmul
    if matmul_format is None:
        raise ValueError(f"matmuls in {dtype} are not simulated")
    return matmul_format


def _fitted(dtype: str) -> str:
    return _format(dtype).fitted
