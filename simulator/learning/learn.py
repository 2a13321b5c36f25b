"""How does a simulated step become a real training? A GPT-2 with its shape learns a seeded task or the user's tokens.

This module puts model, task, rules and faults together; training.py carries the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from threadpoolctl import threadpool_limits

from simulator.basics.arrays import Array
from simulator.learning.checkpoint import restored, saved
from simulator.learning.faults import Faults, without
from simulator.learning.own_rule import OwnRule
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.state import Parameters, StepResult
from simulator.numerics import loss_scaling, task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.learning_rate import RateSchedule
from simulator.numerics.muon import Muon
from simulator.numerics.optimizer import Adam, Lion, Rule, Sgd
from simulator.records.learning import Learning
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.step.learning_spec import LEARNING, FaultSpec, LossScaling, TrainingTask
from simulator.step.optimizers.optimizer import UpdateConstants
from simulator.step.plan import StepPlan
from simulator.step.spec import TrainingStep

# Simulates a program until its end or a deadlock; the text says which operations wait for what, "" at the end.
SimulateUntilStuck = Callable[[Program], tuple[Timeline, str]]
# Usual constants: of Adam, Muon and of SGD as in PyTorch's documentation, of Lion as in its paper (arXiv:2302.06675).
_ADAM_BETAS: Final = (0.9, 0.999)
_LION_BETAS: Final = (0.9, 0.99)
_MOMENTUM: Final = 0.9
_MUON_MOMENTUM: Final = 0.95


def gpt_of(step: TrainingStep) -> Gpt:
    """Return the GPT-2 with the shape and number format of a training step."""
    model, precision = step.transformer, step.precision
    return Gpt(
        vocabulary=model.vocab_size,
        width=model.hidden_size,
        heads=model.num_heads,
        positions=model.max_positions,
        depth=model.num_layers,
        arithmetic=arithmetic("tf32" if precision.matmul == "tf32" else precision.params),
        attention="flash" if step.keys.attention == "flash" else "standard",
        tied=model.tied,
        dropout=step.lesson.dropout if step.lesson is not None else 0.0,
        experts=model.num_experts,
        active=model.active_experts,
        capacity=step.parallelism.experts.capacity,
    )


@dataclass(frozen=True, slots=True)
class Learned:
    """Result of a real training: record and parameters.

    Attributes
    ----------
    parameters : dict of PyTorch's name to array
        Parameters after the last step, whole, in the dtype of the update.
    """

    learning: Learning  # losses, norms, scales and check results of each step
    parameters: Parameters


def rule_of(step: TrainingStep, ranks: int) -> Rule:
    """Return the optimizer of a training step, for a number of data-parallel ranks.

    Raises
    ------
    ValueError
        Numbers cannot be trained with this optimizer.
    """
    lesson = LEARNING if step.lesson is None else step.lesson.learning
    # An asynchronous server updates once per worker and step; schedules count steps.
    updates = ranks if step.sharding.asynchronous else 1
    schedule = RateSchedule(lesson.schedule, lesson.warmup, step.keys.steps, updates)
    momentum = _MOMENTUM if lesson.momentum is None else lesson.momentum
    if (optimizer := step.optimizer).numbers is not None:
        betas = lesson.betas or _ADAM_BETAS
        constants = UpdateConstants(0, lesson.rate, betas, momentum, lesson.eps, lesson.decay)
        return OwnRule(optimizer.numbers, optimizer.states, constants, schedule)
    match step.optimizer.name:
        case "adam":
            return Adam(lesson.rate, *(lesson.betas or _ADAM_BETAS), lesson.eps, lesson.decay, schedule)
        case "lion":
            return Lion(lesson.rate, *(lesson.betas or _LION_BETAS), lesson.decay, schedule)
        case "momentum":
            return Sgd(lesson.rate, momentum, lesson.decay, schedule)
        case "sgd":
            return Sgd(lesson.rate, 0.0, lesson.decay, schedule)
        case "muon" if (matrices := step.optimizer.of_matrices) is not None:
            momentum = _MUON_MOMENTUM if lesson.momentum is None else lesson.momentum
            others = Adam(lesson.rate, *(lesson.betas or _ADAM_BETAS), lesson.eps, lesson.decay, schedule)
            return Muon(
                lesson.rate, momentum, lesson.decay, matrices.iterations, matrices.dtype,
                step.framework.kernels.split_maps, schedule, others,
            )  # fmt: skip
        case name:
            raise ValueError(f"optimizer: got {name!r}; real training supports adam, lion, momentum, muon, sgd")


def scale_of(policy: LossScaling | None) -> loss_scaling.Scale:
    """Return the initial loss scale with its rule; a constant scale of 1 without loss scaling."""
    if policy is None:
        return loss_scaling.static_scaler(1.0)
    if policy.rule == "static":
        return loss_scaling.static_scaler(policy.start)
    make = loss_scaling.grad_scaler if policy.rule == "dynamic" else loss_scaling.deepspeed_scaler
    return make(policy.start) if policy.interval is None else make(policy.start, policy.interval)


def learn(plan: StepPlan, timeline: Timeline, seed: int, until_stuck: SimulateUntilStuck) -> Learned:
    """Train a model along a simulated timeline and return losses and parameters.

    The training lasts for the planned steps, or until ranks wait for a stopped rank, or until the loss scale gives up.

    Raises
    ------
    ScenarioError
        A fault hits a transfer that does not exist.
    """
    step = plan.step
    lesson = step.lesson or TrainingTask()
    stops = sorted((fault for fault in lesson.faults if fault.what == "stopped"), key=lambda fault: fault.step)
    # A stopped rank ends a synchronous training before its step. Asynchronous workers continue, so their steps are
    # simulated anew without the stopped rank's operations.
    why, last = "", step.keys.steps
    if stops and lesson.learning.checkpoint is None:
        until, why = _until_stopped(plan, until_stuck, stops)
        timeline, last = (until, last) if step.sharding.asynchronous else (timeline, stops[0].step)
    setting = TrainingContext(gpt_of(step), plan, timeline, rule_of(step, len(plan.program.ranks)), seed)
    training = start(setting, _initial(setting, lesson), scale_of(step.loss_scaling))
    faults = Faults(setting, lesson.faults)
    results = list[StepResult]()
    rows_of = _rows_of(setting, lesson)
    # A fault happens once, also if its step is repeated.
    checkpoint, repeated, reached = saved(training), 0, 0
    stop_steps = [fault.step for fault in stops] if lesson.learning.checkpoint is not None else []
    # Matrices are too small to share among threads, and a single thread adds in the same order on every machine.
    with threadpool_limits(1, user_api="blas"):
        while training.done < last:
            if lesson.learning.checkpoint is not None and training.done % lesson.learning.checkpoint == 0:
                checkpoint = saved(training)
            if training.done in stop_steps:
                training.checks.tell("watchdog", training.done)
                stop_steps.remove(training.done)
                repeated += training.done - checkpoint.done
                training = restored(training, checkpoint)
                results = results[: training.done]
            steps = range(training.done, training.done + step.rounds)
            rows = [rows_of(number) for number in steps]
            try:
                if training.done < reached:
                    results += training.play(rows)
                else:
                    results += training.play(rows, faults.spoil(steps), faults.tamper(steps))
                reached = max(reached, training.done)
            # The loss scale may not fall any further.
            except OverflowError as error:
                why, stops = str(error), []
                break
    if why and stops and lesson.learning.checkpoint is None:
        training.checks.tell("watchdog", stops[0].step)
    # Every synchronous step takes the simulated step's time; asynchronous steps have separate ends.
    each = 0.0 if step.sharding.asynchronous else timeline.end
    learning = _learning(results, each, training.checks.seen, why)
    return Learned(replace(learning, repeated_steps=repeated), training.parameters())


def _initial(setting: TrainingContext, lesson: TrainingTask) -> Mapping[str, Parameters]:
    """Return the parameters before the first step, by unit and name: the user's, or drawn from the seed."""
    gpt, parameters = setting.gpt, lesson.parameters
    if parameters is None:
        return task.initial(gpt, setting.seed)
    return {unit: {name: parameters[name] for name in gpt.shapes(unit)} for unit in gpt.units}


