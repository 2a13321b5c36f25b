"""The shipped constants of kernels against the tables of measured kernels in simulator/catalog/measured."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
import pytest

from simulator.basics import registry
from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.kernels import fit, with_constants
from simulator.calibration.measured_kernels import (
    MeasuredAttention,
    MeasuredExperts,
    MeasuredKernel,
    MeasuredMatmul,
    MeasuredNorm,
    gpu_named,
)
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Matmul
from simulator.step.kernels.kernel_time import duration, kernel_model
from simulator.step.kernels.matmul_time import MatmulConstants
from tools.validation.kernel_constants import fits, xla_rows
from tools.validation.kernel_plot import figure, panels
from tools.validation.small_matmuls import TABLES, ratios

DTYPES = ("bfloat16", "tf32", "float8_e4m3fn")
H100 = load_gpu("h100_sxm")
# |simulated / measured - 1|: middle row, and the row that 90 % stay below.
AIMS = {"bfloat16": (0.05, 0.15), "fp8": (0.06, 0.18), "fp8_block": (0.08, 0.24), "nvfp4": (0.10, 0.30)}
EXPERTS = {"bfloat16": 0.12, "fp8": 0.15, "fp8_block": 0.12, "nvfp4": 0.15}
# What the law does not reach, with what is known of it: the best fit found on a B300 has a median of 5.1 %, and cuDNN's
# forward kernels on an H200 are a sixth slower under load, to which they are fitted too.
MISSED: dict[tuple[str, ...], float] = {("b300", "bfloat16"): 0.052, ("h200", "bfloat16", "forward", "cudnn"): 0.09}
SKEWED = 0.20
ATTENTION = (0.08, 0.20)
NORMS = 0.15


def errors(rows: Iterable[MeasuredKernel], gpu: Gpu | None = None) -> tuple[float, float]:
    """Median and 90 % quantile of the errors' sizes."""
    found = [abs(row.simulated(gpu or gpu_named(row.gpu)) / row.seconds - 1.0) for row in rows]
    return float(np.quantile(found, 0.5)), float(np.quantile(found, 0.9))


@cache
def groups(table: str) -> dict[tuple[str, ...], list[MeasuredKernel]]:
    """The rows of a table that constants are fitted to, by GPU and the group that an aim is of."""
    found: dict[tuple[str, ...], list[MeasuredKernel]] = {}
    for row in kernel_rows(table):
        match row:
            case MeasuredMatmul() if row.library not in ("cuBLASLt", "hipBLASLt"):
                group: tuple[str, ...] = (row.dtype,)
            case MeasuredExperts():
                group = row.dtype, "balanced" if row.load == "balanced" else "skewed"
            case MeasuredAttention():
                group = row.dtype, row.pass_, "deterministic" if row.deterministic else "cudnn"
            case MeasuredNorm():
                group = row.implementation, row.pass_
            case _:
                continue
        found.setdefault((row.gpu, *group), []).append(row)
    return found


def named(group: Sequence[str]) -> str:
    return "-".join(group)


@pytest.mark.parametrize("group", groups("matmul"), ids=named)
def test_matmuls_are_as_near_to_the_table_as_aimed_at(group: tuple[str, str]) -> None:
    median, most = errors(groups("matmul")[group])
    assert median <= MISSED.get(group, AIMS[group[1]][0])
    assert most <= AIMS[group[1]][1]


@pytest.mark.parametrize("group", groups("experts"), ids=named)
def test_matmuls_of_experts_are_as_near_to_the_table_as_aimed_at(group: tuple[str, str, str]) -> None:
    median, _ = errors(groups("experts")[group])
    assert median <= (EXPERTS[group[1]] if group[2] == "balanced" else SKEWED)


@pytest.mark.parametrize("group", groups("attention"), ids=named)
def test_attention_is_as_near_to_the_table_as_aimed_at(group: tuple[str, str, str, str]) -> None:
    """Deterministic kernels have no constants of their own: in bfloat16 they take a ninth longer."""
    median, most = errors(groups("attention")[group])
    if group[0] == "gb200":
        assert median <= (0.12 if group[3] == "deterministic" else ATTENTION[0])
        assert most <= ATTENTION[1]
    else:
        # Few rows: a single odd kernel is the 90 % quantile.
        assert median <= MISSED.get(group, ATTENTION[0])


