"""Which zero-bubble orders hold as much as 1F1B (ZB-H1), or twice as much (ZB-H2)?

A greedy heuristic orders forward passes F, input gradients I and weight gradients W under a memory limit. No pass waits
for a weight gradient, therefore weight gradients fill idle slots. Passes count as equally long and sends as free, as
in the paper's figures; simulating the order shows the step time for passes of unequal lengths.

ZB-H1 with 3 ranks and 4 micro-batches, a column per time slot. Each rank holds at most 3 micro-batches, and W fills
slots in which 1F1B is idle::

    rank 0  F0 F1 F2 .  .  I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1  .  F0 F1 .  I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2  .  .  F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

ZB-H2 with 2 ranks and 3 micro-batches. Each rank may hold 4 micro-batches, and no rank is idle between its first and
last pass::

    rank 0  F0 F1 F2 I0 W0 I1 W1 I2 W2 .
    rank 1  .  F0 I0 F1 I1 F2 I2 W0 W1 W2

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 3.1 (the heuristic), section 2.1 and
   figure 2 (ZB-H1), section 2.2 and figure 3 (ZB-H2). Ties are decided as in the authors' scheduler,
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
    """A rank's passes so far while a zero-bubble order is built."""

    clock: int = 0  # end of the last pass [slots]
    waited: int = 0  # idle slots since the first pass
    done: list[Pass] = field(default_factory=list)  # passes in order
    # End of each pass, by kind, in micro-batch order [slots]
    ends: dict[Work, list[int]] = field(default_factory=lambda: {_F: [], _I: [], _W: []})

    def count(self, work: Work) -> int:
        """Return the number of finished passes of a kind (F, I or W) on this rank."""
        return len(self.ends[work])

    @property
    def held(self) -> int:
        """Activations held by the rank, in halves of a micro-batch: I frees a half, W the second half."""
        return 2 * self.count(_F) - self.count(_I) - self.count(_W)

    @property
    def pending(self) -> bool:
        """True if the rank has an input gradient whose weight gradient has not been computed yet."""
        return self.count(_W) < self.count(_I)


