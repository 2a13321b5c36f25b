"""The outcome of one point of a sweep, and how the point is played in this process.

Rule: one failing point of many is an outcome with an error; the only point of a run raises its error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.basics.garbage import collected_later
from simulator.errors import SimulatorError
from simulator.playing.scenario_cluster import Clusters
from simulator.run import Run, simulate
from simulator.scenario.records import Point
from simulator.sweeps.artifacts import ArtifactWriter

RunHandler = Callable[[int, Run], None]
NumberedPoint = tuple[int, Point]


@dataclass(frozen=True, slots=True)
class PointOutcome:
    """The report of a point, or the error with which it failed.

    Attributes
    ----------
    index : int
        Its place among the points.
    settings : mapping of str to Any
        What distinguishes it, as it was written.
    engine : str or None
        What played it; None if it failed.
    report : mapping of str to Any, or None
    error : str or None
    """

    index: int
    settings: Mapping[str, Any]
    engine: str | None
    report: Mapping[str, Any] | None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As one of the points of report.json."""
        point: dict[str, Any] = {"settings": dict(self.settings), "engine": self.engine, "report": self.report}
        return point if self.error is None else point | {"error": self.error}


def read_outcome(index: int, read: Any) -> PointOutcome:
    """An outcome back from `to_dict`.

    Raises
    ------
    KeyError, TypeError
        Something is missing, or is not what `PointOutcome` says.
    """
    outcome = PointOutcome(index, read["settings"], read["engine"], read["report"], read.get("error"))
    plain = isinstance(outcome.settings, Mapping) and isinstance(outcome.report, Mapping | None)
    if not plain or not all(isinstance(word, str | None) for word in (outcome.engine, outcome.error)):
        raise TypeError("not the outcome of a point")
    return outcome


def failed(index: int, point: Point, error: str) -> PointOutcome:
    """The outcome of a point that could not be played."""
    return PointOutcome(index, point.settings, None, None, error)


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
    run = simulate(point.scenario, limit_memory=limit_memory, keep=ranks, clusters=clusters)
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