@pytest.mark.parametrize("group", groups("norms"), ids=named)
def test_norms_are_as_near_to_the_table_as_aimed_at(group: tuple[str, str, str]) -> None:
    assert errors(groups("norms")[group])[0] <= NORMS


def xla_error(gpu: str, dtype: str, least: int = 0) -> tuple[float, float]:
    """Median and 90 % quantile of |ln(simulated / measured)| over OpenXLA's table."""
    off = np.abs(np.log(ratios(gpu, dtype, least)))
    return float(np.quantile(off, 0.5)), float(np.quantile(off, 0.9))


@pytest.mark.parametrize(
    ("gpu", "dtype", "median", "most"),
    [
        ("h100_sxm", "bfloat16", 0.05, 0.15),
        ("h100_sxm", "tf32", 0.08, 0.25),
        ("b200", "tf32", 0.08, 0.25),
        ("mi300x", "bfloat16", 0.12, 0.35),
        ("mi300x", "tf32", 0.20, 0.45),
    ],
)
def test_matmuls_are_near_to_the_table_of_openxla(gpu: str, dtype: str, median: float, most: float) -> None:
    found = xla_error(gpu, dtype)
    assert (found[0] <= median, found[1] <= most) == (True, True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_large_matmuls_of_a_table_that_was_not_fitted_are_within_a_fifth(dtype: str) -> None:
    """Small matmuls on a B200 are simulated too fast: the fitted table has m of 1,024 and more."""
    assert xla_error("b200", dtype, 2**33)[0] < 0.2
    assert xla_error("b200", dtype)[0] < 0.45


def test_the_page_says_which_tables_are_fitted() -> None:
    fitted = {(each.gpu, "bfloat16") for each in fits() if len(each.tables) > 1 and "matmul_bfloat16" in each.kernels}
    sources = {
        (gpu, dtype): load_gpu(gpu).facts["sources"].get(f"constants.matmul_{dtype}_overlap", "")
        for gpu, dtype, _ in TABLES
    }
    assert (
        {(gpu, dtype) for gpu, dtype, is_fitted in TABLES if is_fitted}
        == {table for table, source in sources.items() if "OpenXLA" in source}
        >= fitted
    )


def constants(dtype: str) -> MatmulConstants:
    return kernel_model(H100).matmul(dtype)


def flops(row: MeasuredMatmul) -> float:
    return 2.0 * row.batch * row.m * row.n * row.k


def above(rows: Sequence[MeasuredMatmul], dtype: str, bandwidth: float) -> int:
    """Number of rows that are faster than the peak, or than their bytes at a bandwidth [B/s]."""
    c = constants(dtype)
    return sum(
        flops(r) > c.peak_flops * r.seconds
        or r.batch * (c.itemsize * r.k * (r.m + r.n) + c.output_itemsize * r.m * r.n) > bandwidth * r.seconds
        for r in rows
    )


def test_only_fp8_rows_of_the_table_beat_the_roofs_of_an_h100() -> None:
    """29 beat its peak, which nothing can; 9 more its HBM, which L2 can."""
    found = {d: [above(xla_rows("h100_sxm", d), d, b) for b in (float("inf"), H100.hbm_bandwidth)] for d in DTYPES}
    assert found == {"bfloat16": [0, 0], "tf32": [0, 0], "float8_e4m3fn": [29, 38]}


def fastest(dtype: str) -> float:
    return max(flops(row) / row.seconds for row in xla_rows("h100_sxm", dtype))


def test_the_fp8_rows_that_beat_the_roofs_beat_even_the_highest_clock() -> None:
    boost = 132 * 8192 * 1.98e9  # SMs x FLOP a clock and SM x highest clock of the vector units
    assert fastest("float8_e4m3fn") > 1.2 * boost


def test_tf32_rows_are_too_fast_for_vector_units() -> None:
    assert 6 * H100.peak_flops["float32"] < fastest("tf32") < H100.peak_flops["tf32"]


def swapped(dtype: str) -> list[tuple[float, float]]:
    """Times of (m, n, k) with m < n, and of (n, m, k)."""
    time = {(r.batch, r.m, r.n, r.k): r.seconds for r in xla_rows("h100_sxm", dtype)}
    return [(t, time[b, n, m, k]) for (b, m, n, k), t in time.items() if m < n and (b, n, m, k) in time]


@pytest.mark.parametrize(
    ("dtype", "median", "most"),
    [("bfloat16", 0.0102, 0.0562), ("tf32", 0.0383, 0.2724), ("float8_e4m3fn", 0.123, 0.502)],
)
def test_the_table_itself_is_not_symmetric(dtype: str, median: float, most: float) -> None:
    """(m, n, k) and (n, m, k) are the same work: no smooth law can have smaller residuals than their difference."""
    found = np.abs([np.log(wide / tall) for wide, tall in swapped(dtype)])
    assert (np.quantile(found, 0.5), np.quantile(found, 0.9)) == pytest.approx((median, most), rel=0.01)


def test_fp8_is_slower_where_b_is_large_as_in_the_table() -> None:
    """cuBLASLt on Hopper takes b only with k along its rows, so XLA transposes it (XLA pull request 59515)."""
    assert np.mean([wide > tall for wide, tall in swapped("float8_e4m3fn")]) > 0.85


@pytest.mark.parametrize(
    ("gpu", "dtype"),
    [
        (name, dtype)
        for name in registry.names("gpu")
        for dtype in load_gpu(name).facts["best_matmul"]
        if f"matmul_{dtype}_efficiency" not in load_gpu(name).facts["constants"]
    ],
)
def test_a_gpu_without_a_table_runs_its_best_matmul_within_a_tenth(gpu: str, dtype: str) -> None:
    shape, rate = load_gpu(gpu).facts["best_matmul"][dtype]
    kernel = Matmul("", *shape)
    assert kernel.flops / duration(kernel, load_gpu(gpu), dtype) == pytest.approx(rate, rel=0.10)


# What a constant of a kernel is not fitted to, as sources would say it.
WHOLE_STEPS = re.compile(r"training|simumax|\bsteps?\b", re.IGNORECASE)


@pytest.mark.parametrize("gpu", registry.names("gpu"))
def test_every_constant_has_a_source_and_none_is_fitted_to_a_training_step(gpu: str) -> None:
    """Kernels are fitted to kernels; what a step takes beside them belongs to the framework."""
    model = kernel_model(load_gpu(gpu))
    assert [name for name, constant in model.constants.items() if not constant.source.strip()] == []
    assert [name for name, constant in model.constants.items() if WHOLE_STEPS.search(constant.source)] == []
    # Its own constants are all among them.
    assert set(load_gpu(gpu).facts["constants"]) <= set(model.constants)


def test_every_fitted_kernel_is_shipped_with_the_source_of_its_fit() -> None:
    wrong = [
        f"{each.gpu}: {kernel}_{name}"
        for each in fits()
        for kernel, names in each.kernels.items()
        for name in names
        if load_gpu(each.gpu).facts["sources"].get(f"constants.{kernel}_{name}") != each.source
    ]
    assert wrong == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("gpu", "dtype", "beyond"), [("h100_sxm", "bfloat16", (0.012, 0.04)), ("gb200", "fp8_block", (0.0, 0.0))]
)
def test_a_fit_on_half_of_the_shapes_holds_on_the_other_half(gpu: str, dtype: str, beyond: tuple[float, float]) -> None:
    """The aims of whole tables, and what shapes that no fit saw miss them by: of an H100's small table 6.1 %
    in the median and 19 % for nine tenths, where 5 and 15 % are the aims.
    """
    (chosen,) = (each for each in fits() if each.gpu == gpu and each.tables[0][0] == groups("matmul")[gpu, dtype][0])
    mixed = random.Random(3)
    halves = [mixed.sample(list(rows), len(rows)) for rows in chosen.tables]
    fitted = [rows[: len(rows) // 2] for rows in halves]
    names = [f"{kernel}_{name}" for kernel, own in chosen.kernels.items() for name in own]
    changed = with_constants(load_gpu(gpu), fit(fitted, load_gpu(gpu), names))
    for rows in halves:
        median, most = errors(rows[len(rows) // 2 :], changed)
        assert median <= AIMS[dtype][0] + beyond[0]
        assert most <= AIMS[dtype][1] + beyond[1]


def test_the_picture_has_a_panel_for_each_format_and_a_point_for_each_row() -> None:
    rows = kernel_rows("matmul")
    drawn = figure(panels(rows), "finding")
    points = [len(np.asarray(line.get_xdata())) for axes in drawn.axes for line in axes.lines[:-1]]
    assert sum(points) == len([row for row in rows if row.dtype in AIMS])
    assert len(drawn.axes) == len(AIMS)


def test_a_picture_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="give at least one panel"):
        figure([], "finding")
