"""Real training on the simulated clock: the numbers that a played step computes, sends and updates.

Rule: follows the timeline, operation by operation, in the order in which they ended; the same program that gives times
carries the arrays, and every sum is made by the transfers that were played. Like an orchestra that plays from the parts
it rehearsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulator.collectives.inputs import result
from simulator.dtypes import find
from simulator.engine.payload import Payload, carry, ended_order
from simulator.numerics import layers
from simulator.numerics.arithmetic import Array
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, AdamState, fresh, step
from simulator.program import Act, Collective, Compute
from simulator.timeline import Timeline, TransferLog
from simulator.training.step import StepPlan

Parameters = dict[str, Array]


@dataclass(slots=True)
class Rank:
    """What one rank holds.

    Attributes
    ----------
    working : dict of unit to parameters
        As they are computed with; a sharded step has only what is gathered.
    parts : dict of units to array
        Its part of parameters that are cut up, by what was cut up together.
    states : dict of units or unit to AdamState
    summed : dict of units to array
        Gradients that all ranks have added up: whole, or this rank's part.
    """

    working: dict[str, Parameters]
    parts: dict[tuple[str, ...], Array] = field(default_factory=dict)
    states: dict[tuple[str, ...], AdamState] = field(default_factory=dict)
    summed: dict[tuple[str, ...], Array] = field(default_factory=dict)
    gradients: dict[str, Parameters] = field(default_factory=dict)
    caches: dict[tuple[str, int], Any] = field(default_factory=dict)
    inputs: dict[tuple[str, int], Array] = field(default_factory=dict)
    flowing: dict[int, Array] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Training:
    """A model that trains on a played step, again and again.

    Attributes
    ----------
    gpt : Gpt
    plan : StepPlan
        With every collective played: `collectives: played`.
    timeline : Timeline
        Of all ranks.
    adam : Adam
    ranks : list of Rank
    """

    gpt: Gpt
    plan: StepPlan
    timeline: Timeline
    adam: Adam
    ranks: list[Rank]
    _logs: dict[str, TransferLog] = field(default_factory=dict)
    _collectives: dict[str, Collective] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._logs = {log.collective: log for log in self.timeline.logs}
        self._collectives = self.plan.program.collectives()

    def step(self, tokens: Array) -> tuple[float, float]:
        """Train on some sequences.

        Parameters
        ----------
        tokens : int array, shape (ranks x micro-batches x sequences, seq_len + 1)
            Rank r has the r-th part, a micro-batch the m-th part of that.

        Returns
        -------
        tuple of float
            Mean loss, and the norm of the gradient that was applied.
        """
        parts = np.split(tokens, len(self.ranks))
        batches = [np.split(part, self.plan.step.accumulation) for part in parts]
        for rank in self.ranks:
            rank.losses, rank.gradients, rank.summed = [], {}, {}
        results: dict[str, list[Array]] = {}
        for number, op in self._ended():
            if op.act is None:
                continue
            if isinstance(op, Collective):
                if op.name not in results:
                    results[op.name] = self._moved(op, op.act)
                self._received(number, op.act, results[op.name][op.group.index(number)])
            else:
                self._computed(number, op.act, batches[number])
        return float(np.mean([loss for rank in self.ranks for loss in rank.losses])), self._norm()

    def _ended(self) -> Iterator[tuple[int, Compute | Collective]]:
        """Every rank's operations in the order in which they ended."""
        ops = [{op.name: op for op in own} for own in self.plan.program.ranks]
        for span in sorted(self.timeline.spans, key=lambda s: (s.end, s.start, s.rank)):
            op = ops[span.rank][span.name]
            if isinstance(op, Compute | Collective):
                yield span.rank, op

    def _computed(self, number: int, act: Act, batches: Sequence[Array]) -> None:
        rank = self.ranks[number]
        if act.what == "update":
            self._update(rank)
        elif act.what == "forward":
            self._forward(rank, act.units[0], act.micro, batches[act.micro])
        elif act.what == "recompute":
            for unit in act.units:
                _, rank.caches[unit, act.micro] = self.gpt.forward(
                    unit, rank.working[unit], rank.inputs[unit, act.micro]
                )
        elif act.what == "backward":
            self._backward(rank, act.units[0], act.micro, batches[act.micro])

    def _forward(self, rank: Rank, unit: str, micro: int, rows: Array) -> None:
        x = rows[:, :-1] if unit == self.gpt.units[0] else rank.flowing[micro]
        rank.inputs[unit, micro] = x
        rank.flowing[micro], rank.caches[unit, micro] = self.gpt.forward(unit, rank.working[unit], x)

    def _backward(self, rank: Rank, unit: str, micro: int, rows: Array) -> None:
        if unit == self.gpt.units[-1]:
            logits = rank.flowing[micro]
            targets = rows[:, 1:].ravel()
            loss, kept = layers.cross_entropy(logits.reshape(-1, self.gpt.vocabulary), targets)
            rank.losses.append(loss)
            rank.flowing[micro] = layers.cross_entropy_backward(kept, targets).reshape(logits.shape)
        cache = rank.caches.pop((unit, micro))
        del rank.inputs[unit, micro]
        dx, found = self.gpt.backward(unit, rank.working[unit], cache, rank.flowing.pop(micro))
        if dx is not None:
            rank.flowing[micro] = dx
        share = len(self.ranks) * self.plan.step.accumulation
        own = rank.gradients.setdefault(unit, {})
        for name, gradient in found.items():
            part = gradient / gradient.dtype.type(share)
            own[name] = own[name] + part if name in own else part

    def _moved(self, op: Collective, act: Act) -> list[Array]:
        """Carry a collective's arrays by the transfers that were played; what each rank of the group has then."""
        kind = find(op.dtype)
        buffers = [self._sent(number, op, act).astype(kind.numpy) for number in op.group]
        log = self._logs[op.name]
        order = ended_order(log.transfers, log.end)
        carry(op.schedule, log.transfers, order, Payload(buffers, kind, "sum", kind.numpy))
        return [result(op.schedule, buffer, place, op.elements) for place, buffer in enumerate(buffers)]

    def _sent(self, number: int, op: Collective, act: Act) -> Array:
        rank = self.ranks[number]
        if act.what in ("all_reduce", "reduce_scatter"):
            flat = np.concatenate([rank.gradients[u][n].ravel() for u in act.units for n in self.gpt.shapes(u)])
            for unit in act.units:
                del rank.gradients[unit]
            return np.pad(flat, (0, op.elements - len(flat)))
        own = rank.parts[act.units] if act.what == "all_gather" else np.concatenate(list(rank.parts.values()))
        place = op.group.index(number)
        buffer = np.zeros(op.elements, own.dtype)
        buffer[place * len(own) : (place + 1) * len(own)] = own
        return buffer

    def _received(self, number: int, act: Act, array: Array) -> None:
        rank = self.ranks[number]
        if act.what in ("all_reduce", "reduce_scatter"):
            held = rank.summed.get(act.units)
            rank.summed[act.units] = array if held is None else held + array
        elif act.what == "all_gather":
            self._spread(rank, act.units, array)
        elif act.what == "gather updated":
            self._spread_all(rank, array)

    def _spread(self, rank: Rank, units: Sequence[str], array: Array) -> None:
        """Cut a flat array into the working parameters of some units."""
        at = 0
        for unit in units:
            own = rank.working.setdefault(unit, {})
            for name, shape in self.gpt.shapes(unit).items():
                size = int(np.prod(shape))
                own[name] = array[at : at + size].reshape(shape).astype(self.gpt.arithmetic.stored)
                at += size

    def _spread_all(self, rank: Rank, array: Array) -> None:
        """What all ranks sent, their parts of everything one behind the other."""
        of_rank = np.split(array, len(self.ranks))
        at = 0
        for units, part in rank.parts.items():
            whole = np.concatenate([own[at : at + len(part)] for own in of_rank])
            self._spread(rank, units, whole)
            at += len(part)

    def _update(self, rank: Rank) -> None:
        for units, gradient in rank.summed.items():
            if units not in rank.states:
                rank.states[units] = fresh(gradient)
            if self.plan.step.sharding.strategy == "ddp":
                whole = self._whole(rank, units, len(gradient))
                step(self.adam, whole, gradient, rank.states[units])
                self._spread(rank, units, whole)
            else:
                step(self.adam, rank.parts[units], gradient, rank.states[units])

    def _whole(self, rank: Rank, units: Sequence[str], length: int) -> Array:
        flat = np.concatenate([rank.working[u][n].ravel() for u in units for n in self.gpt.shapes(u)])
        return np.pad(flat, (0, length - len(flat)))

    def _norm(self) -> float:
        """Of the summed gradient: every rank's part once."""
        alike = self.plan.step.sharding.strategy == "ddp"
        parts = [part for rank in (self.ranks[:1] if alike else self.ranks) for part in rank.summed.values()]
        return float(np.sqrt(sum((part.astype(np.float64) ** 2).sum() for part in parts)))

    def parameters(self) -> Parameters:
        """Whole, by name, put together from all ranks."""
        if self.plan.step.sharding.strategy != "zero3":
            return {name: value for unit in self.gpt.units for name, value in self.ranks[0].working[unit].items()}
        gathered = Rank({})
        for units in self.ranks[0].parts:
            self._spread(gathered, units, np.concatenate([rank.parts[units] for rank in self.ranks]))
        return {name: value for unit in self.gpt.units for name, value in gathered.working[unit].items()}


