"""The outcome for a simulated point: a report or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.scenario.records import Point


@dataclass(frozen=True, slots=True)
class PointOutcome:
    """A point's report, or its error.

    Attributes
    ----------
    index : int
        Index among the points.
    settings : mapping of str to Any
        Settings that distinguish the point, as written in the scenario.
    engine : str or None
        Engine used; None if the point failed.
    report : mapping of str to Any, or None
        The report; None if the point failed.
    error : str or None
        Error message; None if the point succeeded.
    """

    index: int
    settings: Mapping[str, Any]
    engine: str | None
    report: Mapping[str, Any] | None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data, in the form stored in report.json."""
        point: dict[str, Any] = {"settings": dict(self.settings), "engine": self.engine, "report": self.report}
        return point if self.error is None else point | {"error": self.error}


def read_outcome(index: int, read: Any) -> PointOutcome:
    """Return the point's outcome from the plain data written by `to_dict`.

    Raises
    ------
    KeyError, TypeError
        A field is missing, or has a type unlike that in `PointOutcome`.
    """
    outcome = PointOutcome(index, read["settings"], read["engine"], read["report"], read.get("error"))
    # A file from another version, or changed by hand, must not pass for an outcome.
    plain = isinstance(outcome.settings, Mapping) and isinstance(outcome.report, Mapping | None)
    if not plain or not all(isinstance(word, str | None) for word in (outcome.engine, outcome.error)):
        raise TypeError("not the outcome of a point")
    return outcome


def failed(index: int, point: Point, error: str) -> PointOutcome:
    """Return the outcome, with its error, for a point that could not be simulated."""
    return PointOutcome(index, point.settings, None, None, error)
