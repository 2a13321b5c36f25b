"""Real training on the simulated clock: the numbers that a played step computes, sends and updates.

Rule: follows the timeline, operation by operation, in the order in which they ended; the same program that gives times
carries the arrays, and every sum is made by the transfers that were played. Like an orchestra that plays from the parts
it rehearsed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simulator.collectives.inputs import result
from simulator.dtypes import find
from simulator.engine.payload import Payload, carry, ended_order
from simulator.numerics import layers
from simulator.numerics.arithmetic import Array
from simulator.numerics.flat import flat, unpacked
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, fresh, step
from simulator.numerics.scaling import Scale, unscaled
from simulator.numerics.server import Server
from simulator.numerics.state import Parameters, Rank, Spoil, Told, nbytes_of
from simulator.program import Act, Collective, Compute
from simulator.schedule import chunk_sizes
from simulator.timeline import Timeline, TransferLog
from simulator.training.step import StepPlan


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
    scale : Scale
        Of the loss.
    ranks : list of Rank
    servers : dict of units to Server
        Of a step with parameter servers.
    """

    gpt: Gpt
    plan: StepPlan
    timeline: Timeline
    adam: Adam
    scale: Scale
    ranks: list[Rank]
    servers: dict[tuple[str, ...], Server] = field(default_factory=dict)
    _logs: dict[str, TransferLog] = field(default_factory=dict)
    _pushes: dict[tuple[str, ...], tuple[Collective, dict[int, Array]]] = field(default_factory=dict)
    _spoil: Spoil | None = None
    _run_again: frozenset[str] = frozenset()
    _run_from: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._logs = {log.collective: log for log in self.timeline.logs}
        acts = [op.act for op in self.plan.program.ranks[0] if isinstance(op, Compute) and op.act is not None]
        again = [act.units for act in acts if act.what == "recompute"]
        self._run_again = frozenset(unit for units in again for unit in units)
        self._run_from = frozenset(units[0] for units in again)

    def held(self, number: int) -> int:
        """Bytes that a rank keeps for its backward passes [B]."""
        rank = self.ranks[number]
        return nbytes_of((*rank.caches.values(), *rank.inputs.values()))

    def step(self, tokens: Array, spoil: Spoil | None = None) -> Told:
        """Train on some sequences.

        Parameters
        ----------
        tokens : int array, shape (ranks x micro-batches x sequences, seq_len + 1)
            Rank r has the r-th part, a micro-batch the m-th part of that.
        spoil : function (rank, unit, gradients), optional
            May change a unit's gradients in place before they are sent.
        """
        self._spoil = spoil
        parts = np.split(tokens, len(self.ranks))
        batches = [np.split(part, self.plan.step.accumulation) for part in parts]
        for rank in self.ranks:
            rank.losses, rank.gradients, rank.summed, rank.scattered = [], {}, {}, {}
            rank.overflowed = False
        results: dict[str, list[Array]] = {}
        for number, op in self._ended():
            if op.act is None:
                continue
            if isinstance(op, Collective) and op.act.what == "push":
                # Who is first has pushed before others have anything to push: nothing is added up yet.
                self._pushes.setdefault(op.act.units, (op, {}))[1][number] = self._sent(number, op, op.act)
            elif isinstance(op, Collective):
                if op.name not in results:
                    results[op.name] = self._moved(op, op.act)
                self._received(number, op.act, results[op.name][op.group.index(number)])
            else:
                self._computed(number, op.act, batches[number])
        loss = float(np.mean([loss for rank in self.ranks for loss in rank.losses]))
        skipped = any(rank.overflowed for rank in self.ranks)
        told = Told(loss, self._norm(), self.scale.value, skipped)
        self.scale = self.scale.after(overflow=skipped)
        return told

    def _ended(self) -> Iterator[tuple[int, Compute | Collective]]:
        """Every rank's operations in the order in which they ended."""
        ops = [{op.name: op for op in own} for own in self.plan.program.ranks]
        for span in sorted(self.timeline.spans, key=lambda s: (s.end, s.start, s.rank)):
            op = ops[span.rank][span.name]
            if isinstance(op, Compute | Collective):
                yield span.rank, op

    def _computed(self, number: int, act: Act, batches: Sequence[Array]) -> None:
        rank = self.ranks[number]
        if act.what == "update" and not rank.overflowed:
            self._update(rank)
        elif act.what == "check":
            self._unscale(rank)
            rank.overflowed = any(not np.isfinite(part).all() for part in rank.summed.values())
        elif act.what == "forward":
            self._forward(rank, act.units[0], act.micro, batches[act.micro])
        elif act.what == "recompute":
            x = self.gpt.arithmetic.load(rank.inputs.pop((act.units[0], act.micro)))
            for unit in act.units:
                x, rank.caches[unit, act.micro] = self.gpt.forward(unit, rank.working[unit], x)
        elif act.what == "backward":
            self._backward(rank, act.units[0], act.micro)

    def _forward(self, rank: Rank, unit: str, micro: int, rows: Array) -> None:
        """Run a unit, and keep what its backward pass needs, or what it can be run again from."""
        x = rows[:, :-1] if unit == self.gpt.units[0] else rank.flowing[micro]
        out, cache = self.gpt.forward(unit, rank.working[unit], x)
        if unit == self.gpt.units[-1]:
            targets = rows[:, 1:].ravel()
            loss, kept = layers.cross_entropy(out.reshape(-1, self.gpt.vocabulary), targets)
            rank.losses.append(loss)
            cache = (cache, kept, targets)
        if unit in self._run_from:
            rank.inputs[unit, micro] = self.gpt.arithmetic.store(x)
        if unit not in self._run_again:
            rank.caches[unit, micro] = cache
        rank.flowing[micro] = out

    def _backward(self, rank: Rank, unit: str, micro: int) -> None:
        dy = rank.flowing.pop(micro)
        cache = rank.caches.pop((unit, micro))
        if unit == self.gpt.units[-1]:
            cache, kept, targets = cache
            gradient = layers.cross_entropy_backward(kept, targets, self.scale.value)
            dy = self.gpt.arithmetic.rounded(gradient).reshape(dy.shape)
        dx, found = self.gpt.backward(unit, rank.working[unit], cache, dy)
        if dx is not None:
            rank.flowing[micro] = dx
        share = len(self.ranks) * self.plan.step.accumulation
        own = rank.gradients.setdefault(unit, {})
        for name, gradient in found.items():
            part = gradient / gradient.dtype.type(share)
            own[name] = own[name] + part if name in own else part
        if self._spoil is not None:
            self._spoil(self.ranks.index(rank), unit, own)

    def _moved(self, op: Collective, act: Act) -> list[Array]:
        """Carry a collective's arrays by the transfers that were played; what each rank of the group has then."""
        if act.what == "pull":
            return [self._served(act.units)] * len(op.group)
        kind = find(op.dtype)
        buffers = [self._sent(number, op, act).astype(kind.numpy) for number in op.group]
        log = self._logs[op.name]
        order = ended_order(log.transfers, log.end)
        carry(op.schedule, log.transfers, order, Payload(buffers, kind, "sum", kind.numpy))
        return [result(op.schedule, buffer, place, op.elements) for place, buffer in enumerate(buffers)]

    def _served(self, units: tuple[str, ...]) -> Array:
        """What servers hand out once all have pushed: gradients added as they arrived, parameters updated."""
        op, pushed = self._pushes.pop(units)
        log, kind = self._logs[op.name], find(op.dtype).numpy
        buffers = [pushed[number].astype(kind) for number in op.group]
        self.servers[units].add(_arrived(op, log, ended_order(log.transfers, log.end), buffers))
        return self.servers[units].update(self.adam)

    def _sent(self, number: int, op: Collective, act: Act) -> Array:
        rank = self.ranks[number]
        if act.what in ("all_reduce", "reduce_scatter", "push"):
            packed = flat(self.gpt, rank.gradients, act.units, op.elements)
            for unit in act.units:
                del rank.gradients[unit]
            return packed
        if act.what == "flag":
            return np.array([rank.overflowed] + [False] * (op.elements - 1))
        if act.what == "sum copies":
            part = rank.scattered.pop(act.units)
            return np.pad(part, (0, op.elements - len(part)))
        place = op.group.index(number)
        if act.what != "all_gather":
            own = np.concatenate(list(rank.parts.values()))
        elif len(op.group) == self._cut:
            own = rank.parts[act.units]
        else:  # from a smaller mesh, over which what was gathered has been spread meanwhile
            own = np.split(flat(self.gpt, rank.working, act.units, op.elements), len(op.group))[place]
        buffer = np.zeros(op.elements, own.dtype)
        buffer[place * len(own) : (place + 1) * len(own)] = own
        return buffer

    @property
    def _cut(self) -> int:
        """Among how many ranks one copy of the states is cut up."""
        return self.plan.step.sharding.shard_size or len(self.ranks)

    @property
    def _copies(self) -> int:
        return len(self.ranks) // self._cut

    def _received(self, number: int, act: Act, array: Array) -> None:
        rank = self.ranks[number]
        if act.what in ("all_reduce", "reduce_scatter", "sum copies"):
            # With several copies a part is not whole before these are added up.
            into = rank.scattered if act.what == "reduce_scatter" and self._copies > 1 else rank.summed
            held = into.get(act.units)
            into[act.units] = array if held is None else held + array
        elif act.what in ("all_gather", "pull"):
            self._spread(rank, act.units, array)
        elif act.what == "flag":
            rank.overflowed = bool(array.any())
        elif act.what == "gather updated":
            self._spread_all(rank, array)

    def _spread(self, rank: Rank, units: Sequence[str], array: Array) -> None:
        """Cut a flat array into the working parameters of some units."""
        stored = self.gpt.arithmetic.stored
        for unit, own in unpacked(self.gpt, array, units).items():
            rank.working[unit] = {name: value.astype(stored) for name, value in own.items()}

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
            part = rank.parts[units]
            if units not in rank.states:
                rank.states[units] = fresh(part)
            step(self.adam, part, gradient.astype(part.dtype), rank.states[units])
            if self._whole:
                self._spread(rank, units, part)

    def _unscale(self, rank: Rank) -> None:
        for units, gradient in rank.summed.items():
            rank.summed[units] = unscaled(gradient, self.scale.value, rank.parts[units].dtype)

    @property
    def _whole(self) -> bool:
        """Whether every rank updates everything."""
        return self.plan.step.sharding.strategy == "ddp"

    @property
    def _first_copy(self) -> list[Rank]:
        return self.ranks[: 1 if self._whole else self._cut]

    def _norm(self) -> float:
        """Of the summed gradient: every part once."""
        if self.servers:
            return float(np.sqrt(sum(server.squares for server in self.servers.values())))
        parts = [part for rank in self._first_copy for part in rank.summed.values()]
        return float(np.sqrt(sum((part.astype(np.float64) ** 2).sum() for part in parts)))

    def parameters(self) -> Parameters:
        """As they are updated, whole, by name: put together from all ranks."""
        found: Parameters = {}
        for units in self.servers or self.ranks[0].parts:
            held = [self.servers[units].parameters] if self.servers else [r.parts[units] for r in self._first_copy]
            whole = np.concatenate(held)
            for own in unpacked(self.gpt, whole, units).values():
                found |= own
        return found


def _arrived(
    op: Collective, log: TransferLog, order: npt.NDArray[np.int64], buffers: Sequence[Array]
) -> list[tuple[slice, Array]]:
    """Pieces of gradients in the order in which servers have them: a host's own first, then as they came."""
    starts = np.concatenate([[0], np.cumsum(chunk_sizes(op.schedule, op.elements))])
    places = [slice(int(a), int(b)) for a, b in pairwise(starts)]
    found = [] if op.extras else [(place, buffers[host][place]) for host, place in enumerate(places)]
    for number in order.tolist():
        place = places[int(log.transfers.first[number])]
        found.append((place, buffers[int(log.transfers.src[number])][place]))
    return found
