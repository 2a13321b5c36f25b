"""Which orders hold a half (V-Half) or a third (V-Min) of the activations on 1F1B's first rank?

V-Half and V-Min repeat a building block for every micro-batch. The block gives the slot in which each rank runs the
first micro-batch forward and backward through its two chunks; each further micro-batch follows six slots later. Weight
gradients take free slots. Then passes move to earlier slots, as long as no rank holds more than before.

V-Min's block with 2 ranks: rank 0 has stages 0 and 3, rank 1 has stages 1 and 2::

    slot    0  1  2  3  4  5  6  7
    rank 0  F0 .  .  F3 I3 .  .  I0
    rank 1  .  F1 F2 .  .  I2 I1 .

Slots modulo 6 never collide on a rank, therefore the block can repeat every 6 slots; rank 0 keeps slots 2 and 5 free
for its two weight gradients. V-Min's final order with 2 micro-batches (stage.micro-batch)::

    rank 0  F0.0 F0.1 .    F3.0 I3.0 W3.0 .    I0.0 W0.0 F3.1 I3.1 W3.1 .    I0.1 W0.1
    rank 1  .    F1.0 F2.0 .    .    I2.0 I1.0 F1.1 F2.1 W2.0 W1.0 I2.1 I1.1 W2.1 W1.1

References
----------
.. [1] Qi, Wan, Amar & Lin, "Pipeline parallelism with controllable memory", NeurIPS 2024, arXiv:2405.15362, sections 3
   (building blocks), 3.4 (reordering), figure 3 and table 1. Ties are decided as in the authors' scheduler,
   github.com/sail-sg/zero-bubble-pipeline-parallelism, scheduler/zbv_greedy.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

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

# Kinds of passes: 0 and 1 forward through the first and second chunk, 2 and 3 input gradient of the second and first
# chunk, then weight gradients: 4 for both chunks together, or 4 for the second chunk and 5 for the first.
_KINDS: Final = 4
# Slots between micro-batches: a rank has six passes per micro-batch (F, I and W of two chunks), each a slot long.
_INTERVAL: Final = 6

# Slots of a rank's passes: a list per kind, in micro-batch order.
_Slots = list[list[int]]
# Function (number of ranks, rank) that returns a building block: the first micro-batch's slot for kinds 0 to 3.
Pattern = Callable[[int, int], tuple[int, int, int, int]]


def _in_turn(slots_of_ranks: list[_Slots]) -> list[tuple[int, int, int, int]]:
    """Return every rank's passes in tuples (slot, rank, kind, micro-batch), sorted by slot, then rank, then kind."""
    return sorted(
        (slot, rank, kind, micro)
        for rank, slots in enumerate(slots_of_ranks)
        for kind, kind_slots in enumerate(slots)
        for micro, slot in enumerate(kind_slots)
    )


