"""Two timelines of one program: how far they are apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.records.program import Program
from simulator.records.timeline import AllocatorEvent, LinkUse, Timeline
from simulator.report.numbers.link_use import link_uses

# Of a moment, by some ten additions.
ROUNDING: Final = 1e-15
# Distance of two engines' times, over the end.
CLOSE: Final = 1e-9
# Factor by which a rounding's difference may grow in one transfer, where flows contend; 4.4 is the most that was seen.
GROWS: Final = 10
# Every rank is simulated from so many transfers on: never.
NEVER: Final = 2**62


def farthest(one: Timeline, other: Timeline) -> float:
    """Return the largest distance of two timelines' times, over the later end; infinity where anything else differs.

    Everything that a run leaves behind is compared: spans, transfer logs, links' use, memory samples and allocators'
    events. A time that is no number counts as a difference.
    """
    return left_behind(one).distance(left_behind(other))


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """All that a run leaves behind, in a form that can be compared.

    Attributes
    ----------
    facts : list
        What does not depend on the last digit of a time.
    times : list of float array
        Every time [s].
    order : dict of rank to list
        What allocators did, in the order in which it happened.
    moments : dict of rank to float array
        When they did it [s], by name.
    samples : dict of rank to list
        Memory after each allocation or free of a rank, also of ranks whose allocator is not recorded.
    sampled : dict of rank to float array
        When that was [s].
    memory : list
        Facts of memory that depend on that order: peak, addresses, what was reserved.
    """

    facts: list[Any]
    times: list[Floats]
    order: dict[int, list[tuple[str, str, int]]]
    moments: dict[int, Floats]
    samples: dict[int, list[Any]]
    sampled: dict[int, Floats]
    memory: list[Any]

    def distance(self, other: LeftBehind) -> float:
        """Return the largest distance of two runs' times, over the later end; infinity where facts differ.

        Two streams may allocate and free at one moment, and the last digit of the two times then says which comes
        first. Where engines order such a pair differently, samples and addresses between the two cannot be equal, and
        only which allocations there were and when they were made and freed is compared. Engines that agree to the bit
        about a rank's times have no reason to order them differently.
        """
        alike = self.order == other.order and self.samples == other.samples
        if self.facts != other.facts or (alike and self.memory != other.memory):
            return float("inf")
        if any(
            own != other.samples[rank] and np.array_equal(self.sampled[rank], other.sampled[rank])
            for rank, own in self.samples.items()
        ):
            return float("inf")
        if any(
            own != other.order[rank] and np.array_equal(self.moments[rank], other.moments[rank])
            for rank, own in self.order.items()
        ):
            return float("inf")
        apart = [float(np.abs(a - b).max(initial=0.0)) for a, b in zip(self.times, other.times, strict=True)]
        end = max(float(self.times[0][0]), float(other.times[0][0]), 1e-300)
        distance = float(np.max(apart)) / end
        return distance if np.isfinite(distance) else float("inf")


def left_behind(timeline: Timeline) -> LeftBehind:
    """Return all that a run leaves behind; links' use, which takes longest, is added up once."""
    uses = link_uses(timeline)
    handled = {
        rank: [event for event in own if event.action in ("alloc", "free")]
        for rank, own in sorted(timeline.allocations.items())
    }
    order = {rank: [_named(event) for event in own] for rank, own in handled.items()}
    named = {rank: sorted(own, key=_named) for rank, own in handled.items()}
    facts = [*_facts(timeline, uses), {rank: list(map(_named, own)) for rank, own in named.items()}]
    moments = {rank: np.array([event.time for event in own]) for rank, own in named.items()}
    ranks = sorted({sample.rank for sample in timeline.memory})
    of_rank = {rank: [sample for sample in timeline.memory if sample.rank == rank] for rank in ranks}
    samples = {rank: [(sample.nbytes, sample.by_category) for sample in own] for rank, own in of_rank.items()}
    sampled = {rank: np.array([sample.time for sample in own]) for rank, own in of_rank.items()}
    times = [*_times(timeline, uses), *moments.values()]
    return LeftBehind(facts, times, order, moments, samples, sampled, _memory(timeline))


