"""Which constants determine kernel times on a GPU? Those fitted to its kernels, otherwise those of the nearest GPU.

Constants of a kernel stand together in a GPU's catalog file: `matmul_bfloat16` has a prologue, an efficiency, and so
on. A kernel that the file lacks is carried over from the GPU that the file names under `kernels_as`, else from the
reference GPU. Every constant has a source and a grade, the kind of evidence behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, Literal

from simulator.basics import dtypes
from simulator.basics.errors import UnknownNameError
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import KERNEL_CONSTANTS, load_gpu
from simulator.model.kernel import MatmulKind
from simulator.step.kernels.matmul_time import MatmulConstants, matmul_time

# The GPU with the most public figures; other GPUs borrow missing constants from it.
REFERENCE: Final = "h100_sxm"
# Constants of matmuls, fitted separately for each format; see `MatmulConstants`.
MATMUL: Final = ("prologue", "efficiency", "overlap", "operand_rate", "copies")
# Evidence behind a constant: measured on this GPU, measured on another GPU, a data sheet, or none.
Grade = Literal["measured", "other_gpu", "data_sheet", "assumed"]
# Rounds in which `_efficiency` finds the share of the peak; each leaves less than a tenth of the error.
_ROUNDS: Final = 8


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant of a GPU's kernel times: value, source, and the kind of evidence behind it."""

    value: float
    source: str
    grade: Grade


@dataclass(frozen=True, slots=True)
class KernelModel:
    """Constants of a GPU's kernel times."""

    gpu: Gpu
    constants: Mapping[str, Constant]  # "matmul_bfloat16_overlap" and so on; times [s], rates [B/s], shares 0 to 1

    def value(self, name: str, otherwise: float | None = None) -> float:
        """Return the value of the constant with this name; `otherwise` if it is given and there is none."""
        if otherwise is not None and name not in self.constants:
            return otherwise
        return self.constants[name].value

    def matmul(self, dtype: str, *, blocks: bool = False, kind: MatmulKind = "matmul") -> MatmulConstants:
        """Return the constants that determine matmul times.

        Parameters
        ----------
        dtype : str
            Dtype of the inputs.
        blocks : bool
            Whether inputs of eight bits have a scale for each block of 128 elements.
        kind : {"matmul", "grouped", "convolution"}
            What the kernel computes.

        Raises
        ------
        UnknownNameError
            The GPU has no rate for the dtype.
        """
        family = self.matmul_family(dtype, blocks=blocks, kind=kind)
        values = {name: self.constants.get(f"{family}_{name}") for name in MATMUL}
        # Without an efficiency, it follows from the best matmul.
        given = {name: constant.value for name, constant in values.items() if constant is not None}
        return MatmulConstants(
            peak_flops=self.peak_flops(dtype),
            sms=self.gpu.sms,
            hbm_bandwidth=self.gpu.hbm_bandwidth * self.value("hbm_efficiency"),
            itemsize=dtypes.find(dtype, stored=False).bits / 8,
            output_itemsize=_format(dtype).output_bytes,
            launch=self.value("launch"),
            **({"prologue": 0.0, "efficiency": 1.0} | given),
        )

    def matmul_family(self, dtype: str, *, blocks: bool = False, kind: MatmulKind = "matmul") -> str:
        """Return the name before the constants of a matmul: the nearest kind of kernel that was fitted."""
        fitted = _format(dtype).fitted
        wider = "float8_e4m3fn" if dtypes.find(dtype, stored=False).bits <= 8 else "bfloat16"
        formats = [*([f"{fitted}_block"] if blocks else []), fitted, wider, "bfloat16"]
        names = [f"{kernel}_{name}" for kernel in dict.fromkeys((kind, "matmul")) for name in formats]
        return next((name for name in names if f"{name}_prologue" in self.constants), names[-1])

    def changed(self, values: Mapping[str, float]) -> KernelModel:
        """Return a copy of the kernel constants in which the named constants have new values."""
        other = {
            name: replace(self.constants.get(name, Constant(value, "changed", "assumed")), value=value)
            for name, value in values.items()
        }
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
    """Return a GPU's kernel constants: its own, then constants derived from its other figures, then those of the
    nearest GPUs, scaled.

    >>> model = kernel_model(load_gpu("h20"))
    >>> model.constants["matmul_bfloat16_prologue"].grade
    'other_gpu'
    """
    constants = _file_constants(gpu)
    if "hbm_efficiency" not in constants and "stream_bandwidth" in gpu.facts:
        # A benchmark of this GPU is better than another GPU's share.
        constants["hbm_efficiency"] = _stream(gpu)
    families = {_family(name) for name in constants}
    # A GPU file that lists attention kernels lists every generation.
    lists_attention = any(family.startswith("attention_") for family in families)
    for other in _nearest(gpu):
        borrowed = {
            name: constant
            for name, constant in _file_constants(other).items()
            if _family(name) not in families and not (lists_attention and name.startswith("attention_"))
        }
        constants |= {name: _carried(name, constant, gpu, other) for name, constant in borrowed.items()}
        families |= {_family(name) for name in borrowed}
        lists_attention = lists_attention or any(name.startswith("attention_") for name in borrowed)
    model = KernelModel(gpu, constants)
    return model.changed(_own_efficiencies(model)) if "best_matmul" in gpu.facts else model


