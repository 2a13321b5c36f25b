"""When does a transfer enter its links? At max(ready + latency, end of its predecessor on the channel).

This module is the single definition, for numbers (`enter`) and for columns (`enters`). Inner loops repeat the
expression for speed and say so: `start` in `collective_play`, `recurrence.by_rounds`, and transfers.h in the compiled
core. Tests compare these loops with this module.
"""

from __future__ import annotations

import numpy as np

from simulator.basics.arrays import Floats


def enter(ready: float, latency: float, previous: float) -> float:
    """Return when a transfer's bytes begin to flow [s].

    Parameters
    ----------
    ready : float
        When all awaited transfers have ended and both participants have started [s].
    latency : float
        Latency of the route [s]; it passes while the predecessor still sends, so it never blocks the sender.
    previous : float
        End of the predecessor on the channel [s]; -inf for the first transfer.

    Examples
    --------
    >>> enter(3.0, 1.0, 2.0), enter(3.0, 1.0, 7.0)
    (4.0, 7.0)
    """
    return max(ready + latency, previous)


def enters(ready: Floats, latency: Floats, previous: Floats) -> Floats:
    """Return, for many transfers at once, when their bytes begin to flow [s]: max(ready + latency, previous)."""
    return np.maximum(ready + latency, previous)
