"""Results of a simulated point: plan, timeline, report and arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.basics.arrays import Array
from simulator.collectives.collective_plan import Plan
from simulator.records.timeline import Timeline
from simulator.report.numbers.summary import CollectiveReport
from simulator.report.numbers.training_summary import TrainingReport

if TYPE_CHECKING:
    from simulator.step.plan import StepPlan


@dataclass(frozen=True, slots=True)
class PointResult:
    """A simulated point."""

    plan: Plan | StepPlan  # plan of the collective, or of the training step
    timeline: Timeline  # what happened and when
    report: CollectiveReport | TrainingReport  # numbers computed from the timeline
    # Result of each participant, concatenated if tensors are sent in several messages; None without payload
    results: tuple[Array, ...] | None = None
    # Parameters after a real training's last step, gathered over all ranks, in the dtype in which they are updated.
    parameters: Mapping[str, Array] | None = None