def _until_stopped(plan: StepPlan, until_stuck: SimulateUntilStuck, stops: Sequence[FaultSpec]) -> tuple[Timeline, str]:
    """Simulate with stopped ranks; return the timeline and a sentence about the waiting ranks.

    Asynchronous steps are simulated together, synchronous training for a single step.
    """
    if plan.step.sharding.asynchronous:
        program = plan.program
        for fault in stops:
            program = without(program, fault.rank, fault.step * plan.step.accumulation)
        return until_stuck(program)
    timeline, why = until_stuck(without(plan.program, stops[0].rank, 0))
    return timeline, f"rank {stops[0].rank} has stopped" + (f": {why}" if why else "")


def _rows_of(setting: TrainingContext, lesson: TrainingTask) -> Callable[[int], Array]:
    """Return a function from a step's number to its tokens: the user's batches, a text's pieces, or the seeded task."""
    step, seed = setting.plan.step, setting.seed
    count, length = setting.plan.tokens // step.keys.seq_len, step.keys.seq_len + 1
    if lesson.sequences is not None:
        batches = lesson.sequences
        return lambda number: batches[number].astype(np.int64)
    if lesson.text is not None:
        text = np.array(lesson.text)
        return lambda number: task.windows(text, seed, number, count, length)
    return lambda number: task.sequences(seed, number, count, length, setting.gpt.vocabulary)


def _learning(results: Sequence[StepResult], each: float, findings: dict[str, int], why: str) -> Learning:
    """Return the record of a training from its steps' results; synchronous steps end `each` seconds apart."""
    return Learning(
        losses=tuple(result.loss for result in results),
        gradient_norms=tuple(result.norm for result in results),
        loss_scales=tuple(result.scale for result in results),
        skipped=tuple(number for number, result in enumerate(results) if result.skipped),
        ended_s=tuple(each * (number + 1) if each else result.ended for number, result in enumerate(results)),
        staleness=tuple(result.staleness for result in results),
        seen=dict(findings),
        stopped=why,
        losses_by_rank=tuple(result.by_rank for result in results),
        optimizer_steps=tuple(result.updates for result in results),
    )
