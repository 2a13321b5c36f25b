"""A program on a cluster as the flat arrays that the core plays: `problem.h`, whose fields have the same names.

Rule: only a change of form. Ranks that share a list of operations share it here, collectives that are alike in
schedule, sizes or routes share these.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.playable import Playable
from simulator.engine.compiled.rows import Rows, starts
from simulator.engine.compiled.shape import shape_columns
from simulator.engine.jitter import Jitter
from simulator.engine.noise import factor_table
from simulator.engine.routes import Routes
from simulator.records.program import Collective, Compute, Op

KERNEL, COLLECTIVE, MEMORY = range(3)
ON_GPU, TAKES_SMS = 1, 2
TOGETHER, IN_ORDER = 1, 2


_INT32: Final = "int32"
_INT64: Final = "int64"
_BYTE: Final = "uint8"
_FLOAT: Final = "float64"
# Every field of the C struct in its order, with the kind of number or what its entries are.
FIELDS: Final[dict[str, Any]] = {
    "links": int, "capacity": _FLOAT,
    "ranks": int, "list_of": _INT32, "speed": _FLOAT, "out_begin": _INT64,
    "list_begin": _INT64, "stream_begin": _INT64, "queue_begin": _INT64, "queue": _INT32,
    "op_kind": _BYTE, "op_flags": _BYTE, "op_stream": _INT32, "op_alone": _FLOAT, "op_contended": _FLOAT,
    "after_begin": _INT64, "after": _INT32, "op_instance": _INT32, "op_member": _INT32,
    "member_group": _INT32, "member_place": _INT32,
    "instances": int, "shape": _INT32, "sizes": _INT32, "routing": _INT32, "group": _INT32, "flags": _BYTE,
    "startup": _FLOAT, "duration": _FLOAT, "noise_number": _INT32, "lane": _INT32, "log_begin": _INT64,
    "group_begin": _INT64, "group_rank": _INT32,
    "participants": _INT32, "shape_transfers": _INT64, "shape_slots": _INT64, "shape_row": _INT64,
    "initial_begin": _INT64, "initial_list": _INT64, "initial": _INT32,
    "row_src": _INT32, "row_dst": _INT32, "row_route": _INT32, "row_base": _INT64, "row_stride": _INT64,
    "row_log": _INT64, "row_log_stride": _INT64, "row_slot": _INT64, "row_slot_stride": _INT64,
    "row_times": _INT32, "row_waits": _INT32, "row_follows": _BYTE, "row_next": _INT32, "row_next_shift": _INT32,
    "row_exit": _INT32, "row_noise": _INT32, "row_noise_stride": _INT32,
    "inner_begin": _INT64, "inner_row": _INT32, "inner_shift": _INT32,
    "outer_begin": _INT64, "outer_at": _INT32, "outer_row": _INT32, "outer_times": _INT32,
    "shape_part": _INT64, "part_row": _INT32, "part_rows": _INT32, "part_times": _INT32, "part_ring": _BYTE,
    "part_moves": _BYTE, "ring_behind": _INT32,
    "size_begin": _INT64, "size_steady": _BYTE, "nbytes": _FLOAT,
    "routing_route": _INT64, "route_latency": _FLOAT, "route_rate": _FLOAT, "route_capped": _BYTE,
    "route_tapped": _BYTE, "route_begin": _INT64, "route_link": _INT32, "route_weight": _FLOAT, "longest_route": int,
    "busy_begin": _INT64, "busy_link": _INT32,
    "noise_compute": _FLOAT, "noise_latency": _FLOAT, "seed": int, "noise_rank": _INT64,
}  # fmt: skip


def _c_type(kind: Any) -> Any:
    return {int: ctypes.c_int64, float: ctypes.c_double}.get(kind, ctypes.c_void_p if isinstance(kind, str) else kind)


class ProblemStruct(ctypes.Structure):
    """`Problem` of problem.h."""

    _fields_ = [(name, _c_type(kind)) for name, kind in FIELDS.items()]


class ResultStruct(ctypes.Structure):
    """`Result` of problem.h."""

    _fields_ = [
        ("start", ctypes.c_void_p), ("end", ctypes.c_void_p),
        ("enter", ctypes.c_void_p), ("through", ctypes.c_void_p),
        ("tap", ctypes.c_void_p), ("taps", ctypes.c_int64), ("tap_room", ctypes.c_int64),
        ("events", ctypes.c_int64), ("followed", ctypes.c_int64), ("in_order", ctypes.c_int64),
        ("ended", ctypes.c_int64), ("now", ctypes.c_double), ("stop", ctypes.c_int32),
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """What the core is given.

    Attributes
    ----------
    values : mapping of str to array or number
        By field of problem.h.
    out_begin : int array, shape (ranks,)
        Where a rank's operations begin among the results.
    operations : int
        Of all ranks.
    logged : int
        Transfers whose times are kept.
    """

    values: Mapping[str, Any]
    out_begin: Ints
    operations: int
    logged: int

    @property
    def transfers(self) -> int:
        """How many are played at most, gates among them."""
        shape = self.values["shape"]
        return int(self.values["shape_transfers"][shape[shape >= 0]].sum())

    def struct(self) -> ProblemStruct:
        """The C struct; the arrays must outlive it."""
        struct = ProblemStruct()
        for name, value in self.values.items():
            setattr(struct, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
        return struct


@dataclass(slots=True)
class _Columns:
    """Columns that grow piece by piece; each is put together once."""

    pieces: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, **pieces: Any) -> None:
        for name, piece in pieces.items():
            self.pieces.setdefault(name, []).append(piece)

    def values(self) -> dict[str, npt.NDArray[Any]]:
        return {
            name: np.concatenate([np.atleast_1d(np.asarray(piece, FIELDS[name])) for piece in own])
            for name, own in self.pieces.items()
        }


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    return np.ascontiguousarray(values, dtype=FIELDS[name])


def _begins(counts: Iterable[int]) -> Ints:
    return np.cumsum([0, *counts])


class _Known:
    """Things that are alike are kept once: what was made for a key has a number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.things: list[Any] = []

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """Number of what was made for a key, or is made now."""
        if key not in self.numbers:
            self.numbers[key] = len(self.things)
            self.things.append(make())
        return self.numbers[key]


