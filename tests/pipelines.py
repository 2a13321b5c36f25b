"""An independent player of a pipeline's order: passes in a loop over ranks, sends of a given length, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Placement, Work

F, B, I, W = Work.FORWARD, Work.BACKWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT  # noqa: E741
# By kind of pass; or by kind and stage, where stages differ.
Times = Mapping[str, float] | Mapping[tuple[Work, int], float]


@dataclass(frozen=True, slots=True)
class PlayedOrder:
    """When everything of a rank began and ended, slot by slot."""

    slots: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def makespan(self) -> float:
        return max(end for own in self.slots for _, end in own)

    def idle(self, rank: int) -> float:
        return self.makespan - sum(end - start for start, end in self.slots[rank])

    def idle_inside(self, rank: int) -> float:
        own = self.slots[rank]
        return own[-1][1] - own[0][0] - sum(end - start for start, end in own)


def awaited(one: Pass, shape: PipelineShape, placement: Placement) -> tuple[tuple[frozenset[Work], int, int], ...]:
    """What a pass waits for: any of some works, a stage, a micro-batch."""
    first = 0 if placement is not Placement.BOTH_WAYS or one.stage < shape.ranks else shape.ranks
    last = shape.stages - 1 if placement is not Placement.BOTH_WAYS or first else shape.ranks - 1
    if one.work is F:
        return ((frozenset({F}), one.stage - 1, one.micro),) if one.stage > first else ()
    if one.work is W:
        return ((frozenset({I}), one.stage, one.micro),)
    own = (frozenset({F}), one.stage, one.micro)
    return (own, (frozenset({B, I}), one.stage + 1, one.micro)) if one.stage < last else (own,)


def length(slot: tuple[Pass, ...], shape: PipelineShape, placement: Placement, times: Times) -> float:
    """How long a slot takes; two passes at once take a time of their own, or both theirs where stages differ."""
    if "F" in times:
        return times["pair"] if len(slot) > 1 else times[slot[0].work.value]  # type: ignore[index]
    return sum(times[one.work, one.stage] for one in slot)  # type: ignore[index]


def played(
    schedule: PipelineSchedule,
    shape: PipelineShape,
    order: Order,
    times: Times,
    send: float = 0.0,
    behind: Times | None = None,
) -> PlayedOrder:
    """Play an order: a slot starts when its rank is free and all that its passes wait for has arrived.

    The last `behind` of a pass's time keeps its rank busy when it has handed on what it has made.
    """
    ended: dict[tuple[Work, int, int], float] = {}
    slots: list[list[tuple[float, float]]] = [[] for _ in order]
    places = [0] * len(order)
    rank_of = {stage: schedule.rank_of(stage, shape.ranks) for stage in range(shape.stages)}
    while any(place < len(own) for place, own in zip(places, order, strict=True)):
        moved = False
        for rank, own in enumerate(order):
            while places[rank] < len(own):
                slot, start = own[places[rank]], slots[rank][-1][1] if slots[rank] else 0.0
                for one in slot:
                    for works, stage, micro in awaited(one, shape, schedule.placement):
                        there = [ended[work, stage, micro] for work in works if (work, stage, micro) in ended]
                        away = send if stage != one.stage and rank_of[stage] != rank else 0.0
                        start = max(start, there[0] + away) if there else float("inf")
                if start == float("inf"):
                    break
                end = start + length(slot, shape, schedule.placement, times)
                ended |= {
                    (one.work, one.stage, one.micro): end - (behind or {}).get((one.work, one.stage), 0.0)
                    for one in slot
                }
                slots[rank].append((start, end))
                places[rank] += 1
                moved = True
        if not moved:
            raise AssertionError(
                f"nobody can go on: {[own[p] for p, own in zip(places, order, strict=True) if p < len(own)]}"
            )
    return PlayedOrder(tuple(map(tuple, slots)))


def most_held(own: tuple[tuple[Pass, ...], ...]) -> int:
    """Most forward passes of a rank whose weights' gradients are not there yet."""
    held = most = 0
    for slot in own:
        for one in sorted(slot, key=lambda each: each.work is not F):
            held += {F: 1, B: -1, W: -1, I: 0}[one.work]
            most = max(most, held)
    return most
