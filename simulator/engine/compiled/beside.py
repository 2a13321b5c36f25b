"""Collectives that share links with each other and with nothing else, played by the machinery of the events engine.

Rule: where shares change at every end there is no shorter way than to follow them; but whoever plays a program need not
follow them again for every operation that is alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from simulator.engine.clock import Clock
from simulator.engine.collective_play import CollectivePlay
from simulator.engine.fabric import Fabric
from simulator.engine.wiring import Wiring
from simulator.program import Collective

Floats = npt.NDArray[np.float64]


def play_beside(
    ops: Sequence[Collective],
    wirings: Sequence[Wiring],
    noises: Sequence[Floats | None],
    starts: Sequence[Floats],
    capacity: Sequence[float],
) -> list[tuple[Floats, tuple[Floats, Floats]]]:
    """Play collectives together on an idle fabric.

    Parameters
    ----------
    ops : sequence of Collective
    wirings, noises : of each, as for `CollectivePlay`
    starts : sequence of float array, shape (ranks of the group,)
        When each rank has reached it and paid its start-up [s].
    capacity : sequence of float
        Of the fabric's links [B/s].

    Returns
    -------
    list of (done, (enter, end))
        By collective: when each rank is through, and of every transfer [s].
    """
    clock = Clock()
    fabric = Fabric(clock, capacity)
    plays = [CollectivePlay(clock, fabric, *row) for row in zip(ops, wirings, noises, strict=True)]
    for play, start in zip(plays, starts, strict=True):
        for place, time in enumerate(start.tolist()):
            clock.when(time, lambda play=play, place=place: play.reach(place))  # type: ignore[misc]
    clock.play()
    found = []
    for play, start in zip(plays, starts, strict=True):
        log = play.log()
        done = np.concatenate([start, np.full(len(play.op.extras), -np.inf)])
        np.maximum.at(done, log.transfers.src, log.end)
        np.maximum.at(done, log.transfers.dst, log.end)
        found.append((done[: len(start)], (log.enter, log.end)))
    return found
