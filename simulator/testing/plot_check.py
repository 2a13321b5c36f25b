"""Does a plot keep the laws of plots? Its pictures of a comparison and of single points, of both kinds of scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from simulator.report.plots.catalog import PLOTS, of
from simulator.report.plots.plot import CloseUp, CloseUpPlot, ComparedPoints, ComparisonPlot, Plot, SchedulePlot
from simulator.run.simulate import simulate
from simulator.scenario.load import points
from simulator.testing.examples import KINDS, compared
from simulator.testing.law import PartCheck, judged, require
from simulator.testing.looking import check


def check_plot(plot: str | Path) -> PartCheck:
    """Check a plot: its pictures can be read, of a comparison and of single points, of collectives and of trainings.

    `plot` is the path of a file with a PLOT, or a shipped name; it may draw nothing for a kind of scenario. Raises
    ScenarioError if the file declares no plot.
    """
    name = str(plot)
    shipped = {kind: of(kind)[name] for kind in KINDS if name in of(kind)}
    by_kind = shipped or dict.fromkeys(KINDS, PLOTS.find(name))
    cases = [(f"a scenario of a {kind}", partial(_can_be_read, record, kind)) for kind, record in by_kind.items()]
    return PartCheck(name, "plots", (judged("", "titles, texts, colours and axes", cases),))


def _can_be_read(plot: Plot, kind: str) -> bool:
    """Check the pictures of a plot; return False if it draws none."""
    figures = {where: figure for where, figure in _pictures(plot, kind) if figure is not None}
    for where, figure in figures.items():
        require(hasattr(figure, "savefig"), f"{where} is a {type(figure).__name__}; must be a figure of matplotlib")
        check(figure, where)
    return bool(figures)


def _pictures(plot: Plot, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield (name, figure or None) for the pictures of a plot."""
    comparison = compared(kind)
    if isinstance(plot, ComparisonPlot):
        rows: list[tuple[str, Mapping[str, Any]]] = [
            (comparison.name(row.setting), row.report) for row in comparison.rows if row.report is not None
        ]
        yield from plot.figures(ComparedPoints(rows)).items()
        return
    for place, point in enumerate(points(comparison.scenario)):
        run = simulate(point.scenario)
        ops = run.plan.program.collectives()
        if isinstance(plot, CloseUpPlot):
            groups = {name: op.group for name, op in ops.items()} if kind == "collective" else None
            yield f"the picture of point {place}", plot.figure(CloseUp(run.timeline, 80e9, groups))
        elif isinstance(plot, SchedulePlot) and kind == "collective":
            yield f"the picture of point {place}", plot.figure(next(iter(ops.values())).schedule)
