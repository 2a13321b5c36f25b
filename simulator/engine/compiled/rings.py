"""Closed recurrences for rings of many rounds: the core gives the ends of one round, and gets those of the last.

Rule: only a change of form, from the core's rows to rings and back; the recurrences stand in `collectives`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.collectives.recurrence import advance
from simulator.collectives.uneven import advance_uneven
from simulator.engine.compiled.problem import Problem
from simulator.engine.compiled.rows import Rows

# From so many transfers of a ring on, asking is cheaper than following its rounds, at some 1 ns each.
SOLVE_FROM: Final = 200_000


class RingSolver:
    """Called by the core; keeps what depends on the ring alone."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._orders: dict[int, Ints | None] = {}
        self._hops: dict[tuple[int, int, int], tuple[Floats, Floats, Floats] | None] = {}
        self.error: BaseException | None = None

    def __call__(self, row: int, instance: int, end: Any) -> int:
        """Put the ends of the last repetition in the place of those of the first; 1 where there is no closed form."""
        try:
            return int(not self._solved(row, instance, end))
        except BaseException as error:  # the core goes on with rounds, and whoever called it raises this
            self.error = error
            return 1

    def _solved(self, row: int, instance: int, end: Any) -> bool:
        rows, round_ = self.problem.rings[row]
        if row not in self._orders:
            self._orders[row] = ring_orders(rows, round_)
        order = self._orders[row]
        if order is None:
            return False
        values = self.problem.values
        key = row, int(values["routing"][instance]), int(values["sizes"][instance])
        if key not in self._hops:
            self._hops[key] = self._hop_columns(row, instance, order)
        hops = self._hops[key]
        if hops is None:
            return False
        latency, nbytes, rate = hops
        length = int(rows.lengths[round_])
        now = np.ctypeslib.as_array(end, shape=(length,))
        rounds = int(rows.times[round_]) - (not rows.joined[round_])
        if self._steady(instance):
            now[order] = advance(now[order], latency, nbytes / rate, rounds)
        else:
            now[order] = advance_uneven(now[order], latency, nbytes, rate, rounds)
        return True

    def _steady(self, instance: int) -> bool:
        return bool(self.problem.values["size_steady"][self.problem.values["sizes"][instance]])

    def _hop_columns(self, row: int, instance: int, order: Ints) -> tuple[Floats, Floats, Floats] | None:
        """Latency [s], bytes in the first round asked for [B] and rate [B/s] of each hop, in the rings' order."""
        rows, round_ = self.problem.rings[row]
        if not self._steady(instance) and not rows.moves[round_]:
            return None
        values, own = self.problem.values, row + order
        route = values["routing_route"][values["routing"][instance]] + values["row_route"][own]
        at = values["size_begin"][values["sizes"][instance]]
        if self._steady(instance):
            nbytes = values["nbytes"][at + own - values["shape_row"][values["shape"][instance]]]
        else:
            first = values["row_log"][own] + values["row_log_stride"][own] * (not rows.joined[round_])
            nbytes = values["nbytes"][at + first]
        return values["route_latency"][route], nbytes, values["route_rate"][route]


def ring_orders(rows: Rows, round_: int) -> Ints | None:
    """Rows of a round's rings, each after the one whose chunk it hands on, shape (rings, hops).

    None where these are no rings of one length: among classes of rows several may hand on what one brought.
    """
    first, length = int(rows.first[round_]), int(rows.lengths[round_])
    behind = rows.behind[first : first + length] - first
    after = np.full(length, -1)
    after[behind] = np.arange(length)
    if (after < 0).any():
        return None
    following, seen, rings = after.tolist(), bytearray(length), []
    for start in range(length):
        ring, at = [], start
        while not seen[at]:
            seen[at] = 1
            ring.append(at)
            at = following[at]
        if ring:
            rings.append(ring)
    return np.array(rings) if len({len(ring) for ring in rings}) == 1 else None
