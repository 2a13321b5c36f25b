"""Intervals of predictions: from the errors of measured runs like them, and as often right as they say."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest

from simulator.calibration.training_runs.coverage import coverage, coverage_table
from simulator.report.numbers.prediction_intervals import (
    Quantity,
    Residual,
    Traits,
    prediction_interval,
    shipped,
)
from simulator.run import simulate
from simulator.scenario.load import load_scenario

PLAIN = Traits("nanotron", "h100", eight_bit=False, cut=False, nodes=False)


def residual(source: str, error: float, **facts: object) -> Residual:
    traits = replace(PLAIN, **facts)  # type: ignore[arg-type]
    return Residual(source, traits, {"time": error}, {"time": 3 * error})


def test_four_in_five_of_like_runs_lie_inside() -> None:
    """Ten runs of one source with errors of 1 to 10 %: the eighth is the 80 % quantile, the tenth the 95 %."""
    runs = [residual("one", 0.01 * n * (-1) ** n) for n in range(1, 11)]
    found = prediction_interval(PLAIN, residuals=runs)
    assert found.width == pytest.approx((math.exp(0.08), math.exp(0.10)))
    ends = found.around("time", 2.0)
    assert list(ends) == ["time_80_low", "time_80_high", "time_95_low", "time_95_high"]
    assert (ends["time_80_low"], ends["time_80_high"]) == pytest.approx((2.0 / math.exp(0.08), 2.0 * math.exp(0.08)))


def test_a_source_with_many_rows_counts_as_much_as_one_with_few() -> None:
    runs = [*(residual("many", 0.01) for _ in range(99)), residual("few", 0.5)]
    assert prediction_interval(PLAIN, residuals=runs).width[0] == pytest.approx(math.exp(0.5))


def test_what_was_carried_over_or_has_no_measured_network_is_less_sure() -> None:
    runs = [residual("one", 0.05, nodes=True)]
    traits = replace(PLAIN, nodes=True)
    known = prediction_interval(traits, residuals=runs)
    other = prediction_interval(replace(traits, framework="unheard of"), residuals=runs)
    chip = prediction_interval(replace(traits, chip="mi300x"), residuals=runs)
    assert (known.carried_over, other.carried_over, chip.carried_over) == (False, True, True)
    assert other.width[0] == chip.width[0] == pytest.approx(known.width[0] ** 3)
    assert prediction_interval(traits, residuals=runs, network_stated=False).width[0] > known.width[0]


@pytest.mark.parametrize("quantity", ["time", "memory"])
def test_sources_that_were_left_out_fall_inside_as_often_as_said(quantity: Quantity) -> None:
    """The mean over sources, each of which was played as if nobody had seen it."""
    parts = coverage(shipped(), quantity)
    assert 0.70 <= fmean(part.inside[0] for part in parts) <= 0.90
    assert len(coverage_table(shipped()).rows) > len(parts)


def test_a_report_has_intervals_round_what_it_says() -> None:
    training = {"model": "gpt2", "micro_batch_size": 1, "seq_len": 128, "framework": "nanotron"}
    cluster = {"topology": "dgx_h100", "world_size": 8}
    report = simulate(load_scenario({"name": "a", "question": "?", "cluster": cluster, "training": training})).report
    document = report.to_dict()
    for key in ("step_time_s", "tokens_per_s", "peak_memory_bytes"):
        ends = [document["intervals"][f"{key}_{end}"] for end in ("95_low", "80_low", "80_high", "95_high")]
        assert ends == sorted(ends)
        assert ends[1] < document[key] < ends[2]
    assert document["carried_over"] is False
