"""Which pictures a run leaves, and of which of its points.

Rule: chooses and names; drawing is report/'s business. A sweep is drawn as a whole (scaling), and one point of each
compared setting is drawn closely: the largest one for links and timeline, a small one for steps, because cells must be
read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator import training_pictures
from simulator.errors import SimulatorError
from simulator.points.outcome import Outcome
from simulator.report.scaling import ScalingPoint, finding
from simulator.run import Run, build_cluster, plan_scenario, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario
from simulator.sweeping import labelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.collectives.plan import Plan

# Settings that say where a point lies in a scaling picture; all others say which line it is on.
_PLACES: Final = ("cluster.world_size", "collective.size")
# More conditions than this are not told one by one.
_CONDITIONS: Final = 6
# Characters of one setting in the name of a picture's file.
_LONGEST: Final = 60
# Cells of a steps picture hold words up to here.
_READABLE: Final = 8
# Beyond this many ranks a picture of steps is not drawn.
_MOST_STEPS: Final = 64
# Beyond this many transfers a point is not played again for a picture.
_CLOSE_UP: Final = 200_000


def scaling_points(scenario: Scenario, outcomes: Sequence[Outcome]) -> tuple[ScalingPoint, ...]:
    """The outcomes as points of a scaling picture: one line for each setting but world size and array size."""
    found = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        apart = [key for key in point.settings if key not in _PLACES]
        drawn = _scaled(point, outcome, apart)
        found += [drawn] if drawn else []
    return tuple(found)


def _scaled(point: Point, outcome: Outcome, apart: Sequence[str]) -> ScalingPoint | None:
    """A point, called by some of its settings (its algorithm where there are none); None where there is no time."""
    spec, report = point.scenario.collective, outcome.report
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = _labels(point, apart) or report["algorithm"]
    # A group that stays the same on ever larger clusters has its place by the cluster.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.size, report["time_s"], report["predicted_s"])


def _labels(point: Point, keys: Sequence[str]) -> str:
    return labelled({key: point.settings[key] for key in keys})


def conclusion(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    """Which won where and by how much, a line for each thing swept; for a single point, what held it up."""
    if scenario.training is not None:
        return training_pictures.conclusion(outcomes)
    done = [outcome for outcome in outcomes if outcome.report is not None]
    if not done:
        return f"no point could be played: {outcomes[0].error}"
    if len(outcomes) == 1:
        report = done[0].report or {}
        return f"{report['algorithm']}: {report['because']}."
    groups = _by_condition(scenario, outcomes)
    if not 1 < len(groups) <= _CONDITIONS:
        return finding(scaling_points(scenario, outcomes)) + "."
    return "\n".join(f"{condition}: {finding(found)}." for condition, found in groups.items())


def _by_condition(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, list[ScalingPoint]]:
    """Points that compete, by what is swept besides world size and array size: a slow link is no competitor."""
    groups: dict[str, list[ScalingPoint]] = {}
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        swept = [key for key in scenario.sweep if key not in _PLACES]
        compared = [key for key in scenario.compare if key not in _PLACES]
        drawn = _scaled(point, outcome, compared) if compared and swept else None
        if drawn:
            groups.setdefault(_labels(point, swept), []).append(drawn)
    return groups


def draw(folder: Path, scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Path]:
    """Draw what the scenario asks for into folder/plots; the PNG files, in order."""
    from simulator.report import style

    pngs = []
    for name, figure in _figures(scenario, outcomes):
        png, _ = style.save(figure, folder / "plots", name)
        pngs.append(png)
    return pngs


def _figures(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Figure]]:
    if scenario.training is not None:
        yield from training_pictures.figures(scenario, outcomes)
        return
    from simulator.report import plot_bandwidth, plot_scaling, plot_steps, plot_timeline

    scaled = scaling_points(scenario, outcomes)
    if "scaling" in scenario.plots and len(scaled) > 1:
        yield from plot_scaling.figures(scaled).items()
    close = {"bandwidth_utilization", "timeline"} & set(scenario.plots)
    for name, point in _largest(scenario).items() if close else ():
        run = _played(point)
        if run is None:
            continue
        if "bandwidth_utilization" in scenario.plots:
            yield f"bandwidth_utilization{name}", plot_bandwidth.figure(run.timeline)
        if "timeline" in scenario.plots:
            groups = {op.name: op.group for op in run.plan.program.collectives().values()}
            yield f"timeline{name}", plot_timeline.figure(run.timeline, groups)
    if "steps" in scenario.plots:
        for name, point in _readable(scenario).items():
            planned = _planned(point)
            schedule = next(iter(planned.program.collectives().values())).schedule if planned else None
            if schedule is not None and schedule.world_size <= _MOST_STEPS:
                yield f"steps{name}", plot_steps.figure(schedule)


def _planned(point: Point) -> Plan | None:
    """The point's plan, or None where it cannot be planned."""
    try:
        return plan_scenario(point.scenario, build_cluster(point.scenario))
    except SimulatorError:
        return None


def _played(point: Point) -> Run | None:
    """The point's timeline, or None where it failed or is too large to be played twice."""
    planned = _planned(point)
    if planned is None or sum(op.schedule.length() for op in planned.program.collectives().values()) > _CLOSE_UP:
        return None
    spec = point.scenario.collective
    # Real arrays change no time, and they take most of it to play.
    bare = replace(point.scenario, collective=replace(spec, payload=False) if spec else None)
    try:
        return simulate(bare)
    except SimulatorError:
        return None


def _compared(scenario: Scenario) -> dict[str, list[Point]]:
    """Points by what is compared; the key is a suffix for file names, empty where nothing is."""
    groups: dict[str, list[Point]] = {}
    for point in points(scenario):
        values = [point.settings[key] for key in scenario.compare]
        groups.setdefault("".join(f"_{_as_file_name(value)}" for value in values), []).append(point)
    return groups


def _as_file_name(value: Any) -> str:
    words = re.findall(r"[\w.]+", "" if value is None else str(value))
    return "-".join(words)[:_LONGEST] or "none"


def _size(point: Point) -> tuple[int, int]:
    spec = point.scenario.collective
    return point.scenario.cluster.world_size, spec.size if spec else 0


def _largest(scenario: Scenario) -> dict[str, Point]:
    return {name: max(group, key=_size) for name, group in _compared(scenario).items()}


def _readable(scenario: Scenario) -> dict[str, Point]:
    """For steps: as many ranks as can be read, and the schedule is the same for every size but tiny ones."""
    return {
        name: min(group, key=lambda p: (abs(_size(p)[0] - _READABLE), -_size(p)[1]))
        for name, group in _compared(scenario).items()
    }
