"""Kernel times of an H200 against kernels measured there with PyTorch (catalog/measured/kernels.csv), and of an A100
against Liger's RMSNorm.

Nothing was fitted to these measurements, except the power of attention. They took a tenth of a second and more, under
the board's limit of power: matmuls have the factor of sustained load.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from simulator.basics.measured_tables import read_table
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.step.framework import load_framework
from simulator.step.kernels.kernel_time import duration

_H200 = load_gpu("h200")
# Ratios simulated / measured, by kind of kernel.
_Ratios = dict[str, list[float]]


@cache
def _ratios() -> _Ratios:
    found: _Ratios = {}
    for kind, ratio in _each():
        found.setdefault(kind, []).append(ratio)
    return found


def _each() -> Iterator[tuple[str, float]]:
    own = load_framework("nemo").on_ranks(1)
    for row in read_table("kernels.csv"):
        batch, m, n, k = (int(row[name]) for name in ("batch", "m", "n", "k"))
        kernel: Kernel
        if row["kernel"] == "matmul":
            dtype = row["how"].split()[0].replace("float8", "float8_e4m3fn")
            kernel, slower, generation = Matmul("", m, n, k), own.matmul_time(_H200, dtype), 2
            # LoRA's matmuls are bound by HBM, no longer by power.
            kind = f"{row['how']}{' thin' if min(n, m, k) < 1024 else ''}"
        else:
            dtype, slower = "bfloat16", own.attention_time(_H200)
            generation = 2 if row["how"] == "flash" else 3
            kernel = Attention(
                "", batch, k, k, m, 128, causal=bool(row["mask"]), backward=row["pass"] == "backward", keys=n
            )
            kind = f"{row['how']} {row['pass']} {'long' if m * n >= 2**28 else 'short'}"
        seconds = duration(kernel, _H200, dtype, attention_generation=generation, ordered=True)
        yield kind, slower * seconds / (float(row["us"]) * 1e-6)


@pytest.mark.parametrize(
    ("kind", "most"),
    [
        # Largest error of the median, and what is known about it.
        ("bfloat16", 0.05),
        ("bfloat16 thin", 0.05),
        ("float8 tensor fast", 0.08),
        ("float8 row fast", 0.08),
        # In a step, whose matmuls need 1.18 times the board's power, attention is taken to need 1.015 times as much.
        ("flash forward long", 0.05),
        ("flash backward long", 0.04),
        ("cudnn backward long", 0.04),
        # The published rates are of forward and backward together.
        ("cudnn forward long", 0.10),
        ("cudnn forward short", 0.10),
        ("flash forward short", 0.10),
        # Up to 8,192 tokens, backward kernels begin and end too often: 10 to 19 % slower than simulated.
        ("flash backward short", 0.16),
        ("cudnn backward short", 0.12),
    ],
)
def test_kernels_take_what_was_measured(kind: str, most: float) -> None:
    assert statistics.median(_ratios()[kind]) == pytest.approx(1.0, abs=most)


def test_attention_on_a_board_with_less_power_loses_by_the_root() -> None:
    # 0.86 x 1.17 on 700 W, as on one H200; 500 W give 1.18 times more.
    own = load_framework("torchtitan").on_ranks(1)
    for watts in (700.0, 687.0, 600.0, 500.0):
        gpu = replace(_H200, facts={**_H200.facts, "power": watts})
        assert own.attention_time(gpu) == pytest.approx(max(1.0, 0.86 * 1.17 * (700 / watts) ** (1 / 2)), rel=1e-9)
    # Bare kernels know no sustained load.
    assert load_framework("bare").attention_time(gpu) == 1.0


@pytest.mark.parametrize(("width", "forward", "backward"), [(8192, 51.7e-6, 178.0e-6), (16384, 95.3e-6, 320.5e-6)])
def test_rms_norm_of_liger_takes_the_time_of_its_bytes(width: int, forward: float, backward: float) -> None:
    """linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv, version 0.2.1 on an A100: 2,048 rows in
    bfloat16, a weight in float32. Forward reads and writes 2 bytes of each element. Backward reads two arrays and
    writes one, writes each row's weight gradient in float32, and reads it for the sum over rows.
    """
    a100, elements = load_gpu("a100_sxm_80gb"), 2048 * width
    normed = Elementwise("norm", 2 * elements, 2 * elements)
    gradient = Elementwise("norm gradient", 4 * elements, (2 + 4) * elements)
    rows = Elementwise("sum over rows", 4 * elements, 4 * width)
    times = [sum(duration(one, a100, "bfloat16") for one in part) for part in ((normed,), (gradient, rows))]
    # Triton's kernels reach about 0.8 of the bandwidth of a copy.
    assert times == pytest.approx([forward, backward], rel=0.25)
