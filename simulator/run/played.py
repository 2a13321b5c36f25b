"""What came of playing one point, whichever kind it is."""

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
class Played:
    """One point, played.

    Attributes
    ----------
    plan : Plan or StepPlan
        Of a collective, or of a training step.
    timeline : Timeline
    report : CollectiveReport or TrainingReport
    results : tuple of array, or None
        By place in the group what the operation gives each rank (one after the other where tensors make several
        messages); None without payload.
    parameters : mapping of PyTorch's name to array, or None
        Of a real training after its last step: whole, gathered over all ranks, in the dtype in which they are updated.
    """

    plan: Plan | StepPlan
    timeline: Timeline
    report: CollectiveReport | TrainingReport
    results: tuple[Array, ...] | None = None
    parameters: Mapping[str, Array] | None = None