def _nearest(gpu: Gpu) -> Iterator[Gpu]:
    """Yield the GPUs from which a GPU's missing constants are carried over: named ones first, then the reference."""
    names = [gpu.name]
    while (name := gpu.facts.get("kernels_as")) is not None and name not in names:
        names.append(name)
        gpu = _cached(name)
        yield gpu
    if REFERENCE not in names:
        yield _cached(REFERENCE)


@cache
def _cached(name: str) -> Gpu:
    return load_gpu(name)


def _family(name: str) -> str:
    """Return the kernel that a constant belongs to: constants of a kernel are taken from the same GPU.

    >>> _family("matmul_bfloat16_operand_rate"), _family("launch"), _family("attention_3_forward_softmax")
    ('matmul_bfloat16', 'launch', 'attention_3_forward')
    """
    if name == "hbm_efficiency":
        return name
    return next((name.removesuffix(f"_{end}") for end in KERNEL_CONSTANTS if name.endswith(f"_{end}")), name)


def _file_constants(gpu: Gpu) -> dict[str, Constant]:
    """Return the kernel constants stated in a GPU's catalog file, by name, with their sources."""
    sources, unsure = gpu.facts.get("sources", {}), gpu.facts.get("unsure", ())
    return {
        name: Constant(
            value, sources.get(f"constants.{name}", ""), "assumed" if f"constants.{name}" in unsure else "measured"
        )
        for name, value in gpu.facts.get("constants", {}).items()
    }


def _stream(gpu: Gpu) -> Constant:
    """Return the share of a GPU's HBM bandwidth reached by a STREAM benchmark, as a Constant."""
    source = gpu.facts.get("sources", {}).get("stream_bandwidth", "")
    share = min(1.0, gpu.facts["stream_bandwidth"] / gpu.hbm_bandwidth)
    unsure = "stream_bandwidth" in gpu.facts.get("unsure", ())
    return Constant(share, f"stream_bandwidth / hbm_bandwidth: {source}", "assumed" if unsure else "measured")


def _carried(name: str, constant: Constant, gpu: Gpu, other: Gpu) -> Constant:
    """Return another GPU's constant for a GPU; an operand rate is scaled by SMs and clock."""
    factor, how = 1.0, "as on"
    # Operands reach SMs at a rate per SM and clock; other constants do not scale.
    if name.endswith("operand_rate"):
        factor, how = sm_rate(gpu) / sm_rate(other), "by SMs and clock, from"
    grade: Grade = "other_gpu" if constant.grade == "measured" else constant.grade
    if name == "hbm_efficiency":
        grade = "data_sheet"
    return Constant(constant.value * factor, f"{how} {other.name}: {constant.source}", grade)


def _own_efficiencies(model: KernelModel) -> dict[str, float]:
    """Return the efficiencies of matmuls on a GPU whose file fits none, but has the best matmul found by a search.

    The best matmul takes its measured time. A format without a search changes as bfloat16 does.
    """
    best = model.gpu.facts["best_matmul"]
    fitted = set(model.gpu.facts.get("constants", {}))
    name = "matmul_bfloat16_efficiency"
    if name in fitted or "bfloat16" not in best:
        return {}
    carried = model.value(name, 1.0)
    found = _efficiency(model, "bfloat16", *best["bfloat16"])
    others = [
        other
        for other in model.constants
        if other.startswith(("matmul_", "grouped_")) and other.endswith("_efficiency")
    ]
    values = {other: min(1.0, model.value(other) * found / carried) for other in others if other not in fitted}
    for dtype, (shape, flops) in best.items():
        if (own := f"matmul_{dtype}_efficiency") in values:
            values[own] = _efficiency(model, dtype, shape, flops)
    return values


def _efficiency(model: KernelModel, dtype: str, shape: tuple[int, int, int], flops: float) -> float:
    """Return the share of the peak, at most 1, in the main loop of a matmul (m, n, k) whose total rate is `flops`
    [FLOP/s].

    The duration is nearly a + b / efficiency with a small a, so a share times simulated over measured time is better.
    """
    constants, share = model.matmul(dtype), 1.0
    m, n, k = shape
    for _ in range(_ROUNDS):
        # Bypass the cache: these constants occur only once.
        seconds = matmul_time.__wrapped__(replace(constants, efficiency=share), m, n, k)
        share = min(1.0, share * seconds * flops / (2.0 * m * n * k))
    return share


def sm_rate(gpu: Gpu) -> float:
    """Return the clock cycles per second of a GPU's SMs together [1/s]: SMs x clock; the reference GPU's clock if
    unknown.
    """
    return float(gpu.sms * gpu.facts.get("clock", _cached(REFERENCE).facts["clock"]))


def _format(dtype: str) -> dtypes.MatmulFormat:
    """Return the facts of matmuls with inputs of a dtype; ValueError if none are simulated."""
    matmul_format = dtypes.find(dtype, stored=False).matmul
    if matmul_format is None:
        raise ValueError(f"matmuls in {dtype} are not simulated")
    return matmul_format
