"""Which zero-bubble orders hold as much as 1F1B (ZB-H1), or twice as much (ZB-H2)?

A greedy heuristic orders forward passes, input gradients and weight gradients under a bound on memory. No other pass
waits for a weight gradient, so weight gradients fill the time in which a rank would wait. All passes count as equally
long and sends as free, as in the paper's figures; simulating the order shows its time with passes of unequal lengths.

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 3.1 (the heuristic), section 2.1
   and figure 2 (ZB-H1), section 2.2 and figure 3 (ZB-H2). Ties are decided as in the authors' scheduler,
   github.com/sail-sg/zero-bubble-pipeline-parallelism, scheduler/zb.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from simulator.step.pipelines.schedule import (
    Order,
    Pass,
    PassTimes,
    PipelineSchedule,
    PipelineShape,
    Placement,
    Work,
    at_least_one,
)

_F, _I, _W = Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT


@dataclass(slots=True)
class _Rank:
    """What a rank has done so far: when its passes ended, and how long it waited since its first one."""

    clock: int = 0
    waited: int = 0
    done: list[Pass] = field(default_factory=list)
    ends: dict[Work, list[int]] = field(default_factory=lambda: {_F: [], _I: [], _W: []})

    def count(self, work: Work) -> int:
        return len(self.ends[work])

    @property
    def held(self) -> int:
        """Halves of micro-batches' activations: one half goes with the input's gradient, one with the weights'."""
        return 2 * self.count(_F) - self.count(_I) - self.count(_W)

    @property
    def pending(self) -> bool:
        """Whether weights' gradients could be computed."""
        return self.count(_W) < self.count(_I)


@dataclass(slots=True)
class _Greedy:
    """One attempt.

    Attributes
    ----------
    ranks : int
    micro_batches : int
    limit : int
        Micro-batches that a rank may hold.
    starts_late : bool
        Whether a rank stops sending ahead as soon as one more forward pass would make it late for its first backward
        pass; otherwise when it is.
    backward_first : bool
        Whether a rank leaves a forward pass out if the next rank has enough of them.
    """

    ranks: int
    micro_batches: int
    limit: int
    starts_late: bool
    backward_first: bool
    made: list[_Rank] = field(default_factory=list)

    def play(self) -> int:
        """Fill the order; returns how long the slowest rank takes from its first pass to its last."""
        self.made = [_Rank() for _ in range(self.ranks)]
        self._begin()
        for micro in range(1, self.micro_batches):
            self._forward(micro)
            for rank in reversed(range(self.ranks)):
                self._backward(rank)
        for rank, own in enumerate(self.made):
            while own.count(_W) < self.micro_batches:
                self._put(rank, _W)
        return max(own.ends[_W][-1] - own.ends[_F][0] + 1 for own in self.made)

    def _arrival(self, rank: int, work: Work) -> int:
        """When what a rank's next pass waits for is there."""
        neighbour = rank - 1 if work is _F else rank + 1
        if work is _W or not 0 <= neighbour < self.ranks:
            return 0
        return self.made[neighbour].ends[work][self.made[rank].count(work)]

    def _put(self, rank: int, work: Work) -> None:
        own = self.made[rank]
        start = max(own.clock, self._arrival(rank, work))
        if own.ends[_F]:
            own.waited += start - own.clock
        own.done.append(Pass(work, rank, own.count(work)))
        own.clock = start + 1
        own.ends[work].append(own.clock)

    def _begin(self) -> None:
        """The first micro-batch, and the forward passes of others until it comes back."""
        for rank in range(self.ranks):
            self._put(rank, _F)
        ahead = self._ahead()
        for rank in range(1, self.ranks):
            # A rank cannot send on what it has not been sent.
            left = self.micro_batches - 1
            while ahead[rank] > 0 and ahead[rank] >= ahead[rank - 1] and ahead[rank] < left:
                ahead[rank] -= 1
        for rank in range(self.ranks):
            for _ in range(ahead[rank]):
                self._put(rank, _F)
        for rank in reversed(range(self.ranks)):
            self._put(rank, _I)

    def _ahead(self) -> list[int]:
        """By rank how many more forward passes there is time and room for before the first backward pass."""
        ahead = [0] * self.ranks
        back = self.made[-1].clock + 1
        for rank in reversed(range(self.ranks - 1)):
            own = self.made[rank]
            clock = own.clock
            while 1 + ahead[rank] < min(self.micro_batches, self.limit):
                if clock + self.starts_late > back - (not self.starts_late):
                    break
                clock += 1
                ahead[rank] += 1
            back = max(clock, back) + 1
        return ahead

    def _forward(self, micro: int) -> None:
        wanted = [self._wants_forward(rank) for rank in range(self.ranks)]
        for rank in range(self.ranks):
            # Nobody sends to a rank that does not take it in this turn.
            if not all(wanted[rank:]):
                continue
            while self.made[rank].held + 2 > 2 * self.limit:
                self._put(rank, _W)
            self._fill(rank, _F)
            self._put(rank, _F)

    def _wants_forward(self, rank: int) -> bool:
        own = self.made[rank]
        if own.count(_F) >= self.micro_batches:
            return False
        if not self.backward_first or rank == self.ranks - 1:
            return True
        following = self.made[rank + 1]
        if own.count(_F) < following.count(_F) + 2:
            return True
        # When the next rank will have passed one more forward and one more backward.
        until = following.clock + 2
        if own.clock >= until:
            return False
        room = min(max(own.held + 2 - 2 * self.limit, 0), own.count(_I) - own.count(_W))
        if own.clock + 1 + room <= until:
            return True
        return until - own.clock > max(one.waited for one in self.made) - own.waited

    def _fill(self, rank: int, work: Work) -> None:
        """Weights' gradients, while the rank would wait."""
        own, arrival = self.made[rank], self._arrival(rank, work)
        while own.pending and own.clock < arrival:
            self._put(rank, _W)

    def _backward(self, rank: int) -> None:
        own = self.made[rank]
        self._fill(rank, _I)
        if rank == 0 and own.count(_F) == self.micro_batches:
            while own.pending:
                self._put(rank, _W)
        self._put(rank, _I)


