"""One sweep through all lines of a program: when each begins and ends on every rank, if operations meet as is assumed.

Rule: a line is played when all that it waits for is known. Lines that share links are played together when the first of
them comes; where the others begin depends on what comes later, they are taken to begin as they did in the sweep before,
as much later as the first one does now. Where such a line then comes otherwise, the sweep goes back to the first one
and takes it to begin as it came: what happens depends only on what was before, so each time more of it is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
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

# What was assumed and what came of it may differ by rounding, over the time since the start.
_SETTLED: Final = 1e-13
# So often, for each of them, lines that are played together are played again before they are given up.
_MAX_ROLLBACKS: Final = 16
_ORIGIN: Final[Floats] = np.zeros(1)


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    """Where lines that are played together begin: the first of them, its place in the sweep, how often they did not
    come as was assumed, and what was in flight.
    """

    index: int
    at: int
    tries: int
    in_flight: list[kernels.Interval]


@dataclass(slots=True)
class TimeSweep:
    """Times by place in the program: arrays over ranks, or one number where all agree.

    Attributes
    ----------
    spmd_ops : tuple of SpmdOp
    ranks : int
    cluster : Cluster
    jitter : Jitter
    solver : GroupSolver
    co_scheduled : mapping of place to places
        Lines that are played together, for each of them.
    before : TimeSweep or None
        The sweep before this one.
    played : dict of place to SpmdOpTimes
        What became of collectives.
    """

    spmd_ops: tuple[SpmdOp, ...]
    ranks: int
    cluster: Cluster
    jitter: Jitter
    solver: GroupSolver
    co_scheduled: Mapping[int, tuple[int, ...]]
    before: TimeSweep | None
    starts: dict[int, Floats] = field(default_factory=dict)
    ends: dict[int, Floats] = field(default_factory=dict)
    played: dict[int, SpmdOpTimes] = field(default_factory=dict)
    _predecessors: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _assumed: dict[int, Floats] = field(default_factory=dict)
    _offsets: dict[int, Floats] = field(default_factory=dict)
    _in_flight: list[kernels.Interval] = field(default_factory=list)
    _checkpoints: dict[tuple[int, ...], _Checkpoint] = field(default_factory=dict)

    def run(self) -> TimeSweep:
        """Play every line.

        Raises
        ------
        DeclinedError
            What was assumed of a line that is played together with others does not come out however often it is tried.
        """
        order, at = self._program_order(), 0
        while at < len(order):
            spmd_op = order[at]
            if self._assumption_failed(spmd_op.index):
                at = self._roll_back(spmd_op.index, order)
                continue
            if spmd_op.index in self.co_scheduled and spmd_op.index not in self.played:
                self._save_checkpoint(spmd_op.index, at)
            self._play(spmd_op)
            at += 1
        return self

    def _assumption_failed(self, index: int) -> bool:
        """Whether a line that was played with an earlier one does not begin as was assumed."""
        if index not in self._assumed:
            return False
        ready = self._ready(index, self.ends)
        return bool((np.abs(ready - self._assumed[index]) > _SETTLED * np.abs(ready)).any())

    def _save_checkpoint(self, index: int, at: int) -> None:
        """Note where lines that are played together begin."""
        partners = self.co_scheduled[index]
        tries = self._checkpoints[partners].tries if partners in self._checkpoints else 0
        self._checkpoints[partners] = _Checkpoint(index, at, tries, list(self._in_flight))

    def _roll_back(self, index: int, order: Sequence[SpmdOp]) -> int:
        """Forget everything from the first of a line's partners on, but how much later than that one it came."""
        partners = self.co_scheduled[index]
        mark = self._checkpoints[partners]
        if mark.tries == _MAX_ROLLBACKS * len(partners):
            raise DeclinedError("lines that share links do not settle")
        self._offsets[index] = self._ready(index, self.ends) - self._ready(mark.index, self.ends)
        self._checkpoints = {other: begun for other, begun in self._checkpoints.items() if begun.at < mark.at}
        for spmd_op in order[mark.at :]:
            self.starts.pop(spmd_op.index, None)
            self.ends.pop(spmd_op.index, None)
            # What was played together with lines before that one stays as it is.
            if self.co_scheduled.get(spmd_op.index) not in self._checkpoints:
                self.played.pop(spmd_op.index, None)
                self._assumed.pop(spmd_op.index, None)
        self._checkpoints[partners] = replace(mark, tries=mark.tries + 1)
        self._in_flight = list(mark.in_flight)
        return mark.at

    def contentions(self) -> list[Contention]:
        """Where flows of several lines were on one link at once that could not give all what they take alone."""
        loads = [
            (self._first_start(index), index, partial(self.solver.load, self.spmd_ops[index].collectives, one))
            for index, one in self.played.items()
        ]
        found, looked_at = list[Contention](), set[tuple[int, ...]]()
        for indices in may_contend(sorted(loads, key=lambda load: load[:2]), self.solver.capacity):
            if indices not in looked_at:
                looked_at.add(indices)
                found += self._contentions_among(indices)
        return found

    def _first_start(self, index: int) -> float:
        """When the first of those that a line is played with began: the first one's occupancy is that of all."""
        partners = self.co_scheduled.get(index, (index,))
        return min(float(self.played[partner].start.min()) for partner in partners)

    def _contentions_among(self, indices: Sequence[int]) -> list[Contention]:
        """Of lines that could meet: where they did."""
        spmd_ops = [(self.spmd_ops[index].collectives, self.played[index]) for index in indices]
        return [
            replace(m, owners=tuple(indices[number] for number in m.owners))
            for m in self.solver.contentions_among(spmd_ops)
        ]

    def _program_order(self) -> list[SpmdOp]:
        """Operations, each after all that it needs; kernels that could be slowed come as late as they can.

        By then all collectives that do not wait for them are known, and others begin after their end.
        """
        streams: dict[str, list[SpmdOp]] = {}
        for spmd_op in self.spmd_ops:
            queue = streams.setdefault(spmd_op.op.stream, [])
            self._predecessors[spmd_op.index] = (*spmd_op.after, *((queue[-1].index,) if queue else ()))
            queue.append(spmd_op)
        at, over, found = dict.fromkeys(streams, 0), set[int](), list[SpmdOp]()
        while len(found) < len(self.spmd_ops):
            heads = [streams[stream][index] for stream, index in at.items() if index < len(streams[stream])]
            able = [spmd_op for spmd_op in heads if over.issuperset(spmd_op.after)]
            if not able:
                raise DeclinedError("operations wait for each other")
            spmd_op = next((spmd_op for spmd_op in able if not is_contended(spmd_op)), able[0])
            at[spmd_op.op.stream] += 1
            over.add(spmd_op.index)
            found.append(spmd_op)
        return found

    def _play(self, spmd_op: SpmdOp) -> None:
        start = self._ready(spmd_op.index, self.ends)
        if isinstance(spmd_op.op, Compute):
            stretch = self._slowdown(spmd_op)
            if is_contended(spmd_op):
                self._in_flight = [(begin, end) for begin, end in self._in_flight if bool((end > start).any())]
            end = kernels.kernel_ends(start, spmd_op.alone * stretch, spmd_op.contended * stretch, self._in_flight)
        elif spmd_op.collectives:
            if spmd_op.index not in self.played:
                self._play_collectives(spmd_op)
            found = self.played[spmd_op.index]
            start, end = start if found.start is start else _one_if_equal(found.start), found.done
            if isinstance(spmd_op.op, Collective) and spmd_op.op.takes_sms:
                self._in_flight.append((start, _one_if_equal(end)))
        else:
            end = start
        self.starts[spmd_op.index], self.ends[spmd_op.index] = start, _one_if_equal(end)

    def _play_collectives(self, spmd_op: SpmdOp) -> None:
        """Play a line's collectives, and with them those that share links with them."""
        indices = self.co_scheduled.get(spmd_op.index, (spmd_op.index,))
        members = []
        for index in indices:
            ready = np.broadcast_to(self._expected_ready(index, spmd_op.index), self.ranks)
            predecessors = tuple(indices.index(other) for other in self._predecessors[index] if other in indices)
            members.append(CoScheduledOp(self.spmd_ops[index].collectives, ready, predecessors))
            if len(indices) > 1:
                self._assumed[index] = ready
        self.played |= dict(zip(indices, self.solver.play(members), strict=True))

    def _ready(self, index: int, ends: Mapping[int, Floats]) -> Floats:
        """When all has ended that a line waits for, but for lines that are played together with it."""
        start, partners = _ORIGIN, self.co_scheduled.get(index, ())
        for other in self._predecessors[index]:
            if other not in partners:
                start = _elementwise_max(start, ends[other])
        return start

    def _expected_ready(self, index: int, first: int) -> Floats:
        """The ready of a line that is played together with `first`, which has come."""
        partners = self.co_scheduled.get(index, ())
        if all(other in self.ends for other in self._predecessors[index] if other not in partners):
            return self._ready(index, self.ends)
        if index in self._offsets:
            apart = self._offsets[index]
        else:
            before = self.ends if self.before is None else self.before.ends
            apart = self._ready(index, before) - self._ready(first, before)
        return np.maximum(self._ready(first, self.ends) + apart, 0.0)

    def _slowdown(self, spmd_op: SpmdOp) -> Floats | float:
        on_gpu = isinstance(spmd_op.op, Compute) and spmd_op.op.on_gpu
        speed = np.array(self.cluster.speeds[: self.ranks]) if self.cluster.speeds and on_gpu else 1.0
        noise: Floats | float = 1.0
        if self.jitter.compute:
            noise = kernel_factors(self.jitter, np.arange(self.ranks), spmd_op.index)
        return noise / speed


def is_contended(spmd_op: SpmdOp) -> bool:
    """Whether a line is kernels that communication slows."""
    return isinstance(spmd_op.op, Compute) and not bool(np.array_equal(spmd_op.alone, spmd_op.contended))


def _elementwise_max(one: Floats, other: Floats) -> Floats:
    """The larger of both; one of them itself where it is nowhere the smaller, for arrays of many ranks add up."""
    if len(other) >= len(one) and bool((other >= one).all()):
        return other
    if len(one) >= len(other) and bool((one >= other).all()):
        return one
    return np.maximum(one, other)


def _one_if_equal(times: Floats) -> Floats:
    """One number where all are the same."""
    return times[:1] if len(times) > 1 and bool((times == times[0]).all()) else times
