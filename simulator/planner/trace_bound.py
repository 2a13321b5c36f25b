"""How fast can a setting be at best, judged from recorded operations of a few micro-batches of each stage?

A bound never exceeds the simulated time, as in bound.py. It is tighter because a stage's recorded program has every
kernel and every collective:

- Kernels and exchanges inside the model (tensor, context, expert parallelism) follow each other in program order, each
  alone on its links.
- Kernels may hide data-parallel collectives, at a price: beside a collective, kernels run at their contended speed.
- A stream runs collectives in sequence, hence the step ends no earlier than a stream's remaining collectives take
  together.

Example: kernels take 8 ms alone or 10 ms beside a collective, collectives take 5 ms, and the update after the last pass
takes 1 ms. The update hides 1 ms of collectives, and kernels hide the remaining 4 ms: they slow down during 4 of their
10 ms, and 4 / 10 of 2 ms is 0.8 ms. The bound is 8 + 1 + 0.8 = 9.8 ms.
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
    """Lower bounds on a pass's times, alone on the rank."""

    # `whole`, `sent`: Time until the rank's next pass can begin, and until the send to the next stage can begin [s].
    whole: float
    sent: float
    kernels: tuple[tuple[float, float], ...]  # each kernel's duration alone, and beside a collective [s]
    streams: Mapping[str, float]  # total duration of collectives on each data-parallel stream [s]
    # Time from the pass's beginning to the end of its collectives on each stream [s]. Collectives that may begin before
    # the pass do not count.
    left: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RankBound:
    """Lower bounds on a pipeline rank's times: passes and the rest of the step."""

    stage: int  # the rank's place in the pipeline
    passes: tuple[PassBound, ...]  # bounds for each pass of a step, in the rank's order
    tail: float  # least time from the last pass's end to the step's end [s]
    # Least time from the end of a pass's last collective on each stream to the step's end [s]
    after: Mapping[str, float]

    def times(self) -> RankTimes:
        """Return lower bounds on a rank's pass times, each with the least time to the step's end."""
        # From the last pass to the first: `left` grows by the collectives that a stream must still run.
        left, ends = dict(self.after), list[float]()
        for noted in reversed(self.passes):
            ends.append(max((seconds + left[name] for name, seconds in noted.left.items()), default=0.0))
            for name, seconds in noted.streams.items():
                left[name] += seconds
        lengths, sent = (np.array([getattr(bound, name) for bound in self.passes]) for name in ("whole", "sent"))
        return RankTimes(lengths, sent, np.array(ends[::-1]))

    def least(self, waiting: float) -> float:
        """Return a lower bound on step time, whatever collectives the kernels hide [s].

        Parameters
        ----------
        waiting : float
            Time that kernels wait for exchanges [s]. In this time, and in the tail, data-parallel collectives are in
            flight without slowing any kernel.
        """
        # Equal passes share a PassBound object: count its occurrences.
        times, kernels = Counter(map(id, self.passes)), list[tuple[float, float]]()
        streams: dict[str, float] = {}
        for noted in {id(noted): noted for noted in self.passes}.values():
            often = times[id(noted)]
            kernels += [(often * seconds_alone, often * contended) for seconds_alone, contended in noted.kernels]
            for name, seconds in noted.streams.items():
                streams[name] = streams.get(name, 0.0) + often * seconds
        # Streams may run at the same time, hence the longest stream counts, and never the sum.
        seconds_alone, in_flight = sum(first for first, _ in kernels), max(streams.values(), default=0.0)
        return seconds_alone + waiting + self.tail + _cost(kernels, in_flight - waiting - self.tail)


def _cost(kernels: Sequence[tuple[float, float]], hidden: float) -> float:
    """Return the least time that hiding collectives behind kernels adds to the kernels' time [s].

    Any choice of kernels costs at least as much as the kernels with the least slowdown, which are taken first.
    Collectives longer than every kernel together add their rest to the time.

    Parameters
    ----------
    kernels : sequence of (float, float)
        Durations alone, and beside a collective [s].
    hidden : float
        Duration of the collectives to hide [s].

    Examples
    --------
    >>> round(_cost([(8.0, 10.0)], 4.0), 3)
    0.8
    """
    cost, left = 0.0, hidden
    for fast, slow in sorted(kernels, key=lambda pair: (pair[1] - pair[0]) / pair[1] if pair[1] else 0.0):
        if left <= 0.0:
            return cost
        # A slowed kernel hides its contended duration.
        share = min(1.0, left / slow) if slow else 0.0
        cost += share * (slow - fast)
        left -= share * slow
    return cost + max(left, 0.0)


