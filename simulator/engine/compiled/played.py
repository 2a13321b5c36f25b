"""One collective on its links, played by arrays: what it needs to know beforehand, and what becomes of it.

Rule: as rings without writing anything out where it is rings, else transfer by transfer in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled import rounds, steady
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.meetings import Use, use_of
from simulator.engine.wiring import Wiring

Floats = npt.NDArray[np.float64]
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
    on: Callable[[npt.NDArray[np.int64]], Times]


def told_by_flow(wiring: Wiring, done: Floats, times: Times, crowd: npt.NDArray[np.int64]) -> Played:
    """What became of a collective whose every transfer is known."""

    def on(rows: npt.NDArray[np.int64]) -> Times:
        mine = np.isin(wiring.route, rows)
        return times[0][mine], times[1][mine]

    use = use_of(wiring, wiring.route, *times, crowd) if wiring.meets else None
    return Played(done, use, lambda: times, on)


@dataclass(slots=True)
class Shape:
    """A collective on its links, ready to be played from any start.

    Attributes
    ----------
    wiring : Wiring
    ranks : int
        Of the group.
    noise : float array, shape (transfers,), or None
        Factors on latencies.
    capacity : sequence of float
        Of the fabric's links [B/s].
    """

    wiring: Wiring
    ranks: int
    noise: Floats | None
    capacity: Sequence[float]
    _rings: steady.Steady | None = field(init=False)
    _written: rounds.Shape | None = None

    def __post_init__(self) -> None:
        self._rings = steady.steady_of(self.wiring) if self.noise is None else None

    def played(self, start: Floats, *, flow_by_flow: bool = False) -> Played:
        """Play from when each rank has reached it and paid its start-up, shape (ranks,).

        Parameters
        ----------
        start : float array
        flow_by_flow : bool
            Whether every flow's use of links is to be told; else a channel's flows may be told as one.

        Raises
        ------
        DeclinedError
            Too many transfers to be looked at one by one.
        """
        if self._rings is not None and not (flow_by_flow and self.wiring.meets):
            return self._as_rings(self._rings, start)
        found = rounds.play(self._shape(), start)
        return told_by_flow(self.wiring, found.done, (found.enter, found.end), found.crowd)

    def _as_rings(self, rings: steady.Steady, start: Floats) -> Played:
        passage = steady.play(rings, start)
        use = None
        if self.wiring.meets:
            # Reducing rounds, which take HBM too, come first; what follows takes the same links.
            route = self.wiring.parts[0].route[rings.order].ravel()
            enter, end = passage.enter.ravel(), passage.end.ravel()
            use = use_of(self.wiring, route, enter, end, np.full(len(route), -1))
        return Played(
            passage.done, use, lambda: self._written_times(start), lambda rows: steady.times_on(rings, start, rows)
        )

    def _written_times(self, start: Floats) -> Times:
        found = rounds.play(self._shape(), start)
        return found.enter, found.end

    def _shape(self) -> rounds.Shape:
        if self._written is None:
            if len(self.wiring) > MOST_WRITTEN:
                raise DeclinedError(f"{len(self.wiring)} transfers are too many to be looked at one by one")
            schedule = self.wiring.schedule
            self._written = rounds.shape_of(schedule, self.wiring, self.ranks, self.noise, self.capacity)
        return self._written
