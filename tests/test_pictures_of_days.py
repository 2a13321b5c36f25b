"""Pictures of `simulator goodput` can be read, and draw the numbers of the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from simulator import load_scenario
from simulator.report.plots.days import incident_calendar, interval_sweep, share_of_runs, useful_by_value, waterfall
from simulator.report.plots.days.incident_calendar import Stop
from simulator.run.reliability.failures import DAY
from simulator.run.reliability.goodput_pictures import pictures
from simulator.run.reliability.question import Goodput, GoodputComparison, GoodputQuestion, compared, goodput
from simulator.scenario.days_file import RunOfDays
from simulator.testing.looking import check, texts

STEP: dict[str, Any] = {
    "name": "days",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "framework": "torchtitan"},
}
SHARES = {
    "useful": 0.5, "degraded": 0.02, "checkpoint": 0.08, "lost work": 0.1, "detection": 0.05,
    "waiting for spares": 0.15, "restart": 0.1,
}  # fmt: skip
ALL = {"waterfall", "incidents", "runs", "intervals"}


def question(**facts: Any) -> GoodputQuestion:
    return GoodputQuestion(load_scenario(STEP), RunOfDays.model_construct(**({"days": 30.0, "failures": 0.5} | facts)))


def drawn(found: Goodput | GoodputComparison) -> dict[str, Figure]:
    return {picture.name: picture.figure for picture in pictures(found)}


def widths(figure: Figure, panel: int) -> list[float]:
    return [patch.get_width() for patch in figure.axes[panel].patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({}, ALL),
        ({"days": None, "tokens": 1e12, "interval": 600.0, "spares": 1}, ALL),
        ({"failures": 0.0}, {"waterfall"}),
    ],
)  # fmt: skip
def test_every_picture_of_an_answer_can_be_read(facts: dict[str, Any], names: set[str]) -> None:
    found = drawn(goodput(question(**facts)))
    assert set(found) == names
    for name, figure in found.items():
        check(figure, name)


def test_a_comparison_is_drawn_with_its_finding_as_title() -> None:
    found = compared({value: question(spares=int(value)) for value in ("0", "4")}, "spares")
    figure = drawn(found)["values"]
    check(figure, "values")
    assert figure.get_suptitle().replace("\n", " ") == found.sentences[0].rstrip(".")


def test_a_waterfall_goes_from_nothing_to_all_that_is_lost() -> None:
    figure = waterfall.figure(SHARES, 30.0)
    check(figure, "waterfall")
    assert widths(figure, 0) == pytest.approx(list(SHARES.values()))
    assert widths(figure, 1) == pytest.approx(list(SHARES.values())[1:])
    starts = [patch.get_x() for patch in figure.axes[1].patches if isinstance(patch, Rectangle)]
    assert starts == pytest.approx(np.cumsum([0.0, *list(SHARES.values())[1:-1]]).tolist())
    # A tenth of 30 days is 3 days.
    assert "10.0 %, 3 days" in [text for text, _ in texts(figure)]


def test_values_with_long_names_and_many_values_can_be_read() -> None:
    rare = SHARES | {"useful": 0.9, "waiting for spares": 0.0, "restart": 0.0, "degraded": 0.0, "lost work": 0.0}
    values = {f"{number} gigabytes in a second for all of the GPUs": SHARES for number in range(49)} | {"none": rare}
    figure = useful_by_value.figure("storage", values, "Storage none leaves most of the time useful, 90.0 %")
    check(figure, "values")


@pytest.mark.parametrize(("days", "rows", "name"), [(0.4, 1, "day"), (30, 30, "day"), (200, 29, "week")])
def test_a_calendar_has_a_row_for_each_day_or_week(days: float, rows: int, name: str) -> None:
    every = np.linspace(0.0, days, 400, endpoint=False) * DAY
    stops = [Stop(float(time), ("error", "hang", "GPU")[place % 3], 60.0, 900.0) for place, time in enumerate(every)]
    figure = incident_calendar.figure(stops, days * DAY)
    check(figure, f"{days} days")
    (axes,) = figure.axes
    assert axes.get_ylim()[0] == rows - 0.4
    assert axes.get_ylabel() == name


def test_a_failure_costs_time_across_midnight_and_nothing_after_the_end() -> None:
    # From 23 h of the first day: an hour of it, the second day, and half of the third, where the run ends.
    figure = incident_calendar.figure([Stop(23 * 3600.0, "error", 4 * DAY, 600.0)], 2.5 * DAY)
    (axes,) = figure.axes
    bars = [collection for collection in axes.collections if len(collection.get_paths()) == 1][:3]
    lengths = [float(np.ptp(bar.get_paths()[0].vertices[:, 0])) for bar in bars]
    assert lengths == pytest.approx([3600.0, DAY, 0.5 * DAY])


def test_a_calendar_without_failures_is_refused() -> None:
    with pytest.raises(ValueError, match="no failure to draw"):
        incident_calendar.figure([], DAY)


@pytest.mark.parametrize("rising", [True, False])
def test_the_share_of_the_runs_goes_from_none_to_all(rising: bool) -> None:
    figure = share_of_runs.figure([4.0, 1.0, 2.0, 3.0], "days", "Half of the runs have ended", rising=rising)
    check(figure, "runs")
    line = figure.axes[0].lines[0]
    # A quarter of four runs at each value.
    quarters = [0.0, 25.0, 50.0, 75.0, 100.0]
    assert line.get_ydata()[:5].tolist() == (quarters if rising else quarters[::-1])
    assert line.get_xdata()[1:5].tolist() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("young", [3.0, 200.0, 5e3, 3e6])
def test_intervals_from_seconds_to_months_can_be_read(young: float) -> None:
    tried = [(young * factor, 0.99 - 0.01 * abs(np.log(factor))) for factor in (0.25, 0.5, 1.0, 2.0, 4.0)]
    marked = {"best": young, "Young": young * 1.02, "Daly": young * 0.98, "given": young * 3}
    figure = interval_sweep.figure(tried, marked)
    check(figure, str(young))
    assert len([text for text, _ in texts(figure) if text.endswith((" s", " min", " h", " d"))]) >= 3
    assert [line.get_xdata()[0] for line in figure.axes[0].lines[1:]] == list(marked.values())
