"""When each operation of a program starts and ends on every rank: one sweep through the program in time.

An operation is computed when all that it waits for is known. Operations that share links (found by an earlier sweep)
are co-scheduled: they are solved together when the first of them comes. By then the ready times of the others may not
be known, for they can depend on operations between them. They are guessed: the ready time of the first, plus the offset
between the two in the previous sweep.

When such an operation then comes, its ready time is known. If it differs from the guess, the sweep rolls back to the
checkpoint at the first operation and solves the set again with the offset that came out. This converges because what
happens until some time depends only on what happened before: each time the earliest wrong guess is right from then on.
A sweep that reaches the end without a wrong guess is therefore exact, and no approximation is left in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.tolerances import SETTLED
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled import kernels
from simulator.engine.compiled.co_scheduled import CoScheduledOp
from simulator.engine.compiled.collective_solver import SpmdOpTimes
from simulator.engine.compiled.contention import Contention
from simulator.engine.compiled.contention_filter import may_contend
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.group_solver import GroupSolver
from simulator.engine.compiled.spmd import SpmdOp
from simulator.engine.jitter import Jitter, kernel_factors
from simulator.records.program import Collective, Compute

# Rollbacks to one checkpoint, for each operation of the co-scheduled set, before the program is declined.
_MAX_ROLLBACKS: Final = 16
_ZERO: Final[Floats] = np.zeros(1)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """The state before the first operation of a co-scheduled set.

    Attributes
    ----------
    index : int
        Of that operation in the program.
    position : int
        Of that operation in the sweep's order.
    rollbacks : int
        How often the sweep has come back to it.
    in_flight : list of (begin, end)
        Collectives that may still slow kernels [s].
    """

    index: int
    position: int
    rollbacks: int
    in_flight: list[kernels.Interval]


@dataclass(slots=True)
class TimeSweep:
    """Times by index of an operation: arrays over ranks, or one number if they are equal on all ranks.

    Attributes
    ----------
    spmd_ops : tuple of SpmdOp
    ranks : int
    cluster : Cluster
    jitter : Jitter
    solver : GroupSolver
    co_scheduled : mapping of index to indices
        For each co-scheduled operation the whole set, itself included.
    previous : TimeSweep or None
        The sweep before this one.
    starts, ends : dict of index to float array, shape (ranks,) or (1,)
        [s]
    results : dict of index to SpmdOpTimes
        Times of collectives.
    """

    spmd_ops: tuple[SpmdOp, ...]
    ranks: int
    cluster: Cluster
    jitter: Jitter
    solver: GroupSolver
    co_scheduled: Mapping[int, tuple[int, ...]]
    previous: TimeSweep | None
    starts: dict[int, Floats] = field(default_factory=dict)
    ends: dict[int, Floats] = field(default_factory=dict)
    results: dict[int, SpmdOpTimes] = field(default_factory=dict)
    _predecessors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _guesses: dict[int, Floats] = field(default_factory=dict)
    _offsets: dict[int, Floats] = field(default_factory=dict)
    _in_flight: list[kernels.Interval] = field(default_factory=list)
    _checkpoints: dict[tuple[int, ...], _Checkpoint] = field(default_factory=dict)

    def run(self) -> TimeSweep:
        """Compute every operation.

        Raises
        ------
        DeclinedError
            A guessed ready time stays wrong however often the sweep rolls back.
        """
        order, position = self._order(), 0
        while position < len(order):
            spmd_op = order[position]
            if self._guess_was_wrong(spmd_op.index):
                position = self._roll_back(spmd_op.index, order)
                continue
            if spmd_op.index in self.co_scheduled and spmd_op.index not in self.results:
                self._save_checkpoint(spmd_op.index, position)
            self._compute(spmd_op)
            position += 1
        return self

    def _guess_was_wrong(self, index: int) -> bool:
        """Whether an operation that was solved with an earlier one is not ready when it was guessed to be."""
        if index not in self._guesses:
            return False
        ready = self._ready(index, self.ends)
        return bool((np.abs(ready - self._guesses[index]) > SETTLED * np.abs(ready)).any())

    def _save_checkpoint(self, index: int, position: int) -> None:
        partners = self.co_scheduled[index]
        rollbacks = self._checkpoints[partners].rollbacks if partners in self._checkpoints else 0
        self._checkpoints[partners] = _Checkpoint(index, position, rollbacks, list(self._in_flight))

    def _roll_back(self, index: int, order: Sequence[SpmdOp]) -> int:
        """Go back to the checkpoint of an operation's co-scheduled set and return its position in the order.

        Everything from there on is forgotten, except by how much the operation was ready later than the first one.
        """
        partners = self.co_scheduled[index]
        checkpoint = self._checkpoints[partners]
        if checkpoint.rollbacks == _MAX_ROLLBACKS * len(partners):
            raise DeclinedError("operations that share links do not settle")
        self._offsets[index] = self._ready(index, self.ends) - self._ready(checkpoint.index, self.ends)
        self._checkpoints = {s: saved for s, saved in self._checkpoints.items() if saved.position < checkpoint.position}
        for spmd_op in order[checkpoint.position :]:
            self.starts.pop(spmd_op.index, None)
            self.ends.pop(spmd_op.index, None)
            # A set that began before the checkpoint and reaches beyond it was solved from what still holds, so its
            # answer stays. Solving it again here, at one of its later operations, would change times that were used
            # already.
            if self.co_scheduled.get(spmd_op.index) not in self._checkpoints:
                self.results.pop(spmd_op.index, None)
                self._guesses.pop(spmd_op.index, None)
        self._checkpoints[partners] = replace(checkpoint, rollbacks=checkpoint.rollbacks + 1)
        self._in_flight = list(checkpoint.in_flight)
        return checkpoint.position

    def contentions(self) -> list[Contention]:
        """Where flows of operations contend that were not solved together; owners are indices of operations."""
        loads = [
            (self._earliest_start(index), index, partial(self.solver.load, self.spmd_ops[index].collectives, result))
            for index, result in self.results.items()
        ]
        contentions, seen = list[Contention](), set[tuple[int, ...]]()
        for indices in may_contend(sorted(loads, key=lambda load: load[:2]), self.solver.capacity):
            if indices not in seen:
                seen.add(indices)
                contentions += self._contentions_among(indices)
        return contentions

    def _earliest_start(self, index: int) -> float:
        """When the first operation of a co-scheduled set starts: one of them keeps the occupancy of the whole set."""
        partners = self.co_scheduled.get(index, (index,))
        return min(float(self.results[partner].start.min()) for partner in partners)

    def _contentions_among(self, indices: Sequence[int]) -> list[Contention]:
        """Look flow by flow at operations that could contend."""
        played = [(self.spmd_ops[index].collectives, self.results[index]) for index in indices]
        contentions = self.solver.contentions_among(played)
        return [replace(c, owners=tuple(indices[number] for number in c.owners)) for c in contentions]

    def _order(self) -> list[SpmdOp]:
        """Operations, each after all that it waits for; kernels that communication can slow come as late as they can.

        A kernel's end depends on the collectives that are in flight beside it, so these must be known before it. All
        collectives that do not wait for the kernel come before it, and those that do begin after its end.
        """
        streams: dict[str, list[SpmdOp]] = {}
        for spmd_op in self.spmd_ops:
            queue = streams.setdefault(spmd_op.op.stream, [])
            self._predecessors[spmd_op.index] = (*spmd_op.after, *((queue[-1].index,) if queue else ()))
            queue.append(spmd_op)
        heads, over, order = dict.fromkeys(streams, 0), set[int](), list[SpmdOp]()
        while len(order) < len(self.spmd_ops):
            waiting = [streams[stream][head] for stream, head in heads.items() if head < len(streams[stream])]
            able = [spmd_op for spmd_op in waiting if over.issuperset(spmd_op.after)]
            if not able:
                raise DeclinedError("operations wait for each other")
            spmd_op = next((spmd_op for spmd_op in able if not is_contended(spmd_op)), able[0])
            heads[spmd_op.op.stream] += 1
            over.add(spmd_op.index)
            order.append(spmd_op)
        return order

    def _compute(self, spmd_op: SpmdOp) -> None:
        start = self._ready(spmd_op.index, self.ends)
        if isinstance(spmd_op.op, Compute):
            slowdown = self._slowdown(spmd_op)
            if is_contended(spmd_op):
                # These kernels stand on one stream, so no later one can begin before this one: what is over by now
                # slows none of them.
                self._in_flight = [(begin, end) for begin, end in self._in_flight if bool((end > start).any())]
            alone, contended = spmd_op.alone * slowdown, spmd_op.contended * slowdown
            end = kernels.kernel_ends(start, alone, contended, self._in_flight)
        elif spmd_op.collectives:
            if spmd_op.index not in self.results:
                self._solve_collectives(spmd_op)
            result = self.results[spmd_op.index]
            start, end = start if result.start is start else _one_if_equal(result.start), result.done
            if isinstance(spmd_op.op, Collective) and spmd_op.op.takes_sms:
                self._in_flight.append((start, _one_if_equal(end)))
        else:
            end = start
        self.starts[spmd_op.index], self.ends[spmd_op.index] = start, _one_if_equal(end)

    def _solve_collectives(self, spmd_op: SpmdOp) -> None:
        """Solve an operation's collectives, and with them all operations that it is co-scheduled with."""
        indices = self.co_scheduled.get(spmd_op.index, (spmd_op.index,))
        ops = []
        for index in indices:
            ready = np.broadcast_to(self._expected_ready(index, spmd_op.index), self.ranks)
            predecessors = tuple(indices.index(other) for other in self._predecessors[index] if other in indices)
            ops.append(CoScheduledOp(self.spmd_ops[index].collectives, ready, predecessors))
            if len(indices) > 1:
                self._guesses[index] = ready
        self.results |= dict(zip(indices, self.solver.solve(ops), strict=True))

    def _ready(self, index: int, ends: Mapping[int, Floats]) -> Floats:
        """When all has ended that an operation waits for, except operations that are co-scheduled with it."""
        ready, partners = _ZERO, self.co_scheduled.get(index, ())
        for other in self._predecessors[index]:
            if other not in partners:
                ready = _element_wise_maximum(ready, ends[other])
        return ready

    def _expected_ready(self, index: int, first: int) -> Floats:
        """Ready time, known or guessed, of an operation that is co-scheduled with `first`, at which the sweep is.

        Guess: the first operation's ready time plus the offset seen at the last rollback, or else in the previous
        sweep.
        """
        partners = self.co_scheduled.get(index, ())
        if all(other in self.ends for other in self._predecessors[index] if other not in partners):
            return self._ready(index, self.ends)
        if index in self._offsets:
            offset = self._offsets[index]
        else:
            # Without a sweep before this one nothing is co-scheduled, so all is known and this is not reached.
            ends = self.ends if self.previous is None else self.previous.ends
            offset = self._ready(index, ends) - self._ready(first, ends)
        return np.maximum(self._ready(first, self.ends) + offset, 0.0)

    def _slowdown(self, spmd_op: SpmdOp) -> Floats | float:
        """By which stragglers and jitter stretch kernels."""
        on_gpu = isinstance(spmd_op.op, Compute) and spmd_op.op.on_gpu
        speed = np.array(self.cluster.speeds[: self.ranks]) if self.cluster.speeds and on_gpu else 1.0
        jitter: Floats | float = 1.0
        if self.jitter.compute:
            jitter = kernel_factors(self.jitter, np.arange(self.ranks), spmd_op.index)
        return jitter / speed


def is_contended(spmd_op: SpmdOp) -> bool:
    """Whether an operation is kernels that communication slows."""
    return isinstance(spmd_op.op, Compute) and not bool(np.array_equal(spmd_op.alone, spmd_op.contended))


def _element_wise_maximum(one: Floats, other: Floats) -> Floats:
    """Element-wise maximum; returns an input unchanged if it dominates, to save memory."""
    if len(other) >= len(one) and bool((other >= one).all()):
        return other
    if len(one) >= len(other) and bool((one >= other).all()):
        return one
    return np.maximum(one, other)


def _one_if_equal(times: Floats) -> Floats:
    """One number if all ranks have the same time: so arrays over ranks stand only where ranks differ."""
    return times[:1] if len(times) > 1 and bool((times == times[0]).all()) else times
