"""Collectives of process groups as arrays: shapes of schedules, sizes, routes, and who takes part.

Rule: collectives that are alike in schedule, sizes, routes or ranks share these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.columns import Columns, Known, begins
from simulator.engine.compiled.fields import FIELDS, IN_ORDER, TOGETHER
from simulator.engine.compiled.playable import Playable
from simulator.engine.compiled.rows import Rows
from simulator.engine.compiled.shape import shape_columns
from simulator.engine.routes import Routes
from simulator.records.program import Collective


def instances(
    collectives: Mapping[str, Collective],
    playables: Mapping[str, Playable],
    group_of: Callable[[Collective], tuple[int, ...]],
    logged: set[str],
    tapped: Mapping[str, Ints],
    capacity: Floats,
) -> dict[str, Any]:
    """Every collective, with what it shares with others: shape, sizes, routes, group."""
    shapes, sizes, routings, groups = Known(), Known(), Known(), Known()
    columns: dict[str, list[Any]] = {
        name: [] for name in ("shape", "sizes", "routing", "group", "flags", "noise_number", "lane", "log_begin")
    }
    kept = played = 0
    for name, op in collectives.items():
        own, group = playables.get(name), group_of(op)
        row = {"shape": -1, "sizes": -1, "routing": -1, "flags": TOGETHER if op.together else 0, "noise_number": played}
        row |= {"group": groups.number(group, partial(_same, group)), "lane": 0, "log_begin": -1}
        played += op.duration is None
        if own is not None:
            taps = tapped.get(name, _NO_TAPS)
            row["shape"] = shapes.number((id(own.rows), id(own.route_of)), partial(_same, (own.rows, own.route_of)))
            row["sizes"] = sizes.number(id(own.nbytes), partial(_same, (own.nbytes, own.steady)))
            row["routing"] = routings.number((id(own.routes), taps.tobytes()), partial(_same, (own.routes, taps)))
            row["flags"] |= IN_ORDER if own.in_order else 0
            row["lane"] = own.lane
            if name in logged:
                row["log_begin"] = kept
                kept += own.rows.transfers
        for column, value in row.items():
            columns[column].append(value)
    return (
        columns
        | {
            "logged": kept,
            "instances": len(collectives),
            "startup": [op.startup for op in collectives.values()],
            "duration": [op.duration or 0.0 for op in collectives.values()],
            "group_begin": begins(map(len, groups.things)),
            "group_rank": [rank for ranks in groups.things for rank in ranks],
        }
        | _shapes(shapes.things)
        | _sizes(sizes.things)
        | _routings(routings.things, capacity)
    )


_NO_TAPS: Final[Ints] = np.zeros(0, np.int64)


def _same(thing: Any) -> Any:
    return thing


def _shapes(shapes: Sequence[tuple[Rows, Ints]]) -> dict[str, Any]:
    columns = Columns()
    lengths: list[int] = []
    parts: list[int] = []
    participants: list[int] = []
    made = [shape_columns(rows) | {"row_route": np.where(rows.is_gate, -1, route)} for rows, route in shapes]
    for name in FIELDS:
        if name in _SHAPE_COLUMNS:
            columns.add(**{name: ()})
    columns.add(**dict.fromkeys(_COUNTED, 0))
    at = dict.fromkeys(_COUNTED, 0)
    for (rows, _), own in zip(shapes, made, strict=True):
        columns.add(**{name: own[name] for name in _SHAPE_COLUMNS})
        for begin, count in _COUNTED.items():
            columns.add(**{begin: at[begin] + np.cumsum(own[count])})
            at[begin] += int(own[count].sum())
        lengths.append(len(rows))
        parts.append(len(rows.times))
        participants.append(rows.participants)
    return columns.values() | {
        "shape_row": begins(lengths),
        "shape_part": begins(parts),
        "initial_begin": begins(participants),
    }


# Columns of shapes that are put one behind the other, and offsets that are made of counts.
_SHAPE_COLUMNS: Final = tuple(
    name
    for name in FIELDS
    if name in ("participants", "shape_transfers", "shape_slots", "initial", "ring_behind")
    or (name.startswith(("row_", "inner_", "outer_", "part_")) and not name.endswith("_begin"))
)
_COUNTED: Final = {"inner_begin": "inner_count", "outer_begin": "outer_count", "initial_list": "initial_count"}


def _sizes(sizes: Sequence[tuple[Floats, bool]]) -> dict[str, Any]:
    return {
        "size_begin": begins(len(nbytes) for nbytes, _ in sizes)[:-1],
        "size_steady": [steady for _, steady in sizes],
        "nbytes": np.concatenate([np.zeros(0), *(nbytes for nbytes, _ in sizes)]),
    }


def _routings(routings: Sequence[tuple[Routes, Ints]], capacity: Floats) -> dict[str, Any]:
    columns = Columns()
    empty = ("route_latency", "route_rate", "route_capped", "route_tapped", "route_link", "route_weight", "busy_link")
    columns.add(**dict.fromkeys(empty, ()), route_begin=0, busy_begin=0)
    routes_before = [0]
    links = busy = longest = 0
    for routes, taps in routings:
        route, link, weight = routes.watched
        count = np.bincount(route, minlength=len(routes))
        own = np.full(len(routes), np.inf)
        np.minimum.at(own, route, capacity[link] / weight)
        tapped = np.zeros(len(routes), np.uint8)
        tapped[taps] = 1
        used = np.unique(link)
        busy += len(used)
        columns.add(
            route_latency=routes.latency,
            route_rate=routes.rate,
            # Without a link on which it can meet others, nothing but its rate bounds a flow.
            route_capped=(routes.rate < own) & (count > 0),
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
