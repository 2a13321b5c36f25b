"""When does a pipeline's last pass end, if each pass begins as soon as its rank is free and its input has arrived?

Dependencies between passes follow from the schedule alone. They are computed once for every setting with equal schedule
and shape, as arrays, and then evaluated with each setting's times.

Example: gpipe with 2 ranks and 1 micro-batch has four passes, shown with their dependencies::

    rank 0:  F0            B0 <- B1 of rank 1
    rank 1:  F1 <- F0      B1 <- F1

With 1 ms forward, 2 ms backward and 0.5 ms per send: F0 ends at 1, F1 at 2.5, B1 at 4.5, B0 at 7 ms.
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
# Index of the end time that is always 0, and of a free send.
_NONE: Final = 0


@dataclass(frozen=True, slots=True)
class RankTimes:
    """Lower bounds on the times of a rank's passes, in the rank's order; arrays of shape (passes,) [s]."""

    whole: Floats  # time until the rank's next pass can begin
    sent: Floats  # time until the send to the next stage can begin
    left: Floats  # time from the pass's beginning to the step's end


@dataclass(frozen=True, slots=True)
class PassOrder:
    """A pipeline's passes in a topological order of their dependencies."""

    # Number of each rank's first pass; passes are numbered rank after rank, in each rank's order.
    starts: tuple[int, ...]
    # Kind of each numbered pass: stage in a model copy x 4 + place in Work; shape (passes,).
    kinds: Ints
    # `number`, `rank`: Number and rank of each pass, in topological order, as are the following arrays; shape
    # (passes,).
    number: Ints
    rank: Ints
    # True for a pass that begins the rank's next slot; False for the second of two passes at once; shape (passes,).
    first: Bools
    # `needs`, `sets`: Index of the awaited end time, and of the pass's own end time; 0 for none; shape (passes,).
    needs: Ints
    sets: Ints
    # Index into `ways`, plus 1, of the send that brings the pass its input; 0 if the input is on the same rank; shape
    # (passes,).
    way: Ints
    ways: tuple[tuple[int, int], ...]  # sending and receiving rank of each kind of send
    ends: int  # number of end times, including an end time that is always 0

    def last_end(
        self,
        seconds: Floats,
        kernels: Floats,
        sends: Mapping[tuple[int, int], float],
        updates: Sequence[float],
        exact: Mapping[int, RankTimes],
    ) -> float:
        """Return a lower bound on the end of the step's passes and updates [s].

        Parameters
        ----------
        seconds, kernels : float array, shape (kinds,)
            Times of `StageTimes` for each kind of pass [s].
        sends : mapping of (int, int) to float
            Time of a send between two ranks [s].
        updates : sequence of float
            Time after each rank's last pass [s].
        exact : mapping of int to RankTimes
            Tighter times for some ranks.
        """
        takes, sent, left = seconds[self.kinds], seconds[self.kinds], np.zeros(len(self.kinds))
        for rank, times in exact.items():
            span = slice(self.starts[rank], self.starts[rank] + len(times.whole))
            takes[span], sent[span], left[span] = times.whole, times.sent, times.left
        at = self.number
        # Plain lists: this loop runs for every pass of every setting, and indexing numpy arrays is slower.
        free, ended, travels = [0.0] * len(self.starts), [0.0] * self.ends, [0.0, *(sends[way] for way in self.ways)]
        last, begin, busy = 0.0, 0.0, 0.0
        for rank, first, needs, sets, way, own_whole, own_sent, own_left, kernel_time in zip(
            self.rank.tolist(), self.first.tolist(), self.needs.tolist(), self.sets.tolist(), self.way.tolist(),
            takes[at].tolist(), sent[at].tolist(), left[at].tolist(), kernels[self.kinds[at]].tolist(), strict=True,
        ):  # fmt: skip
            # Both passes of a slot start from the end of the rank's preceding slot.
            if first:
                begin, busy = free[rank], 0.0
            start = ended[needs] + travels[way]
            if start < begin:
                start = begin
            if sets:
                ended[sets] = start + own_sent
            # Kernels of two passes at once share the GPU, and each pass may hide the other's exchanges.
            busy += kernel_time
            free[rank] = max(free[rank], start + own_whole, begin + busy)
            if start + own_left > last:
                last = start + own_left
        return max(last, *(end + update for end, update in zip(free, updates, strict=True)))


