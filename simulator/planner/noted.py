"""How long does a step take at least, by what was noted of a few micro-batches of each stage's rank?

Rule: as in bound.py, never above the played time, and finer, for notes have every kernel and every collective. Kernels
and what ranks that cut a layer exchange follow each other as noted, in their closed forms, alone on their links. What
data-parallel ranks send may be hidden, at a price: while a collective of a rank is in flight its kernels go at their
contended pace. And a stream carries one collective after the other, so that nothing ends before all that are left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simulator.planner.bound import LeastDurations, Passing
from simulator.planner.pass_order import RankTimes
from simulator.records.operation import Collective, Compute, Op
from simulator.step.plan import StageNotes
from simulator.step.streams import dimension_of


@dataclass(frozen=True, slots=True)
class NotedPass:
    """One pass, as if nothing else were going on.

    Attributes
    ----------
    whole, sent : float
        Until the rank's next pass can begin, and until what it sends can go [s].
    kernels : tuple of (float, float)
        How long they take alone, and beside a collective [s].
    streams : mapping of str to float
        By stream of data-parallel ranks the sum of its collectives [s].
    left : mapping of str to float
        By stream, from the pass's beginning to the end of its collectives at least [s]; those that may begin before it
        are left out.
    """

    whole: float
    sent: float
    kernels: tuple[tuple[float, float], ...]
    streams: Mapping[str, float]
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class NotedRank:
    """One stage's rank.

    Attributes
    ----------
    stage : int
        Its place in the pipeline.
    passes : tuple of NotedPass
        All of a step, in its order.
    tail : float
        Least time from the end of the last pass to the end of the step [s].
    after : mapping of str to float
        By stream, least time from the end of its last collective in a pass to the end of the step [s].
    """

    stage: int
    passes: tuple[NotedPass, ...]
    tail: float
    after: Mapping[str, float]

    def times(self) -> RankTimes:
        """Its passes' times; the step goes on for what streams have to carry."""
        left, ends = dict(self.after), list[float]()
        for noted in reversed(self.passes):
            ends.append(max((seconds + left[name] for name, seconds in noted.left.items()), default=0.0))
            for name, seconds in noted.streams.items():
                left[name] += seconds
        whole, sent = (np.array([getattr(one, name) for one in self.passes]) for name in ("whole", "sent"))
        return RankTimes(whole, sent, np.array(ends[::-1]))

    def least(self, waiting: float) -> float:
        """Least time of the step whose kernels wait so long for exchanges, whatever is hidden [s].

        While they wait, and in the tail, collectives are in flight at no cost.
        """
        # Most passes stand for others, so each is counted as often as it stands.
        times, kernels = Counter(map(id, self.passes)), list[tuple[float, float]]()
        streams: dict[str, float] = {}
        for noted in {id(noted): noted for noted in self.passes}.values():
            often = times[id(noted)]
            kernels += [(often * alone, often * contended) for alone, contended in noted.kernels]
            for name, seconds in noted.streams.items():
                streams[name] = streams.get(name, 0.0) + often * seconds
        alone, in_flight = sum(one for one, _ in kernels), max(streams.values(), default=0.0)
        return alone + waiting + self.tail + _cost(kernels, in_flight - waiting - self.tail)


def _cost(kernels: Sequence[tuple[float, float]], hidden: float) -> float:
    """Least that hiding so much costs [s]; what more is in flight than kernels can hide is time of its own.

    Whatever hides what, it costs at least what it costs the kernels that lose least by it.
    """
    cost, left = 0.0, hidden
    for alone, contended in sorted(kernels, key=lambda one: (one[1] - one[0]) / one[1] if one[1] else 0.0):
        if left <= 0.0:
            return cost
        share = min(1.0, left / contended) if contended else 0.0
        cost += share * (contended - alone)
        left -= share * contended
    return cost + max(left, 0.0)


