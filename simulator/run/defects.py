"""Refuses a run with infinite or missing numbers: a simulator defect, reported with the scenario that reproduces it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import isfinite
from typing import Any

from simulator.basics.errors import DefectError
from simulator.records.timeline import LinkUse
from simulator.run.point_result import PointResult
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import to_yaml


@contextmanager
def told_with(scenario: Scenario) -> Iterator[None]:
    """Add the scenario as YAML to a DefectError that is raised inside the `with` block."""
    try:
        yield
    except DefectError as error:
        raise DefectError(error.record, to_yaml(scenario)) from error


def refuse_not_finite(result: PointResult) -> None:
    """Raise DefectError if a number in a point's report or link use is infinite or NaN."""
    wrong = [*_unusable_links(result.timeline.links), *not_finite(result.report.to_dict())]
    if wrong:
        raise DefectError(f"{wrong[0]} ({len(wrong)} such records)")


def not_finite(document: Any, name: str = "report") -> Iterator[str]:
    """Yield a text, the path of keys and the value, for each NaN or infinite number in a nested document.

    >>> list(not_finite({"time_s": 1.0, "stages": [{"idle": float("nan")}]}))
    ['report.stages[0].idle is nan']
    """
    if isinstance(document, float) and not isfinite(document):
        yield f"{name} is {document}"
    # Extend the key on the way down: "report.stages[0].idle".
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield from not_finite(value, f"{name}.{key}")
    elif isinstance(document, list | tuple):
        for number, value in enumerate(document):
            yield from not_finite(value, f"{name}[{number}]")


def _unusable_links(links: Iterable[LinkUse]) -> Iterator[str]:
    """Yield a text for each link whose carried bytes or busy time are NaN or infinite."""
    for use in links:
        if not (isfinite(use.nbytes) and isfinite(use.busy)):
            yield f"link {use.name} carries {use.nbytes} B and is busy for {use.busy} s"
