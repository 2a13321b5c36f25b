"""The outcome of one point of a sweep, and how the point is played in this process.

Rule: one failing point of many is an outcome with an error; the only point of a run raises its error.
"""

from __future__ import annotations

from collections.abc import Callable

from simulator.basics.errors import SimulatorError
from simulator.basics.garbage import collected_later
from simulator.run.outcome import PointOutcome, failed
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import Run, simulate_point
from simulator.scenario.records import Point
from simulator.sweeps.artifacts import ArtifactWriter

RunHandler = Callable[[int, Run], None]
NumberedPoint = tuple[int, Point]


# When it looks for cycles, what the point was made of is gone already.
@collected_later()
def play_alone(
    index: int,
    point: Point,
    keep: RunHandler | None = None,
    clusters: Clusters | None = None,
    *,
    limit_memory: bool = True,
) -> PointOutcome:
    """Play one point; `keep` gets the run before its timeline is dropped, and `clusters` are those of other points.

    Raises
    ------
    SimulatorError
        The point cannot be played.
    """
    ranks = keep.ranks if isinstance(keep, ArtifactWriter) else None
    run = simulate_point(point.scenario, limit_memory=limit_memory, keep=ranks, clusters=clusters)
    if keep is not None:
        keep(index, run)
    return PointOutcome(index, point.settings, run.timeline.engine, run.report.to_dict())


def play_point(
    index: int, point: Point, keep: RunHandler | None = None, clusters: Clusters | None = None
) -> PointOutcome:
    """Play one of many points: an error is its outcome, and a step that does not fit is played on."""
    try:
        return play_alone(index, point, keep, clusters, limit_memory=False)
    except SimulatorError as error:
        return failed(index, point, str(error))
