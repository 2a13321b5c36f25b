"""One collective on its links, played by arrays: what it needs to know beforehand, and what becomes of it.

Rule: laps as one step where nobody asks for each flow, else every transfer for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled import rounds
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.layout import Layout, layout_of
from simulator.engine.compiled.meetings import Use, use_of
from simulator.engine.wiring import Wiring

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Enter and end [s].
Times = tuple[Floats, Floats]
# Beyond so many transfers their columns take more than a few GiB.
MOST_WRITTEN = 2**25


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a collective.

    Attributes
    ----------
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    use : Use or None
        Of links that matter; None where none does.
    times : callable () -> (enter, end)
        Of every transfer [s].
    on : callable (rows of paths) -> (enter, end)
        Of the transfers that take one of these [s].
    """

    done: Floats
    use: Use | None
    times: Callable[[], Times]
    on: Callable[[Ints], Times]


def told_by_flow(wiring: Wiring, done: Floats, times: Times, crowd: Ints) -> Played:
    """What became of a collective whose every transfer is known."""

    def on(rows: Ints) -> Times:
        mine = np.isin(wiring.route, rows)
        return times[0][mine], times[1][mine]

    use = use_of(wiring, wiring.route, *times, crowd) if wiring.meets else None
    return Played(done, use, lambda: times, on)


@dataclass(frozen=True, eq=False)
class Shape:
    """A collective on its links, ready to be played from any start.

    Attributes
    ----------
    wiring : Wiring
    ranks : int
        Of the group.
    noise : float array, shape (transfers,), or None
        Factors on latencies.
    capacity : float array
        Of the fabric's links [B/s].
    """

    wiring: Wiring
    ranks: int
    noise: Floats | None
    capacity: Floats

    def played(self, start: Floats, *, flow_by_flow: bool = False) -> Played:
        """Play from when each rank has reached it and paid its start-up, shape (ranks,).

        Parameters
        ----------
        start : float array
        flow_by_flow : bool
            Whether every flow's use of links is to be told; else the flows of a lap may be told as one.

        Raises
        ------
        DeclinedError
            Too many transfers to be looked at one by one.
        """
        layout = self._whole if flow_by_flow else self._compact
        found = rounds.play(layout, start)
        if layout.whole:
            return told_by_flow(self.wiring, found.done, (found.enter, found.end), found.crowd)
        use = use_of(self.wiring, layout.route, found.enter, found.end, found.crowd) if self.wiring.meets else None
        return Played(
            found.done, use, lambda: self._every_transfer(start), lambda rows: rounds.times_on(layout, found, rows)
        )

    def _every_transfer(self, start: Floats) -> Times:
        found = rounds.play(self._whole, start)
        return found.enter, found.end

    @cached_property
    def _compact(self) -> Layout:
        return layout_of(self.wiring, self.ranks, self.noise, self.capacity)

    @cached_property
    def _whole(self) -> Layout:
        if len(self.wiring) > MOST_WRITTEN:
            raise DeclinedError(f"{len(self.wiring)} transfers are too many to be looked at one by one")
        return layout_of(self.wiring, self.ranks, self.noise, self.capacity, whole=True)
