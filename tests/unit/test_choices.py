"""What a plan would have chosen among measured runs, and how far that is behind the fastest of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.calibration.training_runs.cut_rows import all_measured
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.ranking import choices, said


def runs(measured: list[float], predicted: list[float], gpus: int = 8) -> list[PlayedRow]:
    """Runs of one kind that were measured and predicted at so many tokens/s."""
    row = replace(all_measured("nanotron_cut", 1)[0], gpus=gpus)
    made = []
    for was, would in zip(measured, predicted, strict=True):
        own = replace(row, tokens_per_s=was)
        made.append(PlayedRow(own, own.step_time * was / would, 40e9, 80 * 10**9, 0.0))
    return made


def test_the_preferred_run_is_compared_with_the_fastest_of_its_group() -> None:
    # The second is preferred, and took 10/8 of the first one's time; by ranks 0, 1, 2 against 1, 2, 0: -0.5.
    (one,) = choices(runs([1000.0, 800.0, 900.0], [700.0, 900.0, 600.0]))
    assert (one.runs, one.behind, one.agreement) == (3, pytest.approx(0.25), pytest.approx(-0.5))
    assert (
        said([one])
        == "0 of 1 groups, the predicted fastest run within 10% of the measured fastest; median rank correlation -0.500"
    )


def test_runs_on_other_numbers_of_gpus_are_another_group() -> None:
    found = choices([*runs([1000.0, 990.0], [800.0, 900.0]), *runs([10.0, 20.0, 30.0], [1.0, 2.0, 3.0], gpus=16)])
    assert [(one.runs, one.agreement) for one in found] == [(3, pytest.approx(1.0)), (2, None)]
    assert [one.behind for one in found] == [0.0, pytest.approx(1000 / 990 - 1)]
    assert said(found).startswith("2 of 2 groups")


def test_a_run_alone_is_no_group() -> None:
    assert choices(runs([1000.0], [900.0])) == ()