def pass_order(pipeline: Pipeline) -> PassOrder:
    """Return the passes of a pipeline in an order that respects dependencies; raise ValueError if the dependencies form
    a cycle.
    """
    return _pass_order(pipeline.schedule, pipeline.shape, pipeline.model_stages, pipeline.first_trained)


@lru_cache(maxsize=64)
def _pass_order(schedule: PipelineSchedule, shape: PipelineShape, copies: int, first_trained: int) -> PassOrder:
    """Build a pass order that respects dependencies, by running ranks in turn while inputs allow; cached.

    Parameters
    ----------
    copies : int
        Stages of a model copy.
    first_trained : int
        Stage of a model copy before which no gradient is computed.
    """
    order, width = schedule.order(shape), shape.stages * shape.micro_batches
    lengths = [sum(map(len, slots)) for slots in order]
    starts = tuple(np.cumsum([0, *lengths[:-1]]).tolist())
    place_of = [schedule.rank_of(stage, shape.ranks) for stage in range(shape.stages)]
    # Index of each sending pass's end time, by `number_of`: forward passes first, then backward passes.
    sets, ways = dict[int, int](), dict[tuple[int, int], int]()
    rows, counts, done = list[tuple[int, int, bool, int, int, int]](), [0] * shape.ranks, [0] * shape.ranks

    def number_of(stage: int, micro: int, *, forward: bool) -> int:
        """Return a key for the forward or backward pass of a micro-batch through a stage."""
        return (0 if forward else width) + stage * shape.micro_batches + micro

    def needed(step_pass: Pass) -> tuple[int, int] | None:
        """Return the key and the stage of the pass for whose result the given pass waits; None for the first forward
        pass, and for empty backward passes of stages before the first trained parameter.
        """
        first, last = step_pass.stage % copies == 0, step_pass.stage % copies == copies - 1
        if step_pass.work is Work.FORWARD:
            return (
                None if first else (number_of(step_pass.stage - 1, step_pass.micro, forward=True), step_pass.stage - 1)
            )
        if step_pass.stage % copies < first_trained:
            return None
        # The input gradient of the same stage, on the same rank.
        if step_pass.work is Work.WEIGHT_GRADIENT:
            return number_of(step_pass.stage, step_pass.micro, forward=False), step_pass.stage
        # The last stage computes the loss: its backward pass follows its own forward pass.
        if last:
            return number_of(step_pass.stage, step_pass.micro, forward=True), step_pass.stage
        return number_of(step_pass.stage + 1, step_pass.micro, forward=False), step_pass.stage + 1

    def go_on(rank: int) -> bool:
        """Append a rank's next slot to the order if its inputs are in the order; return True if appended."""
        slot = order[rank][done[rank]]
        sources = [needed(step_pass) for step_pass in slot]
        # Two passes at once never depend on each other: both inputs must be in the list.
        if any(source is not None and source[0] not in sets for source in sources):
            return False
        for place, (step_pass, source) in enumerate(zip(slot, sources, strict=True)):
            needs, way, sets_end = _NONE, _NONE, _NONE
            if source is not None:
                ends = place_of[source[1]], place_of[step_pass.stage]
                needs = sets[source[0]]
                # Both chunks of a V turn on one rank: no send.
                way = _NONE if ends[0] == ends[1] else ways.setdefault(ends, len(ways) + 1)
            if step_pass.work is not Work.WEIGHT_GRADIENT:
                sets_end = sets[number_of(step_pass.stage, step_pass.micro, forward=step_pass.work is Work.FORWARD)] = (
                    len(sets) + 1
                )
            rows.append((starts[rank] + counts[rank], rank, place == 0, needs, sets_end, way))
            counts[rank] += 1
        done[rank] += 1
        return True

    # A round without progress means a cycle.
    waiting = list(range(shape.ranks))
    while waiting:
        before = len(rows)
        for rank in waiting:
            while done[rank] < len(order[rank]) and go_on(rank):
                pass
        waiting = [rank for rank in waiting if done[rank] < len(order[rank])]
        if waiting and len(rows) == before:
            raise ValueError("the order of the pipeline waits for itself")
    kinds = [
        step_pass.stage % copies * len(Work) + _WORKS[step_pass.work]
        for slots in order
        for slot in slots
        for step_pass in slot
    ]
    number, ranks, first, needs, own_ends, way_of = np.array(rows).T
    return PassOrder(
        starts, np.array(kinds), number, ranks, first.astype(bool), needs, own_ends, way_of, tuple(ways), len(sets) + 1
    )
