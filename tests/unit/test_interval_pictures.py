"""Pictures of training steps show the intervals that their reports hold, and none where a report has none."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.report.plots.plot import Throughput
from simulator.report.plots.training import breakdown, memory_vs_time
from simulator.report.plots.training import scaling as training_scaling

LABEL = "uncertainty (80 %)"


def report(step: float, **intervals: float) -> dict[str, Any]:
    return {
        "compute_time_s": step, "recompute_time_s": 0.0, "optimizer_time_s": 0.0, "bubble_time_s": 0.0,
        "exposed_comm_time_by_kind": {}, "comm_time_by_dimension": {}, "exposed_comm_time_s": 0.0, "mfu": 0.4,
        "tokens_per_s": 1 / step, "tokens_per_s_per_gpu": 1 / step, "step_time_s": step, "intervals": intervals,
        "peak_memory_bytes": 2**30, "fits": True,
    }  # fmt: skip


def test_a_bar_ends_between_the_ends_of_its_interval() -> None:
    figure = breakdown.figure([
        ("one", report(1.0, step_time_s_80_low=0.9, step_time_s_80_high=1.2)),
        ("two", report(2.0, step_time_s_80_low=1.5, step_time_s_80_high=2.6)),
    ])  # fmt: skip
    (axes,) = figure.axes
    assert [list(line.get_xdata()) for line in axes.lines] == [[0.9, 1.2], [1.5, 2.6]]
    assert [line.get_label().startswith(LABEL) for line in axes.lines] == [True, False]
    assert axes.get_xlim()[1] > 2.6


def test_runs_with_unequal_steps_are_drawn_by_token() -> None:
    small, large = report(1.0), report(2.0)
    large["tokens_per_s_per_gpu"] = 1.5  # 3 tokens in 2 s, where the other takes 1 s for 1
    (axes,) = breakdown.figure([("one", small), ("three", large)]).axes
    assert [round(bar.get_width(), 9) for bar in axes.patches] == [1.0, round(2 / 3, 9)]
    assert axes.get_xlabel() == "GPU time per token (s)"


def test_bars_say_speed_memory_and_what_does_not_fit() -> None:
    (axes,) = breakdown.figure([("one", report(0.5)), ("two", report(0.5) | {"fits": False})]).axes
    beside = ["2 tokens/s, 40 % MFU, 1 GiB", "2 tokens/s, 40 % MFU, 1 GiB, does not fit"]
    assert [text.get_text() for text in axes.texts] == beside


def test_without_an_interval_there_is_no_line() -> None:
    (axes,) = breakdown.figure([("one", report(1.0))]).axes
    assert not axes.lines


@pytest.mark.parametrize("known", [True, False])
def test_a_point_of_a_sweep_has_its_bar_where_it_is_known(known: bool) -> None:
    ends = (90.0, 120.0) if known else (None, None)
    figure = training_scaling.figure([Throughput("zero3", 8, 100.0, 0.4, *ends), Throughput("zero3", 16, 190.0, 0.4)])
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert (lines.get(LABEL) == [90.0, 120.0]) is known
    assert lines["zero3"] == [100.0, 190.0]


def test_runs_of_unlike_numbers_of_gpus_are_compared_by_the_speed_of_one() -> None:
    """64 GPUs do more work than 8 in any case: 6 times the tokens with 8 times the GPUs are a loss."""
    few, many = report(1.0), report(1.0)
    few |= {"tokens_per_s": 800.0, "tokens_per_s_per_gpu": 100.0}
    many |= {"tokens_per_s": 4800.0, "tokens_per_s_per_gpu": 75.0}
    told = breakdown.finding([("8 GPUs", few), ("64 GPUs", many)])
    assert told == "8 GPUs has the highest throughput: 100 tokens/s per GPU; 0 % of the step is exposed communication"


def test_the_title_of_a_scaling_is_its_efficiency() -> None:
    rows = [
        Throughput(line, gpus, speed, 0.4)
        for line, speeds in (("ddp", (200.0, 760.0)), ("zero3", (190.0, 813.0)))
        for gpus, speed in zip((2, 8), speeds, strict=True)
    ]
    assert training_scaling.finding(rows) == "8 GPUs keep 95 % (ddp) to 107 % (zero3) of the speed per GPU on 2 GPUs"


def test_a_front_of_one_point_is_no_line_and_has_no_name() -> None:
    one = {"tokens_per_s_per_gpu": 5.0, "peak_memory_bytes": 2**30, "fits": True, "capacity_bytes": 2**31}
    worse = one | {"tokens_per_s_per_gpu": 4.0, "peak_memory_bytes": 2**30 + 1}

    def names(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
        return [text.get_text() for text in memory_vs_time.figure(rows).legends[0].get_texts()]

    assert not any("front" in name for name in names([("a", one), ("b", worse)]))
    assert any("front" in name for name in names([("a", one), ("b", worse | {"peak_memory_bytes": 2**29})]))


def test_thin_lines_to_names_pass_below_points_and_lines_of_data() -> None:
    one = {"tokens_per_s_per_gpu": 5.0, "peak_memory_bytes": 2**30, "fits": True, "capacity_bytes": 2**31}
    rows = [("a", one), ("b", one | {"tokens_per_s_per_gpu": 4.0, "peak_memory_bytes": 2**29})]
    (axes,) = memory_vs_time.figure(rows).axes
    assert len(axes.texts) == len(rows)
    assert max(text.get_zorder() for text in axes.texts) < min(line.get_zorder() for line in axes.lines)
