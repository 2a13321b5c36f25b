"""The compiled engine: plays a Program as arrays over ranks, one operation of all ranks at a time.

Rule: plays as if operations shared nothing with each other, then proves that they did not, or declines. It gives the
events engine's answer to 1e-9; where it cannot prove it, it gives none. As long as ranks keep step, one number stands
for all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from simulator.basics.arrays import Floats
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.busiest_link import busiest_link
from simulator.engine.compiled.collective_solver import CollectiveTimes
from simulator.engine.compiled.contention import Contention
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.group_solver import GroupSolver
from simulator.engine.compiled.spmd import SpmdOp, active_ranks, spmd_template
from simulator.engine.compiled.time_sweep import TimeSweep, is_contended
from simulator.engine.jitter import Jitter
from simulator.engine.recording import MemoryEvent, memory_over_time, timeline_of
from simulator.records.program import Collective, Compute, Program
from simulator.records.timeline import Later, Span, Timeline, TransferLog

NAME = "compiled"
# Beyond so many transfers only the busiest link is told: the others' busy times would need every transfer.
_MOST_BOOKED = 2**19
# Ranks whose times are looked at together: bounds the memory.
_AT_ONCE = 1024
# Lines that are played together may meet others by it; most programs need two or three walks.
_MAX_SWEEPS = 64


def execute(
    program: Program,
    cluster: Cluster,
    *,
    jitter: Jitter | None = None,
    limit_memory: bool = True,
    allocator: str | None = None,
    keep: Collection[int] | None = None,
) -> Timeline:
    """Play a program to its end, or decline.

    Parameters and result are those of `engine.events.execute`, without payload.

    Raises
    ------
    DeclinedError
        It cannot be proven that this is the events engine's answer; the message says why.
    OutOfMemoryError
        As there.
    """
    if len(program.ranks) > cluster.world_size:
        raise DeclinedError("more ranks than the cluster has")
    sweep = _sweep_until_settled(spmd_template(program), program, cluster, jitter or Jitter())
    return _Record(program, sweep, active_ranks(program)).timeline(keep, limit_memory=limit_memory, allocator=allocator)


def _sweep_until_settled(spmd_ops: tuple[SpmdOp, ...], program: Program, cluster: Cluster, jitter: Jitter) -> TimeSweep:
    """TimeSweep until no two lines disturb each other but those that are played together."""
    if len({spmd_op.op.stream for spmd_op in spmd_ops if is_contended(spmd_op)}) > 1:
        raise DeclinedError("kernels of several streams are slowed by communication")
    solver = GroupSolver.of(program, cluster, jitter)
    sweep: TimeSweep | None = None
    co_scheduled: dict[int, tuple[int, ...]] = {}
    met: list[Contention] = []
    for _ in range(_MAX_SWEEPS):
        sweep = TimeSweep(spmd_ops, len(program.ranks), cluster, jitter, solver, co_scheduled, sweep)
        try:
            sweep.run()
        except DeclinedError as error:
            if not met:
                raise
            where = solver.refused(met[0], [spmd_ops[index].op.name for index in met[0].owners])
            raise DeclinedError(f"{where}; {error}", where.link) from None
        found = sweep.contentions()
        if not found:
            return sweep
        met = found
        co_scheduled = _merge(co_scheduled, found)
    raise solver.refused(met[0], [spmd_ops[index].op.name for index in met[0].owners])


def _merge(co_scheduled: dict[int, tuple[int, ...]], met: Sequence[Contention]) -> dict[int, tuple[int, ...]]:
    """Lines that are to be played together, those that met added."""
    found = dict(co_scheduled)
    for contention in met:
        indices = tuple(sorted({partner for index in contention.owners for partner in found.get(index, (index,))}))
        found |= dict.fromkeys(indices, indices)
    return found


@dataclass(slots=True)
class _Record:
    """Writes down what a sweep found."""

    program: Program
    sweep: TimeSweep
    active: list[int]

    def timeline(self, keep: Collection[int] | None, *, limit_memory: bool, allocator: str | None) -> Timeline:
        """Write down what happened, on all ranks or on those that are to be kept and the one that ends last."""
        ends = np.max([np.broadcast_to(end, self.sweep.ranks) for end in self.sweep.ends.values()], axis=0)
        kept = self.active if keep is None else sorted({*keep, self.active[int(np.argmax(ends[self.active]))]})
        memory = memory_over_time(
            self.program,
            self.sweep.cluster,
            self._memory_events(kept, alone=keep is not None),
            limit=limit_memory,
            allocator=allocator,
        )
        collectives = self._played_collectives()
        found = timeline_of(
            NAME,
            self.sweep.cluster,
            self._spans(kept),
            Later([partial(self._log, *played) for played in collectives]),
            memory,
            [(op.name, self.sweep.solver.routed(op)) for op, *_ in collectives],
        )
        if sum(sent.transfers for sent in found.sent) <= _MOST_BOOKED:
            return found
        flights = [(self.sweep.solver.routed(op), zero, played) for op, zero, played in collectives]
        return replace(found, links=busiest_link(flights, self.sweep.cluster.router))

    def _memory_events(self, kept: Sequence[int], *, alone: bool) -> dict[int, list[MemoryEvent]]:
        """Of the ranks that are kept; where they stand alone, also of one of each other kind of rank."""
        on_hbm = [spmd_op.index for spmd_op in self.sweep.spmd_ops if not isinstance(spmd_op.op, Compute | Collective)]
        times = [self.sweep.ends[index] for index in on_hbm]
        ranks = {*kept, *(self._unlike(times) if alone else ())}
        return {
            rank: [(float(at[rank if len(at) > 1 else 0]), index) for at, index in zip(times, on_hbm, strict=True)]
            for rank in sorted(ranks)
        }

    def _unlike(self, times: Sequence[Floats]) -> list[int]:
        """The first rank of each kind: of one GPU's size, and with operations on memory in one order."""
        if not times:
            return self.active[:1]
        sizes = np.array([self.sweep.cluster.gpus[rank].hbm_bytes for rank in self.active], np.float64)
        if all(len(at) == 1 for at in times):
            return [self.active[i] for i in np.unique(sizes, return_index=True)[1].tolist()]
        first: dict[tuple[bytes, float], int] = {}
        seen = set[tuple[bytes, float]]()
        every = np.array([at[0] for at in times])
        unlike = [number for number, at in enumerate(times) if len(at) > 1]
        for begin in range(0, len(self.active), _AT_ONCE):
            ranks = self.active[begin : begin + _AT_ONCE]
            table = np.stack([times[number][ranks] for number in unlike], axis=1)
            for rank, own, size in zip(ranks, table, sizes[begin : begin + _AT_ONCE].tolist(), strict=True):
                if (own.tobytes(), size) not in seen:
                    seen.add((own.tobytes(), size))
                    every[unlike] = own
                    first.setdefault((np.argsort(every, kind="stable").tobytes(), size), rank)
        return list(first.values())

    def _played_collectives(self) -> list[tuple[Collective, float, CollectiveTimes]]:
        """Every collective that was played, in the program's order, from when on, and what became of it."""
        found = [
            (op, *one)
            for spmd_op in self.sweep.spmd_ops
            if spmd_op.collectives
            for op, one in zip(spmd_op.collectives, self.sweep.played[spmd_op.index].played, strict=True)
            if one is not None
        ]
        return sorted(found, key=lambda entry: self.sweep.solver.placements[entry[0].name][0])

    def _log(self, op: Collective, zero: float, played: CollectiveTimes) -> TransferLog:
        routed = self.sweep.solver.routed(op)
        enter, end = played.times()
        columns = (routed.nbytes, enter + zero, end + zero, routed.route_of)
        return TransferLog(op.name, routed.transfers, *columns, routed.links, routed.vertices)

    def _spans(self, kept: Sequence[int]) -> Iterator[Span]:
        for rank in kept:
            for index, op in enumerate(self.program.ranks[rank]):
                start, end = (
                    float(at[rank if len(at) > 1 else 0]) for at in (self.sweep.starts[index], self.sweep.ends[index])
                )
                if isinstance(op, Compute):
                    yield Span(rank, op.stream, op.name, op.kind, start, end, op.nbytes, op.flops)
                elif isinstance(op, Collective):
                    yield Span(rank, op.stream, op.name, op.schedule.operation, start, end, float(op.nbytes))
