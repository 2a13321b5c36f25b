"""An independent player of a pipeline's order: passes in a loop over ranks, sends of a given length, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulator.step.pipelines.schedule import Order, Pass, PipelineSchedule, PipelineShape, Placement, Work
from simulator.testing.law import BrokenLawError

_F, _B, _I, _W = Work.FORWARD, Work.BACKWARD, Work.INPUT_GRADIENT, Work.WEIGHT_GRADIENT
# Durations by kind of pass; or by kind and stage, if stages differ.
Times = Mapping[str, float] | Mapping[tuple[Work, int], float]


@dataclass(frozen=True, slots=True)
class PlayedOrder:
    """Start and end of each slot, by rank."""

    slots: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def makespan(self) -> float:
        """End of the last slot."""
        return max(end for slots in self.slots for _, end in slots)

    def idle(self, rank: int) -> float:
        """Return the time during which a rank runs no slot."""
        return self.makespan - sum(end - start for start, end in self.slots[rank])

    def idle_inside(self, rank: int) -> float:
        """Return the time between a rank's slots."""
        slots = self.slots[rank]
        return slots[-1][1] - slots[0][0] - sum(end - start for start, end in slots)


def awaited(pass_: Pass, shape: PipelineShape, placement: Placement) -> tuple[tuple[frozenset[Work], int, int], ...]:
    """Return the passes for which a pass waits: any of some works, a stage, a micro-batch."""
    first = 0 if placement is not Placement.BOTH_WAYS or pass_.stage < shape.ranks else shape.ranks
    last = shape.stages - 1 if placement is not Placement.BOTH_WAYS or first else shape.ranks - 1
    if pass_.work is _F:
        return ((frozenset({_F}), pass_.stage - 1, pass_.micro),) if pass_.stage > first else ()
    if pass_.work is _W:
        return ((frozenset({_I}), pass_.stage, pass_.micro),)
    forward = (frozenset({_F}), pass_.stage, pass_.micro)
    return (forward, (frozenset({_B, _I}), pass_.stage + 1, pass_.micro)) if pass_.stage < last else (forward,)


def length(slot: tuple[Pass, ...], times: Times) -> float:
    """Return the duration of a slot.

    Two passes at once have a duration of their own, or the sum of both durations if stages differ.
    """
    if "F" in times:
        return times["pair"] if len(slot) > 1 else times[slot[0].work.value]  # type: ignore[index]
    return sum(times[pass_.work, pass_.stage] for pass_ in slot)  # type: ignore[index, misc]


def played(
    schedule: PipelineSchedule,
    shape: PipelineShape,
    order: Order,
    times: Times,
    send: float = 0.0,
    behind: Times | None = None,
) -> PlayedOrder:
    """Play an order: a slot starts when its rank is free and everything for which its passes wait has arrived.

    Parameters
    ----------
    send : float
        Duration of a send between ranks.
    behind : mapping, optional
        Last part of a pass's duration: the rank is busy, but the result has been handed on.

    Raises
    ------
    BrokenLawError
        Every rank waits for a pass that no rank runs before.
    """
    ended: dict[tuple[Work, int, int], float] = {}
    slots: list[list[tuple[float, float]]] = [[] for _ in order]
    places = [0] * len(order)
    rank_of = {stage: schedule.rank_of(stage, shape.ranks) for stage in range(shape.stages)}
    while any(place < len(sequence) for place, sequence in zip(places, order, strict=True)):
        moved = False
        for rank, sequence in enumerate(order):
            while places[rank] < len(sequence):
                slot, start = sequence[places[rank]], slots[rank][-1][1] if slots[rank] else 0.0
                for pass_ in slot:
                    for works, stage, micro in awaited(pass_, shape, schedule.placement):
                        ends = [ended[work, stage, micro] for work in works if (work, stage, micro) in ended]
                        away = send if stage != pass_.stage and rank_of[stage] != rank else 0.0
                        start = max(start, ends[0] + away) if ends else float("inf")
                if start == float("inf"):
                    break
                end = start + length(slot, times)
                ended |= {
                    (pass_.work, pass_.stage, pass_.micro): end - (behind or {}).get((pass_.work, pass_.stage), 0.0)  # type: ignore[call-overload]
                    for pass_ in slot
                }
                slots[rank].append((start, end))
                places[rank] += 1
                moved = True
        if not moved:
            waiting = [sequence[place] for place, sequence in zip(places, order, strict=True) if place < len(sequence)]
            names = ", ".join("&".join(map(str, slot)) for slot in waiting)
            raise BrokenLawError(f"no rank can continue; the next passes are {names}")
    return PlayedOrder(tuple(map(tuple, slots)))


def most_held(sequence: tuple[tuple[Pass, ...], ...]) -> int:
    """Return the most forward passes of a rank at once whose weight gradients are not computed yet."""
    count = most = 0
    for slot in sequence:
        for pass_ in sorted(slot, key=lambda each: each.work is not _F):
            count += {_F: 1, _B: -1, _W: -1, _I: 0}[pass_.work]
            most = max(most, count)
    return most
