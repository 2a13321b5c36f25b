"""What became of a point, and how it is played here.

Rule: a point that fails among many is an outcome with an error; a point that is alone raises it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import SimulatorError
from simulator.run import Run, simulate
from simulator.scenario.records import Point
from simulator.sweeps.keeping import Keeper

Keep = Callable[[int, Run], None]
Numbered = tuple[int, Point]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a point.

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
        told: dict[str, Any] = {"settings": dict(self.settings), "engine": self.engine, "report": self.report}
        return told if self.error is None else told | {"error": self.error}


def read_outcome(index: int, read: Any) -> Outcome:
    """An outcome back from `to_dict`.

    Raises
    ------
    KeyError, TypeError
        Something is missing, or is not what `Outcome` says.
    """
    found = Outcome(index, read["settings"], read["engine"], read["report"], read.get("error"))
    plain = isinstance(found.settings, Mapping) and isinstance(found.report, Mapping | None)
    if not plain or not all(isinstance(word, str | None) for word in (found.engine, found.error)):
        raise TypeError("not the outcome of a point")
    return found


def failed(index: int, point: Point, error: str) -> Outcome:
    """The outcome of a point that could not be played."""
    return Outcome(index, point.settings, None, None, error)


def play_alone(index: int, point: Point, keep: Keep | None = None, *, limit_memory: bool = True) -> Outcome:
    """Play one point; `keep` is handed the run while it is at hand.

    Raises
    ------
    SimulatorError
        The point cannot be played.
    """
    ranks = keep.ranks if isinstance(keep, Keeper) else None
    run = simulate(point.scenario, limit_memory=limit_memory, keep=ranks)
    if keep is not None:
        keep(index, run)
    return Outcome(index, point.settings, run.timeline.engine, run.report.to_dict())


def play_point(index: int, point: Point, keep: Keep | None = None) -> Outcome:
    """Play one of many points: an error is its outcome, and a step that does not fit is played on."""
    try:
        return play_alone(index, point, keep, limit_memory=False)
    except SimulatorError as error:
        return failed(index, point, str(error))
