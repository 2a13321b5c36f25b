"""When kernels end that are slowed while a collective of their rank is in flight, for all ranks at once.

The same integral as the events engine's (`engine.kernels_run`): a kernel progresses by 1/alone a second, and by
1/contended while at least one collective is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulator.basics.arrays import Floats

Interval = tuple[Floats, Floats]


def kernel_ends(start: Floats, alone: Floats, contended: Floats, in_flight: Sequence[Interval]) -> Floats:
    """When kernels end that start at these times.

    Parameters
    ----------
    start, alone, contended : float array, shape (ranks,) or (1,)
        Start, duration without communication and duration beside it [s].
    in_flight : sequence of (begin, end)
        When each collective of a rank is in flight, shape (ranks,) or (1,) each; they may overlap.
    """
    columns = [column for begin, end in in_flight if bool((end > start).any()) for column in (begin, end)]
    if not columns or bool((alone == contended).all()):
        return start + alone
    start, alone, contended, *columns = np.broadcast_arrays(start, alone, contended, *columns)
    begins, stops = np.stack(columns[::2]), np.stack(columns[1::2])
    order = np.argsort(begins, axis=0, kind="stable")
    begins, stops = np.take_along_axis(begins, order, 0), np.take_along_axis(stops, order, 0)
    # Two collectives in flight slow a kernel no more than one. So intervals must not overlap: each begins, at the
    # earliest, where all intervals before it are over.
    over = np.maximum.accumulate(stops, axis=0)
    begins[1:] = np.maximum(begins[1:], over[:-1])
    now, left = start.copy(), np.ones_like(start)
    for begin, stop in zip(begins, over, strict=True):
        now, left = _advance(now, left, np.maximum(begin, now), alone)
        now, left = _advance(now, left, np.maximum(stop, now), contended)
    return now + left * alone


def _advance(now: Floats, left: Floats, until: Floats, duration: Floats) -> tuple[Floats, Floats]:
    """Let kernels run until a time, or to their ends if these are earlier; returns the time and what is left of 1."""
    # A kernel without duration is done at once if any time passes, and has not begun if none does; 0 / 0 would not
    # tell.
    done = np.divide(until - now, duration, out=np.where(until > now, np.inf, 0.0), where=duration > 0.0)
    finished = done >= left
    return np.where(finished, now + left * duration, until), np.where(finished, 0.0, left - done)
