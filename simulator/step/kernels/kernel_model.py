"""The constants behind kernel times: what was fitted to a GPU, and what is scaled from one that was.

Rule: every constant stands with its source; what a GPU's catalog file does not hold comes from the reference GPU,
scaled by SMs and clock, and says so.
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

# The GPU with the most public figures; all others lean on it where they have none of their own.
REFERENCE: Final = "h100_sxm"
# Whose fitted constants a dtype uses.
FITTED: Final[Mapping[str, str]] = {
    "bfloat16": "bfloat16",
    "float16": "bfloat16",
    "tf32": "tf32",
    "float32": "tf32",
    "float64": "tf32",
    "float8_e4m3fn": "float8_e4m3fn",
    "float8_e5m2": "float8_e4m3fn",
    "int8": "float8_e4m3fn",
}
# What differs by dtype, where a table says so; see MatmulConstants.
BY_DTYPE: Final = ("overlap", "operand_rate", "copies")
# Eight-bit inputs leave as wider numbers: fp8 as bfloat16 (as measured), int8 as int32 [B].
_OUTPUT: Final[Mapping[str, int]] = {"float8_e4m3fn": 2, "float8_e5m2": 2, "int8": 4}


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, who says so, and whether that was checked for this very GPU."""

    value: float
    source: str
    sure: bool


@dataclass(frozen=True, slots=True)
class KernelModel:
    """All constants of one GPU.

    Attributes
    ----------
    gpu : Gpu
    constants : mapping of str to Constant
        "matmul_bfloat16_overlap" and the like; times in [s], rates in [B/s], shares 0 to 1.
    """

    gpu: Gpu
    constants: Mapping[str, Constant]

    def value(self, name: str) -> float:
        """A constant's number."""
        return self.constants[name].value

    def matmul(self, dtype: str, *, sustained: bool = False) -> MatmulConstants:
        """The constants for matrix multiplications in a dtype, for a short while or under sustained load.

        Raises
        ------
        UnknownNameError
            The GPU has no rate for the dtype.

        Notes
        -----
        No matmul exceeds the best that a search found. Where even main loops at the peak stay below that figure at its
        shape, the table's short runs refute it (they are faster): then it holds under sustained load alone.
        """
        bare, efficiency, best = self._matmul(dtype), self._efficiency(FITTED[dtype]), self._best(FITTED[dtype])
        if best is None or (efficiency == 1.0 and not sustained):
            return replace(bare, efficiency=efficiency)
        _, flops, known = best
        return replace(bare, efficiency=efficiency, best_flops=flops / self.gpu.peak_flops[known] * bare.peak_flops)

    def _matmul(self, dtype: str) -> MatmulConstants:
        """The constants with a main loop at the peak."""
        own = {name: self.constants.get(f"matmul_{FITTED.get(dtype, dtype)}_{name}") for name in BY_DTYPE}
        itemsize = dtypes.find(dtype, stored=False).itemsize
        return MatmulConstants(
            peak_flops=self.peak_flops(dtype),
            sms=self.gpu.sms,
            hbm_bandwidth=self.gpu.hbm_bandwidth * self.value("hbm_efficiency"),
            itemsize=itemsize,
            output_itemsize=_OUTPUT.get(dtype, itemsize),
            launch=self.value("launch"),
            prologue=self.value("matmul_prologue"),
            efficiency=1.0,
            **{name: constant.value for name, constant in own.items() if constant is not None},
        )

    def _best(self, dtype: str) -> tuple[tuple[int, int, int], float, str] | None:
        """The best matmul found on this GPU: shape, rate [FLOP/s], dtype: this one, or bfloat16 for want of it."""
        best = self.gpu.facts.get("best_matmul", {})
        return next(((*best[known], known) for known in (dtype, "bfloat16") if known in best), None)

    def _efficiency(self, dtype: str) -> float:
        """Share of the peak in a main loop, such that the best matmul found on this GPU takes what it took.

        Where none was looked for in this dtype, the reference's, times what bfloat16's is to the reference's.
        """
        best = self._best(dtype)
        reference = _reference()
        searched = reference.facts["best_matmul"]
        if best is None or (best[2] != dtype and dtype in searched):
            other = kernel_model(reference)
            by_bfloat16 = 1.0 if best is None else self._efficiency("bfloat16") / other._efficiency("bfloat16")
            return min(1.0, other._efficiency(dtype) * by_bfloat16)
        shape, flops, known = best
        return efficiency_of(self._matmul(known), shape, flops)

    def changed(self, values: Mapping[str, float]) -> KernelModel:
        """The same with other numbers."""
        other = {name: replace(self.constants[name], value=value) for name, value in values.items()}
        return replace(self, constants={**self.constants, **other})

    def peak_flops(self, dtype: str) -> float:
        """The GPU's rate for a dtype in which kernels compute [FLOP/s].

        Raises
        ------
        UnknownNameError
            It has none; with those that it has.
        """
        if dtype not in self.gpu.peak_flops or dtype not in FITTED:
            known = set(self.gpu.peak_flops) & set(FITTED)
            raise UnknownNameError(f"dtype of kernels on {self.gpu.name}", dtype, known)
        return self.gpu.peak_flops[dtype]


def kernel_model(gpu: Gpu) -> KernelModel:
    """Collect a GPU's constants: its own first, then what its other figures say, then the reference's, scaled.

    Parameters
    ----------
    gpu : Gpu

    Returns
    -------
    KernelModel

    Examples
    --------
    >>> model = kernel_model(load_gpu("a100_sxm_80gb"))
    >>> model.constants["matmul_prologue"].sure
    False
    """
    own = _own(gpu)
    reference = _reference()
    # Which generations of attention kernels exist is the GPU's own matter: a file that names some names all.
    apart = any(name.startswith("attention_") for name in own)
    constants = dict(own)
    for name in _own(reference):
        if name not in own and not (apart and name.startswith("attention_")):
            constants[name] = _stream(gpu) if name == "hbm_efficiency" and _has_stream(gpu) else _scaled(name, gpu)
    return KernelModel(gpu, constants)


@cache
def _reference() -> Gpu:
    return load_gpu(REFERENCE)


def _own(gpu: Gpu) -> dict[str, Constant]:
    sources, unsure = gpu.facts.get("sources", {}), gpu.facts.get("unsure", ())
    return {
        name: Constant(value, sources.get(f"constants.{name}", ""), f"constants.{name}" not in unsure)
        for name, value in gpu.facts.get("constants", {}).items()
    }


def _has_stream(gpu: Gpu) -> bool:
    return "stream_bandwidth" in gpu.facts


def _stream(gpu: Gpu) -> Constant:
    source = gpu.facts.get("sources", {}).get("stream_bandwidth", "")
    share = min(1.0, gpu.facts["stream_bandwidth"] / gpu.hbm_bandwidth)
    return Constant(
        share, f"stream_bandwidth / hbm_bandwidth: {source}", "stream_bandwidth" not in gpu.facts.get("unsure", ())
    )


def _scaled(name: str, gpu: Gpu) -> Constant:
    """The reference's constant on another GPU."""
    reference = _reference()
    constant = _own(reference)[name]
    factor, how = 1.0, "as on"
    if name.endswith("operand_rate"):
        factor, how = sm_rate(gpu) / sm_rate(reference), "by SMs and clock, from"
    return Constant(constant.value * factor, f"{how} {REFERENCE}: {constant.source}", sure=False)


def sm_rate(gpu: Gpu) -> float:
    """Clocks of all SMs together [1/s]; at the reference's clock where none is known."""
    return float(gpu.sms * gpu.facts.get("clock", _reference().facts["clock"]))
