"""Refuses a run with infinite or missing numbers: a simulator defect, reported with the scenario that reproduces it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from simulator.basics.errors import DefectError
from simulator.report.numbers.finite import not_finite, unusable_links
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


def refuse_not_finite(played: PointResult) -> None:
    """Raise DefectError if a number in a point's report or link use is infinite or NaN."""
    wrong = [*unusable_links(played.timeline.links), *not_finite(played.report.to_dict())]
    if wrong:
        raise DefectError(f"{wrong[0]} ({len(wrong)} such records)")