def bound_from_ranks(passing: StepBound, ranks: Sequence[RankBound]) -> float:
    """Return a lower bound on step time from bounds of recorded operations [s].

    Parameters
    ----------
    passing : StepBound
        Bounds without recorded operations, used for stages that were not recorded.
    ranks : sequence of RankBound
        Bounds of a rank of each stage, or of some stages.
    """
    least, updates = max(rank.least(passing.waiting(rank.stage)) for rank in ranks), list(passing.updates)
    for rank in ranks:
        # The recorded tail contains the update, and may contain gathers and norms after it.
        updates[rank.stage] = max(updates[rank.stage], rank.tail)
    passing = replace(passing, updates=tuple(updates))
    if passing.pipeline.pairs:
        # Recorded times hold for a pass alone on its rank, not for two passes at once.
        return max(least, passing.schedule_bound())
    # With unbalanced context parallelism, a stage has several lists: use the first.
    first = {rank.stage: rank for rank in reversed(ranks)}
    return max(least, passing.schedule_bound({stage: rank.times() for stage, rank in first.items()}))


def rank_bound(notes: StageNotes, durations: CollectiveLowerBounds) -> RankBound:
    """Return the lower bounds of a rank from its recorded operations; a recorded pass represents every equal pass."""
    begins = [*notes.begins.values(), notes.ends]
    segments = zip(notes.begins, pairwise(begins), strict=True)
    bounds = {begin_pass: _pass(notes.ops[begin:end], durations) for begin_pass, (begin, end) in segments}
    passes = tuple(bounds[begin_pass] for begin_pass in notes.stand_for)
    # The last operation on each stream before the update is where paths into the tail start.
    last: dict[str, list[str]] = {"compute": []}
    for op in notes.ops[: notes.ends]:
        if (isinstance(op, Compute) and op.stream == "compute") or _is_data_parallel(op):
            last[op.stream] = [op.name]
    after = {stream: _tail(notes, stream, names, durations) for stream, names in last.items()}
    return RankBound(notes.stage, passes, after.pop("compute"), after)


def _is_data_parallel(op: Op) -> bool:
    """Return True if an operation is a collective over data-parallel ranks."""
    return isinstance(op, Collective) and dimension_of(op.stream) == "dp"


def _pass(ops: Sequence[Op], durations: CollectiveLowerBounds) -> PassBound:
    """Return lower bounds for a pass, as if inputs from other passes and gathered parameters were available."""
    ended, free = dict[str, float](), dict[str, float]()
    sent: float | None = None
    kernels, streams, left = list[tuple[float, float]](), dict[str, float](), dict[str, float]()
    for op in ops:
        waits = [ended[name] for name in op.after if name in ended]
        # Allocations on the compute stream take no time but keep the order.
        if op.stream == "compute":
            begins = max(free.get("compute", 0.0), *waits) if waits else free.get("compute", 0.0)
            # A kernel that does not contend has no `contended` duration.
            if isinstance(op, Compute):
                kernels.append((op.duration, op.duration if op.contended is None else op.contended))
                begins += op.duration
            free["compute"] = ended[op.name] = begins
            continue
        dimension = dimension_of(op.stream)
        if dimension == "pp" and isinstance(op, Collective):
            # A receive waits for no operation of the pass, and has ended when the pass begins.
            sent = max([sent or 0.0, *waits]) if op.after else sent
        elif _is_data_parallel(op) and isinstance(op, Collective):
            takes = durations.of(op)
            streams[op.stream] = streams.get(op.stream, 0.0) + takes
            # A collective without awaited operations, such as a prefetched gather, may begin before the pass.
            if op.stream in left or waits:
                left[op.stream] = max([left.get(op.stream, 0.0), *waits]) + takes
        # Kernels may wait for these exchanges by name; other host work is omitted.
        elif isinstance(op, Collective) and dimension in ("tp", "cp", "ep"):
            free[op.stream] = ended[op.name] = max([free.get(op.stream, 0.0), *waits]) + durations.of(op)
    # Without a send, `sent` equals `whole`.
    busy = free.get("compute", 0.0)
    return PassBound(busy, busy if sent is None else sent, tuple(kernels), streams, left)


def _tail(notes: StageNotes, stream: str, last: Sequence[str], durations: CollectiveLowerBounds) -> float:
    """Return the longest path through the operations after the passes, from the operations `last` on a stream [s]."""
    ended, free = dict.fromkeys(last, 0.0), {stream: 0.0}
    for op in notes.ops[notes.ends :]:
        # Only paths from the stream's last operations count.
        waits = [ended[name] for name in op.after if name in ended]
        # Other operations may run before the passes end.
        if waits or op.stream in free:
            takes = durations.of(op) if isinstance(op, Collective) else op.duration if isinstance(op, Compute) else 0.0
            ended[op.name] = free[op.stream] = max([free.get(op.stream, 0.0), *waits]) + takes
    return max(ended.values(), default=0.0)