def start(
    gpt: Gpt, plan: StepPlan, timeline: Timeline, initial: Mapping[str, Parameters], adam: Adam | None = None
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

    Raises
    ------
    ValueError
        A step whose numbers cannot be carried yet.
    """
    step_, count = plan.step, len(plan.program.ranks)
    _refuse(plan, timeline)
    training = Training(gpt, plan, timeline, adam or Adam(), [])
    cut = _cut_together(plan)
    for number in range(count):
        rank = Rank({unit: {name: value.copy() for name, value in own.items()} for unit, own in initial.items()})
        for units in cut:
            flat = np.concatenate([initial[u][n].ravel() for u in units for n in gpt.shapes(u)])
            padded = np.pad(flat, (0, -len(flat) % count))
            rank.parts[units] = np.split(padded, count)[number].copy()
        if step_.sharding.strategy == "zero3":
            rank.working.clear()
        training.ranks.append(rank)
    return training


def _cut_together(plan: StepPlan) -> list[tuple[str, ...]]:
    """Units that are reduced and scattered together, in the order of the last micro-batch."""
    last = plan.step.accumulation - 1
    acts = [op.act for op in plan.program.collectives().values() if op.act is not None]
    return [act.units for act in acts if act.what == "reduce_scatter" and act.micro == last]


def _refuse(plan: StepPlan, timeline: Timeline) -> None:
    step_, sharding = plan.step, plan.step.sharding
    if sharding.strategy == "parameter_server" or step_.offload or sharding.shard_size or sharding.mesh:
        raise ValueError(
            "numbers are carried under ddp, zero1, zero2 and zero3 over all ranks; the rest is not built yet"
        )
    if sharding.keep_below or sharding.gradient_sync != "every" or step_.precision.master:
        raise ValueError(
            "numbers are carried without kept tensors, late sums and master copies; these are not built yet"
        )
    if plan.closed_forms or len(timeline.logs) != plan.played:
        raise ValueError("numbers are carried by played transfers alone; write collectives: played")
