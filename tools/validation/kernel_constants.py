"""Fits the constants of kernels in the GPU files to the tables of measured kernels.

`python -m tools.validation.kernel_constants [GPU ...] [--only KERNEL] [--write]` prints each kernel's constants with
their errors; with `--write`, they replace the fitted constants in `simulator/catalog/gpus`. A few minutes in all.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from simulator.basics.atomic_files import write_atomically
from simulator.basics.measured_tables import FOLDER, read_table
from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.kernels import BOUNDS, fit, with_constants
from simulator.calibration.measured_kernels import MeasuredAttention, MeasuredKernel, MeasuredMatmul
from simulator.cluster.gpu_file import load_gpu

_GPUS: Final = FOLDER.parent / "gpus"
_MATMUL: Final = ("prologue", "efficiency", "overlap", "operand_rate")
_CAST: Final = ("efficiency", "row")
_NORM: Final = ("efficiency", "prologue")
_ATTENTION: Final = ("efficiency", "softmax", "prologue")
# Formats of the tables, each with the name of its constants.
_FORMATS: Final = {
    "bfloat16": "bfloat16", "fp8": "float8_e4m3fn", "fp8_block": "float8_e4m3fn_block", "nvfp4": "float4_e2m1fn",
}  # fmt: skip
# Generation of the attention kernels that cuDNN has on each GPU.
_GENERATIONS: Final = {"gb200": 4, "h200": 3}
_ATTENTION_FORMATS: Final = {"bfloat16": "", "fp8": "_float8_e4m3fn", "mxfp8": "_float8_e4m3fn_block"}
# GPUs with OpenXLA's table beside, whose small shapes show launches and idle SMs. On a B200 both tables contradict each
# other: 40 % in the median.
_XLA: Final = ("h100_sxm",)
# Kernels whose constants are not searched: what else is known of them.
_FIXED: Final[Mapping[str, Mapping[str, float]]] = {
    # Fitted to OpenXLA's table, in which b is stored in the order that needs a copy on Hopper (docs/kernels.md).
    "h100_sxm matmul_float8_e4m3fn": {"copies": 0.654},
    "b200 matmul_float8_e4m3fn": {"copies": 0.0},
    "gb200 matmul_float8_e4m3fn": {"copies": 0.0},
    "mi300x matmul_float8_e4m3fn": {"prologue": 4.96e-6, "overlap": 1.286, "copies": 0.0},
    "b300 matmul_float8_e4m3fn": {"copies": 0.0},
    "h200 matmul_float8_e4m3fn": {"copies": 0.654},
    "rtx_pro_6000 matmul_float8_e4m3fn": {"copies": 0.654},
    # Its time with a window is that of all earlier keys.
    "gb200 attention_4_backward_float8_e4m3fn": {"masked": 1.0},
    "gb200 attention_4_backward_float8_e4m3fn_block": {"masked": 1.0},
}


# Least prologue [s]: thin matmuls, which the table lacks, need it (catalog/measured/kernels.csv).
_LEAST_PROLOGUE: Final = {"h200 matmul_bfloat16": 1.8e-6}


@dataclass(frozen=True)
class KernelFit:
    """A fit: constants of some kernels of a GPU, with the tables that determine them together."""

    gpu: str
    kernels: Mapping[str, Sequence[str]]
    tables: Sequence[Sequence[MeasuredKernel]]
    source: str
    constants: Mapping[str, float] = field(default_factory=dict)
    errors: Sequence[float] = ()

    @property
    def name(self) -> str:
        """GPU and first kernel."""
        return f"{self.gpu} {next(iter(self.kernels))}"

    def fitted(self) -> KernelFit:
        """Return the fit with its constants, and with the errors of its rows."""
        gpu = load_gpu(self.gpu)
        fixed = {
            f"{kernel}_{key}": value
            for kernel in self.kernels
            for key, value in _FIXED.get(f"{self.gpu} {kernel}", {}).items()
        }
        base = with_constants(gpu, fixed)
        names = [f"{kernel}_{name}" for kernel, constants in self.kernels.items() for name in constants]
        bounds = {**BOUNDS, "prologue": (_LEAST_PROLOGUE.get(self.name, 0.0), BOUNDS["prologue"][1])}
        found = {n: float(f"{value:.4g}") for n, value in fit(self.tables, base, names, bounds=bounds).items()}
        final = with_constants(base, found)
        errors = [row.simulated(final) / row.seconds - 1 for rows in self.tables for row in rows]
        return KernelFit(self.gpu, self.kernels, self.tables, self.source, fixed | found, errors)


def fits() -> Iterator[KernelFit]:
    """Yield every fit of the catalog, without its constants."""
    matmuls = [row for row in kernel_rows(FOLDER / "matmul.csv") if isinstance(row, MeasuredMatmul)]
    for gpu in dict.fromkeys(row.gpu for row in matmuls):
        for dtype, name in _FORMATS.items():
            rows = [row for row in matmuls if (row.gpu, row.dtype) == (gpu, dtype) and row.library != "cuBLASLt"]
            if not rows:
                continue
            if gpu == "mi300x":
                source = "fitted to hipBLASLt's matmuls (catalog/measured/matmul.csv); the rest as in bfloat16"
                yield KernelFit(gpu, {f"matmul_{name}": ("efficiency",)}, [rows], source)
                continue
            kernels: dict[str, Sequence[str]] = {f"matmul_{name}": _MATMUL}
            tables: list[Sequence[MeasuredKernel]] = [rows]
            source = "fitted to TensorRT-LLM's matmuls (catalog/measured/matmul.csv)"
            if any(row.with_cast for row in rows):
                kernels[f"cast_{dtype}"] = _CAST
            if dtype == "bfloat16" and gpu in _XLA:
                tables.append(xla_rows(gpu, dtype))
                source += " and OpenXLA's (gemm.csv, gemm_other.csv)"
            if f"{gpu} matmul_{name}" in _LEAST_PROLOGUE:
                source += ", with a prologue of at least 1.8 us, which thin matmuls need (kernels.csv)"
            yield KernelFit(gpu, kernels, tables, source)
    experts = kernel_rows(FOLDER / "experts.csv")
    for gpu, dtype in dict.fromkeys((row.gpu, row.dtype) for row in experts):
        rows_of = [row for row in experts if (row.gpu, row.dtype) == (gpu, dtype)]
        tables = [[r for r in rows_of if ("balanced" in r.label) is balanced] for balanced in (True, False)]
        yield KernelFit(
            gpu,
            {f"grouped_{_FORMATS[dtype]}": _MATMUL},
            tables,
            "fitted to TensorRT-LLM's experts (catalog/measured/experts.csv)",
        )
    attention = [row for row in kernel_rows(FOLDER / "attention.csv") if "deterministic" not in row.label]
    for gpu, generation in _GENERATIONS.items():
        for pass_ in ("forward", "backward"):
            for dtype, ends in _ATTENTION_FORMATS.items():
                rows = [r for r in attention if (r.gpu, r.dtype) == (gpu, dtype) and pass_ in r.label]
                if not rows:
                    continue
                source = "fitted to cuDNN's attention (catalog/measured/attention.csv)"
                tables = [rows]
                # Under load, as in training, the same kernels are a sixth slower.
                if (gpu, dtype) == ("h200", "bfloat16"):
                    tables.append(_sustained(gpu, pass_))
                    source += " and to the same kernels under load (kernels.csv)"
                yield KernelFit(gpu, {f"attention_{generation}_{pass_}{ends}": _ATTENTION}, tables, source)
    norms = kernel_rows(FOLDER / "norms.csv")
    for gpu in dict.fromkeys(row.gpu for row in norms):
        for way in ("cudnn", "eager", "compiled"):
            for pass_ in ("forward", "backward"):
                rows = [r for r in norms if r.gpu == gpu and f", {way}, {pass_}" in r.label]
                yield KernelFit(
                    gpu, {f"norm_{way}_{pass_}": _NORM}, [rows], "fitted to norms (catalog/measured/norms.csv)"
                )


def xla_rows(gpu: str, dtype: str) -> list[MeasuredMatmul]:
    """Return OpenXLA's matmuls of a GPU: "bfloat16", "tf32" or "float8_e4m3fn" of an H100, which stand for those of
    an H200, the same chip; fewer of "b200" and "mi300x".
    """
    if gpu in _XLA:
        lines = [(row, row[dtype]) for row in read_table("gemm.csv")]
    else:
        other = [row for row in read_table("gemm_other.csv") if (row["gpu"], row["dtype"]) == (gpu, dtype)]
        lines = [(row, row["microseconds"]) for row in other]
    return [
        MeasuredMatmul(
            gpu=gpu,
            dtype=dtype,
            batch=int(row["batch"]),
            m=int(row["m"]),
            n=int(row["n"]),
            k=int(row["k"]),
            time_us=float(time),
        )
        for row, time in lines
    ]


def _sustained(gpu: str, pass_: str) -> list[MeasuredKernel]:
    """Return cuDNN's attention kernels of a pass, measured under load."""
    return [
        MeasuredAttention(
            gpu=gpu, dtype="bfloat16", mask=row["mask"] or "none", batch=int(row["batch"]), q_seq=int(row["m"]),
            kv_seq=int(row["n"]), q_heads=int(row["k"]), kv_heads=int(row["k"]), head_dim_qk=128, head_dim_vo=128,
            time_ms=float(row["us"]) / 1e3, **{"pass": pass_},
        )
        for row in read_table("kernels.csv")
        if (row["kernel"], row["how"], row["pass"]) == ("attention", "cudnn", pass_)
    ]  # fmt: skip


