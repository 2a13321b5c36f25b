"""What do collectives that kernels may hide cost at least, by slowing those kernels and after the last pass?

Rule: as in bound.py, never above the played time. While a collective of a rank is in flight its kernels go at their
contended pace. So whatever hides what, the time that collectives are in flight costs at least what it costs the kernels
that lose least by it; and what the update does after the last pass nothing hides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.planner.bound import Passing
from simulator.records.operation import Collective, Compute, Op
from simulator.step.pipelines.schedule import Pass
from simulator.step.plan import StageNotes
from simulator.step.streams import dimension_of


@dataclass(frozen=True, slots=True)
class Beside:
    """One stage's rank, from what was noted of a few of its micro-batches.

    Attributes
    ----------
    kernels : tuple of (float, float)
        Of all passes of a step: how long they take alone, and beside a collective [s].
    in_flight : float
        Collectives of data-parallel ranks, in all passes: of their streams the longest sum of closed forms [s].
    tail : float
        Least time from the end of the last pass to the end of the step [s].
    """

    kernels: tuple[tuple[float, float], ...]
    in_flight: float
    tail: float

    def least(self, waiting: float) -> float:
        """Least time of the step whose kernels wait so long for exchanges, whatever is hidden [s].

        While they wait, and in the tail, collectives are in flight at no cost.
        """
        alone = sum(one for one, _ in self.kernels)
        return alone + waiting + self.tail + self._cost(self.in_flight - waiting - self.tail)

    def _cost(self, hidden: float) -> float:
        """Least that hiding so much costs [s]; what more is in flight than kernels can hide is time of its own."""
        cost, left = 0.0, hidden
        for alone, contended in sorted(self.kernels, key=lambda one: (one[1] - one[0]) / one[1] if one[1] else 0.0):
            if left <= 0.0:
                return cost
            share = min(1.0, left / contended) if contended else 0.0
            cost += share * (contended - alone)
            left -= share * contended
        return cost + max(left, 0.0)


def least_beside(passing: Passing, noted: Sequence[StageNotes]) -> float:
    """Least time of a step whose passes take so long, from what was noted of each stage's ranks [s]."""
    tails, least = [0.0] * passing.pipeline.shape.ranks, 0.0
    for notes in noted:
        rank = beside(notes)
        tails[notes.stage] = max(tails[notes.stage], rank.tail)
        least = max(least, rank.least(passing.waiting(notes.stage)))
    return max(least, passing.with_tails(tails).along_order())


def beside(notes: StageNotes) -> Beside:
    """Sum up what was noted, each pass as often as it stands in the order."""
    starts = [*notes.begins.values(), notes.ends]
    segments = {one: notes.ops[begin:end] for (one, begin), end in zip(notes.begins.items(), starts[1:], strict=True)}
    kernels: list[tuple[float, float]] = []
    streams = dict[str, float]()
    for one, times in _times(notes, segments).items():
        for op in segments[one]:
            if isinstance(op, Compute) and op.stream == "compute":
                contended = op.duration if op.contended is None else op.contended
                kernels.append((times * op.duration, times * contended))
            elif isinstance(op, Collective) and op.duration is not None and dimension_of(op.stream) == "dp":
                streams[op.stream] = streams.get(op.stream, 0.0) + times * op.duration
    return Beside(tuple(kernels), max(streams.values(), default=0.0), _tail(notes))


def _times(notes: StageNotes, segments: Mapping[Pass, Sequence[Op]]) -> Counter[Pass]:
    """How often each noted pass stands for one of the order; the last noted of a kind for those that are not noted."""
    stands: dict[tuple[object, int], Pass] = {}
    for micro in notes.micros:
        stands |= {(one.work, one.stage): one for one in segments if one.micro == micro}
    return Counter(one if one in segments else stands[one.work, one.stage] for one in notes.order)


def _tail(notes: StageNotes) -> float:
    """The longest way through what begins when the last kernels of the passes have ended [s]."""
    last = [op.name for op in notes.ops[: notes.ends] if isinstance(op, Compute) and op.stream == "compute"][-1:]
    ended, streams = dict.fromkeys(last, 0.0), dict[str, float]()
    for op in notes.ops[notes.ends :]:
        waits = [ended[name] for name in op.after if name in ended]
        if op.stream == "compute" or waits or op.stream in streams:
            seconds = op.duration if isinstance(op, Compute | Collective) else 0.0
            ended[op.name] = streams[op.stream] = max([streams.get(op.stream, 0.0), *waits]) + (seconds or 0.0)
    return max(ended.values(), default=0.0)
