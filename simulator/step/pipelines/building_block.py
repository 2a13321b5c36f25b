"""Which orders hold a half (V-Half) or a third (V-Min) of what the first rank of 1F1B holds?

Both repeat one building block for every micro-batch. The block says in which slot each rank passes the first
micro-batch forward and backward through its two chunks; each further micro-batch follows six slots later. Weight
gradients take the slots that are left. Then every pass that can moves to an earlier slot, as long as no rank holds
more than before.

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

# Kinds of passes, by number: forward through the first and the second chunk, the input's gradient through the second
# and the first, weights' gradients (of both in one list, or of each).
_KINDS: Final = 4
# Slots from a micro-batch to the next: six passes of a rank, each one slot long.
_INTERVAL: Final = 6

# By kind the slots of its passes, by micro-batch.
_Slots = list[list[int]]
# Of a number of ranks and one of them: the slots of the first micro-batch, by kind.
Pattern = Callable[[int, int], tuple[int, int, int, int]]


def _in_turn(made: list[_Slots]) -> list[tuple[int, int, int, int]]:
    """All passes as (slot, rank, kind, micro-batch), by time; of one slot by rank and kind."""
    return sorted(
        (slot, rank, kind, micro)
        for rank, slots in enumerate(made)
        for kind, own in enumerate(slots)
        for micro, slot in enumerate(own)
    )


def _awaited(rank: int, kind: int, micro: int, ranks: int) -> Iterator[tuple[int, int, int]]:
    """(rank, kind, micro-batch) of the passes that one waits for; kinds 0 and 2 go down the ranks, 1 and 3 up."""
    if kind < _KINDS:
        before = rank - 1 if kind % 2 == 0 else rank + 1
        if 0 <= before < ranks:
            yield before, kind, micro
        if kind > 0:
            yield rank, kind - 1, micro
    if micro > 0:
        yield rank, kind, micro - 1


def _with_weights(slots: _Slots, *, split: bool) -> _Slots:
    """Weights' gradients in the empty slots after each input's gradient, and behind all else; as one kind or as two."""
    kind_at = {slot: kind for kind, own in enumerate(slots) for slot in own}
    weights: _Slots = [[], []] if split else [[]]
    waiting = [0] * len(weights)
    last = max(kind_at)

    def place(slot: int) -> None:
        kind = next(number for number, left in enumerate(waiting) if left)
        weights[kind].append(slot)
        waiting[kind] -= 1

    for slot in range(last + 1):
        kind = kind_at.get(slot)
        if kind is None:
            if any(waiting):
                place(slot)
        elif kind >= 2:
            waiting[kind - 2 if split else 0] += 1
    # The last slot is an input's gradient, so something is left.
    while any(waiting):
        last += 1
        place(last)
    return slots + weights


def _most_held(slots: _Slots) -> int:
    """Chunks that a rank holds at most, from the forward pass to the weights' gradients.

    Without a list of these they take the empty slots.
    """
    change = {slot: +1 for kind in (0, 1) for slot in slots[kind]}
    backward = {slot for kind in (2, 3) for slot in slots[kind]}
    weights = {slot for own in slots[_KINDS:] for slot in own}
    held = most = waiting = 0
    for slot in range(max(own[-1] for own in slots) + 1):
        held += change.get(slot, 0)
        if slot in weights:
            held -= 1
        elif slot in backward:
            waiting += 1
        elif slot not in change and len(slots) == _KINDS and waiting:
            held, waiting = held - 1, waiting - 1
        most = max(most, held)
    return most


@dataclass(slots=True)
class _Moving:
    """Moves passes to earlier slots.

    Attributes
    ----------
    made : list of _Slots
        By rank; changed in place.
    limit : int
        Chunks that a rank may hold.
    """

    made: list[_Slots]
    limit: int

    def settle(self, *, warm_up: bool) -> None:
        """Move what stands before the first micro-batch is through, where `warm_up` asks, and after the last has begun.

        In between the pattern repeats, and nothing can move.
        """
        taken: list[set[int]] = [set() for _ in self.made]
        steady = ended = False
        for _, rank, kind, micro in _in_turn(self.made):
            steady = steady or (kind == _KINDS - 1 and rank == 0)
            moves = ended or (warm_up and not steady)
            if steady and kind == 0 and micro == len(self.made[0][0]) - 1:
                ended = True
            if moves:
                self._move(rank, kind, micro, taken[rank])
            taken[rank].add(self.made[rank][kind][micro])

    def _move(self, rank: int, kind: int, micro: int, taken: set[int]) -> None:
        own = self.made[rank][kind]
        now, first = own[micro], self._first_slot(rank, kind, micro)
        for slot in range(first, now):
            if slot not in taken:
                own[micro] = slot
                # Only a forward pass makes more be held; where weights have no slots of their own all count.
                bounded = kind < 2 or len(self.made[rank]) == _KINDS
                if not bounded or _most_held(self.made[rank]) <= self.limit:
                    return
        own[micro] = now

    def _first_slot(self, rank: int, kind: int, micro: int) -> int:
        after = [self.made[r][k][i] for r, k, i in _awaited(rank, kind, micro, len(self.made))]
        if kind == _KINDS:
            after.append(sorted(self.made[rank][2] + self.made[rank][3])[micro])
        return max(after, default=-1) + 1


def _squeezed(made: list[_Slots]) -> tuple[list[_Slots], list[list[tuple[int, int]]]]:
    """Each pass as soon as it can be: new slots, and by rank (kind, micro-batch) in the order of the old ones."""
    clock = [0] * len(made)
    ends: dict[tuple[int, int, int], int] = {}
    order: list[list[tuple[int, int]]] = [[] for _ in made]
    for _, rank, kind, micro in _in_turn(made):
        start = max([clock[rank], *(ends[key] for key in _awaited(rank, kind, micro, len(made)))])
        clock[rank] = ends[rank, kind, micro] = start + 1
        order[rank].append((kind, micro))
    starts = [
        [[ends[rank, kind, micro] - 1 for micro in range(len(own))] for kind, own in enumerate(slots)]
        for rank, slots in enumerate(made)
    ]
    return starts, order


@lru_cache(maxsize=64)
def settled(pattern: Pattern, ranks: int, micro_batches: int) -> Order:
    """The order that a pattern becomes for so many micro-batches."""
    made = [
        [[first + _INTERVAL * micro for micro in range(micro_batches)] for first in pattern(ranks, rank)]
        for rank in range(ranks)
    ]
    made = [_with_weights(slots, split=False) for slots in made]
    _Moving(made, max(map(_most_held, made))).settle(warm_up=True)
    # Weights' gradients find new slots when all else has moved.
    made = [slots[:_KINDS] for slots in _squeezed(made)[0]]
    _Moving(made, max(map(_most_held, made))).settle(warm_up=False)
    made = [slots[:_KINDS] for slots in _squeezed([_with_weights(slots, split=False) for slots in made])[0]]
    order = _squeezed([_with_weights(slots, split=True) for slots in made])[1]
    works = (Work.FORWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT)

    def one(rank: int, kind: int, micro: int) -> Pass:
        nearer = (kind % 2 == 0) == (kind < 2)
        return Pass(works[kind // 2], rank if nearer else 2 * ranks - 1 - rank, micro)

    return tuple(tuple((one(rank, kind, micro),) for kind, micro in own) for rank, own in enumerate(order))


def _block_half(ranks: int, rank: int) -> tuple[int, int, int, int]:
    later = 3 if ranks % 2 == 0 else 0
    return 2 * rank, 3 * ranks - rank - 2, 3 * ranks + later + 2 * rank - 1, 6 * ranks + later - rank - 2


def _order_half(shape: PipelineShape) -> Order:
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
    later = 2 if ranks % 3 == 0 else 0
    return rank, 2 * ranks - rank - 1, 2 * ranks + later + rank, 4 * ranks + later - rank - 1


def _order_min(shape: PipelineShape) -> Order:
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
