"""A planned and played step as a real training: a GPT-2 of its shape learns a seeded task, or the user's tokens.

Rule: puts model, task, rules and faults together; the numbers are carried elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from simulator.cluster.cluster import Cluster
from simulator.engine.events import execute_until_stuck
from simulator.engine.jitter import Jitter
from simulator.learning.faults import Faults, without
from simulator.learning.setting import Setting
from simulator.learning.start import start
from simulator.learning.state import Told
from simulator.numerics import scaling, task
from simulator.numerics.arithmetic import Array, arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, Rule, Sgd
from simulator.report.training_summary import Learning
from simulator.timeline import Timeline
from simulator.training.spec import Fault, Lesson, LossScaling, TrainingStep
from simulator.training.step import StepPlan


def gpt_of(step: TrainingStep) -> Gpt:
    """The GPT-2 of a step's shape, in its arithmetic."""
    model, precision = step.model, step.precision
    return Gpt(
        vocabulary=model.vocab_size,
        width=model.hidden_size,
        heads=model.num_heads,
        positions=model.max_positions,
        depth=model.num_layers,
        arithmetic=arithmetic("tf32" if precision.matmul == "tf32" else precision.params),
        attention=step.attention,
        tied=model.tied,
        dropout=step.lesson.dropout if step.lesson is not None else 0.0,
    )


def rule_of(step: TrainingStep) -> Rule:
    """The optimizer.

    Raises
    ------
    ValueError
        One that nothing is trained with here.
    """
    lesson = step.lesson or Lesson()
    if step.optimizer.name == "adam":
        return Adam(lesson.rate, decay=lesson.decay)
    if step.optimizer.name in ("sgd", "momentum"):
        return Sgd(lesson.rate, lesson.momentum if step.optimizer.name == "momentum" else 0.0, lesson.decay)
    raise ValueError(f"optimizer: got {step.optimizer.name!r}; numbers are updated by adam, momentum, sgd")


def scale_of(wanted: LossScaling | None) -> scaling.Scale:
    """The loss's first scale, with its rule."""
    if wanted is None:
        return scaling.static_scaler(1.0)
    if wanted.rule == "static":
        return scaling.static_scaler(wanted.start)
    make = scaling.grad_scaler if wanted.rule == "dynamic" else scaling.deepspeed_scaler
    return make(wanted.start) if wanted.interval is None else make(wanted.start, wanted.interval)


def learn(plan: StepPlan, cluster: Cluster, timeline: Timeline, jitter: Jitter) -> Learning:
    """Train for as many steps as the plan says, or until a rank stops that others wait for, or a scale gives up.

    Raises
    ------
    ScenarioError
        A fault of a transfer that is not there.
    """
    step = plan.step
    lesson = step.lesson or Lesson()
    stops = sorted((fault for fault in lesson.faults if fault.what == "stopped"), key=lambda fault: fault.step)
    why, last = "", step.steps
    if stops:
        until, why = _until_stopped(plan, cluster, jitter, stops)
        timeline, last = (until, last) if step.sharding.asynchronous else (timeline, stops[0].step)
    setting = Setting(gpt_of(step), plan, timeline, rule_of(step), jitter.seed)
    training = start(setting, task.initial(setting.gpt, jitter.seed), scale_of(step.loss_scaling))
    faults = Faults(setting, lesson.faults)
    told = list[Told]()
    text = None if lesson.tokens is None else np.array(lesson.tokens)
    # Matrices here are too small to share among threads, and one thread adds in one order on every machine.
    with threadpool_limits(1, user_api="blas"):
        for first in range(0, last, step.rounds):
            steps = range(first, first + step.rounds)
            rows = [_tokens(setting, text, number) for number in steps]
            try:
                told += training.play(rows, faults.spoil(steps), faults.tamper(steps))
            except OverflowError as error:  # a scale that may fall no further
                why, stops = str(error), []
                break
    if why and stops:
        training.checks.tell("watchdog", stops[0].step)
    return _learning(told, 0.0 if step.sharding.asynchronous else timeline.end, training.checks.seen, why)


def _until_stopped(plan: StepPlan, cluster: Cluster, jitter: Jitter, stops: Sequence[Fault]) -> tuple[Timeline, str]:
    """How far others come, and who then waits for whom: in all steps where they cannot be told apart, else in one."""
    if plan.step.sharding.asynchronous:
        program = plan.program
        for fault in stops:
            program = without(program, fault.rank, fault.step * plan.step.accumulation)
        return execute_until_stuck(program, cluster, jitter)
    timeline, why = execute_until_stuck(without(plan.program, stops[0].rank, 0), cluster, jitter)
    return timeline, f"rank {stops[0].rank} has stopped" + (f": {why}" if why else "")


def _tokens(setting: Setting, text: Array | None, number: int) -> Array:
    """All ranks' sequences of a step."""
    step = setting.plan.step
    count, length = setting.plan.tokens // step.seq_len, step.seq_len + 1
    if text is not None:
        return task.windows(text, setting.seed, number, count, length)
    return task.sequences(setting.seed, number, count, length, setting.gpt.vocabulary)


def _learning(told: Sequence[Told], each: float, seen: dict[str, int], why: str) -> Learning:
    """Steps that were played once take `each` so long, one after the other."""
    return Learning(
        losses=tuple(one.loss for one in told),
        gradient_norms=tuple(one.norm for one in told),
        loss_scales=tuple(one.scale for one in told),
        skipped=tuple(number for number, one in enumerate(told) if one.skipped),
        ended_s=tuple(each * (number + 1) if each else one.ended for number, one in enumerate(told)),
        staleness=tuple(one.staleness for one in told),
        seen=dict(seen),
        stopped=why,
    )
