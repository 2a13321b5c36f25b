"""When kernels end that are slowed while a collective is in flight: the events engine's integral, all ranks at once.

Rule: progress is 1/alone a second, or 1/slowed while anything is in flight; what is in flight is told as intervals.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.basics.arrays import Floats

Interval = tuple[Floats, Floats]


def kernel_ends(start: Floats, alone: Floats, slowed: Floats, in_flight: Sequence[Interval]) -> Floats:
    """When kernels end that start then.

    Parameters
    ----------
    start, alone, slowed : float array, shape (ranks,) or (1,)
        [s]
    in_flight : sequence of (begin, end)
        When each collective of a rank is in flight, shape (ranks,) or (1,) each; they may overlap.
    """
    relevant = [column for a, b in in_flight if bool((b > start).any()) for column in (a, b)]
    if not relevant or bool((alone == slowed).all()):
        return start + alone
    start, alone, slowed, *relevant = np.broadcast_arrays(start, alone, slowed, *relevant)
    begins, stops = np.stack(relevant[::2]), np.stack(relevant[1::2])
    order = np.argsort(begins, axis=0, kind="stable")
    begins, stops = np.take_along_axis(begins, order, 0), np.take_along_axis(stops, order, 0)
    # Overlapping in_flight are one: each begins where all before it are over.
    over = np.maximum.accumulate(stops, axis=0)
    begins[1:] = np.maximum(begins[1:], over[:-1])
    now, left = start.copy(), np.ones_like(start)
    for begin, stop in zip(begins, over, strict=True):
        now, left = _advance(now, left, np.maximum(begin, now), alone)
        now, left = _advance(now, left, np.maximum(stop, now), slowed)
    return now + left * alone


def _advance(now: Floats, left: Floats, until: Floats, pace: Floats) -> tuple[Floats, Floats]:
    """Go on until then, or to the end of the work."""
    done = np.divide(until - now, pace, out=np.where(until > now, np.inf, 0.0), where=pace > 0.0)
    finished = done >= left
    return np.where(finished, now + left * pace, until), np.where(finished, 0.0, left - done)
