"""ZB-V: zero bubble with two chunks a rank that form a V, so that the first rank computes the loss too.

It holds as much as 1F1B's first rank, on every rank, and nobody waits where all passes take equally long.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 6. The order is that of the authors'
   scheduler, github.com/sail-sg/zero-bubble-pipeline-parallelism, scheduler/zbv.py, with passes that take equally long.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Work,
    always,
    at_least_one,
)
from simulator.step.pipelines.zero_bubble import late_start

_F, _I, _W = Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT
# A pass on its way down the V's first leg or up its second; input gradients come down the second leg's stages first.
_Turn = tuple[Work, int]


@dataclass(slots=True)
class _Rank:
    """What a rank has done so far; `ends` has the end of each pass by kind and leg, in order of micro-batches."""

    clock: int = 0
    done: list[tuple[Work, int, int]] = field(default_factory=list)
    ends: dict[_Turn, list[int]] = field(
        default_factory=lambda: {(work, leg): [] for work in (_F, _I, _W) for leg in (0, 1)}
    )
    pending: deque[int] = field(default_factory=deque)

    def count(self, work: Work, leg: int) -> int:
        return len(self.ends[work, leg])

    @property
    def held(self) -> int:
        """Halves of chunks' activations."""
        return sum({_F: 2, _I: -1, _W: -1}[work] * len(ends) for (work, _), ends in self.ends.items())


class _Filling:
    """Fills the order turn by turn. Leg 0 of a pass goes from rank 0 to the last, leg 1 back."""

    def __init__(self, ranks: int, micro_batches: int) -> None:
        self.ranks, self.micro_batches = ranks, micro_batches
        self.made = [_Rank() for _ in range(ranks)]
        # In halves: two chunks of each of p micro-batches.
        self.limit = 4 * ranks

    def play(self) -> Order:
        self._warm_up()
        for _ in range(2 * self.micro_batches):
            self._backward_turn()
            self._forward_turn()
        for rank, own in enumerate(self.made):
            while own.pending:
                self._put_weights(rank)
        return tuple(
            tuple((Pass(work, self._stage(rank, work, leg), micro),) for work, leg, micro in own.done)
            for rank, own in enumerate(self.made)
        )

    def _stage(self, rank: int, work: Work, leg: int) -> int:
        first = leg == 0 if work is _F else leg == 1
        return rank if first else 2 * self.ranks - 1 - rank

    def _feeder(self, rank: int, leg: int) -> int:
        """The rank that a leg comes from; out of range at its beginning."""
        return rank - 1 if leg == 0 else rank + 1

    def _arrival(self, rank: int, work: Work, leg: int) -> int | None:
        """When what a rank's next pass waits for is there; None where nobody sends it."""
        feeder = self._feeder(rank, leg)
        if not 0 <= feeder < self.ranks:
            return None
        return self.made[feeder].ends[work, leg][self.made[rank].count(work, leg)]

    def _there(self, rank: int, work: Work, leg: int) -> bool:
        """Whether what a rank's next pass waits for has been sent, or nobody sends it."""
        feeder = self._feeder(rank, leg)
        sent = not 0 <= feeder < self.ranks or self.made[feeder].count(work, leg) > self.made[rank].count(work, leg)
        return sent and self.made[rank].count(work, leg) < self.micro_batches

    def _put(self, rank: int, work: Work, leg: int) -> None:
        own = self.made[rank]
        micro = own.count(work, leg)
        start = own.clock if work is _W else max(own.clock, self._arrival(rank, work, leg) or 0)
        own.clock = start + 1
        own.ends[work, leg].append(own.clock)
        own.done.append((work, leg, micro))
        if work is _I:
            own.pending.append(leg)

    def _put_weights(self, rank: int) -> None:
        self._put(rank, _W, self.made[rank].pending.popleft())

    def _fill(self, rank: int, work: Work, leg: int) -> None:
        """Weights' gradients: where memory asks for it, and while the rank would wait."""
        own, arrival = self.made[rank], self._arrival(rank, work, leg)
        while own.held + (2 if work is _F else -1) > self.limit:
            self._put_weights(rank)
        while own.pending and arrival is not None and own.clock < arrival:
            self._put_weights(rank)

    def _warm_up(self) -> None:
        """The first micro-batch there and back, and as many others meanwhile as there is time and room for."""
        made, m = self.made, self.micro_batches
        for rank in range(self.ranks):
            self._put(rank, _F, 0)
        for rank in reversed(range(self.ranks)):
            back = self._arrival(rank, _F, 1)
            while back is not None and self._has_room(rank) and made[rank].clock < back and made[rank].count(_F, 0) < m:
                for earlier in range(rank + 1):
                    self._put(earlier, _F, 0)
            self._put(rank, _F, 1)
        leg = 0
        for rank in range(1, self.ranks):
            own, before = made[rank], made[rank - 1]
            while (
                own.count(_F, 0) + own.count(_F, 1) < before.count(_F, 0) + before.count(_F, 1)
                or own.count(_F, 1) <= before.count(_F, 1) < m
            ):
                for later in reversed(range(rank, self.ranks)):
                    if made[later].count(_F, leg) < m:
                        self._put(later, _F, leg)
                leg = 1 - leg

    def _has_room(self, rank: int) -> bool:
        """For what comes down to this rank and must be kept by all before it."""
        return self.made[rank].held + 2 * (2 + 2 * rank) <= self.limit

    def _backward_turn(self) -> None:
        legs = [self._backward_leg(rank) for rank in range(self.ranks)]
        second = [rank for rank in reversed(range(self.ranks)) if legs[rank] == 1]
        for rank in (*second, *(rank for rank in range(self.ranks) if legs[rank] == 0)):
            self._fill(rank, _I, legs[rank])
            self._put(rank, _I, legs[rank])

    def _backward_leg(self, rank: int) -> int:
        """Which of its chunks a rank passes back next."""
        own = self.made[rank]
        if own.count(_I, 1) >= own.count(_I, 0):
            return 0
        return 1 if self._there(rank, _I, 1) or own.count(_I, 0) >= self.micro_batches else 0

    def _forward_turn(self) -> None:
        for rank in range(self.ranks):
            leg = self._forward_leg(rank)
            if leg is not None:
                self._fill(rank, _F, leg)
                self._put(rank, _F, leg)

    def _forward_leg(self, rank: int) -> int | None:
        """Which of its chunks a rank passes forward next; None where it has nothing to do."""
        own = self.made[rank]
        if own.count(_F, 1) >= self.micro_batches:
            return None
        if own.count(_F, 1) >= own.count(_F, 0):
            return 0
        if self._there(rank, _F, 1):
            return 1
        return 0 if self._there(rank, _F, 0) else None


@lru_cache(maxsize=64)
def _filled(ranks: int, micro_batches: int) -> Order:
    return _Filling(ranks, micro_batches).play()


def _order(shape: PipelineShape) -> Order:
    return _filled(shape.ranks, shape.micro_batches)


SCHEDULE = PipelineSchedule(
    name="zb_v",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    bubble=late_start,
    held=None,
    batches_sends=always,
)
