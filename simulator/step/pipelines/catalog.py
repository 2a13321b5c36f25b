"""Which pipeline schedules exist: one module of this folder each.

Rule: a module is a schedule if it has a SCHEDULE, whose name is the one in scenario files.
"""

from __future__ import annotations

from functools import cache

import simulator.step.pipelines
from simulator.basics.errors import UnknownNameError
from simulator.basics.registry import declared
from simulator.step.pipelines.schedule import PipelineSchedule


@cache
def _schedules() -> dict[str, PipelineSchedule]:
    found = declared(simulator.step.pipelines, "SCHEDULE", PipelineSchedule)
    return {schedule.name: schedule for schedule in found.values()}


def names() -> tuple[str, ...]:
    """Every schedule, sorted."""
    return tuple(sorted(_schedules()))


def find(name: str) -> PipelineSchedule:
    """The schedule of a name; UnknownNameError with "did you mean" otherwise."""
    if name not in _schedules():
        raise UnknownNameError("pipeline schedule", name, names())
    return _schedules()[name]