def _named(event: AllocatorEvent) -> tuple[str, str, int]:
    """Return what an allocator's event is, whenever it happens."""
    return event.label, event.action, event.size


def _facts(timeline: Timeline, uses: Sequence[LinkUse]) -> list[Any]:
    """Return what does not depend on the last digit of a time: who did what with how many bytes, in which order."""
    return [
        [(s.rank, s.stream, s.name, s.kind, s.nbytes, s.flops) for s in timeline.spans],
        [
            (log.collective, log.vertices, log.nbytes.tolist(), log.route_of.tolist(), tuple(log.routes))
            for log in timeline.logs
        ],
        [(use.name, use.bandwidth) for use in uses],
        list(timeline.sent),
        timeline.transfers,
        sorted(timeline.at_work),
        [sample.rank for sample in timeline.memory],
    ]


def _memory(timeline: Timeline) -> list[Any]:
    """Return what depends on the order of allocations and frees that happen at one moment."""
    return [
        timeline.peak and (timeline.peak.nbytes, timeline.peak.by_category),
        sorted(timeline.peak_bytes.items()),
        [(rank, [replace(event, time=0.0) for event in own]) for rank, own in sorted(timeline.allocations.items())],
        sorted(timeline.reserved.items()),
        sorted(timeline.short_of_memory),
    ]


def _times(timeline: Timeline, uses: Sequence[LinkUse]) -> list[Floats]:
    """Return every time of a timeline [s] as columns, and links' bytes as times at their bandwidth [s]."""
    return [
        np.array([timeline.end]),
        np.array([(span.start, span.end) for span in timeline.spans]),
        *(column for log in timeline.logs for column in (log.enter, log.end)),
        np.array([(use.busy, use.nbytes / use.bandwidth) for use in uses]),
        np.array([sample.time for sample in timeline.memory]),
        np.array([timeline.at_work[rank] for rank in sorted(timeline.at_work)]),
    ]


def growth(one: Timeline, other: Timeline) -> float:
    """Most by which a moment's distance exceeds the largest before it, beyond rounding; 1 where all begin together.

    Where flows that are out of step share links, a rounding's difference grows from transfer to transfer and can end
    anywhere: no digit of such a step's end is sure. What must hold is that it grows, and never springs up.
    """
    pairs = [(a, b) for x, y in zip(one.logs, other.logs, strict=True) for a, b in ((x.enter, y.enter), (x.end, y.end))]
    pairs += [(np.array([s.end for s in one.spans]), np.array([s.end for s in other.spans]))]
    times, apart = (
        np.concatenate([values(a, b) for a, b in pairs]) for values in (np.minimum, lambda a, b: np.abs(a - b))
    )
    order = np.argsort(times, kind="stable")
    times, apart = times[order], apart[order]
    before = np.concatenate([[0.0], np.maximum.accumulate(apart)[:-1]])
    return float((apart / np.maximum(before, ROUNDING * times)).max(initial=1.0))


def simulated_alike(program: Program, cluster: Cluster, **facts: Any) -> tuple[Timeline, int]:
    """Simulate a program with both engines and compare all that they leave behind.

    The compiled engine simulates it twice: every rank, and one rank of each class.

    Returns
    -------
    tuple of (Timeline, int)
        The events engine's timeline, and in how many of the two comparisons a rounding's difference grew beyond `CLOSE`
        because flows contend.
    """
    expected = events(program, cluster, limit_memory=False, **facts)
    left, grew = left_behind(expected), 0
    for reduced_from in (0, NEVER):
        found = compiled(program, cluster, limit_memory=False, reduced_from=reduced_from, **facts)
        apart = left.distance(left_behind(found))
        if apart > CLOSE:
            assert apart < 1.0, "engines differ by more than a time"
            assert growth(expected, found) <= GROWS, "engines differ by more than a rounding that grew"
            grew += 1
    return expected, grew
