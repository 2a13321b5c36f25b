"""How are collectives stored in arrays? Equal shapes, sizes, routes and groups are stored once.

An instance is one process group's collective: a row with indices into the tables for shapes, sizes, routings and
groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.columns import Columns, Known, begins
from simulator.engine.compiled.fields import FIELDS, IN_ORDER, TOGETHER
from simulator.engine.compiled.rows import Rows
from simulator.engine.compiled.shape import shape_columns
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.engine.routes import Routes


def instances(
    kinds: Sequence[SimulatedKind],
    kind_of: Sequence[int],
    logged: Collection[int],
    tapped: Mapping[tuple[int, int], Ints],
    capacity: Floats,
    detours: int,
) -> dict[str, Any]:
    """Return the core's arrays, by field of problem.h, for collectives of each process group and their shared tables.

    Parameters
    ----------
    kinds : sequence of SimulatedKind
        Simulated members of each kind.
    kind_of : sequence of int
        Kind of each family.
    logged : collection of int
        Numbers of instances whose transfers are logged.
    tapped : mapping of (kind, member) to int array
        Routes whose flows are reported.
    capacity : float array, shape (links,)
        Capacity of the fabric's links [B/s].
    detours : int
        Number of sets of links that routes avoid, the empty one included.
    """
    # Objects are identified by id: playables share them if they are equal.
    shapes, sizes, routings, groups = Known(), Known(), Known(), Known()
    by_kind: list[dict[str, npt.NDArray[Any]]] = []
    for number, kind in enumerate(kinds):
        rows = []
        for place, (op, sized, group) in enumerate(zip(kind.members, kind.playables, kind.groups, strict=True)):
            # -1 for closed-form collectives.
            row = {"shape": -1, "sizes": -1, "routing": -1, "flags": TOGETHER if op.together else 0, "lane": 0}
            row |= {"group": groups.number(group, partial(_same, group)), "transfers": 0}
            row |= {"played": op.duration is None}
            if sized is not None:
                taps = tapped.get((number, place), _NO_TAPS)
                row["shape"] = shapes.number(
                    (id(sized.rows), id(sized.route_of)), partial(_same, (sized.rows, sized.route_of))
                )
                row["sizes"] = sizes.number(id(sized.units), partial(_same, (sized.units, sized.steady)))
                row["routing"] = routings.number(
                    (id(sized.routes), taps.tobytes()), partial(_same, ((sized.routes, *sized.detours), taps))
                )
                row["flags"] |= IN_ORDER if sized.in_order else 0
                row |= {"lane": sized.lane, "transfers": sized.rows.transfers}
            rows.append(row)
        # Families with equal kinds have equal rows: columns are built once per kind and concatenated per family.
        columns = {name: np.array([row[name] for row in rows], np.int64) for name in _INSTANCE_COLUMNS}
        columns["startup"] = np.array([op.startup for op in kind.members])
        columns["duration"] = np.array([op.duration or 0.0 for op in kind.members])
        by_kind.append(columns)
    names = (*_INSTANCE_COLUMNS, "startup", "duration")
    values: dict[str, Any] = {
        name: np.concatenate([np.zeros(0, np.int64), *(by_kind[kind][name] for kind in kind_of)]) for name in names
    }
    transfers, is_simulated = values.pop("transfers"), values.pop("played")
    is_logged = np.zeros(len(transfers), np.bool_)
    is_logged[list(logged)] = True
    # Closed-form collectives have no transfers to log.
    is_logged &= values["shape"] >= 0
    before = begins(np.where(is_logged, transfers, 0))
    return (
        values
        | {
            "log_begin": np.where(is_logged, before[:-1], -1),
            "logged": int(before[-1]),
            # Only collectives with simulated transfers are counted, as in the events engine.
            "noise_number": np.cumsum(is_simulated) - is_simulated,
            "instances": len(transfers),
            "group_begin": begins(map(len, groups.things)),
            "group_rank": [rank for ranks in groups.things for rank in ranks],
        }
        | _shapes(shapes.things)
        | _sizes(sizes.things)
        | {"routings": len(routings.things)}
        | _routings([(routes[k], taps) for k in range(detours) for routes, taps in routings.things], capacity)
    )


_INSTANCE_COLUMNS: Final = ("shape", "sizes", "routing", "group", "flags", "lane", "transfers", "played")
_NO_TAPS: Final[Ints] = np.zeros(0, np.int64)


def _same(thing: Any) -> Any:
    """Return the argument; `partial(_same, thing)` gives a function without arguments that returns `thing`."""
    return thing


def _shapes(shapes: Sequence[tuple[Rows, Ints]]) -> dict[str, Any]:
    """Concatenate the row graphs of several schedules, with each row's route, into the core's arrays.

    Returns the arrays by field of problem.h; offsets are shifted accordingly.
    """
    columns = Columns()
    lengths: list[int] = []
    parts: list[int] = []
    participants: list[int] = []
    shape_parts = [shape_columns(rows) | {"row_route": np.where(rows.is_gate, -1, route)} for rows, route in shapes]
    for name in FIELDS:
        if name in _SHAPE_COLUMNS:
            columns.add(**{name: ()})
    columns.add(**dict.fromkeys(_COUNTED, 0))
    at = dict.fromkeys(_COUNTED, 0)
    for (rows, _), shape in zip(shapes, shape_parts, strict=True):
        columns.add(**{name: shape[name] for name in _SHAPE_COLUMNS})
        # Counts become offsets that continue after the former shapes.
        for begin, count in _COUNTED.items():
            columns.add(**{begin: at[begin] + np.cumsum(shape[count])})
            at[begin] += int(shape[count].sum())
        lengths.append(len(rows))
        parts.append(len(rows.times))
        participants.append(rows.participants)
    return columns.values() | {
        "shape_row": begins(lengths),
        "shape_part": begins(parts),
        "initial_begin": begins(participants),
    }


# Shape columns to concatenate, and count columns to turn into cumulative offsets.
_SHAPE_COLUMNS: Final = tuple(
    name
    for name in FIELDS
    if name in ("participants", "shape_transfers", "shape_slots", "initial", "ring_behind")
    or (name.startswith(("row_", "inner_", "outer_", "part_")) and not name.endswith("_begin"))
)
_COUNTED: Final = {"inner_begin": "inner_count", "outer_begin": "outer_count", "initial_list": "initial_count"}


def _sizes(sizes: Sequence[tuple[Floats, bool]]) -> dict[str, Any]:
    """Concatenate arrays of transfer sizes [B], each with its flag `steady`; return the core's arrays by field."""
    return {
        "size_begin": begins(len(nbytes) for nbytes, _ in sizes)[:-1],
        "size_steady": [steady for _, steady in sizes],
        "nbytes": np.concatenate([np.zeros(0), *(nbytes for nbytes, _ in sizes)]),
    }


