"""Which constraints in a plan contradict each other? A smallest set is found by dropping constraints one by one.

If no setting satisfies every constraint, regardless of memory, constraints are dropped as long as no setting exists
without the dropped constraint. The remaining constraints contradict each other. Nothing is simulated.

Example: `--fix tp=4 --fix pp=4 --fix sharding=zero3` on 8 GPUs. Without `sharding`, still no setting exists: the
constraint is dropped. Without `tp=4`, or without `pp=4`, settings exist: both remain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import lcm
from typing import Final

from simulator.basics.counts import divisors
from simulator.basics.errors import ScenarioError
from simulator.planner.plan_question import Constraint, PlanQuestion
from simulator.planner.space import Choices, InfeasibleCounts, settings
from simulator.step.global_batch import SEQUENCES
from simulator.step.pipelines.schedule import SCHEDULES

# Dimensions whose values divide the number of GPUs.
_DIVIDE_THE_GPUS: Final = ("tp", "pp", "cp", "ep")


def refuse_contradictions(question: PlanQuestion) -> None:
    """Raise ScenarioError for a constraint without effect, and for contradicting constraints.

    If no setting exists even without constraints, the constraints are examined with a global batch that every number of
    data-parallel ranks can share. If settings exist there, nothing is raised: the search reports the reasons.
    """
    choices = question.choices()
    for constraint, why in _without_effect(choices, {constraint.name: constraint for constraint in question.said}):
        raise ScenarioError(f"{constraint.where}: has no effect, because {why}")
    batch = f" and {question.sequences:,} sequences per step"
    for variant, size in ((question, batch), (_with_shared_batch(question, choices), "")):
        if _can_be(variant, InfeasibleCounts()):
            return
        parts = _contradicting(variant)
        if parts:
            # The remaining constraints alone give the clearest reason.
            refused = InfeasibleCounts()
            _can_be(_of_parts(variant, parts), refused)
            together = "contradict each other" if len(parts) > 1 else "is impossible"
            message = (
                f"{together} with {variant.base.cluster.world_size:,} GPUs{size}: "
                f"{refused.common_example}{_possible_text(variant, choices, parts)}"
            )
            raise ScenarioError(f"{', '.join(constraint.where for constraint in parts)}: {message}")


def _with_shared_batch(question: PlanQuestion, choices: Choices) -> PlanQuestion:
    """Return the question with a global batch that every number of data-parallel ranks and micro-batch divides."""
    shared = question.base.cluster.world_size * lcm(*choices.values["micro_batch"])
    return replace(question, plan=question.plan.replaced(global_batch=f"{shared}{SEQUENCES}"))


def _possible_text(question: PlanQuestion, choices: Choices, parts: Sequence[Constraint]) -> str:
    """Return the values with which a single impossible constraint becomes possible beside the user's other constraints:
    "; possible values of tp: 1, 2, 4, 8".

    The text is empty for several constraints, for a constraint on a name that does not divide the GPUs, and without
    such values.
    """
    name = parts[0].name
    if len(parts) > 1 or name not in _DIVIDE_THE_GPUS:
        return ""
    possible = []
    for value in divisors(question.base.cluster.world_size):
        changed = Choices({**choices.values, name: (value,)}, choices.why)
        if _exists(changed, question, InfeasibleCounts()):
            possible.append(str(value))
    return f"; possible values of {name}: {', '.join(possible)}" if possible else ""


def _without_effect(choices: Choices, constraints: dict[str, Constraint]) -> Iterator[tuple[Constraint, str]]:
    """Yield each constraint on pipelines that no setting in the search space reads, with the reason."""
    values = choices.values
    piped = max(values["pp"]) > 1
    no_pipeline = (
        f"{constraints['pp'].where} excludes pipelines" if "pp" in constraints else "no setting has a pipeline"
    )
    if "schedule" in constraints and not piped:
        yield constraints["schedule"], no_pipeline
    # One virtual stage is every schedule's default and needs no schedule with several.
    if "virtual_stages" not in constraints or values["virtual_stages"] == (1,):
        return
    if not piped:
        yield constraints["virtual_stages"], no_pipeline
    if all(SCHEDULES.find(str(name)).chunks is not None for name in values["schedule"]):
        names = ", ".join(map(str, values["schedule"]))
        yield constraints["virtual_stages"], f"each remaining schedule ({names}) fixes the number of virtual stages"


def _contradicting(question: PlanQuestion) -> Sequence[Constraint]:
    """Return a smallest set of constraints that no setting satisfies; empty if none exists even without them."""
    needed, before = [*question.said, *question.without], -1
    while len(needed) != before:
        # A second round may be needed: a constraint that excludes a value can be dropped only before the constraint
        # that adds the value.
        before = len(needed)
        for constraint in [*needed]:
            fewer = [other for other in needed if other is not constraint]
            try:
                is_possible = _can_be(_of_parts(question, fewer), InfeasibleCounts())
            # The question itself becomes invalid without this constraint: keep it.
            except ScenarioError:
                is_possible = True
            needed = needed if is_possible else fewer
    return needed


def _of_parts(question: PlanQuestion, parts: Sequence[Constraint]) -> PlanQuestion:
    """Return a copy of the plan's question with only the given constraints."""
    constraints, without = (
        tuple(part for part in those if part in parts) for those in (question.said, question.without)
    )
    return replace(question, said=constraints, without=without)


def _can_be(question: PlanQuestion, refused: InfeasibleCounts) -> bool:
    """Return True if a setting satisfies every constraint of the question; count infeasible ones in `refused`."""
    return _exists(question.choices(), question, refused)


def _exists(choices: Choices, question: PlanQuestion, refused: InfeasibleCounts) -> bool:
    """Return True if a setting exists among the choices for the question; count infeasible ones in `refused`."""
    return next(settings(choices, question.base, question.sequences, refused), None) is not None
