"""How are points of a run played again for pictures of one point (timeline, links, memory, steps of a schedule)?

Rule: plays and plans what `plotted_points` chose; drawing is report/'s business. For the picture of steps, whose cells
must be readable, a small point of the same compared setting is planned, unless the scenario names its points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.basics.errors import SimulatorError
from simulator.collectives.plan import Plan
from simulator.records.schedule import Schedule
from simulator.report.plots.plot import CloseUp
from simulator.results.drawn import Undrawn
from simulator.results.plotted_points import PlottedPoints
from simulator.run.collective import plan_collective
from simulator.run.scenario_cluster import build_cluster
from simulator.run.simulate import Run, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Ranks up to which the cells of a steps picture have room for words.
_READABLE: Final = 8
# Beyond this many transfers a collective is not played again for a picture.
_MOST_TRANSFERS: Final = 200_000
# Beyond this many ranks collectives of a step that have closed forms are not played for a picture of links.
_MOST_RANKS: Final = 4096


def close_up(scenario: Scenario, *, links: bool = False) -> CloseUp | Undrawn:
    """Play one point again, or say why not: it fails, or is too large to be played twice.

    Parameters
    ----------
    scenario : Scenario
        Of a single point.
    links : bool
        Whether links are looked at: a closed form, which is on no link, then stands for no collective.
    """
    run = _collective(scenario) if scenario.training is None else _step(scenario, links=links)
    if isinstance(run, Undrawn):
        return run
    groups = None
    if scenario.training is None:
        groups = {op.name: op.group for op in run.plan.program.collectives().values()}
    capacity = float(build_cluster(scenario).gpus[0].hbm_bytes)
    return CloseUp(run.timeline, capacity, groups, tuple(sorted(scenario.cluster.stragglers)))


def schedules(scenario: Scenario, chosen: PlottedPoints) -> Iterator[tuple[str, Point, Schedule]]:
    """For each chosen point the first schedule of a point like it, with the name of its picture."""
    all_points = points(scenario)
    for place, name in chosen.names.items():
        point = all_points[place] if chosen.named else _readable(scenario, all_points, all_points[place])
        planned = _planned(point.scenario)
        if planned is not None:
            yield name, point, next(iter(planned.program.collectives().values())).schedule


def _planned(scenario: Scenario) -> Plan | None:
    """The plan of a collective, or None where it cannot be planned."""
    try:
        return plan_collective(scenario, build_cluster(scenario))
    except SimulatorError:
        return None


def _collective(scenario: Scenario) -> Run | Undrawn:
    planned = _planned(scenario)
    if planned is None:
        return Undrawn("it cannot be planned")
    schedules = [op.schedule for op in planned.program.collectives().values()]
    # How many rows a schedule has is known without making them; transfers are counted only where rows are few.
    rows = sum(schedule.rows for schedule in schedules)
    if rows > _MOST_TRANSFERS or sum(schedule.length() for schedule in schedules) > _MOST_TRANSFERS:
        return Undrawn(f"it has more than {_MOST_TRANSFERS:,} transfers, too many to be simulated again")
    spec = scenario.collective
    # A payload of real arrays changes no simulated time, and takes most of the time of playing.
    bare = scenario.replaced(collective=spec.replaced(payload=False) if spec else None)
    try:
        return simulate(bare.replaced(warnings=()))
    except SimulatorError as error:
        return Undrawn(str(error))


def _step(scenario: Scenario, *, links: bool) -> Run | Undrawn:
    """A training step without real training, whose numbers are known already."""
    spec = scenario.training
    if spec is None:
        return Undrawn("it has no training step")
    ways = [spec.replaced(numerics=False)]
    if spec.numerics or (links and scenario.cluster.world_size <= _MOST_RANKS):
        ways.insert(0, ways[0].replaced(collectives="played"))
    failed = Undrawn("")
    for way in ways:
        try:
            return simulate(scenario.replaced(training=way, warnings=()), limit_memory=False)
        except SimulatorError as error:  # also where to play each transfer would take hours
            failed = Undrawn(str(error))
    return failed


def _readable(scenario: Scenario, all_points: tuple[Point, ...], chosen: Point) -> Point:
    """Of the points with the same compared settings that whose ranks are nearest to what is readable.

    Of those the largest array; the schedule is the same for every size except tiny ones.
    """
    alike = [p for p in all_points if all(p.settings[key] == chosen.settings[key] for key in scenario.compare)]
    return min(alike, key=_by_readability)


def _by_readability(point: Point) -> tuple[int, int]:
    spec = point.scenario.collective
    return abs(point.scenario.cluster.world_size - _READABLE), -spec.nbytes if spec else 0
