"""Kernels of one B200 in a training framework under load, against micro-benchmarks times the load of one chip.

Steps of several B200 ask for more (catalog/sustained.yaml: 1.65), as those of several H100 do (1.31, one H200 1.19).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

import pytest

from simulator.basics.measured_tables import read_table
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Kernel, Matmul
from simulator.step.framework import load_framework
from simulator.step.kernels.kernel_time import duration

# Shorter times contain the host's gaps [s].
SHORTEST = 300e-6
B200 = load_gpu("b200")
LOADED = load_framework("nemo").on_ranks(1)


def kernel(row: Mapping[str, str]) -> Kernel:
    """Return the kernel of a row of loaded.csv."""
    groups, m, n, k = (int(row[name]) for name in ("groups", "m", "n", "k"))
    if row["kernel"] == "attention":
        # The mean of both widths: forward has a matmul of each.
        width = sum(map(int, row["width"].split("/"))) // 2
        return Attention("attention", groups, n, k, m, width, causal=True, backward=row["pass"] == "backward")
    return Matmul("matmul", m, n, k, batch=groups, kind="grouped" if row["kernel"] == "grouped" else "matmul")


def slowdown(wanted: Callable[[Mapping[str, str]], bool]) -> float:
    """Return the median of measured over micro-benchmarked time, over the rows wanted."""
    rows = [row for row in read_table("loaded.csv") if wanted(row)]
    times = [(float(row["us"]) * 1e-6, duration(kernel(row), B200, "bfloat16", ordered=True)) for row in rows]
    long = [measured / alone for measured, alone in times if measured >= SHORTEST]
    assert len(long) > 20
    return median(long)


def test_matmuls_slow_down_as_the_chip_s_constant_says() -> None:
    # Weight gradients contain the sum with earlier gradients.
    found = slowdown(lambda row: row["kernel"] == "matmul" and row["pass"] != "weight gradient")
    assert LOADED.matmul_time(B200) == pytest.approx(found, rel=0.005)


def test_grouped_matmuls_slow_down_as_much() -> None:
    found = slowdown(lambda row: row["kernel"] == "grouped" and row["pass"] != "weight gradient")
    assert LOADED.matmul_time(B200) == pytest.approx(found, rel=0.05)


def test_attention_slows_down_by_its_share_of_a_matmul_s_power() -> None:
    # 0.86 of a matmul's power (see Framework.attention_time), found on an H200: nothing is fitted to these kernels.
    found = slowdown(lambda row: row["kernel"] == "attention")
    assert LOADED.attention_time(B200) == pytest.approx(0.86 * LOADED.matmul_time(B200))
    assert LOADED.attention_time(B200) == pytest.approx(found, rel=0.06)
