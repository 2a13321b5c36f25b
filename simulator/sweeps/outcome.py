"""The outcome of a sweep's point, and the point's simulation in this process.

If a point among many fails, its outcome contains the error; if the only point of a run fails, the error is raised.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.basics.errors import SimulatorError
from simulator.basics.garbage import collected_later
from simulator.run.outcome import PointOutcome, failed
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import SimulatedRun, simulate_point
from simulator.scenario.records import Point
from simulator.sweeps.artifacts import ArtifactWriter

RunHandler = Callable[[int, SimulatedRun], None]
NumberedPoint = tuple[int, Point]


# The point's records must be gone before the garbage collector searches for cycles.
@collected_later()
def play_alone(
    index: int,
    point: Point,
    keep: RunHandler | None = None,
    clusters: Clusters | None = None,
    *,
    limit_memory: bool = True,
) -> PointOutcome:
    """Simulate a single point and return its outcome; raise an error if the point fails.

    `keep` receives the run while its timeline exists; `clusters` is a cache.

    Raises
    ------
    SimulatorError
        The point cannot be simulated.
    """
    if point.report_alone and keep is None and point.scenario.training is not None:
        # Imported late, because a collective has no parts of a step.
        from simulator.run.long_steps import long_step_report

        pair = long_step_report(point.scenario, clusters or Clusters())
        if pair is not None:
            report, engine = pair
            return PointOutcome(index, point.settings, engine, report.to_dict())
    # A writer selects the ranks to record; any different handler gets the default ranks.
    ranks = keep.ranks if isinstance(keep, ArtifactWriter) else None
    run = simulate_point(point.scenario, limit_memory=limit_memory, keep=ranks, clusters=clusters)
    if keep is not None:
        keep(index, run)
    return PointOutcome.of(index, point.settings, run)


def play_point(
    index: int, point: Point, keep: RunHandler | None = None, clusters: Clusters | None = None
) -> PointOutcome:
    """Simulate a point of a sweep and return its outcome.

    An error is stored in the outcome; a step that exceeds the memory continues. See `play_alone` for the arguments.
    """
    try:
        return play_alone(index, point, keep, clusters, limit_memory=False)
    except SimulatorError as error:
        return failed(index, point, str(error))
