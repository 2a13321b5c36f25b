"""A collective in the form needed by the core: rows, bytes for each row, and routes.

A playable is either a program's collective, or (quotient.py) a class's representative.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.collective_routing import RoutedCollective, in_units
from simulator.engine.compiled.partition import route_of_rows
from simulator.engine.compiled.rows import Rows, rows_of
from simulator.engine.routes import Routes
from simulator.records.operation import Collective

# Operations in which no rank is done before the last rank has come, because each result depends on every input.
_ALL_WAIT: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


@dataclass(frozen=True, eq=False, slots=True)
class SizedCollective:
    """A process group's collective in the form needed by the compiled core: rows of its schedule, bytes and routes."""

    rows: Rows  # transfers and their order
    # Route of each row; 0 for gates; shape (rows,).
    route_of: Ints
    # Bytes of each row if `steady`, otherwise of each transfer by the schedule's numbers, over their priority; shape
    # (rows,) or (transfers,).
    units: Floats
    steady: bool  # True if each row carries equal bytes in all repetitions
    routes: Routes  # links, latencies and rates
    in_order: bool  # True if it may be computed without a clock while it meets no other collective
    lane: int  # playables of one lane never contend with each other
    detours: tuple[Routes, ...] = ()  # links, latencies and rates around each set of avoided links


@dataclass(slots=True)
class SizedCollectiveMaker:
    """Builds collectives for the compiled core; equal schedules share rows, equal traffic shares arrays of bytes."""

    # `Cluster.remember`, which caches across programs. The default calls `make` without caching.
    remember: Callable[[Hashable, Callable[[], Any], Callable[[Any], int]], Any] = lambda _, make, size: make()
    _made: dict[int, SizedCollective] = field(default_factory=dict)
    _rows: dict[int, Rows] = field(default_factory=dict)
    _routes: dict[int, Ints] = field(default_factory=dict)
    _units: dict[tuple[int, float], Floats] = field(default_factory=dict)

    def rows(self, routed: RoutedCollective) -> Rows:
        """Return the rows (transfers in a round, with waits) in a routed collective's schedule, cached by schedule."""
        schedule = routed.traffic.schedule
        if id(schedule) not in self._rows:
            # The cached tuple keeps the schedule alive: the key contains its id.
            entry = self.remember(
                (Rows, id(schedule)), lambda: (schedule, rows_of(routed.traffic)), lambda entry: 12 * len(entry[1])
            )
            self._rows[id(schedule)] = entry[1]
        return self._rows[id(schedule)]

    def make(self, op: Collective, routed: RoutedCollective) -> SizedCollective:
        """Return a collective with its routes in the form that the compiled core needs, cached by `routed`."""
        if id(routed) not in self._made:
            rows = self.rows(routed)
            # Traffics with the same schedule number their routes alike.
            route_of = self._routes.setdefault(id(rows), route_of_rows(rows, routed))
            units, in_order = self._carried(rows, routed), not routed.contends and may_be_in_order(op)
            self._made[id(routed)] = SizedCollective(
                rows, route_of, units, routed.traffic.steady, routed.routes, in_order, routed.lane, routed.detours
            )
        return self._made[id(routed)]

    def _carried(self, rows: Rows, routed: RoutedCollective) -> Floats:
        """Return each row's units if repetitions carry equal bytes, otherwise each transfer's units."""
        key = id(routed.traffic), routed.priority
        if key not in self._units:
            self._units[key] = units_by_row(rows, routed) if routed.traffic.steady else routed.units
        return self._units[key]


def units_by_row(rows: Rows, routed: RoutedCollective) -> Floats:
    """Return each row's bytes over their priority in its first repetition, 0 for gates."""
    nbytes = np.zeros(len(rows))
    nbytes[~rows.is_gate] = np.concatenate([np.zeros(0), *(part.nbytes for part in routed.traffic.parts)])
    return in_units(nbytes, routed.priority)


def may_be_in_order(op: Collective) -> bool:
    """Return True if the collective's operation lets no rank finish before the last rank has arrived."""
    return op.schedule.operation in _ALL_WAIT
