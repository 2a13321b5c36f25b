"""The outcome for a simulated point: a report or an error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from simulator.run.point_result import PointResult
from simulator.scenario.records import Point


@dataclass(frozen=True, slots=True)
class PointOutcome:
    """A point's report, or its error."""

    index: int  # index among the points
    settings: Mapping[str, Any]  # settings that distinguish the point, as written in the scenario
    engine: str | None  # engine used; None if the point failed
    report: Mapping[str, Any] | None  # the report; None if the point failed
    error: str | None = None  # error message; None if the point succeeded

    @classmethod
    def of(cls, index: int, settings: Mapping[str, Any], run: PointResult) -> PointOutcome:
        """Return the outcome of a simulated point."""
        return cls(index, settings, run.timeline.engine, run.report.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain data, in the form stored in report.json.

        >>> PointOutcome(0, {"tp": 2}, None, None, "memory ran out").to_dict()
        {'settings': {'tp': 2}, 'engine': None, 'report': None, 'error': 'memory ran out'}
        """
        point: dict[str, Any] = {"settings": dict(self.settings), "engine": self.engine, "report": self.report}
        return point if self.error is None else point | {"error": self.error}


def read_outcome(index: int, read: Any) -> PointOutcome:
    """Return the point's outcome from the plain data written by `to_dict`.

    Raises
    ------
    KeyError, TypeError
        A field is missing, or has a type unlike that in `PointOutcome`.

    Examples
    --------
    >>> read_outcome(0, {"settings": {}, "engine": "fast", "report": None, "error": "memory ran out"})
    PointOutcome(index=0, settings={}, engine='fast', report=None, error='memory ran out')
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
