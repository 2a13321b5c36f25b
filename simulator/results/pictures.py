"""Which pictures does a run draw: the plots that its scenario asks for, from its outcomes or from points played again?

Rule: a plot declares what it is drawn from (report/plots/plot.py), and that is fetched here. Every picture says below
its title which point it shows, or what all points have in common, so that no plot can forget it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.records.setting_text import labelled
from simulator.report.plots import catalog as plot_catalog
from simulator.report.plots.plot import CloseUpPlot, Comparison, ComparisonPlot, Plot, SchedulePlot, Throughput
from simulator.results.close_ups import close_up, schedules
from simulator.results.drawn import Pictures, Undrawn
from simulator.results.found_crossings import found_crossings
from simulator.results.plotted_points import PlottedPoints, plotted_points
from simulator.results.scaling_points import scaling_points
from simulator.run.outcome import PointOutcome
from simulator.scenario.description import describe_point
from simulator.scenario.load import points
from simulator.scenario.records import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTHING = "this point has nothing that it shows"
# The name of a picture's file, the figure or why there is none, and which point it shows.
_Picture = tuple[str, "Figure | Undrawn", str]


def draw(
    folder: Path,
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    *,
    svg: bool = False,
    spoken: Sequence[int] | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
) -> Pictures:
    """Draw what the scenario asks for into folder/plots.

    Parameters
    ----------
    folder : Path
    scenario : Scenario
    outcomes : sequence of PointOutcome
    svg : bool
    spoken : sequence of int, optional
        The points that the answer speaks of, where it has been worked out.
    findings : sequence of mapping
        Of the answer, as plain data.
    """
    from simulator.report.plots import style

    chosen = plotted_points(scenario, outcomes, spoken)
    files, undrawn = [], []
    for name, figure in figures(scenario, outcomes, chosen, findings):
        if isinstance(figure, Undrawn):
            undrawn.append(undrawn_text(name, figure))
        else:
            files.append(style.save(figure, folder / "plots", name, svg=svg))
    close = any(isinstance(plot, CloseUpPlot) for plot in _wanted(scenario).values())
    return Pictures(tuple(files), chosen.left_out if close else "", tuple(undrawn))


def undrawn_text(name: str, undrawn: Undrawn) -> str:
    """Say that a picture is not there, and why."""
    return f"not drawn: {name}: {undrawn.reason}"


def figures(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    chosen: PlottedPoints | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
) -> Iterator[tuple[str, Figure | Undrawn]]:
    """The figures that a scenario asks for, each with the name of its file; or why one is not there."""
    from simulator.report.plots import style

    for name, figure, point in _pictures(scenario, outcomes, chosen or plotted_points(scenario, outcomes), findings):
        if point and not isinstance(figure, Undrawn):
            style.set_point(figure, point)
        yield name, figure


def _wanted(scenario: Scenario) -> dict[str, Plot]:
    kind = "collective" if scenario.training is None else "training"
    return {name: plot for name, plot in plot_catalog.of(kind).items() if name in (scenario.plotted.kinds or ())}


def _pictures(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    chosen: PlottedPoints,
    findings: Sequence[Mapping[str, Any]],
) -> Iterator[_Picture]:
    wanted, compared = _wanted(scenario), _comparison(scenario, outcomes, findings)
    in_common = describe_point(scenario, {})
    for plot in wanted.values():
        if isinstance(plot, ComparisonPlot):
            yield from ((name, figure, in_common) for name, figure in plot.figures(compared).items())
    yield from _of_points(
        scenario, chosen, {name: plot for name, plot in wanted.items() if isinstance(plot, CloseUpPlot)}
    )
    small = {name: plot for name, plot in wanted.items() if isinstance(plot, SchedulePlot)}
    for suffix, point, schedule in schedules(scenario, chosen) if small else ():
        for name, plot in small.items():
            figure = plot.figure(schedule) or Undrawn(_NOTHING)
            yield f"{name}{suffix}", figure, describe_point(scenario, point.settings)


def _of_points(scenario: Scenario, chosen: PlottedPoints, wanted: Mapping[str, CloseUpPlot]) -> Iterator[_Picture]:
    all_points = points(scenario)
    for place, suffix in chosen.names.items() if wanted else ():
        point = all_points[place]
        looked_at = close_up(point.scenario, links=any(plot.links for plot in wanted.values()))
        for name, plot in wanted.items():
            figure = looked_at if isinstance(looked_at, Undrawn) else plot.figure(looked_at) or Undrawn(_NOTHING)
            yield f"{name}{suffix}", figure, describe_point(scenario, point.settings)


def _comparison(
    scenario: Scenario, outcomes: Sequence[PointOutcome], findings: Sequence[Mapping[str, Any]]
) -> Comparison:
    done = [(outcome.settings, outcome.report) for outcome in outcomes if outcome.report is not None]
    rows = [(labelled(settings) or scenario.name, report) for settings, report in done]
    if scenario.training is None:
        crossings = found_crossings(scenario, findings)
        return Comparison(rows, times=scaling_points(scenario, outcomes), crossings=crossings)
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