@lru_cache(maxsize=64)
def greedy(ranks: int, micro_batches: int, limit: int) -> Order:
    """The shortest of the greedy orders in which no rank holds more than `limit` micro-batches."""
    best: Order = ()
    shortest = 0
    for starts_late, backward_first in product((True, False), repeat=2):
        attempt = _Greedy(ranks, micro_batches, limit, starts_late, backward_first)
        takes = attempt.play()
        if not best or takes < shortest:
            best, shortest = tuple(tuple((one,) for one in own.done) for own in attempt.made), takes
    return best


def _order_h1(shape: PipelineShape) -> Order:
    return greedy(shape.ranks, shape.micro_batches, shape.ranks)


def unhidden(shape: PipelineShape, times: PassTimes) -> float:
    """Of 1F1B's bubble weights' gradients fill two parts; with passes that take equally long, and enough of them."""
    return (shape.ranks - 1) * (times.forward + times.backward - 2 * times.weights)


ZB_H1 = PipelineSchedule(
    name="zb_h1",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=True,
    order=_order_h1,
    refusal=at_least_one,
    bubble=unhidden,
    held=None,
)


def _order_h2(shape: PipelineShape) -> Order:
    return greedy(shape.ranks, shape.micro_batches, 2 * shape.ranks)


def late_start(shape: PipelineShape, times: PassTimes) -> float:
    """Nobody waits between its first pass and its last, but the last rank starts p - 1 forward passes later."""
    return (shape.ranks - 1) * times.forward


ZB_H2 = PipelineSchedule(
    name="zb_h2",
    placement=Placement.LOOP,
    chunks=1,
    splits_backward=True,
    order=_order_h2,
    refusal=at_least_one,
    bubble=late_start,
    held=None,
)

SCHEDULE = (ZB_H1, ZB_H2)
