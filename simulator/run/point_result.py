"""Results of a simulated point: plan, timeline, report and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.basics.arrays import Array
from simulator.collectives.plan import Plan
from simulator.records.timeline import Timeline
from simulator.report.numbers.summary import CollectiveReport
from simulator.report.numbers.training_summary import TrainingReport
from simulator.step.plan import StepPlan


@dataclass(frozen=True, slots=True)
class PointResult:
    """A simulated point.

    Attributes
    ----------
    plan : Plan or StepPlan
        Plan of the collective, or of the training step.
    timeline : Timeline
        What happened and when.
    report : CollectiveReport or TrainingReport
        Numbers computed from the timeline.
    results : tuple of array, or None
        Result of each participant, concatenated if tensors are sent in several messages; None without payload.
    parameters : mapping of PyTorch's name to array, or None
        Parameters after a real training's last step, gathered over all ranks, in the dtype in which they are updated.
    """

    plan: Plan | StepPlan
    timeline: Timeline
    report: CollectiveReport | TrainingReport
    results: tuple[Array, ...] | None = None
    parameters: Mapping[str, Array] | None = None
