"""When does a pipeline's last pass end, if each begins as soon as its rank is free and what it needs has come?

Rule: which pass needs which follows from the pipeline's order alone, so it is worked out once for all settings that
share it, as arrays; then a setting's times are looked up and added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Slot, Work

_WORKS: Final = {work: number for number, work in enumerate(Work)}
# Number of an end that is always 0, and of a way that takes no time.
_NONE: Final = 0


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Least times of a rank's passes, in its order, arrays of float [s].

    Attributes
    ----------
    whole : array
        Until the rank's next pass can begin.
    sent : array
        Until what the pass sends can go.
    left : array
        How long the step goes on at least from the pass's beginning.
    """

    whole: Floats
    sent: Floats
    left: Floats


@dataclass(frozen=True, slots=True)
class PassOrder:
    """All passes, each after what it needs.

    Attributes
    ----------
    starts : tuple of int
        By rank the number of its first pass; passes are numbered rank after rank, in each one's order.
    kinds : int array
        By number, stage of one copy of the model x 4 + place among Work.
    number, rank : int array
        Of each pass, as they are gone through.
    first : bool array
        Whether a pass begins what its rank does next; of two at once only one does.
    needs, sets : int array
        Which end it waits for, and which is its own; 0 for none.
    way : int array
        Which of `ways` what it needs comes; 0 for none.
    ways : tuple of (int, int)
        By number, less 1, from which rank to which.
    ends : int
        How many there are, with the one that stands for none.
    """

    starts: tuple[int, ...]
    kinds: Ints
    number: Ints
    rank: Ints
    first: Bools
    needs: Ints
    sets: Ints
    way: Ints
    ways: tuple[tuple[int, int], ...]
    ends: int

    def last_end(
        self,
        whole: Floats,
        kernels: Floats,
        sends: Mapping[tuple[int, int], float],
        updates: Sequence[float],
        exact: Mapping[int, RankTimes],
    ) -> float:
        """Least time of all passes and what follows them [s].

        Parameters
        ----------
        whole, kernels : array of float
            By kind, as `StageTimes` has them [s].
        sends : mapping of (int, int) to float
            How long what a pass sends is on its way [s].
        updates : sequence of float
            By rank what comes after its passes [s].
        exact : mapping of int to RankTimes
            By rank more exact times.
        """
        takes, sent, left = whole[self.kinds], whole[self.kinds], np.zeros(len(self.kinds))
        for rank, times in exact.items():
            own = slice(self.starts[rank], self.starts[rank] + len(times.whole))
            takes[own], sent[own], left[own] = times.whole, times.sent, times.left
        at = self.number
        free, ended, travels = [0.0] * len(self.starts), [0.0] * self.ends, [0.0, *(sends[way] for way in self.ways)]
        last, begin, busy = 0.0, 0.0, 0.0
        for rank, first, needs, sets, way, own_whole, own_sent, own_left, alone in zip(
            self.rank.tolist(), self.first.tolist(), self.needs.tolist(), self.sets.tolist(), self.way.tolist(),
            takes[at].tolist(), sent[at].tolist(), left[at].tolist(), kernels[self.kinds[at]].tolist(), strict=True,
        ):  # fmt: skip
            if first:
                begin, busy = free[rank], 0.0
            start = ended[needs] + travels[way]
            if start < begin:
                start = begin
            if sets:
                ended[sets] = start + own_sent
            # Of two passes at once the kernels take turns, and each may hide the other's exchanges.
            busy += alone
            free[rank] = max(free[rank], start + own_whole, begin + busy)
            if start + own_left > last:
                last = start + own_left
        return max(last, *(end + update for end, update in zip(free, updates, strict=True)))


def pass_order(pipeline: Pipeline) -> PassOrder:
    """The passes of a pipeline; ValueError where its order waits for itself."""
    return _pass_order(pipeline.schedule, pipeline.shape, pipeline.model_stages)


@lru_cache(maxsize=32)
def _pass_order(schedule: PipelineSchedule, shape: PipelineShape, copies: int) -> PassOrder:
    order = schedule.order(shape)
    lengths = [sum(map(len, slots)) for slots in order]
    starts = tuple(np.cumsum([0, *lengths[:-1]]).tolist())
    # By pass, forward ones apart from those that send gradients back, which of the ends is its own.
    sets: dict[tuple[bool, int, int], int] = {}
    ways: dict[tuple[int, int], int] = {}
    rows, seen = list[tuple[int, int, bool, int, int, int]](), [0] * shape.ranks
    place_of = [schedule.rank_of(stage, shape.ranks) for stage in range(shape.stages)]
    for rank, slot in _in_turn(order, copies):
        for place, one in enumerate(slot):
            needed = _needed(one, copies)
            source, way = _NONE, _NONE
            if needed is not None:
                source, ends = sets[needed], (place_of[needed[1]], place_of[one.stage])
                way = _NONE if ends[0] == ends[1] else ways.setdefault(ends, len(ways) + 1)
            own = _NONE
            if one.work is not Work.WEIGHT_GRADIENT:
                own = sets.setdefault((one.work is Work.FORWARD, one.stage, one.micro), len(sets) + 1)
            rows.append((starts[rank] + seen[rank], rank, place == 0, source, own, way))
            seen[rank] += 1
    kinds = [one.stage % copies * len(Work) + _WORKS[one.work] for slots in order for slot in slots for one in slot]
    number, ranks, first, needs, own_ends, way_of = map(np.array, zip(*rows, strict=True))
    return PassOrder(
        starts, np.array(kinds), number, ranks, first, needs, own_ends, way_of, tuple(ways), len(sets) + 1
    )  # fmt: skip


def _needed(one: Pass, copies: int) -> tuple[bool, int, int] | None:
    """What a pass waits for beside its rank: whether of a forward pass, of which stage and micro-batch."""
    if one.work is Work.FORWARD:
        return None if one.stage % copies == 0 else (True, one.stage - 1, one.micro)
    if one.work is Work.WEIGHT_GRADIENT:
        return False, one.stage, one.micro
    if one.stage % copies == copies - 1:
        return True, one.stage, one.micro
    return False, one.stage + 1, one.micro


def _in_turn(order: Order, copies: int) -> Iterator[tuple[int, Slot]]:
    """What ranks do, each thing after what it needs."""
    done, ended = [0] * len(order), set[tuple[bool, int, int]]()
    waiting = list(range(len(order)))
    while waiting:
        moving = False
        for rank in waiting:
            slots = order[rank]
            while done[rank] < len(slots):
                slot = slots[done[rank]]
                # Of two passes at once neither may need the other.
                if not all((needed := _needed(one, copies)) is None or needed in ended for one in slot):
                    break
                ended |= {
                    (one.work is Work.FORWARD, one.stage, one.micro)
                    for one in slot
                    if one.work is not Work.WEIGHT_GRADIENT
                }
                yield rank, slot
                done[rank], moving = done[rank] + 1, True
        waiting = [rank for rank in waiting if done[rank] < len(order[rank])]
        if waiting and not moving:
            raise ValueError("the order of the pipeline waits for itself")
