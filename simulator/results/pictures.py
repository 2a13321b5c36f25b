"""Which pictures does a run draw: the plots that its scenario asks for, from its outcomes or from points played again?

Rule: a plot declares what it is drawn from (report/plots/plot.py), and that is fetched here. Comparison plots show all
points together, the others one point of each compared setting.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.report.plots import catalog as plot_catalog
from simulator.report.plots.plot import CloseUpPlot, Comparison, ComparisonPlot, SchedulePlot, Throughput
from simulator.report.tables.setting_text import labelled
from simulator.results.close_ups import close_ups, schedules
from simulator.results.conclusion import scaling_points
from simulator.scenario.load import points
from simulator.scenario.records import Scenario
from simulator.sweeps.outcome import PointOutcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(folder: Path, scenario: Scenario, outcomes: Sequence[PointOutcome], *, svg: bool = False) -> list[Path]:
    """Draw what the scenario asks for into folder/plots; the PNG files, in order."""
    from simulator.report.plots import style

    figures = _figures(scenario, outcomes)
    return [style.save(figure, folder / "plots", name, svg=svg) for name, figure in figures]


def _figures(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> Iterator[tuple[str, Figure]]:
    kind = "collective" if scenario.training is None else "training"
    wanted = [plot for plot in plot_catalog.of(kind) if plot.name in scenario.plots]
    compared = _comparison(scenario, outcomes)
    for plot in wanted:
        if isinstance(plot, ComparisonPlot):
            yield from plot.figures(compared).items()
    close = [plot for plot in wanted if isinstance(plot, CloseUpPlot)]
    for suffix, point in close_ups(scenario) if close else ():
        yield from _given(((plot.name, plot.figure(point)) for plot in close), suffix)
    small = [plot for plot in wanted if isinstance(plot, SchedulePlot)]
    for suffix, schedule in schedules(scenario) if small else ():
        yield from _given(((plot.name, plot.figure(schedule)) for plot in small), suffix)


def _given(figures: Iterator[tuple[str, Figure | None]], suffix: str) -> Iterator[tuple[str, Figure]]:
    return ((f"{name}{suffix}", figure) for name, figure in figures if figure is not None)


def _comparison(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> Comparison:
    done = [(outcome.settings, outcome.report) for outcome in outcomes if outcome.report is not None]
    rows = [(labelled(settings) or scenario.name, report) for settings, report in done]
    if scenario.training is None:
        return Comparison(rows, times=scaling_points(scenario, outcomes))
    several = "cluster.world_size" in {*scenario.compare, *scenario.sweep}
    return Comparison(rows, throughputs=_throughputs(scenario, outcomes) if several else ())


def _throughputs(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> list[Throughput]:
    """How fast every point that was played is."""
    throughputs = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        if outcome.report is not None:
            apart = {k: v for k, v in point.settings.items() if k != "cluster.world_size"}
            line = labelled(apart) or scenario.name
            report = outcome.report
            ends = report.get("intervals") or {}
            throughputs.append(
                Throughput(
                    line, point.scenario.cluster.world_size, report["tokens_per_s"], report["mfu"],
                    ends.get("tokens_per_s_80_low"), ends.get("tokens_per_s_80_high"),
                )
            )  # fmt: skip
    return throughputs
