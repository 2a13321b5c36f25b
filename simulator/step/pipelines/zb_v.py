"""ZB-V: zero bubble with two chunks per rank, placed in a V: the first rank also computes the loss.

Every rank holds as many activations as 1F1B's first rank. No rank is idle between its passes if passes are equally
long.

Example with 2 ranks and 3 micro-batches (stage.micro-batch); rank 0 has stages 0 and 3, rank 1 has stages 1 and 2::

    rank 0  F0.0 F0.1 F0.2 F3.0 I3.0 W3.0 F3.1 I3.1 W3.1 I0.0 W0.0 F3.2 I3.2 I0.1 W3.2 I0.2 W0.1 W0.2 .
    rank 1  .    F1.0 F2.0 F1.1 F2.1 I2.0 W2.0 F1.2 I1.0 W1.0 F2.2 I2.1 I1.1 I2.2 I1.2 W2.1 W1.1 W2.2 W1.2

References
----------
.. [1] Qi, Wan, Huang & Lin, "Zero bubble pipeline parallelism", ICLR 2024, section 6. The order equals the authors'
   scheduler's, github.com/sail-sg/zero-bubble-pipeline-parallelism, scheduler/zbv.py, for equally long passes.
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
# A kind of pass and a leg of the V. Leg 0 runs from rank 0 to the last rank, leg 1 back to rank 0. Forward passes enter
# on stage 0 and input gradients on stage 2 p - 1, both on rank 0, hence leg 0 is the first chunk's for forward passes
# and the second chunk's for input gradients.
_Turn = tuple[Work, int]


@dataclass(slots=True)
class _Rank:
    """A rank's passes so far while a ZB-V order is built."""

    clock: int = 0  # end of the last pass [slots]
    done: list[tuple[Work, int, int]] = field(default_factory=list)  # passes in order: kind, leg, micro-batch
    # End of each pass, by kind and leg, in micro-batch order [slots]
    ends: dict[_Turn, list[int]] = field(
        default_factory=lambda: {(work, leg): [] for work in (_F, _I, _W) for leg in (0, 1)}
    )
    # Legs of the weight gradients that can be computed, oldest first
    pending: deque[int] = field(default_factory=deque)

    def count(self, work: Work, leg: int) -> int:
        """Return the number of finished passes for a kind (F, I or W) on a leg of the V."""
        return len(self.ends[work, leg])

    @property
    def held(self) -> int:
        """Activations held by the rank, in halves of a chunk: I frees a half, W the second half."""
        return sum({_F: 2, _I: -1, _W: -1}[work] * len(ends) for (work, _), ends in self.ends.items())


