"""A planned and played step as a real training: a GPT-2 of its shape learns a seeded task.

Rule: puts model, task and rules of scaling together; the numbers are carried elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from threadpoolctl import threadpool_limits

from simulator.dtypes import find
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.flat import flat
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam
from simulator.numerics.scaling import Scale, grad_scaler, static_scaler
from simulator.numerics.server import Server
from simulator.numerics.state import Parameters, Rank
from simulator.report.training_summary import Learning
from simulator.timeline import Timeline
from simulator.training.carried import refuse_uncarried, summed_together
from simulator.training.step import StepPlan
from simulator.training_numbers import Training


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


def start(
    gpt: Gpt,
    plan: StepPlan,
    timeline: Timeline,
    initial: Mapping[str, Parameters],
    adam: Adam | None = None,
    scale: Scale | None = None,
) -> Training:
    """Give every rank what it holds before the first step.

    Parameters
    ----------
    gpt : Gpt
        As deep as the planned model.
    plan : StepPlan
    timeline : Timeline
        What was played.
    initial : mapping of unit to parameters
    adam : Adam, optional
    scale : Scale, optional
        Of the loss; 1 where it is left out.

    Raises
    ------
    ValueError
        A step whose numbers cannot be carried yet.
    """
    refuse_uncarried(plan)
    if {log.collective for log in timeline.logs} != set(plan.program.collectives()):
        raise ValueError("numbers are carried by played transfers alone; write collectives: played")
    count, precision = len(plan.program.ranks), plan.step.precision
    cut = plan.step.sharding.shard_size or count
    wide = find(precision.master or precision.params).numpy
    whole = plan.step.sharding.strategy == "ddp"
    training = Training(gpt, plan, timeline, adam or Adam(), scale or static_scaler(1.0), [])
    if plan.step.sharding.strategy == "parameter_server":
        servers = plan.step.sharding.servers
        for units in summed_together(plan):
            packed = flat(gpt, initial, units).astype(wide)
            training.servers[units] = Server(np.pad(packed, (0, -len(packed) % servers)))
    stored = gpt.arithmetic.stored
    for number in range(count):
        rank = Rank(
            {unit: {name: value.astype(stored) for name, value in own.items()} for unit, own in initial.items()}
        )
        for units in () if training.servers else summed_together(plan):
            packed = flat(gpt, initial, units).astype(wide)
            padded = np.pad(packed, (0, -len(packed) % cut))
            rank.parts[units] = padded if whole else np.split(padded, cut)[number % cut].copy()
        if plan.step.sharding.strategy == "zero3":
            rank.working.clear()
        training.ranks.append(rank)
    return training
