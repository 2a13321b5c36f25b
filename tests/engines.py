"""Two timelines of one program: how far they are apart."""

from __future__ import annotations

import numpy as np

from simulator.records.timeline import Timeline

# Of a moment, by some ten additions.
ROUNDING = 1e-15


def farthest(one: Timeline, other: Timeline) -> float:
    """Largest distance of any start, end or enter, over the end of all; infinite where anything else differs."""
    kinds = [[(s.rank, s.stream, s.name, s.kind, s.nbytes, s.flops) for s in t.spans] for t in (one, other)]
    if kinds[0] != kinds[1] or peaks(one) != peaks(other) or sent(one) != sent(other):
        return float("inf")
    if set(one.at_work) != set(other.at_work):
        return float("inf")
    times = [[(s.start, s.end) for s in t.spans] for t in (one, other)]
    apart = [float(np.abs(np.array(times[0]) - np.array(times[1])).max(initial=0.0))]
    apart += [abs(work - other.at_work[rank]) for rank, work in one.at_work.items()]
    for a, b in zip(one.logs, other.logs, strict=True):
        apart += [float(np.abs(x - y).max(initial=0.0)) for x, y in ((a.enter, b.enter), (a.end, b.end))]
    return max(apart) / max(one.end, 1e-300)


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


def peaks(timeline: Timeline) -> dict[int, int]:
    """Most that each rank holds [B]."""
    found: dict[int, int] = {}
    for sample in timeline.memory:
        found[sample.rank] = max(found.get(sample.rank, 0), sample.nbytes)
    return found


def sent(timeline: Timeline) -> dict[str, float]:
    """Bytes of each collective [B]."""
    return {log.collective: float(log.nbytes.sum()) for log in timeline.logs}
