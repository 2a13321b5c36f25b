"""The outcome of one simulated point: its report, or the error with which it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.scenario.records import Point


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