@dataclass(frozen=True, eq=False)
class Lists:
    """The ranks that are played, and their operations.

    Attributes
    ----------
    ops : sequence of sequence of Op
        Lists of operations, each once.
    groups : sequence of sequence of tuple of Collective
        For each operation of each list the collective of every process group; empty for what is no collective.
    list_of : int array, shape (ranks,)
    members : callable (tuple of Collective) -> (int array, int array)
        By rank, which of the groups' collectives it takes part in, and its place there.
    group_of : callable (Collective) -> tuple of int
        Ranks that take part in a collective.
    speeds : float array, shape (ranks,)
    """

    ops: Sequence[Sequence[Op]]
    groups: Sequence[Sequence[Sequence[Collective]]]
    list_of: Ints
    members: Callable[[Sequence[Collective]], tuple[Ints, Ints]]
    group_of: Callable[[Collective], tuple[int, ...]]
    speeds: Floats


def problem_of(
    lists: Lists,
    collectives: Mapping[str, Collective],
    playables: Mapping[str, Playable],
    capacity: Floats,
    jitter: Jitter,
    *,
    logged: Iterable[str] = (),
    tapped: Mapping[str, Ints] | None = None,
) -> Problem:
    """Write down for the core what it plays.

    Parameters
    ----------
    lists : Lists
    collectives : mapping of str to Collective
        All of the program, by name, in its order.
    playables : mapping of str to Playable
        Those whose transfers are played.
    capacity : float array
        Of the fabric's links [B/s].
    jitter : Jitter
    logged : iterable of str
        Collectives whose transfers' times are kept.
    tapped : mapping of str to int array
        Routes of collectives whose flows are noted.
    """
    ranks = len(lists.list_of)
    values: dict[str, Any] = {"links": len(capacity), "capacity": capacity, "ranks": ranks}
    values |= _lists(lists, {name: place for place, name in enumerate(collectives)})
    values |= _instances(collectives, playables, lists.group_of, set(logged), tapped or {}, capacity)
    lengths = np.diff(values["list_begin"])[lists.list_of]
    values |= {
        "list_of": lists.list_of,
        "speed": lists.speeds,
        "out_begin": starts(lengths),
        "seed": jitter.seed,
        "noise_rank": np.arange(ranks),
    }
    tables = {"noise_compute": jitter.compute, "noise_latency": jitter.latency}
    values |= {name: factor_table(sigma) for name, sigma in tables.items() if sigma}
    total = values.pop("logged")
    written = {name: _array(name, value) if isinstance(FIELDS[name], str) else value for name, value in values.items()}
    return Problem(written, starts(lengths), int(lengths.sum()), total)


