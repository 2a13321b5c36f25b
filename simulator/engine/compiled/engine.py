"""The compiled engine's route in: plays a Program as arrays over ranks, or declines.

It computes times as if operations shared no link, then proves that they did not contend; operations that did are solved
together, and the sweep starts again. The answer is the events engine's to 1e-9; where this cannot be proven there is
none. While ranks keep step, one number stands for all of them.
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
# Beyond so many transfers only the busiest link's use is reported: busy times of all links would need every transfer.
_MAX_BOOKED_TRANSFERS = 2**19
# Ranks whose times are compared at once: bounds the memory.
_RANKS_AT_ONCE = 1024
# Solving operations together moves them, so they may contend with others: most programs need two or three sweeps.
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
        A rank needs more HBM than it has, as in the events engine.
    """
    if len(program.ranks) > cluster.world_size:
        raise DeclinedError("more ranks than the cluster has")
    sweep = _settled_sweep(spmd_template(program), program, cluster, jitter or Jitter())
    writer = _TimelineWriter(program, sweep, active_ranks(program))
    return writer.timeline(keep, limit_memory=limit_memory, allocator=allocator)


def _settled_sweep(spmd_ops: tuple[SpmdOp, ...], program: Program, cluster: Cluster, jitter: Jitter) -> TimeSweep:
    """Sweep until no two operations contend but those that are co-scheduled already.

    Each sweep that is not the last adds operations that contended to the co-scheduled sets of the next one.
    """
    # A sweep takes kernels as late as it can, so that all collectives beside them are known. With kernels that can be
    # slowed on two streams, each could have to be later than the other.
    if len({spmd_op.op.stream for spmd_op in spmd_ops if is_contended(spmd_op)}) > 1:
        raise DeclinedError("kernels of several streams are slowed by communication")
    solver = GroupSolver.of(program, cluster, jitter)
    sweep: TimeSweep | None = None
    co_scheduled: dict[int, tuple[int, ...]] = {}
    contentions: list[Contention] = []
    for _ in range(_MAX_SWEEPS):
        sweep = TimeSweep(spmd_ops, len(program.ranks), cluster, jitter, solver, co_scheduled, sweep)
        try:
            sweep.run()
        except DeclinedError as error:
            if not contentions:
                raise
            where = _declined(solver, contentions[0], spmd_ops)
            raise DeclinedError(f"{where}; {error}", where.link) from None
        unresolved = sweep.contentions()
        if not unresolved:
            return sweep
        contentions = unresolved
        co_scheduled = _merged(co_scheduled, contentions)
    raise _declined(solver, contentions[0], spmd_ops)


def _declined(solver: GroupSolver, contention: Contention, spmd_ops: Sequence[SpmdOp]) -> DeclinedError:
    return solver.declined(contention, [spmd_ops[index].op.name for index in contention.owners])


def _merged(co_scheduled: dict[int, tuple[int, ...]], contentions: Sequence[Contention]) -> dict[int, tuple[int, ...]]:
    """For each co-scheduled operation all that are solved with it, those that contend added: sets stay disjoint."""
    merged = dict(co_scheduled)
    for contention in contentions:
        indices = tuple(sorted({partner for index in contention.owners for partner in merged.get(index, (index,))}))
        merged |= dict.fromkeys(indices, indices)
    return merged