def write(fit_: KernelFit) -> None:
    """Write the constants of a fit into the GPU's catalog file, a line for each kernel, in the last block."""
    path = _GPUS / f"{fit_.gpu}.yaml"
    text = path.read_text(encoding="utf-8")
    if "\nkernels:\n" not in text:
        text += "kernels:\n"
    for kernel in fit_.kernels:
        own = {
            key.removeprefix(f"{kernel}_"): value
            for key, value in fit_.constants.items()
            if key.startswith(f"{kernel}_")
        }
        own = {key: value for key, value in own.items() if key in (*_MATMUL, *_CAST, *_ATTENTION, "copies", "masked")}
        values = ", ".join(f"{key}: {value:g}" for key, value in own.items())
        line = f'  {kernel}: {{{values}, source: "{fit_.source}"}}\n'
        pattern = re.compile(rf"^  {kernel}: .*\n", re.MULTILINE)
        text = pattern.sub(line.replace("\\", r"\\"), text) if pattern.search(text) else text + line
    write_atomically(path, text)


def _fitted(fit_: KernelFit) -> KernelFit:
    return fit_.fitted()


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit, print and, if asked, write the constants."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gpus", nargs="*")
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args(arguments)
    asked = [
        each
        for each in fits()
        if (not chosen.gpus or each.gpu in chosen.gpus)
        and any(kernel.startswith(chosen.only) for kernel in each.kernels)
    ]
    with ProcessPoolExecutor(2) as pool:
        for done in pool.map(_fitted, asked):
            sizes = sorted(map(abs, done.errors))
            values = " ".join(f"{name}={value:.4g}" for name, value in done.constants.items())
            most = sizes[int(0.9 * (len(sizes) - 1))]
            print(f"{done.name}: {len(sizes)} rows, median {median(sizes):.1%}, 90 % {most:.1%}; {values}", flush=True)
            if chosen.write:
                write(done)


if __name__ == "__main__":
    main()
