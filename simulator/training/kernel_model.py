"""The constants behind kernel times: what was fitted to a GPU, and what is scaled from one that was.

Rule: every constant stands with its source; what a GPU's catalog file does not hold comes from the reference GPU,
scaled by peaks, SMs and best matmuls, and says so. Like a recipe written for one oven and adjusted for another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from simulator import dtypes
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.errors import UnknownNameError
from simulator.training.matmul_time import MatmulConstants

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
        "matmul_bfloat16_efficiency" and the like; times in [s], rates in [B/s], shares 0 to 1.
    """

    gpu: Gpu
    constants: Mapping[str, Constant]

    def value(self, name: str) -> float:
        """A constant's number."""
        return self.constants[name].value

    def matmul(self, dtype: str) -> MatmulConstants:
        """The constants for matrix multiplications in a dtype.

        Raises
        ------
        UnknownNameError
            The GPU has no rate for the dtype.
        """
        peak = self.peak_flops(dtype)
        fitted = f"matmul_{FITTED[dtype]}_"
        itemsize = dtypes.find(dtype, stored=False).itemsize
        return MatmulConstants(
            peak_flops=peak,
            sustained_flops=peak * best_share(self.gpu, FITTED[dtype]),
            sms=self.gpu.sms,
            hbm_bandwidth=self.gpu.hbm_bandwidth * self.value("hbm_efficiency"),
            itemsize=itemsize,
            output_itemsize=_OUTPUT.get(dtype, itemsize),
            efficiency=self.value(fitted + "efficiency"),
            launch=self.value(fitted + "launch"),
            prologue=self.value(fitted + "prologue"),
            operand_rate=self.value(fitted + "operand_rate"),
            slicing=self.value(fitted + "slicing"),
            slice_traffic=self.value(fitted + "slice_traffic"),
            shortest_slice=self.value(fitted + "shortest_slice"),
            overlap=self.value(fitted + "overlap"),
        )

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
    >>> model.constants["matmul_bfloat16_efficiency"].sure
    False
    """
    own = _own(gpu)
    reference = _reference()
    # Which generations of attention kernels exist is the GPU's own matter: a file that names some names all.
    apart = any(name.startswith("attention_") for name in own)
    found = dict(own)
    for name in _own(reference):
        if name not in own and not (apart and name.startswith("attention_") and name != "attention_softmax"):
            found[name] = _stream(gpu) if name == "hbm_efficiency" and _has_stream(gpu) else _scaled(name, gpu)
    return KernelModel(gpu, found)


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
    if name.startswith("matmul_") and name.endswith("_efficiency"):
        dtype = name.removeprefix("matmul_").removesuffix("_efficiency")
        factor, how = best_share(gpu, dtype) / best_share(reference, dtype), "by the best matmul's share of peak, from"
    elif name.endswith("operand_rate"):
        factor, how = _sm_rate(gpu) / _sm_rate(reference), "by SMs and clock, from"
    value = constant.value * factor
    if name.endswith("_efficiency"):
        value = min(1.0, value)
    return Constant(value, f"{how} {REFERENCE}: {constant.source}", sure=False)


def best_share(gpu: Gpu, dtype: str) -> float:
    """Share of the peak, 0 to 1, that the best matmul found reaches; bfloat16's or the reference's if none is known."""
    best = gpu.facts.get("best_matmul_flops", {})
    for known in (dtype, "bfloat16"):
        if known in best:
            return float(best[known] / gpu.peak_flops[known])
    return best_share(_reference(), dtype)


def _sm_rate(gpu: Gpu) -> float:
    return float(gpu.sms * gpu.facts.get("clock", _reference().facts["clock"]))