class _Filling:
    """Builds the ZB-V order turn by turn; every pass takes a slot."""

    def __init__(self, ranks: int, micro_batches: int) -> None:
        self.ranks, self.micro_batches = ranks, micro_batches
        self.made = [_Rank() for _ in range(ranks)]
        # Two chunks of p micro-batches, in halves of a chunk: 2 x p x 2.
        self.limit = 4 * ranks

    def play(self) -> Order:
        """Build and return the ZB-V order: a sequence of passes for each rank."""
        self._warm_up()
        # Every turn runs an input gradient on each rank, and a rank has two chunks.
        for _ in range(2 * self.micro_batches):
            self._backward_turn()
            self._forward_turn()
        for rank, state in enumerate(self.made):
            # Weight gradients that found no idle slot run at the end.
            while state.pending:
                self._put_weights(rank)
        return tuple(
            tuple((Pass(work, self._stage(rank, work, leg), micro),) for work, leg, micro in state.done)
            for rank, state in enumerate(self.made)
        )

    def _stage(self, rank: int, work: Work, leg: int) -> int:
        """Return the number of the pipeline stage for a kind of pass on a rank and a leg of the V."""
        # Forward leg 0 and gradient leg 1 both belong to the first chunk.
        first = leg == 0 if work is _F else leg == 1
        return rank if first else 2 * self.ranks - 1 - rank

    def _feeder(self, rank: int, leg: int) -> int:
        """Return the rank that sends to a rank on a leg; -1 or the number of ranks at the leg's beginning."""
        return rank - 1 if leg == 0 else rank + 1

    # At a leg's beginning, the input is on the rank itself: a micro-batch, the other chunk's output, or the loss.
    def _arrival(self, rank: int, work: Work, leg: int) -> int | None:
        """Return the slot in which the input of a rank's next pass arrives on a leg; None at its beginning."""
        feeder = self._feeder(rank, leg)
        if not 0 <= feeder < self.ranks:
            return None
        return self.made[feeder].ends[work, leg][self.made[rank].count(work, leg)]

    def _can_run(self, rank: int, work: Work, leg: int) -> bool:
        """Return True if a rank's next pass on a leg can run: a micro-batch is left, and no input is awaited."""
        feeder = self._feeder(rank, leg)
        sent = not 0 <= feeder < self.ranks or self.made[feeder].count(work, leg) > self.made[rank].count(work, leg)
        return sent and self.made[rank].count(work, leg) < self.micro_batches

    def _put(self, rank: int, work: Work, leg: int) -> None:
        """Append a rank's next pass of a kind on a leg to its order, at the earliest slot."""
        state = self.made[rank]
        micro = state.count(work, leg)
        # A weight gradient needs no message: its input gradient has run on the same rank.
        start = state.clock if work is _W else max(state.clock, self._arrival(rank, work, leg) or 0)
        state.clock = start + 1
        state.ends[work, leg].append(state.clock)
        state.done.append((work, leg, micro))
        if work is _I:
            # Weight gradients run in the order of their input gradients.
            state.pending.append(leg)

    def _put_weights(self, rank: int) -> None:
        """Append the rank's oldest pending weight-gradient pass to its order."""
        self._put(rank, _W, self.made[rank].pending.popleft())

    def _fill(self, rank: int, work: Work, leg: int) -> None:
        """Append a rank's weight gradients until its next pass has memory and its input has arrived."""
        state, arrival = self.made[rank], self._arrival(rank, work, leg)
        # A forward pass adds two halves, an input gradient frees a half.
        while state.held + (2 if work is _F else -1) > self.limit:
            self._put_weights(rank)
        while state.pending and arrival is not None and state.clock < arrival:
            self._put_weights(rank)

    def _warm_up(self) -> None:
        """Append the first micro-batch's forward passes down and up the V, with further forward passes in between."""
        made, m = self.made, self.micro_batches
        for rank in range(self.ranks):
            self._put(rank, _F, 0)
        # The first micro-batch comes back up. While a rank waits for it, further micro-batches run down to this rank.
        for rank in reversed(range(self.ranks)):
            back = self._arrival(rank, _F, 1)
            while back is not None and self._has_room(rank) and made[rank].clock < back and made[rank].count(_F, 0) < m:
                for earlier in range(rank + 1):
                    self._put(earlier, _F, 0)
            self._put(rank, _F, 1)
        # Then each rank catches up with its predecessor's forward passes, on both legs by turns.
        leg = 0
        for rank in range(1, self.ranks):
            state, before = made[rank], made[rank - 1]
            while (
                state.count(_F, 0) + state.count(_F, 1) < before.count(_F, 0) + before.count(_F, 1)
                or state.count(_F, 1) <= before.count(_F, 1) < m
            ):
                for later in reversed(range(rank, self.ranks)):
                    if made[later].count(_F, leg) < m:
                        self._put(later, _F, leg)
                leg = 1 - leg

    def _has_room(self, rank: int) -> bool:
        """Return True if a rank can hold the activations of a further micro-batch.

        The limit keeps a reserve of two chunks (four halves) for this rank and each rank before.
        """
        return self.made[rank].held + 2 * (2 + 2 * rank) <= self.limit

    def _backward_turn(self) -> None:
        """Append each rank's next input-gradient pass to the rank's order."""
        legs = [self._backward_leg(rank) for rank in range(self.ranks)]
        # Gradients travel up on leg 1 and down on leg 0: visit senders before receivers.
        second = [rank for rank in reversed(range(self.ranks)) if legs[rank] == 1]
        for rank in (*second, *(rank for rank in range(self.ranks) if legs[rank] == 0)):
            self._fill(rank, _I, legs[rank])
            self._put(rank, _I, legs[rank])

    def _backward_leg(self, rank: int) -> int:
        """Return the V's leg (0 or 1) for a rank's next input-gradient pass."""
        state = self.made[rank]
        # A micro-batch's input gradient passes leg 0 first.
        if state.count(_I, 1) >= state.count(_I, 0):
            return 0
        return 1 if self._can_run(rank, _I, 1) or state.count(_I, 0) >= self.micro_batches else 0

    def _forward_turn(self) -> None:
        """Append the next forward pass to the order of each rank whose input has arrived."""
        for rank in range(self.ranks):
            leg = self._forward_leg(rank)
            if leg is not None:
                self._fill(rank, _F, leg)
                self._put(rank, _F, leg)

    def _forward_leg(self, rank: int) -> int | None:
        """Return the V's leg (0 or 1) for a rank's next forward pass; None if no forward pass can run."""
        state = self.made[rank]
        if state.count(_F, 1) >= self.micro_batches:
            return None
        if state.count(_F, 1) >= state.count(_F, 0):
            return 0
        # Leg 1 first: its micro-batch is closer to the loss and will free memory earlier.
        if self._can_run(rank, _F, 1):
            return 1
        return 0 if self._can_run(rank, _F, 0) else None


@lru_cache(maxsize=64)
def _filled(ranks: int, micro_batches: int) -> Order:
    """Return the ZB-V order for a number of ranks and of micro-batches; cached."""
    return _Filling(ranks, micro_batches).play()


def _order(shape: PipelineShape) -> Order:
    """Return the ZB-V pass order for this pipeline shape."""
    return _filled(shape.ranks, shape.micro_batches)


SCHEDULE = PipelineSchedule(
    name="zb_v",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order,
    refusal=at_least_one,
    # No idle slots for equally long passes, as in ZB-H2.
    bubble=late_start,
    held=None,
    # Both legs use the same pairs of neighbours, and messages are received in another order than sent.
    batches_sends=always,
)
