"""Which constraints in a plan contradict each other? A smallest set is found by dropping constraints one by one.

If no setting satisfies every constraint, regardless of memory, constraints are dropped as long as no setting exists
without the dropped constraint. The remaining constraints contradict each other. Nothing is simulated.

Example: `--fix tp=4 --fix pp=4 --fix sharding=zero3` on 8 GPUs. Without `sharding`, still no setting exists: the
constraint is dropped. Without `tp=4`, or without `pp=4`, settings exist: both remain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.basics.errors import ScenarioError
from simulator.planner.question import Constraint, PlanQuestion
from simulator.planner.space import Choices, InfeasibleCounts, settings
from simulator.step.pipelines.schedule import SCHEDULES


def refuse_contradictions(question: PlanQuestion) -> None:
    """Raise ScenarioError for a constraint without effect, and for contradicting constraints.

    If no setting exists even without constraints, nothing is raised: the search reports the reasons.
    """
    choices = question.choices()
    for one, why in _without_effect(choices, {one.name: one for one in question.said}):
        raise ScenarioError(f"{one.where}: has no effect, because {why}")
    if not _can_be(question, InfeasibleCounts()):
        parts = _contradicting(question)
        if parts:
            # The remaining constraints alone give the clearest reason.
            refused = InfeasibleCounts()
            _can_be(_of_parts(question, parts), refused)
            together = "contradict each other" if len(parts) > 1 else "is impossible"
            size = f"{question.base.cluster.world_size:,} GPUs and {question.sequences:,} sequences per step"
            message = f"{together} with {size}: {refused.common_example}"
            raise ScenarioError(f"{', '.join(one.where for one in parts)}: {message}")


def _without_effect(choices: Choices, said: dict[str, Constraint]) -> Iterator[tuple[Constraint, str]]:
    """Yield each constraint on pipelines that no setting in the search space reads, with the reason."""
    values = choices.values
    piped = max(values["pp"]) > 1
    no_pipeline = f"{said['pp'].where} excludes pipelines" if "pp" in said else "no setting has a pipeline"
    if "schedule" in said and not piped:
        yield said["schedule"], no_pipeline
    # One virtual stage is every schedule's default and needs no schedule with several.
    if "virtual_stages" not in said or values["virtual_stages"] == (1,):
        return
    if not piped:
        yield said["virtual_stages"], no_pipeline
    if all(SCHEDULES.find(str(name)).chunks is not None for name in values["schedule"]):
        names = ", ".join(map(str, values["schedule"]))
        yield said["virtual_stages"], f"each remaining schedule ({names}) fixes the number of virtual stages"


def _contradicting(question: PlanQuestion) -> Sequence[Constraint]:
    """Return a smallest set of the user's constraints that no setting satisfies; empty if no setting exists even
    without constraints.
    """
    needed, before = [*question.said, *question.without], -1
    while len(needed) != before:
        # A second round may be needed: a constraint that excludes a value can be dropped only before the constraint
        # that adds the value.
        before = len(needed)
        for one in [*needed]:
            fewer = [other for other in needed if other is not one]
            try:
                there = _can_be(_of_parts(question, fewer), InfeasibleCounts())
            # The question itself becomes invalid without this constraint: keep it.
            except ScenarioError:
                there = True
            needed = needed if there else fewer
    return needed


def _of_parts(question: PlanQuestion, parts: Sequence[Constraint]) -> PlanQuestion:
    """Return a copy of the plan's question with only the given constraints."""
    said, without = (tuple(one for one in whole if one in parts) for whole in (question.said, question.without))
    return replace(question, said=said, without=without)


def _can_be(question: PlanQuestion, refused: InfeasibleCounts) -> bool:
    """Return True if a setting satisfies every constraint of the question; count the infeasible settings in
    `refused`.
    """
    return next(settings(question.choices(), question.base, question.sequences, refused), None) is not None
