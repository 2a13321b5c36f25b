"""Which numbers of a planned step travel together, and which steps carry numbers at all.

Rule: reads the plan; moves nothing.
"""

from __future__ import annotations

from simulator.training.step import StepPlan


def summed_together(plan: StepPlan) -> list[tuple[str, ...]]:
    """Units whose gradients travel together, in the order of the last micro-batch."""
    last = plan.step.accumulation - 1
    acts = [op.act for op in plan.program.collectives().values() if op.act is not None]
    summing = ("all_reduce", "reduce_scatter", "push")
    return list(dict.fromkeys(act.units for act in acts if act.what in summing and act.micro == last))


def refuse_uncarried(plan: StepPlan) -> None:
    """ValueError for a step whose numbers cannot be carried yet."""
    step_, sharding = plan.step, plan.step.sharding
    if step_.offload:
        raise ValueError("numbers are carried where the optimizer runs on GPUs; the rest is not built yet")
    if sharding.keep_below:
        raise ValueError("numbers are carried without kept tensors; these are not built yet")
