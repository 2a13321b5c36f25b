"""A planned and played step as a real training: a GPT-2 of its shape learns a seeded task.

Rule: puts model, task and rules of scaling together; the numbers are carried elsewhere.
"""

from __future__ import annotations

from threadpoolctl import threadpool_limits

from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.scaling import grad_scaler
from simulator.report.training_summary import Learning
from simulator.timeline import Timeline
from simulator.training.step import StepPlan
from simulator.training_numbers import start


def gpt_of(model: Transformer, dtype: str) -> Gpt:
    """The GPT-2 of a shape."""
    return Gpt(
        model.vocab_size, model.hidden_size, model.num_heads, model.max_positions, model.num_layers, arithmetic(dtype)
    )


def learn(plan: StepPlan, timeline: Timeline, seed: int) -> Learning:
    """Train for as many steps as the plan says."""
    step = plan.step
    dtype = "tf32" if step.precision.matmul == "tf32" else step.precision.params
    gpt = gpt_of(step.model, dtype)
    scale = grad_scaler() if step.loss_scaling else None
    training = start(gpt, plan, timeline, task.initial(gpt, seed), scale=scale)
    count = plan.tokens // step.seq_len
    # Matrices here are too small to share among threads, and one thread adds in one order on every machine.
    with threadpool_limits(1, user_api="blas"):
        told = [
            training.step(task.sequences(seed, number, count, step.seq_len + 1, gpt.vocabulary))
            for number in range(step.steps)
        ]
    return Learning(
        losses=tuple(one.loss for one in told),
        gradient_norms=tuple(one.norm for one in told),
        loss_scales=tuple(one.scale for one in told),
        skipped=tuple(number for number, one in enumerate(told) if one.skipped),
    )
