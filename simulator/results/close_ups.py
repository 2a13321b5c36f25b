"""Which points of a run are played again for pictures of one point (timeline, links, memory, steps of a schedule)?

Rule: chooses and plays; drawing is report/'s business. Of collectives it is the largest point of each compared setting,
and for the picture of steps, whose cells must be readable, a small one; of training steps the smallest cluster.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from simulator.collectives.plan import Plan
from simulator.errors import SimulatorError
from simulator.playing.collective import plan_collective
from simulator.playing.scenario_cluster import build_cluster
from simulator.records.schedule import Schedule
from simulator.report.plots.plot import CloseUp
from simulator.report.tables.setting_text import labelled
from simulator.run import Run, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Characters of one setting in the name of a picture's file.
_LONGEST: Final = 60
# Ranks up to which the cells of a steps picture have room for words.
_READABLE: Final = 8
# Beyond this many transfers a collective is not played again for a picture.
_MOST_TRANSFERS: Final = 200_000
# More close-ups than this are not drawn: a sweep of hundreds would leave hundreds of pictures.
_MOST_CLOSE_UPS: Final = 8


def close_ups(scenario: Scenario) -> Iterator[tuple[str, CloseUp]]:
    """Points played again, each with a suffix for its pictures' names, which is empty where nothing is compared."""
    return _of_steps(scenario) if scenario.training is not None else _of_collectives(scenario)


def schedules(scenario: Scenario) -> Iterator[tuple[str, Schedule]]:
    """The first schedule of a small point of each compared setting."""
    for name, point in _readable(scenario).items():
        planned = _planned(point)
        if planned is not None:
            yield name, next(iter(planned.program.collectives().values())).schedule


def _of_collectives(scenario: Scenario) -> Iterator[tuple[str, CloseUp]]:
    for name, point in _largest(scenario).items():
        run = _played(point)
        if run is not None:
            groups = {op.name: op.group for op in run.plan.program.collectives().values()}
            yield name, _close_up(run, groups)


def _close_up(run: Run, groups: dict[str, tuple[int, ...]] | None = None) -> CloseUp:
    return CloseUp(run.timeline, float(build_cluster(run.scenario).gpus[0].hbm_bytes), groups)


def _planned(point: Point) -> Plan | None:
    """The point's plan, or None where it cannot be planned."""
    try:
        return plan_collective(point.scenario, build_cluster(point.scenario))
    except SimulatorError:
        return None


def _played(point: Point) -> Run | None:
    """The point's timeline, or None where it failed or is too large to be played twice."""
    planned = _planned(point)
    if planned is None:
        return None
    schedules = [op.schedule for op in planned.program.collectives().values()]
    # How many rows a schedule has is known without making them; transfers are counted only where rows are few.
    rows = sum(schedule.rows for schedule in schedules)
    if rows > _MOST_TRANSFERS or sum(schedule.length() for schedule in schedules) > _MOST_TRANSFERS:
        return None
    spec = point.scenario.collective
    # A payload of real arrays changes no simulated time, and takes most of the time of playing.
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
    """For the steps picture: the point whose ranks are nearest to what is readable, and of those the largest array.

    The schedule is the same for every array size except tiny ones.
    """
    return {
        name: min(group, key=lambda p: (abs(_size(p)[0] - _READABLE), -_size(p)[1]))
        for name, group in _compared(scenario).items()
    }


def _of_steps(scenario: Scenario) -> Iterator[tuple[str, CloseUp]]:
    """The point on the smallest cluster of each compared setting, played again."""
    groups: dict[str, Point] = {}
    for point in points(scenario):
        key = labelled({k: point.settings[k] for k in scenario.compare})
        if key not in groups or point.scenario.cluster.world_size < groups[key].scenario.cluster.world_size:
            groups[key] = point
    for name, point in list(groups.items())[:_MOST_CLOSE_UPS]:
        suffix = "".join(c if c.isalnum() or c in "._" else "-" for c in name).strip("-")
        run = simulate(_without_numbers(point.scenario), limit_memory=False)
        yield f"_{suffix}" if suffix else "", _close_up(run)


def _without_numbers(scenario: Scenario) -> Scenario:
    """The same step without real training, whose numbers are known already."""
    if scenario.training is None or not scenario.training.numerics:
        return scenario
    return replace(scenario, training=replace(scenario.training, numerics=False, collectives="played"))
