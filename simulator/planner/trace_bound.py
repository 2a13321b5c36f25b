"""What is a tighter lower bound of the step time, from the recorded operations of a few micro-batches of each stage?

As in bound.py a bound is never above the simulated time. It is tighter because the recorded program of a stage's rank
has every kernel and every collective:

- Kernels and the exchanges of tensor, context and expert parallelism follow each other in program order, each alone on
  its links.
- Kernels may hide data-parallel collectives, at a price: while a collective of the rank is in flight, its kernels run
  at their contended speed.
- A stream runs one collective after the other, so the step ends no earlier than the remaining collectives of a stream
  take together.

Example: kernels take 8 ms alone or 10 ms beside a collective, collectives take 5 ms, and the update after the last pass
takes 1 ms. Hiding the 4 ms that remain beside the update costs 4 / 10 of the 2 ms: the bound is 8 + 1 + 0.8 = 9.8 ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from simulator.planner.bound import CollectiveLowerBounds, StepBound
from simulator.planner.pass_order import RankTimes
from simulator.records.operation import Collective, Compute, Op
from simulator.step.plan import StageNotes
from simulator.step.streams import dimension_of


@dataclass(frozen=True, slots=True)
class PassBound:
    """Lower bounds of one pass that runs alone on its rank.

    Attributes
    ----------
    whole, sent : float
        Time until the rank's next pass can begin, and until its send to the next stage can begin [s].
    kernels : tuple of (float, float)
        Duration of each kernel alone, and beside a collective [s].
    streams : mapping of str to float
        Total duration of the collectives on each data-parallel stream [s].
    left : mapping of str to float
        Time from the beginning of the pass to the end of its collectives on each stream [s]. Collectives that may begin
        before the pass do not count.
    """

    whole: float
    sent: float
    kernels: tuple[tuple[float, float], ...]
    streams: Mapping[str, float]
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RankBound:
    """Lower bounds of one rank of a pipeline stage.

    Attributes
    ----------
    stage : int
        Place of the rank in the pipeline.
    passes : tuple of PassBound
        Bounds of all passes of a step, in the rank's order.
    tail : float
        Lower bound of the time from the end of the last pass to the end of the step [s].
    after : mapping of str to float
        Lower bound of the time from the end of the last collective of a pass on each stream to the end of the step [s].
    """

    stage: int
    passes: tuple[PassBound, ...]
    tail: float
    after: Mapping[str, float]

    def times(self) -> RankTimes:
        """Return the times of the passes, with the time that the rest of the step takes after each pass at least."""
        left, ends = dict(self.after), list[float]()
        for noted in reversed(self.passes):
            ends.append(max((seconds + left[name] for name, seconds in noted.left.items()), default=0.0))
            for name, seconds in noted.streams.items():
                left[name] += seconds
        whole, sent = (np.array([getattr(one, name) for one in self.passes]) for name in ("whole", "sent"))
        return RankTimes(whole, sent, np.array(ends[::-1]))

    def least(self, waiting: float) -> float:
        """Return a lower bound of the step time, whatever collectives the kernels hide [s].

        Parameters
        ----------
        waiting : float
            Time that the kernels wait for exchanges [s]. In this time, and in the tail, data-parallel collectives are
            in flight without slowing any kernel.
        """
        # One PassBound is shared by all passes that do the same, so it is counted as often as it occurs.
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
    """Return the least cost of hiding collectives of `hidden` seconds behind kernels [s].

    Whichever kernels hide them, the cost is at least that of the kernels that slow down least, which are taken first.
    Collectives longer than all kernels together add their rest to the time.
    """
    cost, left = 0.0, hidden
    for alone, contended in sorted(kernels, key=lambda one: (one[1] - one[0]) / one[1] if one[1] else 0.0):
        if left <= 0.0:
            return cost
        share = min(1.0, left / contended) if contended else 0.0
        cost += share * (contended - alone)
        left -= share * contended
    return cost + max(left, 0.0)


def bound_from_ops(passing: StepBound, noted: Sequence[StageNotes], durations: CollectiveLowerBounds) -> float:
    """Return a lower bound of the step time [s].

    Parameters
    ----------
    passing : StepBound
        Bounds without recorded operations, which stand for stages that were not recorded.
    noted : sequence of StageNotes
        Recorded operations of a rank of each stage, or of some stages.
    durations : CollectiveLowerBounds
        Bounds of collectives.
    """
    ranks = [rank_bound(notes, durations) for notes in noted]
    least, updates = max(rank.least(passing.waiting(rank.stage)) for rank in ranks), list(passing.updates)
    for rank in ranks:
        updates[rank.stage] = max(updates[rank.stage], rank.tail)
    passing = replace(passing, updates=tuple(updates))
    if passing.pipeline.schedule.pairs:
        # The records of two passes at once are interleaved, so the times of each pass are unknown.
        return max(least, passing.schedule_bound())
    first = {rank.stage: rank for rank in reversed(ranks)}
    return max(least, passing.schedule_bound({stage: rank.times() for stage, rank in first.items()}))


def rank_bound(notes: StageNotes, durations: CollectiveLowerBounds) -> RankBound:
    """Return the bounds of a rank from its recorded operations; a recorded pass stands for all equal passes."""
    begins = [*notes.begins.values(), notes.ends]
    segments = zip(notes.begins, pairwise(begins), strict=True)
    made = {one: _pass(notes.ops[begin:end], durations) for one, (begin, end) in segments}
    passes = tuple(made[one] for one in notes.stand_for)
    last: dict[str, list[str]] = {"compute": []}
    for op in notes.ops[: notes.ends]:
        if (isinstance(op, Compute) and op.stream == "compute") or _is_data_parallel(op):
            last[op.stream] = [op.name]
    after = {stream: _tail(notes, stream, names, durations) for stream, names in last.items()}
    return RankBound(notes.stage, passes, after.pop("compute"), after)


def _is_data_parallel(op: Op) -> bool:
    return isinstance(op, Collective) and dimension_of(op.stream) == "dp"


def _pass(ops: Sequence[Op], durations: CollectiveLowerBounds) -> PassBound:
    """Return the bounds of one pass, assuming that inputs from other passes and gathered parameters are available."""
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
            # A receive waits for no operation of the pass, and has ended when the pass begins.
            sent = max([sent or 0.0, *waits]) if op.after else sent
        elif _is_data_parallel(op) and isinstance(op, Collective):
            takes = durations.of(op)
            streams[op.stream] = streams.get(op.stream, 0.0) + takes
            if op.stream in left or waits:
                left[op.stream] = max([left.get(op.stream, 0.0), *waits]) + takes
        elif isinstance(op, Collective) and dimension in ("tp", "cp", "ep"):
            free[op.stream] = ended[op.name] = max([free.get(op.stream, 0.0), *waits]) + durations.of(op)
    busy = free.get("compute", 0.0)
    return PassBound(busy, busy if sent is None else sent, tuple(kernels), streams, left)


def _tail(notes: StageNotes, stream: str, last: Sequence[str], durations: CollectiveLowerBounds) -> float:
    """Return the longest path through the operations after the passes, from the last operations on a stream [s]."""
    ended, free = dict.fromkeys(last, 0.0), {stream: 0.0}
    for op in notes.ops[notes.ends :]:
        waits = [ended[name] for name in op.after if name in ended]
        if waits or op.stream in free:
            takes = durations.of(op) if isinstance(op, Collective) else op.duration if isinstance(op, Compute) else 0.0
            ended[op.name] = free[op.stream] = max([free.get(op.stream, 0.0), *waits]) + takes
    return max(ended.values(), default=0.0)
