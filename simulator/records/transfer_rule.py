"""When a transfer enters its links: the rule of transfers, as docs/design.md states it.

Rule: the one place of this expression, for numbers (`enter`) and for columns (`enters`). Inner loops write it out for
speed and say so: `collective_play`'s `start`, `recurrence.by_rounds`, and of the compiled core transfers.h;
tests hold all of them to it.
"""

from __future__ import annotations

import numpy as np

from simulator.basics.arrays import Floats


def enter(ready: float, latency: float, previous: float) -> float:
    """When the bytes of a transfer begin to flow [s].

    Parameters
    ----------
    ready : float
        When all that it waits for has ended and both its ends have started [s].
    latency : float
        Of its route [s]; it passes while the transfer before is still sending, so it never blocks the sender.
    previous : float
        The end of the transfer before it on its channel [s]; -inf for the first.

    Examples
    --------
    >>> enter(3.0, 1.0, 2.0), enter(3.0, 1.0, 7.0)
    (4.0, 7.0)
    """
    return max(ready + latency, previous)


def enters(ready: Floats, latency: Floats, previous: Floats) -> Floats:
    """`enter` of many transfers, arrays of one shape [s]."""
    return np.maximum(ready + latency, previous)