def _awaited(rank: int, kind: int, micro: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """Yield a pass's dependencies: the neighbour's pass, the preceding kind, the preceding micro-batch."""
    if kind < _KINDS:
        # Kinds 0 and 2 travel from rank 0 to the last rank, kinds 1 and 3 back.
        before = rank - 1 if kind % 2 == 0 else rank + 1
        if 0 <= before < ranks:
            yield before, kind, micro
        if kind > 0:
            yield rank, kind - 1, micro
    if micro > 0:
        yield rank, kind, micro - 1


def _with_weights(slots: _Slots, *, split: bool) -> _Slots:
    """Return a rank's slots with weight gradients in free slots after their input gradients, the rest at the end.

    Parameters
    ----------
    slots : list of list of int
        Slots of kinds 0 to 3.
    split : bool
        Whether weight gradients form two kinds, one for each chunk.
    """
    kind_at = {slot: kind for kind, kind_slots in enumerate(slots) for slot in kind_slots}
    weights: _Slots = [[], []] if split else [[]]
    waiting = [0] * len(weights)
    last = max(kind_at)

    def place(slot: int) -> None:
        """Put a waiting weight gradient into the given slot; weight gradients of the rank's second chunk go first."""
        kind = next(number for number, left in enumerate(waiting) if left)
        weights[kind].append(slot)
        waiting[kind] -= 1

    # A free slot takes a waiting weight gradient; an input gradient's slot adds a waiting weight gradient.
    for slot in range(last + 1):
        kind = kind_at.get(slot)
        if kind is None:
            if any(waiting):
                place(slot)
        elif kind >= 2:
            waiting[kind - 2 if split else 0] += 1
    # The last slot is an input gradient's, therefore at least its weight gradient is still waiting.
    while any(waiting):
        last += 1
        place(last)
    return slots + weights


def _most_held(slots: _Slots) -> int:
    """Return the largest number of chunk activations that a rank with these slots holds at once, from forward pass to
    weight gradient.

    If the slots have no weight gradients yet, each free slot counts as a waiting weight gradient's slot.
    """
    # Forward passes add a chunk's activations.
    change = {slot: +1 for kind in (0, 1) for slot in slots[kind]}
    backward = {slot for kind in (2, 3) for slot in slots[kind]}
    weights = {slot for kind_slots in slots[_KINDS:] for slot in kind_slots}
    activations = most = waiting = 0
    for slot in range(max(kind_slots[-1] for kind_slots in slots) + 1):
        activations += change.get(slot, 0)
        if slot in weights:
            activations -= 1
        elif slot in backward:
            waiting += 1
        elif slot not in change and len(slots) == _KINDS and waiting:
            activations, waiting = activations - 1, waiting - 1
        most = max(most, activations)
    return most


@dataclass(slots=True)
class _Moving:
    """Moves passes of a pipeline order to earlier time slots."""

    made: list[_Slots]  # slots of each rank; changed in place
    limit: int  # most chunk activations held by a rank

    def settle(self, *, warm_up: bool) -> None:
        """Move the passes of the cool-down, and of the warm-up if `warm_up`, to earlier time slots.

        Warm-up lasts until the first micro-batch has finished on rank 0; cool-down begins with the last micro-batch.
        The repeating pattern in between has no room for moves.
        """
        # Passes are visited in time order, hence slots of earlier passes are final.
        busy: list[set[int]] = [set() for _ in self.made]
        steady = ended = False
        for _, rank, kind, micro in _in_turn(self.made):
            steady = steady or (kind == _KINDS - 1 and rank == 0)
            moves = ended or (warm_up and not steady)
            if steady and kind == 0 and micro == len(self.made[0][0]) - 1:
                ended = True
            if moves:
                self._move(rank, kind, micro, busy[rank])
            busy[rank].add(self.made[rank][kind][micro])

    def _move(self, rank: int, kind: int, micro: int, busy: set[int]) -> None:
        """Move a pass to the earliest slot not in `busy` that dependencies and the memory limit allow, if any."""
        kind_slots = self.made[rank][kind]
        now, first = kind_slots[micro], self._first_slot(rank, kind, micro)
        for slot in range(first, now):
            if slot not in busy:
                kind_slots[micro] = slot
                # Only forward passes add activations. Without weight gradients among the slots, a move of any pass
                # changes the free slots counted by `_most_held`.
                bounded = kind < 2 or len(self.made[rank]) == _KINDS
                if not bounded or _most_held(self.made[rank]) <= self.limit:
                    return
        # If every earlier slot breaks the limit, the pass stays.
        kind_slots[micro] = now

    def _first_slot(self, rank: int, kind: int, micro: int) -> int:
        """Return the first slot after the last pass on which the given pass depends."""
        after = [self.made[r][k][i] for r, k, i in _awaited(rank, kind, micro, len(self.made))]
        # The n-th weight gradient of a rank waits for the rank's n-th input gradient, in time order over both chunks.
        if kind == _KINDS:
            after.append(sorted(self.made[rank][2] + self.made[rank][3])[micro])
        return max(after, default=-1) + 1


def _squeezed(slots_of_ranks: list[_Slots]) -> tuple[list[_Slots], list[list[tuple[int, int]]]]:
    """Start each pass at the earliest slot that dependencies allow, without changing the order on a rank.

    Returns
    -------
    list of _Slots
        New slots of each rank.
    list of list of (int, int)
        Passes of each rank in order, (kind, micro-batch).
    """
    clock = [0] * len(slots_of_ranks)
    ends: dict[tuple[int, int, int], int] = {}
    order: list[list[tuple[int, int]]] = [[] for _ in slots_of_ranks]
    for _, rank, kind, micro in _in_turn(slots_of_ranks):
        start = max([clock[rank], *(ends[key] for key in _awaited(rank, kind, micro, len(slots_of_ranks)))])
        clock[rank] = ends[rank, kind, micro] = start + 1
        order[rank].append((kind, micro))
    starts = [
        [[ends[rank, kind, micro] - 1 for micro in range(len(kind_slots))] for kind, kind_slots in enumerate(slots)]
        for rank, slots in enumerate(slots_of_ranks)
    ]
    return starts, order


@lru_cache(maxsize=64)
def settled(pattern: Pattern, ranks: int, micro_batches: int) -> Order:
    """Return the pipeline order that repeats a building block for every micro-batch and then moves passes to earlier
    slots.
    """
    rank_slots = [
        [[first + _INTERVAL * micro for micro in range(micro_batches)] for first in pattern(ranks, rank)]
        for rank in range(ranks)
    ]
    # Round 1 moves passes of warm-up and cool-down, weight gradients included.
    rank_slots = [_with_weights(slots, split=False) for slots in rank_slots]
    _Moving(rank_slots, max(map(_most_held, rank_slots))).settle(warm_up=True)
    # Round 2 drops the weight gradients and moves passes of the cool-down; then weight gradients get new slots.
    rank_slots = [slots[:_KINDS] for slots in _squeezed(rank_slots)[0]]
    _Moving(rank_slots, max(map(_most_held, rank_slots))).settle(warm_up=False)
    rank_slots = [slots[:_KINDS] for slots in _squeezed([_with_weights(slots, split=False) for slots in rank_slots])[0]]
    # Round 3 assigns weight gradients to chunks.
    order = _squeezed([_with_weights(slots, split=True) for slots in rank_slots])[1]
    works = (Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT)

    def pass_of(rank: int, kind: int, micro: int) -> Pass:
        """Return a rank's pass of a kind for a micro-batch: 0 and 1 are forward, 2 and 3 input gradients, 4 and 5
        weight gradients; 0, 3 and 5 belong to the first chunk, stage `rank`.
        """
        nearer = (kind % 2 == 0) == (kind < 2)
        return Pass(works[kind // 2], rank if nearer else 2 * ranks - 1 - rank, micro)

    return tuple(tuple((pass_of(rank, kind, micro),) for kind, micro in passes) for rank, passes in enumerate(order))


def _block_half(ranks: int, rank: int) -> tuple[int, int, int, int]:
    """Return V-Half's slots of a rank for the first micro-batch's two forward and two backward passes."""
    # Without the shift, slots of an even number of ranks collide modulo 6.
    later = 3 if ranks % 2 == 0 else 0
    return 2 * rank, 3 * ranks - rank - 2, 3 * ranks + later + 2 * rank - 1, 6 * ranks + later - rank - 2


def _order_half(shape: PipelineShape) -> Order:
    """Return the V-Half pass order for this pipeline shape."""
    return settled(_block_half, shape.ranks, shape.micro_batches)


V_HALF = PipelineSchedule(
    name="v_half",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order_half,
    refusal=at_least_one,
    bubble=None,
    held=None,
    batches_sends=always,
)


def _block_min(ranks: int, rank: int) -> tuple[int, int, int, int]:
    """Return V-Min's slots of a rank for the first micro-batch's two forward and two backward passes."""
    # Without the shift, slots collide modulo 6 if 3 divides the number of ranks.
    later = 2 if ranks % 3 == 0 else 0
    return rank, 2 * ranks - rank - 1, 2 * ranks + later + rank, 4 * ranks + later - rank - 1


def _order_min(shape: PipelineShape) -> Order:
    """Return the V-Min pass order for this pipeline shape."""
    return settled(_block_min, shape.ranks, shape.micro_batches)


V_MIN = PipelineSchedule(
    name="v_min",
    placement=Placement.V,
    chunks=2,
    splits_backward=True,
    order=_order_min,
    refusal=at_least_one,
    bubble=None,
    held=None,
    batches_sends=always,
)

SCHEDULE = (V_HALF, V_MIN)