def least_by_notes(passing: Passing, noted: Sequence[StageNotes], durations: LeastDurations) -> float:
    """Least time of a step [s].

    Parameters
    ----------
    passing : Passing
        The bound of its passes; taken for stages of which nothing was noted.
    noted : sequence of StageNotes
        Of ranks of all stages, or of some.
    durations : LeastDurations
    """
    ranks = [noted_rank(notes, durations) for notes in noted]
    least, updates = max(rank.least(passing.waiting(rank.stage)) for rank in ranks), list(passing.updates)
    for rank in ranks:
        updates[rank.stage] = max(updates[rank.stage], rank.tail)
    passing = replace(passing, updates=tuple(updates))
    if passing.pipeline.schedule.pairs:
        return max(least, passing.along_order())  # what was noted of two passes at once cannot be told apart
    first = {rank.stage: rank for rank in reversed(ranks)}
    return max(least, passing.along_order({stage: rank.times() for stage, rank in first.items()}))


def noted_rank(notes: StageNotes, durations: LeastDurations) -> NotedRank:
    """Sum up what was noted; for a pass that was not noted another one stands that does the same."""
    begins = [*notes.begins.values(), notes.ends]
    segments = zip(notes.begins, pairwise(begins), strict=True)
    made = {one: _pass(notes.ops[begin:end], durations) for one, (begin, end) in segments}
    passes = tuple(made[one] for one in notes.stand_for)
    last: dict[str, list[str]] = {"compute": []}
    for op in notes.ops[: notes.ends]:
        if (isinstance(op, Compute) and op.stream == "compute") or _is_data_parallel(op):
            last[op.stream] = [op.name]
    after = {stream: _tail(notes, stream, names, durations) for stream, names in last.items()}
    return NotedRank(notes.stage, passes, after.pop("compute"), after)


def _is_data_parallel(op: Op) -> bool:
    return isinstance(op, Collective) and dimension_of(op.stream) == "dp"


def _pass(ops: Sequence[Op], durations: LeastDurations) -> NotedPass:
    """A pass from its beginning on; what it waits for of other passes is there, and so is what is gathered for it."""
    ended, free = dict[str, float](), dict[str, float]()
    sent: float | None = None
    kernels, streams, left = list[tuple[float, float]](), dict[str, float](), dict[str, float]()
    for op in ops:
        waits = [ended[name] for name in op.after if name in ended]
        dimension = dimension_of(op.stream)
        if op.stream == "compute":
            seconds = op.duration if isinstance(op, Compute) else 0.0
            free["compute"] = ended[op.name] = max([free.get("compute", 0.0), *waits]) + seconds
            if isinstance(op, Compute):
                kernels.append((op.duration, op.duration if op.contended is None else op.contended))
        elif dimension == "pp" and isinstance(op, Collective):
            # What comes waits for nothing and is there when the pass begins.
            sent = max([sent or 0.0, *waits]) if op.after else sent
        elif _is_data_parallel(op) and isinstance(op, Collective):
            takes = durations.of(op)
            streams[op.stream] = streams.get(op.stream, 0.0) + takes
            if op.stream in left or waits:
                left[op.stream] = max([left.get(op.stream, 0.0), *waits]) + takes
        elif isinstance(op, Collective) and dimension in ("tp", "cp", "ep"):
            free[op.stream] = ended[op.name] = max([free.get(op.stream, 0.0), *waits]) + durations.of(op)
    busy = free.get("compute", 0.0)
    return NotedPass(busy, busy if sent is None else sent, tuple(kernels), streams, left)


def _tail(notes: StageNotes, stream: str, last: Sequence[str], durations: LeastDurations) -> float:
    """The longest way through what begins when the last operations on a stream of the passes have ended [s]."""
    ended, free = dict.fromkeys(last, 0.0), {stream: 0.0}
    for op in notes.ops[notes.ends :]:
        waits = [ended[name] for name in op.after if name in ended]
        if waits or op.stream in free:
            takes = durations.of(op) if isinstance(op, Collective) else op.duration if isinstance(op, Compute) else 0.0
            ended[op.name] = free[op.stream] = max([free.get(op.stream, 0.0), *waits]) + takes
    return max(ended.values(), default=0.0)
