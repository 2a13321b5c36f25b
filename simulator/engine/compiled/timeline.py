"""Writes the Timeline of what the core has played: operations of the ranks that are kept, memory, transfers, links.

Rule: every rank's times are those of the played rank that stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.core import Times, run
from simulator.engine.compiled.prepared import Prepared
from simulator.engine.compiled.problem import MEMORY, Problem
from simulator.engine.recording import MemoryEvent, memory_over_time, timeline_of
from simulator.records.program import Collective, Compute
from simulator.records.timeline import Later, LinkUse, Span, Timeline, TransferLog

NAME: Final = "compiled"
# Played ranks whose memory operations are compared at once: bounds the memory.
_RANKS_AT_ONCE: Final = 1024


@dataclass(frozen=True, eq=False)
class TimelineWriter:
    """What was played, and the times.

    Attributes
    ----------
    prepared : Prepared
    problem : Problem
    times : Times
    """

    prepared: Prepared
    problem: Problem
    times: Times

    def timeline(
        self, keep: Collection[int] | None, links: tuple[LinkUse, ...], *, limit_memory: bool, allocator: str | None
    ) -> Timeline:
        """Operations of all ranks, or of those that are to be kept and of the one that ends last."""
        active = [rank for rank, count in enumerate(self._counts.tolist()) if count]
        kept = active if keep is None else sorted({*keep, *self._last(active)})
        memory = memory_over_time(
            self.prepared.program,
            self.prepared.cluster,
            {rank: self._memory_events(rank) for rank in self._followed_in_memory(kept, all_kept=keep is None)},
            limit=limit_memory,
            allocator=allocator,
        )
        logs = Later([partial(self._log, name) for name in self.prepared.routed])
        routed = list(self.prepared.routed.items())
        timeline = timeline_of(NAME, self.prepared.cluster, self._spans(kept), logs, memory, routed)
        return replace(timeline, links=links)

    @cached_property
    def _counts(self) -> Ints:
        """By rank how many operations it has."""
        lengths = np.diff(self.problem.values["list_begin"])[self.problem.values["list_of"]]
        return np.asarray(lengths[self.prepared.played_rank])

    def _last(self, active: Sequence[int]) -> list[int]:
        """The rank that ends last, the first of several."""
        if not active:
            return []
        begins = self.problem.out_begin
        ends = np.array([np.max(own, initial=0.0) for own in np.split(self.times.end, begins[1:])])
        return [active[int(np.argmax(ends[self.prepared.played_rank[active]]))]]

    def _times_of(self, column: Floats, rank: int) -> Floats:
        first = int(self.problem.out_begin[self.prepared.played_rank[rank]])
        return column[first : first + int(self._counts[rank])]

    def _spans(self, kept: Sequence[int]) -> Iterator[Span]:
        for rank in kept:
            starts, ends = (self._times_of(column, rank).tolist() for column in (self.times.start, self.times.end))
            for op, start, end in zip(self.prepared.program.ranks[rank], starts, ends, strict=True):
                if isinstance(op, Compute):
                    yield Span(rank, op.stream, op.name, op.kind, start, end, op.nbytes, op.flops)
                elif isinstance(op, Collective):
                    yield Span(rank, op.stream, op.name, op.schedule.operation, start, end, float(op.nbytes))

    def _memory_events(self, rank: int) -> list[MemoryEvent]:
        ops = self.prepared.program.ranks[rank]
        times = self._times_of(self.times.end, rank).tolist()
        return [(times[place], place) for place, op in enumerate(ops) if not isinstance(op, Compute | Collective)]

    def _followed_in_memory(self, kept: Sequence[int], *, all_kept: bool) -> list[int]:
        """The kept ranks and, if these are not all, one of each other kind.

        A kind has one list, one HBM size and one order of memory operations in time: what is held depends on nothing
        else. So the peak is that of all ranks, although memory is followed on few.
        """
        if all_kept:
            return list(kept)
        ranks = np.flatnonzero(self._counts)
        hbm = np.array([self.prepared.cluster.gpus[rank].hbm_bytes for rank in ranks.tolist()], np.float64)
        played, listed = self.prepared.played_rank[ranks], self.problem.values["list_of"]
        first = np.unique(np.stack([played, hbm]), axis=1, return_index=True)[1]
        kinds: dict[tuple[int, float, bytes], int] = {}
        for begin in range(0, len(first), _RANKS_AT_ONCE):
            for place in first[begin : begin + _RANKS_AT_ONCE].tolist():
                number = int(listed[played[place]])
                on_hbm = self._on_hbm(number)
                order = np.argsort(self._times_of(self.times.end, int(ranks[place]))[on_hbm], kind="stable")
                kinds.setdefault((number, float(hbm[place]), order.tobytes()), int(ranks[place]))
        return sorted({*kept, *kinds.values()})

    def _on_hbm(self, number: int) -> Ints:
        """Places of a list's memory operations."""
        values = self.problem.values
        own = slice(int(values["list_begin"][number]), int(values["list_begin"][number + 1]))
        return np.flatnonzero(values["op_kind"][own] == MEMORY)

    def _log(self, name: str) -> TransferLog:
        """The log of one collective; where it was not kept, the program is played once more to keep it."""
        own, played = self.prepared.routed[name], self.prepared.played_name(name)
        number = list(self.prepared.collectives).index(played)
        problem, times = self.problem, self.times
        if problem.values["log_begin"][number] < 0:
            problem = self.prepared.problem([played])
            times = run(problem)
        transfers = int(problem.values["log_begin"][number]) + self._numbers(name, played)
        columns = times.enter[transfers], times.through[transfers], own.route_of
        return TransferLog(name, own.transfers, own.nbytes, *columns, own.links, own.vertices)

    def _numbers(self, name: str, played: str) -> Ints:
        """For each transfer of a collective the number of the one that has its times."""
        rows, there = self.prepared.playables[played].rows, self.prepared.played_rows(name)
        base, stride = rows.log_base[rows.round_of] + rows.place, rows.transfer_lengths[rows.round_of]
        numbers, first = [np.zeros(0, np.int64)], 0
        for part in self.prepared.routed[name].traffic.parts:
            own = there[first : first + len(part.route_of)]
            first += len(part.route_of)
            numbers.append((base[own] + np.arange(part.repeat.times)[:, None] * stride[own]).ravel())
        return np.concatenate(numbers)
