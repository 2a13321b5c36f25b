"""A collective ready for the core: its rows, what each carries, and the links that it takes.

Rule: a record. Either a collective as it is, or (quotient.py) one that stands for many alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.compiled.partition import route_of_rows
from simulator.engine.compiled.rows import Rows, rows_of
from simulator.engine.routes import Routes
from simulator.records.operation import Collective

# Operations that no rank has finished before all have come: what each gets depends on what every other has.
_ALL_WAIT: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, eq=False, slots=True)
class Playable:
    """One collective of one group.

    Attributes
    ----------
    rows : Rows
    route_of : int array, shape (rows,)
        Row of `routes`; of gates 0.
    nbytes : float array, shape (rows,) or (transfers,)
        What each carries [B]: by row if `steady`, else by the schedule's numbers.
    steady : bool
    routes : Routes
    in_order : bool
        Whether it may be computed without a clock while it meets no other.
    lane : int
        Playables of one lane never contend with each other.
    """

    rows: Rows
    route_of: Ints
    nbytes: Floats
    steady: bool
    routes: Routes
    in_order: bool
    lane: int


@dataclass(slots=True)
class PlayableMaker:
    """Makes playables; collectives of one schedule share rows, those of one traffic share bytes.

    Attributes
    ----------
    remember : callable (key, make, size) -> value
        `Cluster.remember`, or, where nothing is kept from one program to the next, whatever calls `make`.
    """

    remember: Callable[[Hashable, Callable[[], Any], Callable[[Any], int]], Any] = lambda _, make, size: make()
    _made: dict[int, Playable] = field(default_factory=dict)
    _rows: dict[int, Rows] = field(default_factory=dict)
    _routes: dict[int, Ints] = field(default_factory=dict)
    _nbytes: dict[int, Floats] = field(default_factory=dict)

    def rows(self, routed: RoutedCollective) -> Rows:
        """The rows of a collective's schedule."""
        schedule = routed.traffic.schedule
        if id(schedule) not in self._rows:
            # What is kept has the schedule too, whose id is the key.
            made = self.remember(
                (Rows, id(schedule)), lambda: (schedule, rows_of(routed.traffic)), lambda made: 12 * len(made[1])
            )
            self._rows[id(schedule)] = made[1]
        return self._rows[id(schedule)]

    def make(self, op: Collective, routed: RoutedCollective) -> Playable:
        """A collective as it is."""
        if id(routed) not in self._made:
            rows = self.rows(routed)
            # Every traffic of a schedule numbers its routes alike.
            route_of = self._routes.setdefault(id(rows), route_of_rows(rows, routed))
            nbytes, alone = self._carried(rows, routed), not routed.contends and may_be_in_order(op)
            self._made[id(routed)] = Playable(
                rows, route_of, nbytes, routed.traffic.steady, routed.routes, alone, routed.lane
            )
        return self._made[id(routed)]

    def _carried(self, rows: Rows, routed: RoutedCollective) -> Floats:
        traffic = routed.traffic
        if not traffic.steady:
            return traffic.nbytes
        if id(traffic) not in self._nbytes:
            self._nbytes[id(traffic)] = carried_by_row(rows, routed)
        return self._nbytes[id(traffic)]


def carried_by_row(rows: Rows, routed: RoutedCollective) -> Floats:
    """What each row carries in its first repetition [B]; gates nothing."""
    nbytes = np.zeros(len(rows))
    nbytes[~rows.is_gate] = np.concatenate([np.zeros(0), *(part.nbytes for part in routed.traffic.parts)])
    return nbytes


def may_be_in_order(op: Collective) -> bool:
    """Whether no rank has finished before all have come."""
    return op.schedule.operation in _ALL_WAIT
