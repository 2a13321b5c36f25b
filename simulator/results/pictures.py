"""Which pictures does a run draw: the scenario's plots, from outcomes or from points that are simulated again?

Each plot declares its data (report/plots/plot.py), and this module supplies the data. Below its title, every picture
names the point, or the settings common to every point; the plots themselves need not do so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.records.setting_text import labelled
from simulator.report.plots import catalog as plot_catalog
from simulator.report.plots.plot import CloseUpPlot, ComparedPoints, ComparisonPlot, Plot, SchedulePlot, Throughput
from simulator.results.close_ups import close_up, schedules
from simulator.results.drawn import DrawnPictures, Undrawn
from simulator.results.plotted_points import PlottedPoints, plotted_points
from simulator.results.scaling_picture import marked_crossovers, scaling_points
from simulator.run.outcome import PointOutcome
from simulator.scenario.description import describe_point
from simulator.scenario.load import points
from simulator.scenario.records import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NOTHING = "the point has no data for this picture"
# File name, figure (or reason for a missing figure), and description of the point in the picture.
_Picture = tuple[str, "Figure | Undrawn", str]


def draw(
    folder: Path,
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    *,
    svg: bool = False,
    spoken: Sequence[int] | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
) -> DrawnPictures:
    """Draw the scenario's plots as files in folder/plots, and return their paths and the missing plots.

    Parameters
    ----------
    svg : bool
        Whether to write SVG files too.
    spoken : sequence of int, optional
        Points in the answer, if the answer is known already.
    findings : sequence of mapping
        Findings of the answer, as plain data.
    """
    from simulator.report.plots import style

    selection = plotted_points(scenario, outcomes, spoken)
    files, undrawn = [], []
    for name, figure in figures(scenario, outcomes, selection, findings):
        if isinstance(figure, Undrawn):
            undrawn.append(undrawn_text(name, figure))
        else:
            files.append(style.save(figure, folder / "plots", name, svg=svg))
    # Only plots of single points omit points; comparisons show every point.
    close = any(isinstance(plot, CloseUpPlot) for plot in _plots(scenario).values())
    return DrawnPictures(tuple(files), selection.left_out if close else "", tuple(undrawn))


def undrawn_text(name: str, undrawn: Undrawn) -> str:
    """Return a line saying that a picture is missing, and the reason."""
    return f"not drawn: {name}: {undrawn.reason}"


def figures(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    selection: PlottedPoints | None = None,
    findings: Sequence[Mapping[str, Any]] = (),
) -> Iterator[tuple[str, Figure | Undrawn]]:
    """Yield (file name, figure) pairs for the scenario's plots, with the reason in place of a missing figure."""
    from simulator.report.plots import style

    for name, figure, point in _pictures(scenario, outcomes, selection or plotted_points(scenario, outcomes), findings):
        if point and not isinstance(figure, Undrawn):
            # The caption names a single point, or the common settings in a comparison.
            style.set_point(figure, point)
        yield name, figure


def _plots(scenario: Scenario) -> dict[str, Plot]:
    kind = "collective" if scenario.training is None else "training"
    return plot_catalog.named(kind, scenario.plotted.kinds or (), scenario.base)


def _pictures(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    selection: PlottedPoints,
    findings: Sequence[Mapping[str, Any]],
) -> Iterator[_Picture]:
    # Order: comparisons, pictures for single points, pictures for small schedules.
    plots, compared = _plots(scenario), _comparison(scenario, outcomes, findings)
    in_common = describe_point(scenario, {})
    for plot in plots.values():
        if isinstance(plot, ComparisonPlot):
            yield from ((name, figure, in_common) for name, figure in plot.figures(compared).items())
    yield from _of_points(
        scenario, selection, {name: plot for name, plot in plots.items() if isinstance(plot, CloseUpPlot)}
    )
    # Schedule plots use small points of their own (see `close_ups.schedules`).
    small = {name: plot for name, plot in plots.items() if isinstance(plot, SchedulePlot)}
    for suffix, point, schedule in schedules(scenario, selection) if small else ():
        for name, plot in small.items():
            figure = plot.figure(schedule) or Undrawn(_NOTHING)
            yield f"{name}{suffix}", figure, describe_point(scenario, point.settings)


def _of_points(scenario: Scenario, selection: PlottedPoints, plots: Mapping[str, CloseUpPlot]) -> Iterator[_Picture]:
    all_points = points(scenario)
    for place, suffix in selection.names.items() if plots else ():
        # Simulating a point again takes most of the time; the point's plots share the result.
        point = all_points[place]
        looked_at = close_up(point.scenario, links=any(plot.links for plot in plots.values()))
        for name, plot in plots.items():
            figure = looked_at if isinstance(looked_at, Undrawn) else plot.figure(looked_at) or Undrawn(_NOTHING)
            yield f"{name}{suffix}", figure, describe_point(scenario, point.settings)


def _comparison(
    scenario: Scenario, outcomes: Sequence[PointOutcome], findings: Sequence[Mapping[str, Any]]
) -> ComparedPoints:
    done = [(outcome.settings, outcome.report) for outcome in outcomes if outcome.report is not None]
    rows = [(labelled(settings) or scenario.name, report) for settings, report in done]
    if scenario.training is None:
        crossings = marked_crossovers(scenario, findings)
        return ComparedPoints(rows, times=scaling_points(scenario, outcomes), crossings=crossings)
    # Throughput over GPUs needs several numbers of GPUs.
    several = "cluster.world_size" in {*scenario.compare, *scenario.sweep}
    return ComparedPoints(rows, throughputs=_throughputs(scenario, outcomes) if several else ())


def _throughputs(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> list[Throughput]:
    """Return the speed and number of GPUs of each simulated training point, for plots over the number of GPUs."""
    throughputs = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        if outcome.report is not None:
            others = {k: v for k, v in point.settings.items() if k != "cluster.world_size"}
            # Each combination of the settings, apart from the number of GPUs, is a line in the picture.
            line = labelled(others) or scenario.name
            report = outcome.report
            ends = report.get("intervals") or {}
            throughputs.append(
                Throughput(
                    line, point.scenario.cluster.world_size, report["tokens_per_s"], report["mfu"],
                    ends.get("tokens_per_s_80_low"), ends.get("tokens_per_s_80_high"),
                )
            )  # fmt: skip
    return throughputs