@dataclass(slots=True)
class _Greedy:
    """A single attempt of the greedy heuristic to build a zero-bubble order."""

    ranks: int
    micro_batches: int
    limit: int  # most micro-batches held by a rank
    # Whether warm-up stops before a forward pass delays the first backward pass, rather than after. Without effect if
    # passes take a slot each.
    starts_late: bool
    backward_first: bool  # whether a rank skips a forward pass while the next rank has enough forward passes queued
    made: list[_Rank] = field(default_factory=list)  # passes of each rank

    def play(self) -> int:
        """Build the order in `made`; return the longest time from a rank's first pass to its last [slots]."""
        self.made = [_Rank() for _ in range(self.ranks)]
        self._begin()
        # A turn gives each rank at most one F and exactly one I. Ranks run F downstream and I upstream, hence
        # the reversed loop.
        for micro in range(1, self.micro_batches):
            self._forward(micro)
            for rank in reversed(range(self.ranks)):
                self._backward(rank)
        for rank, state in enumerate(self.made):
            # Weight gradients that found no idle slot run at the end.
            while state.count(_W) < self.micro_batches:
                self._put(rank, _W)
        return max(state.ends[_W][-1] - state.ends[_F][0] + 1 for state in self.made)

    def _arrival(self, rank: int, work: Work) -> int:
        """Return the slot in which a rank's next pass of a kind gets its input; 0 without a sender."""
        neighbour = rank - 1 if work is _F else rank + 1
        if work is _W or not 0 <= neighbour < self.ranks:
            return 0
        return self.made[neighbour].ends[work][self.made[rank].count(work)]

    def _put(self, rank: int, work: Work) -> None:
        """Append a rank's next pass of a kind (F, I or W) to its order, at the earliest slot."""
        state = self.made[rank]
        start = max(state.clock, self._arrival(rank, work))
        # Idle slots before the first pass are part of every pipeline and do not count.
        if state.ends[_F]:
            state.waited += start - state.clock
        state.done.append(Pass(work, rank, state.count(work)))
        state.clock = start + 1
        state.ends[work].append(state.clock)

    def _begin(self) -> None:
        """Append the first micro-batch's passes on each rank, with the warm-up passes between them."""
        for rank in range(self.ranks):
            self._put(rank, _F)
        ahead = self._ahead()
        for rank in range(1, self.ranks):
            # A rank can run forward only micro-batches received from the preceding rank. Each rank therefore gets fewer
            # warm-up passes than its predecessor, unless the micro-batches run out.
            left = self.micro_batches - 1
            while ahead[rank] > 0 and ahead[rank] >= ahead[rank - 1] and ahead[rank] < left:
                ahead[rank] -= 1
        for rank in range(self.ranks):
            for _ in range(ahead[rank]):
                self._put(rank, _F)
        # Gradients run from the last rank to rank 0.
        for rank in reversed(range(self.ranks)):
            self._put(rank, _I)

    def _ahead(self) -> list[int]:
        """Return each rank's additional forward passes before its first backward pass, as time and memory allow."""
        ahead = [0] * self.ranks
        # The last rank's first input gradient ends a slot after its forward pass.
        back = self.made[-1].clock + 1
        for rank in reversed(range(self.ranks - 1)):
            state = self.made[rank]
            clock = state.clock
            while 1 + ahead[rank] < min(self.micro_batches, self.limit):
                # `back` is the arrival of this rank's first output gradient.
                if clock + self.starts_late > back - (not self.starts_late):
                    break
                clock += 1
                ahead[rank] += 1
            back = max(clock, back) + 1
        return ahead

    def _forward(self, micro: int) -> None:
        """Append a micro-batch's forward pass on each rank whose downstream ranks all accept the micro-batch."""
        accepts = [self._wants_forward(rank) for rank in range(self.ranks)]
        for rank in range(self.ranks):
            # A micro-batch that a downstream rank refuses would only wait there and occupy memory.
            if not all(accepts[rank:]):
                continue
            # Weight gradients free activations until another micro-batch (two halves) fits.
            while self.made[rank].held + 2 > 2 * self.limit:
                self._put(rank, _W)
            self._fill(rank, _F)
            self._put(rank, _F)

    def _wants_forward(self, rank: int) -> bool:
        """Return True if a rank should run its next forward pass now rather than wait for a backward pass."""
        state = self.made[rank]
        if state.count(_F) >= self.micro_batches:
            return False
        if not self.backward_first or rank == self.ranks - 1:
            return True
        following = self.made[rank + 1]
        # Otherwise the next rank would run out of forward passes.
        if state.count(_F) < following.count(_F) + 2:
            return True
        # End of the next rank's coming forward pass and input gradient: this rank's next output gradient.
        until = following.clock + 2
        if state.clock >= until:
            return False
        # Weight gradients needed to free memory for the forward pass.
        room = min(max(state.held + 2 - 2 * self.limit, 0), state.count(_I) - state.count(_W))
        if state.clock + 1 + room <= until:
            return True
        # Waiting until then is cheap for a rank that has been idle less than the most idle rank.
        return until - state.clock > max(other.waited for other in self.made) - state.waited

    def _fill(self, rank: int, work: Work) -> None:
        """Append weight-gradient passes on a rank until the input for the next pass of the given kind arrives."""
        state, arrival = self.made[rank], self._arrival(rank, work)
        while state.pending and state.clock < arrival:
            self._put(rank, _W)

    def _backward(self, rank: int) -> None:
        """Append a rank's next input-gradient pass to its order, and weight-gradient passes in idle slots before it."""
        state = self.made[rank]
        self._fill(rank, _I)
        # Rank 0 sends its input gradients to no rank, therefore weight gradients may run first after the last forward
        # pass.
        if rank == 0 and state.count(_F) == self.micro_batches:
            while state.pending:
                self._put(rank, _W)
        self._put(rank, _I)


@lru_cache(maxsize=64)
def greedy(ranks: int, micro_batches: int, limit: int) -> Order:
    """Return the shortest pipeline order found by the greedy heuristic in which a rank holds at most `limit`
    micro-batches.

    >>> [[pair.work.value for (pair,) in rank] for rank in greedy(1, 2, 1)]
    [['F', 'I', 'W', 'F', 'I', 'W']]
    """
    best: Order = ()
    shortest = 0
    # For passes of one slot, up to 8 ranks and 19 micro-batches, the attempts have equal lengths and the first wins.
    for starts_late, backward_first in product((True, False), repeat=2):
        attempt = _Greedy(ranks, micro_batches, limit, starts_late, backward_first)
        takes = attempt.play()
        if not best or takes < shortest:
            best, shortest = tuple(tuple((entry,) for entry in state.done) for state in attempt.made), takes
    return best


def _order_h1(shape: PipelineShape) -> Order:
    """Return the ZB-H1 pass order for this pipeline shape, with 1F1B's memory limit of p micro-batches."""
    return greedy(shape.ranks, shape.micro_batches, shape.ranks)


def unhidden(shape: PipelineShape, times: PassTimes) -> float:
    """Return the part of 1F1B's bubble not filled by weight gradients [s], from shape and pass durations: (p - 1)(F + I
    - W).

    Valid for equally long passes and sufficiently many micro-batches.
    """
    # `backward` is I + W, hence I - W = backward - 2 W.
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
    """Return the ZB-H2 pass order for this pipeline shape, with a memory limit of 2 p micro-batches."""
    return greedy(shape.ranks, shape.micro_batches, 2 * shape.ranks)


def late_start(shape: PipelineShape, times: PassTimes) -> float:
    """Return the bubble of a schedule without idle slots [s]: the last rank starts p - 1 forward passes late."""
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