def _routings(routings: Sequence[tuple[Routes, Ints]], capacity: Floats) -> dict[str, Any]:
    """Concatenate route tables, each with the tapped route numbers, into the core's arrays; return them by field.

    Each route keeps only the links where flows can contend; `capacity` is in B/s.
    """
    columns = Columns()
    empty = ("route_latency", "route_rate", "route_capped", "route_tapped", "route_link", "route_weight", "busy_link")
    columns.add(**dict.fromkeys(empty, ()), route_begin=0, busy_begin=0)
    # First route of each routing.
    routes_before = [0]
    links = busy = longest = 0
    for routes, taps in routings:
        route, link, weight = routes.watched
        count = np.bincount(route, minlength=len(routes))
        # Each route's tightest bound by contended links [B/s].
        tightest = np.full(len(routes), np.inf)
        np.minimum.at(tightest, route, capacity[link] / weight)
        tapped = np.zeros(len(routes), np.uint8)
        tapped[taps] = 1
        used = np.unique(link)
        busy += len(used)
        columns.add(
            route_latency=routes.latency,
            route_rate=routes.rate,
            # Without contended links a flow never shares, and its rate needs no cap.
            route_capped=(routes.rate < tightest) & (count > 0),
            route_tapped=tapped,
            route_link=link,
            route_weight=weight,
            route_begin=links + np.cumsum(count),
            busy_link=used,
            busy_begin=busy,
        )
        routes_before.append(routes_before[-1] + len(routes))
        links += len(link)
        longest = max(longest, int(count.max(initial=0)))
    return columns.values() | {"routing_route": routes_before[:-1], "longest_route": longest}
