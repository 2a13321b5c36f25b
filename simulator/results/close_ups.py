"""How are a run's points simulated again for pictures of a single point (timeline, links, memory, schedule steps)?

This module simulates and plans the points that `plotted_points` chose; report/ draws the pictures. Cells in the picture
of schedule steps must be readable: therefore a small point with the same compared setting is planned, unless the
scenario names its points.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.basics.errors import SimulatorError
from simulator.records.program import Program
from simulator.records.schedule import Schedule
from simulator.report.plots.plot import CloseUp
from simulator.results.drawn import Undrawn
from simulator.results.plotted_points import PlottedPoints
from simulator.run.collective import plan_collective
from simulator.run.scenario_cluster import build_cluster
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario

# Maximum ranks with enough room for words in the cells of a steps picture.
_READABLE: Final = 8
# Maximum transfers in a collective that is simulated again for a picture.
_MOST_TRANSFERS: Final = 200_000
# Maximum ranks for a picture of links; above, a step's collectives with closed forms are not simulated.
_MOST_RANKS: Final = 4096


def close_up(scenario: Scenario, *, links: bool = False) -> CloseUp | Undrawn:
    """Simulate a single point again and return its timeline, or return the reason if it fails or is too large.

    Parameters
    ----------
    scenario : Scenario
        Scenario with a single point.
    links : bool
        Whether links are drawn: then no closed form may replace a collective, because closed forms use no links.
    """
    run = _collective(scenario) if scenario.training is None else _step(scenario, links=links)
    if isinstance(run, Undrawn):
        return run
    groups = None
    if scenario.training is None:
        # A collective's timeline shows the ranks of its group; a step's timeline needs no groups.
        groups = {op.name: op.group for op in run.plan.program.collectives().values()}
    capacity = float(build_cluster(scenario).gpus[0].hbm_bytes)
    return CloseUp(run.timeline, capacity, groups, tuple(sorted(scenario.cluster.stragglers)))


def schedules(scenario: Scenario, selection: PlottedPoints) -> Iterator[tuple[str, Point, Schedule]]:
    """Yield (picture's name, point, collective schedule) for the points that get pictures of schedule steps.

    Unless the scenario names its points, a similar point with readable cells stands in.
    """
    all_points = points(scenario)
    for place, name in selection.names.items():
        point = all_points[place] if selection.named else _readable(scenario, all_points, all_points[place])
        planned = _planned(point.scenario)
        if planned is not None:
            yield name, point, next(iter(planned.collectives().values())).schedule


def _planned(scenario: Scenario) -> Program | None:
    """Return the program of the scenario's collective, or None if planning fails."""
    try:
        return plan_collective(scenario, build_cluster(scenario)).program
    except SimulatorError:
        return None


def _collective(scenario: Scenario) -> SimulatedRun | Undrawn:
    planned = _planned(scenario)
    if planned is None:
        return Undrawn("the collective cannot be planned")
    schedules = [op.schedule for op in planned.collectives().values()]
    # The number of rows is known without building a schedule; transfers are counted only if rows are few.
    rows = sum(schedule.rows for schedule in schedules)
    if rows > _MOST_TRANSFERS or sum(schedule.length() for schedule in schedules) > _MOST_TRANSFERS:
        return Undrawn(f"the point has more than {_MOST_TRANSFERS:,} transfers, too many to be simulated again")
    spec = scenario.collective
    # A payload of real arrays changes no simulated time, and takes most of the simulation's time.
    bare = scenario.replaced(collective=spec.replaced(payload=False) if spec else None)
    try:
        return simulate(bare.replaced(warnings=()))
    except SimulatorError as error:
        return Undrawn(str(error))


def _step(scenario: Scenario, *, links: bool) -> SimulatedRun | Undrawn:
    """Simulate the scenario's training step without real training; return the run, or the reason why it is missing."""
    spec = scenario.training
    if spec is None:
        return Undrawn("the point has no training step")
    # Attempts in order of preference: every collective simulated if needed, then the scenario's own choice.
    ways = [spec.replaced(numerics=False)]
    if spec.numerics or (links and scenario.cluster.world_size <= _MOST_RANKS):
        ways.insert(0, ways[0].replaced(collectives="played"))
    failed = Undrawn("")
    for way in ways:
        try:
            return simulate(scenario.replaced(training=way, warnings=()), limit_memory=False)
        except SimulatorError as error:
            failed = Undrawn(str(error))
    return failed


def _readable(scenario: Scenario, all_points: tuple[Point, ...], point: Point) -> Point:
    """Return the point with the compared settings of `point` whose number of ranks is best for a readable picture.

    Ties go to the largest array: schedules are equal for every size except tiny sizes.
    """
    candidates = [p for p in all_points if all(p.settings[key] == point.settings[key] for key in scenario.compare)]
    return min(candidates, key=_by_readability)


def _by_readability(point: Point) -> tuple[int, int]:
    spec = point.scenario.collective
    return abs(point.scenario.cluster.world_size - _READABLE), -spec.nbytes if spec else 0