def _lists(lists: Lists, number: Mapping[str, int]) -> dict[str, Any]:
    """Lists of operations, and which rank takes part where in what."""
    columns, tables = _Columns(), _Known()
    streams: list[int] = []
    queues: list[int] = []
    empty = (
        "queue",
        "after",
        "op_kind",
        "op_flags",
        "op_stream",
        "op_alone",
        "op_contended",
        "op_instance",
        "op_member",
    )
    columns.add(**dict.fromkeys(empty, ()), after_begin=0)
    for ops, groups in zip(lists.ops, lists.groups, strict=True):
        place_of = {op.name: place for place, op in enumerate(ops)}
        if len(place_of) != len(ops):
            raise ValueError("a rank has two operations of one name")
        by_stream: dict[str, list[int]] = {}
        for place, op in enumerate(ops):
            by_stream.setdefault(op.stream, []).append(place)
        numbers = {stream: at for at, stream in enumerate(by_stream)}
        kernels = [op if isinstance(op, Compute) else None for op in ops]
        own = [_operation(op, of_groups) for op, of_groups in zip(ops, groups, strict=True)]
        columns.add(
            op_kind=[kind for kind, _ in own],
            op_flags=[flags for _, flags in own],
            op_stream=[numbers[op.stream] for op in ops],
            op_alone=[kernel.duration if kernel else 0.0 for kernel in kernels],
            op_contended=[_contended(kernel) if kernel else 0.0 for kernel in kernels],
            op_instance=[number[of_groups[0].name] if of_groups else 0 for of_groups in groups],
            op_member=[_table(tables, lists, of_groups) if of_groups else 0 for of_groups in groups],
            after=[place_of[name] for op in ops for name in op.after],
            after_begin=[len(op.after) for op in ops],
        )
        for queue in by_stream.values():
            columns.add(queue=queue)
            queues.append(len(queue))
        streams.append(len(by_stream))
    values = columns.values()
    table = np.array(tables.things, np.int32).reshape(-1, 2, len(lists.list_of))
    return values | {
        "after_begin": np.cumsum(values["after_begin"]),
        "list_begin": _begins(map(len, lists.ops)),
        "stream_begin": _begins(streams),
        "queue_begin": _begins(queues),
        "member_group": table[:, 0],
        "member_place": table[:, 1],
    }


_OP_COLUMNS: Final = (
    "queue", "after", "op_kind", "op_flags", "op_stream", "op_alone", "op_contended", "op_instance", "op_member",
)  # fmt: skip


def _table(tables: _Known, lists: Lists, own: Sequence[Collective]) -> int:
    """Row of the membership tables for the collectives of these groups."""
    return tables.number(tuple(op.group for op in own), lambda: lists.members(own))


def _operation(op: Op, groups: Sequence[Collective]) -> tuple[int, int]:
    """Kind and flags."""
    if isinstance(op, Compute):
        return KERNEL, ON_GPU if op.on_gpu else 0
    if groups:
        return COLLECTIVE, TAKES_SMS if groups[0].takes_sms else 0
    return MEMORY, 0


def _contended(kernel: Compute) -> float:
    return kernel.duration if kernel.contended is None else kernel.contended


def _instances(
    collectives: Mapping[str, Collective],
    playables: Mapping[str, Playable],
    group_of: Callable[[Collective], tuple[int, ...]],
    logged: set[str],
    tapped: Mapping[str, Ints],
    capacity: Floats,
) -> dict[str, Any]:
    """Every collective, with what it shares with others: shape, sizes, routes, group."""
    shapes, sizes, routings, groups = _Known(), _Known(), _Known(), _Known()
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
            "group_begin": _begins(map(len, groups.things)),
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
    columns = _Columns()
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
        "shape_row": _begins(lengths),
        "shape_part": _begins(parts),
        "initial_begin": _begins(participants),
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
        "size_begin": _begins(len(nbytes) for nbytes, _ in sizes)[:-1],
        "size_steady": [steady for _, steady in sizes],
        "nbytes": np.concatenate([np.zeros(0), *(nbytes for nbytes, _ in sizes)]),
    }


def _routings(routings: Sequence[tuple[Routes, Ints]], capacity: Floats) -> dict[str, Any]:
    columns = _Columns()
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
