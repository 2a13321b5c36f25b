"""Builds the Timeline from the core's times: operations of kept ranks, memory, transfers, links.

Every rank takes its times from its representative among the simulated ranks.
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
from simulator.engine.compiled.prepared import CoreProgram
from simulator.engine.recording import MemoryEvents, in_order, memory_events, memory_over_time, timeline_of
from simulator.records.lazy import AllRanks, LazyByRank, LazySequence, LazyValues
from simulator.records.operation import ISSUE, Collective, Compute
from simulator.records.timeline import CollectiveTotals, LinkUse, Span, Timeline, TransferLog

NAME: Final = "compiled"
# Number of simulated ranks whose memory operations are compared at once; bounds memory use.
_RANKS_AT_ONCE: Final = 1024
# Up to this number, a second run logs every transfer at once (256 MiB); beyond, a run per requested log.
_MOST_KEPT: Final = 2**24


@dataclass(frozen=True, eq=False)
class TimelineWriter:
    """Builds the Timeline of a simulation from the program and the compiled core's times."""

    prepared: CoreProgram  # the program and what is simulated for it
    problem: Problem  # input of the core
    times: Times  # results of the core

    def timeline(
        self, keep: Collection[int] | None, links: tuple[LinkUse, ...], *, limit_memory: bool, allocator: str | None
    ) -> Timeline:
        """Return the timeline, with operations on every rank, or on the ranks in `keep` and the rank ending last.

        `links` is the measured use of links; `allocator` names the simulated memory allocator, None to count bytes
        only.
        """
        active = np.flatnonzero(self._counts)
        last = self._last(active)
        # The rank ending last is always kept: it determines the end.
        last_rank = [] if last[1] is None else [last[1]]
        ranks = active.tolist() if keep is None else sorted({*keep, *last_rank})
        # Simulated before anything else is built: exceeding memory raises here.
        memory = memory_over_time(
            self.prepared.program,
            self.prepared.cluster,
            {rank: self._memory_events(rank) for rank in self._followed_in_memory(ranks, all_kept=keep is None)},
            limit=limit_memory,
            allocator=allocator,
        )
        logs = LazySequence(self._played_collectives.total, self._log)
        spans = AllRanks(LazyByRank({rank: partial(self._spans, rank) for rank in ranks}))
        sent = LazySequence(self._played_collectives.total, self._sent)
        # Collectives share routes; take each object once.
        routed = [collective for kind in self.prepared.routed for collective in kind if collective is not None]
        routes = {id(routes_): routes_ for collective in routed for routes_ in collective.every_routes}
        timeline = timeline_of(
            NAME, self.prepared.cluster, self.prepared.program.beside, spans, last, logs, memory, routes.values()
        )
        work = LazyValues({rank: partial(self._at_work, rank) for rank in active.tolist()})
        return replace(timeline, links=links, sent=sent, transfers=self.prepared.transfers, at_work=work)

    @cached_property
    def _counts(self) -> Ints:
        """Return the number of operations for each rank in the program."""
        lengths = np.diff(self.problem.values["list_begin"])[self.problem.values["list_of"]]
        return np.asarray(lengths[self.prepared.played_rank])

    def _last(self, active: Ints) -> tuple[float, int | None]:
        """Return when ranks `active` end their last operation that takes time [s], and its rank; ties: the lowest."""
        values, begins = self.problem.values, self.problem.out_begin
        # -1 for ranks without operations.
        ends = np.full(len(begins), -1.0)
        for number in range(len(values["list_begin"]) - 1):
            places = np.flatnonzero(values["op_kind"][self._own(number)] != MEMORY)
            for rank in np.flatnonzero(values["list_of"] == number).tolist() if len(places) else ():
                ends[rank] = self.times.end[begins[rank] + places].max()
        ends = ends[self.prepared.played_rank[active]]
        if not (ends >= 0.0).any():
            return 0.0, None
        return float(ends.max()), int(active[np.argmax(ends)])

    def _times_of(self, column: Floats, rank: int) -> Floats:
        """Return a rank's entries in `column`, the start or end times for every simulated operation [s]."""
        first = int(self.problem.out_begin[self.prepared.played_rank[rank]])
        return column[first : first + int(self._counts[rank])]

    def _spans(self, rank: int) -> tuple[Span, ...]:
        """Return the kernels and collectives of a rank as spans with start and end, sorted."""
        starts, ends = (self._times_of(column, rank).tolist() for column in (self.times.start, self.times.end))
        program, spans = self.prepared.program, []
        # Ranks with a common list run the same operations, each in its own groups.
        for place, (op, start, end) in enumerate(
            zip(program.lists.lists[program.lists.list_of[rank]], starts, ends, strict=True)
        ):
            if isinstance(op, Compute):
                name = program.name(rank, place)
                spans.append(Span(rank, op.stream, name, op.kind, start, end, op.nbytes, op.flops))
            elif isinstance(op, Collective):
                operation = program.operation(rank, place) if op.rendezvous else None
                # A receive is idle until the last rank comes.
                come = self._last_came(operation, rank, place) if isinstance(operation, Collective) else start
                name, nbytes, is_given = program.name(rank, place), float(op.nbytes), op.duration is not None
                spans.append(Span(rank, op.stream, name, op.schedule.operation, come, end, nbytes, 0.0, is_given))
        return in_order(spans)

    def _at_work(self, rank: int) -> float:
        """Return the time in which a rank runs a kernel or collective [s], without the stream that issues kernels."""
        work, meetings = self._work_of_lists[self.prepared.program.lists.list_of[rank]]
        # A copy, because starts are replaced below.
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
        """Return, for each list, the indices of kernels and collectives, and of collectives with a common start.

        A common start is the last rank's arrival at a collective. Work on the stream on which the host issues kernels
        is omitted.
        """
        work_of_lists = []
        for ops in self.prepared.program.lists.lists:
            work = [n for n, op in enumerate(ops) if isinstance(op, Compute | Collective) and op.stream != ISSUE]
            meetings = [n for n, op in enumerate(ops) if isinstance(op, Collective) and op.rendezvous]
            work_of_lists.append((np.array(work, np.int64), meetings))
        return work_of_lists

    def _last_came(self, op: Collective, rank: int, place: int) -> float:
        """Return when the last rank reached a collective [s]; the collective is operation `place` of `rank`."""
        lists = self.prepared.program.lists
        name = lists.lists[lists.list_of[rank]][place].name
        return max(
            float(self._times_of(self.times.start, other)[self._places[lists.list_of[other]][name]])
            for other in op.group
        )

    @cached_property
    def _places(self) -> list[dict[str, int]]:
        """Return, for each operation list, a dict from an operation's name to its index in the list."""
        return [{op.name: place for place, op in enumerate(ops)} for ops in self.prepared.program.lists.lists]

    def _memory_events(self, rank: int) -> MemoryEvents:
        """Return the times and indices of a rank's memory operations, sorted by time."""
        places = self._on_hbm(int(self.problem.values["list_of"][self.prepared.played_rank[rank]]))
        return memory_events(self._times_of(self.times.end, rank)[places], places)

    def _followed_in_memory(self, asked_ranks: Sequence[int], *, all_kept: bool) -> list[int]:
        """Return the ranks whose memory is simulated: `asked_ranks` and, unless `all_kept`, a rank of each kind.

        Ranks in a kind have the same list, HBM size and temporal order of memory operations. Memory use depends on
        nothing else, therefore few ranks give the peak over every rank.
        """
        if all_kept:
            return list(asked_ranks)
        ranks = np.flatnonzero(self._counts)
        hbm = np.array([self.prepared.cluster.gpus[rank].hbm_bytes for rank in ranks.tolist()], np.float64)
        representatives, listed = self.prepared.played_rank[ranks], self.problem.values["list_of"]
        # Ranks with a common representative and HBM size have equal memory: compare one each.
        first = np.unique(np.stack([representatives, hbm]), axis=1, return_index=True)[1]
        kinds: dict[tuple[int, float, bytes], int] = {}
        for begin in range(0, len(first), _RANKS_AT_ONCE):
            for place in first[begin : begin + _RANKS_AT_ONCE].tolist():
                number = int(listed[representatives[place]])
                on_hbm = self._on_hbm(number)
                # Stable: at equal times, the program's order counts.
                order = np.argsort(self._times_of(self.times.end, int(ranks[place]))[on_hbm], kind="stable")
                kinds.setdefault((number, float(hbm[place]), order.tobytes()), int(ranks[place]))
        return sorted({*asked_ranks, *kinds.values()})

    def _on_hbm(self, number: int) -> Ints:
        """Return the indices of the memory operations (allocate, free) in operation list `number`."""
        places, begins = self._memory_places
        on_hbm: Ints = places[begins[number] : begins[number + 1]] - self._own(number).start
        return on_hbm

    @cached_property
    def _memory_places(self) -> tuple[Ints, list[int]]:
        """Return the indices of the memory operations of all lists, and where each list's indices begin among them."""
        values = self.problem.values
        places: Ints = np.flatnonzero(values["op_kind"] == MEMORY)
        return places, np.searchsorted(places, values["list_begin"]).tolist()

    def _own(self, number: int) -> slice:
        """Return the slice for operation list `number` in the arrays over every list."""
        begins = self.problem.values["list_begin"]
        return slice(int(begins[number]), int(begins[number + 1]))

    @cached_property
    def _played_collectives(self) -> _Numbered:
        """Return numbers for all collectives whose transfers are simulated, not given in closed form."""
        return _Numbered(
            [[place for place, routed in enumerate(kind) if routed is not None] for kind in self.prepared.routed],
            self.prepared.program.lists.kind_of,
        )

    def _name(self, number: int) -> str:
        """Return the name for collective `number`."""
        family, member = self._played_collectives.find(number)
        return self.prepared.program.lists.families[family][member].name

    def _sent(self, number: int) -> CollectiveTotals:
        """Return the name, transfer count and total bytes for collective `number`."""
        family, member = self._played_collectives.find(number)
        routed = self.prepared.routed[self.prepared.program.lists.kind_of[family]][member]
        if routed is None:
            raise ValueError(f"{self._name(number)!r} has a given duration, and no transfers")
        return CollectiveTotals(self._name(number), len(routed.traffic), routed.traffic.total_bytes)

    def _log(self, number: int) -> TransferLog:
        """Return the log for collective `number`'s transfers; simulate again if their times were not logged."""
        family, member = self._played_collectives.find(number)
        kind = self.prepared.program.lists.kind_of[family]
        routed = self.prepared.played_routes(kind)[member]
        representative = self.prepared.played_member(kind, member)
        instance = int(self.prepared.first_instance[family]) + representative
        problem, times = self.problem, self.times
        if problem.values["log_begin"][instance] < 0:
            # A single further run logs every collective if the logs fit, otherwise only this collective.
            problem, times = self._played_again if self._all_fit else self._played_for([instance])
        transfers = int(problem.values["log_begin"][instance]) + self._numbers(kind, member, routed)
        # Routes around the k-th set of avoided links stand behind the usual ones in `own.links`.
        route_of = (
            routed.route_of + times.took[transfers] * np.int32(len(routed.routes))
            if routed.detours
            else routed.route_of
        )
        columns = times.enter[transfers], times.through[transfers], route_of
        return TransferLog(self._name(number), routed.transfers, routed.nbytes, *columns, routed.links, routed.vertices)

    @cached_property
    def _all_fit(self) -> bool:
        """Return True if every simulated transfer can be logged at once."""
        return (
            sum(
                times * sum(sized.rows.transfers for sized in kind.playables if sized is not None)
                for times, kind in zip(self.prepared.program.lists.times, self.prepared.kinds, strict=True)
            )
            <= _MOST_KEPT
        )

    @cached_property
    def _played_again(self) -> tuple[Problem, Times]:
        """Return the core's input and times from a second simulation, with the transfers of every collective logged."""
        return self._played_for(self.prepared.instances)

    def _played_for(self, logged: Collection[int]) -> tuple[Problem, Times]:
        """Return the core's input and times from another simulation, with transfers of the given collectives logged."""
        problem = self.prepared.problem(logged)
        times = run(problem)
        refuse_missing_times(self.prepared, problem, times)
        return problem, times

    def _numbers(self, kind: int, member: int, routed: RoutedCollective) -> Ints:
        """Return, for each transfer in process group `member`'s collective, the representative's log number."""
        rows = self.prepared.played_playable(kind, member).rows
        rows_of_transfers = self.prepared.played_rows(kind, member, routed)
        base, stride = rows.log_base[rows.round_of] + rows.place, rows.transfer_lengths[rows.round_of]
        numbers, first = [np.zeros(0, np.int64)], 0
        for part in routed.traffic.parts:
            rows_of_part = rows_of_transfers[first : first + len(part.route_of)]
            first += len(part.route_of)
            # A repetition moves every number by the rows' stride in the playable.
            numbers.append((base[rows_of_part] + np.arange(part.repeat.times)[:, None] * stride[rows_of_part]).ravel())
        return np.concatenate(numbers)


class _Numbered:
    """Numbers 0, 1, ... for chosen process groups of collectives, family after family (a family is one operation).

    Parameters
    ----------
    members : sequence of sequence of int
        Chosen members of each kind.
    kind_of : sequence of int
        Kind of each family.
    """

    def __init__(self, members: Sequence[Sequence[int]], kind_of: Sequence[int]) -> None:
        self._members = members
        self._kind_of = kind_of
        self._first = begins(len(members[kind]) for kind in kind_of)
        self.total = int(self._first[-1])

    def find(self, number: int) -> tuple[int, int]:
        """Return the family (operation) and the process group for collective `number`."""
        family = int(np.searchsorted(self._first, number, "right")) - 1
        return family, self._members[self._kind_of[family]][number - int(self._first[family])]
