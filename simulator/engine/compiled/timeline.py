"""Writes the Timeline of what the core has played: operations of the ranks that are kept, memory, transfers, links.

Rule: every rank's times are those of the played rank that stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import added
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.columns import begins
from simulator.engine.compiled.core import Times, run
from simulator.engine.compiled.fields import MEMORY, Problem
from simulator.engine.compiled.missing_times import refuse_missing_times
from simulator.engine.compiled.prepared import Prepared
from simulator.engine.recording import MemoryEvents, in_order, memory_events, memory_over_time, timeline_of
from simulator.records.later import AllRanks, Later, LaterByRank, LaterValues
from simulator.records.operation import ISSUE, Collective, Compute
from simulator.records.timeline import LinkUse, Sent, Span, Timeline, TransferLog

NAME: Final = "compiled"
# Played ranks whose memory operations are compared at once: bounds the memory.
_RANKS_AT_ONCE: Final = 1024
# Transfers whose times are kept when a program is played once more for them: 256 MiB.
_MOST_KEPT: Final = 2**24


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
        active = np.flatnonzero(self._counts)
        last = self._last(active)
        there = [] if last[1] is None else [last[1]]
        kept = active.tolist() if keep is None else sorted({*keep, *there})
        memory = memory_over_time(
            self.prepared.program,
            self.prepared.cluster,
            {rank: self._memory_events(rank) for rank in self._followed_in_memory(kept, all_kept=keep is None)},
            limit=limit_memory,
            allocator=allocator,
        )
        logs = Later(self._played_collectives.total, self._log)
        spans = AllRanks(LaterByRank({rank: partial(self._spans, rank) for rank in kept}))
        sent = Later(self._played_collectives.total, self._sent)
        routes = {id(own.routes): own.routes for kind in self.prepared.routed for own in kind if own is not None}
        timeline = timeline_of(NAME, self.prepared.cluster, spans, last, logs, memory, routes.values())
        work = LaterValues({rank: partial(self._at_work, rank) for rank in active.tolist()})
        return replace(timeline, links=links, sent=sent, transfers=self.prepared.transfers, at_work=work)

    @cached_property
    def _counts(self) -> Ints:
        """By rank how many operations it has."""
        lengths = np.diff(self.problem.values["list_begin"])[self.problem.values["list_of"]]
        return np.asarray(lengths[self.prepared.played_rank])

    def _last(self, active: Ints) -> tuple[float, int | None]:
        """When the last operation ends, those on memory left out, and on which rank, the first of several."""
        values, begins = self.problem.values, self.problem.out_begin
        ends = np.full(len(begins), -1.0)
        for number in range(len(values["list_begin"]) - 1):
            places = np.flatnonzero(values["op_kind"][self._own(number)] != MEMORY)
            for played in np.flatnonzero(values["list_of"] == number).tolist() if len(places) else ():
                ends[played] = self.times.end[begins[played] + places].max()
        ends = ends[self.prepared.played_rank[active]]
        if not (ends >= 0.0).any():
            return 0.0, None
        return float(ends.max()), int(active[np.argmax(ends)])

    def _times_of(self, column: Floats, rank: int) -> Floats:
        first = int(self.problem.out_begin[self.prepared.played_rank[rank]])
        return column[first : first + int(self._counts[rank])]

    def _spans(self, rank: int) -> tuple[Span, ...]:
        starts, ends = (self._times_of(column, rank).tolist() for column in (self.times.start, self.times.end))
        program, spans = self.prepared.program, []
        # Ranks of one list do the same, each among its own groups.
        for place, (op, start, end) in enumerate(
            zip(program.lists.lists[program.lists.list_of[rank]], starts, ends, strict=True)
        ):
            if isinstance(op, Compute):
                name = program.name(rank, place)
                spans.append(Span(rank, op.stream, name, op.kind, start, end, op.nbytes, op.flops))
            elif isinstance(op, Collective):
                own = program.operation(rank, place) if op.rendezvous else None
                come = self._last_came(own, rank, place) if isinstance(own, Collective) else start
                name, nbytes = program.name(rank, place), float(op.nbytes)
                spans.append(Span(rank, op.stream, name, op.schedule.operation, come, end, nbytes))
        return in_order(spans)

    def _at_work(self, rank: int) -> float:
        """How long anything was done, hosts that issue kernels left out [s]."""
        work, meetings = self._work_of_lists[self.prepared.program.lists.list_of[rank]]
        starts, ends = (self._times_of(column, rank).copy() for column in (self.times.start, self.times.end))
        for place in meetings:
            op = self.prepared.program.operation(rank, place)
            if isinstance(op, Collective):
                starts[place] = self._last_came(op, rank, place)
        starts, ends = starts[work], ends[work]
        order = np.argsort(starts)
        return float(added(starts[order], ends[order], np.zeros(len(order), np.int64)).sum())

    @cached_property
    def _work_of_lists(self) -> list[tuple[Ints, list[int]]]:
        """By list the places of operations that are work, and of those among them that begin when the last has come."""
        found = []
        for ops in self.prepared.program.lists.lists:
            work = [n for n, op in enumerate(ops) if isinstance(op, Compute | Collective) and op.stream != ISSUE]
            meetings = [n for n, op in enumerate(ops) if isinstance(op, Collective) and op.rendezvous]
            found.append((np.array(work, np.int64), meetings))
        return found

    def _last_came(self, op: Collective, rank: int, place: int) -> float:
        """When the last of a collective's ranks had come to it."""
        lists = self.prepared.program.lists
        name = lists.lists[lists.list_of[rank]][place].name
        return max(
            float(self._times_of(self.times.start, other)[self._places[lists.list_of[other]][name]])
            for other in op.group
        )

    @cached_property
    def _places(self) -> list[dict[str, int]]:
        """By list the place of each operation, by name."""
        return [{op.name: place for place, op in enumerate(ops)} for ops in self.prepared.program.lists.lists]

    def _memory_events(self, rank: int) -> MemoryEvents:
        places = self._on_hbm(int(self.problem.values["list_of"][self.prepared.played_rank[rank]]))
        return memory_events(self._times_of(self.times.end, rank)[places], places)

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
        return np.flatnonzero(self.problem.values["op_kind"][self._own(number)] == MEMORY)

    def _own(self, number: int) -> slice:
        """Where a list's operations stand."""
        begins = self.problem.values["list_begin"]
        return slice(int(begins[number]), int(begins[number + 1]))

    @cached_property
    def _played_collectives(self) -> _Numbered:
        """The collectives whose transfers are played."""
        return _Numbered(
            [[place for place, own in enumerate(kind) if own is not None] for kind in self.prepared.routed],
            self.prepared.program.lists.kind_of,
        )

    def _name(self, number: int) -> str:
        family, member = self._played_collectives.find(number)
        return self.prepared.program.lists.families[family][member].name

    def _sent(self, number: int) -> Sent:
        family, member = self._played_collectives.find(number)
        own = self.prepared.played_routes(self.prepared.program.lists.kind_of[family])[member]
        return Sent(self._name(number), len(own.traffic), own.traffic.total_bytes)

    def _log(self, number: int) -> TransferLog:
        """The log of one collective; where it was not kept, the program is played once more to keep it."""
        family, member = self._played_collectives.find(number)
        kind = self.prepared.program.lists.kind_of[family]
        own = self.prepared.played_routes(kind)[member]
        played = self.prepared.played_member(kind, member)
        instance = int(self.prepared.first_instance[family]) + played
        problem, times = self.problem, self.times
        if problem.values["log_begin"][instance] < 0:
            problem, times = self._played_again if self._all_fit else self._played_for([instance])
        transfers = int(problem.values["log_begin"][instance]) + self._numbers(kind, member, own)
        columns = times.enter[transfers], times.through[transfers], own.route_of
        return TransferLog(self._name(number), own.transfers, own.nbytes, *columns, own.links, own.vertices)

    @cached_property
    def _all_fit(self) -> bool:
        """Whether the transfers of all that is played can be kept at once."""
        return (
            sum(
                times * sum(own.rows.transfers for own in kind.playables if own is not None)
                for times, kind in zip(self.prepared.program.lists.times, self.prepared.kinds, strict=True)
            )
            <= _MOST_KEPT
        )

    @cached_property
    def _played_again(self) -> tuple[Problem, Times]:
        return self._played_for(self.prepared.instances)

    def _played_for(self, logged: Collection[int]) -> tuple[Problem, Times]:
        """The program once more, with the transfers of some collectives kept."""
        problem = self.prepared.problem(logged)
        times = run(problem)
        refuse_missing_times(self.prepared, problem, times)
        return problem, times

    def _numbers(self, kind: int, member: int, routed: RoutedCollective) -> Ints:
        """For each transfer of a collective the number of the one that has its times."""
        rows = self.prepared.played_playable(kind, member).rows
        there = self.prepared.played_rows(kind, member, routed)
        base, stride = rows.log_base[rows.round_of] + rows.place, rows.transfer_lengths[rows.round_of]
        numbers, first = [np.zeros(0, np.int64)], 0
        for part in routed.traffic.parts:
            own = there[first : first + len(part.route_of)]
            first += len(part.route_of)
            numbers.append((base[own] + np.arange(part.repeat.times)[:, None] * stride[own]).ravel())
        return np.concatenate(numbers)


class _Numbered:
    """Numbers of some members of all families, family behind family.

    Parameters
    ----------
    members : sequence of sequence of int
        By kind.
    kind_of : sequence of int
        By family the number of its kind.
    """

    def __init__(self, members: Sequence[Sequence[int]], kind_of: Sequence[int]) -> None:
        self._members = members
        self._kind_of = kind_of
        self._first = begins(len(members[kind]) for kind in kind_of)
        self.total = int(self._first[-1])

    def find(self, number: int) -> tuple[int, int]:
        """Family and member with a number."""
        family = int(np.searchsorted(self._first, number, "right")) - 1
        return family, self._members[self._kind_of[family]][number - int(self._first[family])]