@dataclass(slots=True)
class _TimelineWriter:
    """Writes the Timeline of a settled sweep.

    Attributes
    ----------
    program : Program
    sweep : TimeSweep
    active : list of int
        Ranks that have any operations.
    """

    program: Program
    sweep: TimeSweep
    active: list[int]

    def timeline(self, keep: Collection[int] | None, *, limit_memory: bool, allocator: str | None) -> Timeline:
        """Write spans of all ranks, or of those that are to be kept and of the one that ends last."""
        ends = np.max([np.broadcast_to(end, self.sweep.ranks) for end in self.sweep.ends.values()], axis=0)
        kept = self.active if keep is None else sorted({*keep, self.active[int(np.argmax(ends[self.active]))]})
        memory = memory_over_time(
            self.program,
            self.sweep.cluster,
            self._memory_events(kept, all_kept=keep is None),
            limit=limit_memory,
            allocator=allocator,
        )
        collectives = self._played_collectives()
        timeline = timeline_of(
            NAME,
            self.sweep.cluster,
            self._spans(kept),
            Later([partial(self._log, *played) for played in collectives]),
            memory,
            [(op.name, self.sweep.solver.routed(op)) for op, *_ in collectives],
        )
        if sum(sent.transfers for sent in timeline.sent) <= _MAX_BOOKED_TRANSFERS:
            return timeline
        wired = [(self.sweep.solver.routed(op), origin, times) for op, origin, times in collectives]
        return replace(timeline, links=busiest_link(wired, self.sweep.cluster.router))

    def _memory_events(self, kept: Sequence[int], *, all_kept: bool) -> dict[int, list[MemoryEvent]]:
        """When memory operations happen on the kept ranks and, if these are not all, on one of each other kind of rank.

        So the peak is that of all ranks, although memory is followed on few.
        """
        on_hbm = [spmd_op.index for spmd_op in self.sweep.spmd_ops if not isinstance(spmd_op.op, Compute | Collective)]
        times = [self.sweep.ends[index] for index in on_hbm]
        ranks = {*kept, *(() if all_kept else self._one_of_each_kind(times))}
        return {
            rank: [(_of_rank(column, rank), index) for column, index in zip(times, on_hbm, strict=True)]
            for rank in sorted(ranks)
        }

    def _one_of_each_kind(self, times: Sequence[Floats]) -> list[int]:
        """The first rank of each kind; a kind has one HBM size and one order of memory operations in time.

        Bytes held depend on the order of operations alone, not on their times.
        """
        if not times:
            return self.active[:1]
        sizes = np.array([self.sweep.cluster.gpus[rank].hbm_bytes for rank in self.active], np.float64)
        if all(len(column) == 1 for column in times):
            return [self.active[i] for i in np.unique(sizes, return_index=True)[1].tolist()]
        first: dict[tuple[bytes, float], int] = {}
        seen = set[tuple[bytes, float]]()
        of_rank = np.array([column[0] for column in times])
        unlike = [number for number, column in enumerate(times) if len(column) > 1]
        for begin in range(0, len(self.active), _RANKS_AT_ONCE):
            ranks = self.active[begin : begin + _RANKS_AT_ONCE]
            table = np.stack([times[number][ranks] for number in unlike], axis=1)
            for rank, row, size in zip(ranks, table, sizes[begin : begin + _RANKS_AT_ONCE].tolist(), strict=True):
                # Sorting is what takes long, and most ranks have the very times of a rank before them.
                if (row.tobytes(), size) not in seen:
                    seen.add((row.tobytes(), size))
                    of_rank[unlike] = row
                    first.setdefault((np.argsort(of_rank, kind="stable").tobytes(), size), rank)
        return list(first.values())

    def _played_collectives(self) -> list[tuple[Collective, float, CollectiveTimes]]:
        """Every collective whose transfers were played, in the program's order, with the origin of its times [s]."""
        played = [
            (op, *group)
            for spmd_op in self.sweep.spmd_ops
            if spmd_op.collectives
            for op, group in zip(spmd_op.collectives, self.sweep.results[spmd_op.index].groups, strict=True)
            if group is not None
        ]
        return sorted(played, key=lambda entry: self.sweep.solver.placements[entry[0].name][0])

    def _log(self, op: Collective, origin: float, times: CollectiveTimes) -> TransferLog:
        routed = self.sweep.solver.routed(op)
        enter, end = times.times()
        columns = (routed.nbytes, enter + origin, end + origin, routed.route_of)
        return TransferLog(op.name, routed.transfers, *columns, routed.links, routed.vertices)

    def _spans(self, kept: Sequence[int]) -> Iterator[Span]:
        for rank in kept:
            for index, op in enumerate(self.program.ranks[rank]):
                start, end = (_of_rank(times[index], rank) for times in (self.sweep.starts, self.sweep.ends))
                if isinstance(op, Compute):
                    yield Span(rank, op.stream, op.name, op.kind, start, end, op.nbytes, op.flops)
                elif isinstance(op, Collective):
                    yield Span(rank, op.stream, op.name, op.schedule.operation, start, end, float(op.nbytes))


def _of_rank(times: Floats, rank: int) -> float:
    """One rank's time of an array over ranks, or of the one number that stands for all."""
    return float(times[rank if len(times) > 1 else 0])
