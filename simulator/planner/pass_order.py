"""When does a pipeline's last pass end, if each begins as soon as its rank is free and what it needs has come?

Rule: which pass needs which follows from the pipeline's order alone, so it is worked out once for all settings that
share it, as arrays; then a setting's times are looked up and added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.step.pipeline import Pipeline
from simulator.step.pipelines.schedule import Pass, PipelineSchedule, PipelineShape, Work

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


@lru_cache(maxsize=64)
def _pass_order(schedule: PipelineSchedule, shape: PipelineShape, copies: int) -> PassOrder:
    order, width = schedule.order(shape), shape.stages * shape.micro_batches
    lengths = [sum(map(len, slots)) for slots in order]
    starts = tuple(np.cumsum([0, *lengths[:-1]]).tolist())
    place_of = [schedule.rank_of(stage, shape.ranks) for stage in range(shape.stages)]
    # By a number of each pass that sends, forward ones first, which of the ends is its own.
    sets, ways = dict[int, int](), dict[tuple[int, int], int]()
    rows, seen, done = list[tuple[int, int, bool, int, int, int]](), [0] * shape.ranks, [0] * shape.ranks

    def number_of(stage: int, micro: int, *, forward: bool) -> int:
        return (0 if forward else width) + stage * shape.micro_batches + micro

    def needed(one: Pass) -> tuple[int, int] | None:
        """Number of the pass that one waits for beside its rank, and that one's stage; None where there is none."""
        first, last = one.stage % copies == 0, one.stage % copies == copies - 1
        if one.work is Work.FORWARD:
            return None if first else (number_of(one.stage - 1, one.micro, forward=True), one.stage - 1)
        if one.work is Work.WEIGHT_GRADIENT:
            return number_of(one.stage, one.micro, forward=False), one.stage
        if last:
            return number_of(one.stage, one.micro, forward=True), one.stage
        return number_of(one.stage + 1, one.micro, forward=False), one.stage + 1

    def go_on(rank: int) -> bool:
        """Note what a rank does next; whether what it needs has ended."""
        slot = order[rank][done[rank]]
        sources = [needed(one) for one in slot]
        # Of two passes at once neither may need the other.
        if any(source is not None and source[0] not in sets for source in sources):
            return False
        for place, (one, source) in enumerate(zip(slot, sources, strict=True)):
            needs, way, own = _NONE, _NONE, _NONE
            if source is not None:
                ends = place_of[source[1]], place_of[one.stage]
                needs = sets[source[0]]
                way = _NONE if ends[0] == ends[1] else ways.setdefault(ends, len(ways) + 1)
            if one.work is not Work.WEIGHT_GRADIENT:
                own = sets[number_of(one.stage, one.micro, forward=one.work is Work.FORWARD)] = len(sets) + 1
            rows.append((starts[rank] + seen[rank], rank, place == 0, needs, own, way))
            seen[rank] += 1
        done[rank] += 1
        return True

    waiting = list(range(shape.ranks))
    while waiting:
        before = len(rows)
        for rank in waiting:
            while done[rank] < len(order[rank]) and go_on(rank):
                pass
        waiting = [rank for rank in waiting if done[rank] < len(order[rank])]
        if waiting and len(rows) == before:
            raise ValueError("the order of the pipeline waits for itself")
    kinds = [one.stage % copies * len(Work) + _WORKS[one.work] for slots in order for slot in slots for one in slot]
    number, ranks, first, needs, own_ends, way_of = np.array(rows).T
    return PassOrder(
        starts, np.array(kinds), number, ranks, first.astype(bool), needs, own_ends, way_of, tuple(ways), len(sets) + 1
    )
