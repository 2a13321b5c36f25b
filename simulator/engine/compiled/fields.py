"""The structs in problem.h as ctypes, with equal field names, and the arrays for their fields.

Names, types and borders only; problem.h explains the meaning.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Ints
from simulator.basics.errors import DefectError

KERNEL, COLLECTIVE, MEMORY = range(3)
ON_GPU, TAKES_SMS = 1, 2
TOGETHER, IN_ORDER = 1, 2


_INT32: Final = "int32"
_INT64: Final = "int64"
_BYTE: Final = "uint8"
_FLOAT: Final = "float64"
# Every field in the C struct's order, with the type for the number or the array's entries.
FIELDS: Final[dict[str, Any]] = {
    "links": int, "capacity": _FLOAT,
    "changes": int, "change_time": _FLOAT, "change_link_begin": _INT64, "change_rank_begin": _INT64,
    "change_link": _INT32, "change_rank": _INT32, "change_capacity": _FLOAT, "change_speed": _FLOAT, "changing": _BYTE,
    "detours": int, "change_detour": _INT32, "avoided_begin": _INT64, "avoided_link": _INT32,
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
    "routings": int, "routing_route": _INT64, "route_latency": _FLOAT, "route_rate": _FLOAT, "route_capped": _BYTE,
    "route_tapped": _BYTE, "route_begin": _INT64, "route_link": _INT32, "route_weight": _FLOAT, "longest_route": int,
    "busy_begin": _INT64, "busy_link": _INT32,
    "noise_compute": _FLOAT, "noise_latency": _FLOAT, "seed": int, "noise_rank": _INT64,
}  # fmt: skip
# Number of entries in each array: arrays in a group have one length. A length that is no field of the core is the first
# array's own.
_LENGTHS: Final[dict[str, tuple[str, ...]]] = {
    "links": ("capacity", "changing"), "changes": ("change_time", "change_detour"),
    "changed links": ("change_link", "change_capacity"), "changed ranks": ("change_rank", "change_speed"),
    "avoided": ("avoided_link",), "ranks": ("list_of", "speed", "out_begin", "noise_rank"), "queued": ("queue",),
    "operations": ("op_kind", "op_flags", "op_stream", "op_alone", "op_contended", "op_instance", "op_member"),
    "awaited": ("after",), "memberships": ("member_group", "member_place"),
    "instances": ("shape", "sizes", "routing", "group", "flags", "startup", "duration", "noise_number", "lane",
                  "log_begin"),
    "members": ("group_rank",), "shapes": ("participants", "shape_transfers", "shape_slots"), "started": ("initial",),
    "rows": ("row_src", "row_dst", "row_route", "row_base", "row_stride", "row_log", "row_log_stride", "row_slot",
             "row_slot_stride", "row_times", "row_waits", "row_follows", "row_next", "row_next_shift", "row_exit",
             "row_noise", "row_noise_stride", "ring_behind"),
    "inner": ("inner_row", "inner_shift"), "outer": ("outer_row", "outer_at", "outer_times"),
    "parts": ("part_row", "part_rows", "part_times", "part_ring", "part_moves"),
    "tables": ("size_begin", "size_steady"),
    "routes": ("route_rate", "route_latency", "route_capped", "route_tapped"), "sized": ("nbytes",),
    "taken": ("route_link", "route_weight"), "busy": ("busy_link",), "routed": ("routing_route",),
}  # fmt: skip
# Offsets of segments: the number of segments, and the length of the array that they divide.
_OFFSETS: Final[dict[str, tuple[str, str]]] = {
    "change_link_begin": ("changes", "changed links"), "change_rank_begin": ("changes", "changed ranks"),
    "avoided_begin": ("detours", "avoided"), "list_begin": ("lists", "operations"),
    "stream_begin": ("lists", "streams"), "queue_begin": ("streams", "queued"),
    "after_begin": ("operations", "awaited"),
    "group_begin": ("groups", "members"), "shape_row": ("shapes", "rows"), "shape_part": ("shapes", "parts"),
    "initial_begin": ("shapes", "starters"), "initial_list": ("starters", "started"), "inner_begin": ("rows", "inner"),
    "outer_begin": ("rows", "outer"), "route_begin": ("routes", "taken"), "busy_begin": ("routed", "busy"),
}  # fmt: skip
# What the entries of an array number, and the least entry.
_NUMBERS: Final[dict[str, tuple[str, int]]] = {
    "change_link": ("links", 0), "change_rank": ("ranks", 0), "change_detour": ("detours", 0),
    "avoided_link": ("links", 0), "list_of": ("lists", 0), "group_rank": ("ranks", 0), "group": ("groups", 0),
    "shape": ("shapes", -1), "sizes": ("tables", -1), "routing": ("routings", -1), "route_link": ("links", 0),
    "busy_link": ("links", 0),
}  # fmt: skip
# Entries of a table of noise (noise.h).
_QUANTILES: Final = 4097


def _c_type(kind: Any) -> Any:
    """Return the ctypes type for a C struct's field, given its Python or array type; arrays become pointers."""
    return {int: ctypes.c_int64, float: ctypes.c_double}.get(kind, ctypes.c_void_p if isinstance(kind, str) else kind)


class ProblemStruct(ctypes.Structure):
    """The C struct `Problem` of problem.h, the core's input, as a ctypes structure."""

    _fields_ = [(name, _c_type(kind)) for name, kind in FIELDS.items()]


class ResultStruct(ctypes.Structure):
    """The C struct `Result` of problem.h, the core's output, as a ctypes structure."""

    _fields_ = [
        ("start", ctypes.c_void_p), ("end", ctypes.c_void_p),
        ("enter", ctypes.c_void_p), ("through", ctypes.c_void_p), ("took", ctypes.c_void_p),
        ("tap", ctypes.c_void_p), ("taps", ctypes.c_int64), ("tap_room", ctypes.c_int64),
        ("events", ctypes.c_int64), ("followed", ctypes.c_int64), ("in_order", ctypes.c_int64),
        ("ended", ctypes.c_int64), ("now", ctypes.c_double), ("stop", ctypes.c_int32),
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Problem:
    """Input of the compiled core: a program in flat arrays.

    Attributes
    ----------
    values : mapping of str to array or number
        Values by field of problem.h.
    out_begin : int array, shape (ranks,)
        First entry of each rank among the operations of the results.
    operations : int
        Number of operations of all simulated ranks.
    logged : int
        Number of transfers whose times are logged.
    """

    values: Mapping[str, Any]
    out_begin: Ints
    operations: int
    logged: int

    @property
    def transfers(self) -> int:
        """Number of simulated transfers, gates (rows without bytes, for waiting only) included."""
        shape = self.values["shape"]
        return int(self.values["shape_transfers"][shape[shape >= 0]].sum())

    def struct(self) -> ProblemStruct:
        """Return the core's input as a C struct, which borrows the arrays: keep this object alive."""
        struct = ProblemStruct()
        for name, value in self.values.items():
            setattr(struct, name, value.ctypes.data if isinstance(value, np.ndarray) else value)
        return struct


def as_field(name: str, values: Any) -> npt.NDArray[Any]:
    """Return `values` as a contiguous array in the type of the core's field `name`."""
    return np.ascontiguousarray(values, dtype=FIELDS[name])


def refuse_outside(problem: Problem) -> None:
    """Raise DefectError if an array of the core's input is too short, or an entry lies outside the array it indexes.

    The core itself checks no index. Numbers relative to a segment (places in a list, rows of a shape, routes of a
    routing) must lie in this segment.
    """
    v = problem.values
    size = {of: int(v.get(of, v[names[0]].size)) for of, names in _LENGTHS.items()}
    size |= {of: v[begin].size - 1 for begin, (of, _) in _OFFSETS.items() if of in ("lists", "streams", "groups")}
    size |= {"starters": v["initial_list"].size - 1, "detours": v["detours"], "routings": v["routings"]}
    size["routed"] = v["detours"] * v["routings"]
    for of, names in _LENGTHS.items():
        for name in names:
            _equal(name, v[name].size, size[of])
    for name in ("noise_compute", "noise_latency"):
        _equal(name, v[name].size if name in v else _QUANTILES, _QUANTILES)
    for name, (segments, whole) in _OFFSETS.items():
        ends = v[name]
        _equal(name, (ends.size, int(ends[0]), int(ends[-1])), (size[segments] + 1, 0, size[whole]))
        _within(name, _lengths(ends), size[whole] + 1)
    for name, (of, least) in _NUMBERS.items():
        _within(name, v[name], size[of], least)
    _refuse_outside_lists(problem)
    _refuse_outside_shapes(problem)


def _refuse_outside_lists(problem: Problem) -> None:
    """Raise DefectError if operations, streams, results or process groups lie outside their lists."""
    v = problem.values
    operations, streams = _lengths(v["list_begin"]), _lengths(v["stream_begin"])
    list_of, owner = v["list_of"], np.repeat(np.arange(operations.size), operations)
    _within("op_kind", v["op_kind"], MEMORY + 1)
    _within("op_stream", v["op_stream"], streams[owner])
    _within("queue", v["queue"], np.repeat(np.repeat(operations, streams), _lengths(v["queue_begin"])))
    _within("after", v["after"], np.repeat(operations[owner], _lengths(v["after_begin"])))
    _within("out_begin", v["out_begin"], problem.operations + 1 - operations[list_of])
    # Tables with a row for each set of groups; the groups of a family are numbered behind its first instance.
    groups, places = (v[name].reshape(-1, v["ranks"]) for name in ("member_group", "member_place"))
    _within("op_member", v["op_member"], max(len(groups), 1))
    _within("member_group", groups, v["instances"] + 1)
    used = np.flatnonzero(v["op_kind"] == COLLECTIVE)
    table = v["op_member"][used]
    _within("op_instance", v["op_instance"], max(v["instances"], 1))
    _within("member_group", v["op_instance"][used] + groups.max(axis=1, initial=0)[table], v["instances"])
    # Families of one table have equal groups: the first operation of each table speaks for all.
    table, first = np.unique(table, return_index=True)
    instance = v["op_instance"][used[first], None] + groups[table]
    _within("member_place", places[table], _lengths(v["group_begin"])[v["group"][instance]])


def _refuse_outside_shapes(problem: Problem) -> None:
    """Raise DefectError if rows, transfers, routes, sizes or logs of a collective lie outside its tables."""
    v = problem.values
    rows = _lengths(v["shape_row"])
    shape = np.repeat(np.arange(rows.size), rows)
    part_shape = np.repeat(np.arange(rows.size), _lengths(v["shape_part"]))
    _within("part_rows", v["part_rows"], rows[part_shape] + 1)
    _within("part_row", v["part_row"], rows[part_shape] + 1 - v["part_rows"])
    _equal("part_rows", int(v["part_rows"].sum()), v["row_src"].size)
    _within("row_route", v["row_route"], v["route_rate"].size, -1)
    _within("row_times", v["row_times"], 2**31)
    _equal("row_times or part_times", np.repeat(v["part_times"], v["part_rows"]).tobytes(), v["row_times"].tobytes())
    _equal("participants", _lengths(v["initial_begin"]).tolist(), v["participants"].tolist())
    for name in ("row_src", "row_dst"):
        _within(name, v[name], v["participants"][shape])
    for name, least in (("row_next", -1), ("row_exit", -1), ("ring_behind", 0)):
        _within(name, v[name], rows[shape], least)
    for kind in ("inner", "outer"):
        count = _lengths(v[f"{kind}_begin"])
        _within(f"{kind}_row", v[f"{kind}_row"], np.repeat(rows[shape], count))
    waiter = v["shape_row"][:-1][np.repeat(shape, count)] + v["outer_row"]
    _within("outer_times", v["outer_times"], v["row_times"][waiter])
    _within("outer_at", v["outer_at"], np.repeat(v["row_times"], count))
    _within("inner_shift", v["inner_shift"], np.repeat(v["row_times"], _lengths(v["inner_begin"])))
    _within("row_next_shift", v["row_next_shift"], 2, -1)
    _within("row_waits", v["row_waits"], v["inner_row"].size + v["outer_row"].size + 1)
    _within("initial", v["initial"], np.repeat(rows, _lengths(v["initial_list"][v["initial_begin"]])))
    # A ring computed in order has one slot a row, whatever its repetitions; gates have no place in a log.
    moves, last = v["row_route"] >= 0, v["row_times"].astype(np.int64) - 1
    in_ring = np.repeat(v["part_ring"] > 0, v["part_rows"])
    # Segments without rows end before the next begins: the others are reduced alone.
    some = np.flatnonzero(rows)
    begin = v["shape_row"][some]

    def of_shapes(reduce: np.ufunc, numbers: npt.NDArray[Any], empty: int) -> npt.NDArray[Any]:
        found = np.full(rows.size, empty, np.int64)
        if begin.size:
            found[some] = reduce.reduceat(numbers, begin)
        return found

    sent, every, slots = (
        of_shapes(np.add, times, 0) for times in ((last + 1) * moves, last + 1, np.where(in_ring, 1, last + 1))
    )
    _equal("shape_transfers", every.tolist(), v["shape_transfers"].tolist())
    _equal("shape_slots", slots.tolist(), v["shape_slots"].tolist())
    for first, stride, at, bound in (
        ("row_base", "row_stride", last, every),
        ("row_log", "row_log_stride", last * moves, np.where(sent > 0, sent, 1)),
        ("row_slot", "row_slot_stride", np.where(in_ring, 0, last), slots),
    ):
        _within(first, v[first], 2**62)
        _within(stride, v[stride], rows[shape] + 1)
        _within(first, np.where(moves | (first != "row_log"), v[first] + at * v[stride], 0), bound[shape])
    played = np.flatnonzero(v["shape"] >= 0)
    own, sizes, routing = (v[name][played] for name in ("shape", "sizes", "routing"))
    _within("sizes", sizes, v["size_begin"].size)
    _within("routing", routing, v["routings"])
    _within("log_begin", v["log_begin"], problem.logged + 1, -1)
    _within(
        "log_begin", np.where(v["log_begin"][played] < 0, 0, v["log_begin"][played] + sent[own]), problem.logged + 1
    )
    needed = np.where(v["size_steady"][sizes] > 0, rows[own], sent[own])
    _within("size_begin", v["size_begin"], v["nbytes"].size + 1)
    _within("size_begin", v["size_begin"][sizes] + needed, v["nbytes"].size + 1)
    _within("routing_route", v["routing_route"], v["route_rate"].size + 1)
    last_route = of_shapes(np.maximum, v["row_route"], -1)
    routes = _lengths(np.append(v["routing_route"], v["route_rate"].size)).reshape(v["detours"], -1)
    _within("routing_route", routes, v["route_rate"].size + 1)
    _within("row_route", last_route[own], routes.min(axis=0, initial=2**62)[routing], -1)
    _within("longest_route", _lengths(v["route_begin"]), v["longest_route"] + 1)


def _equal(name: str, found: Any, needed: Any) -> None:
    """Raise DefectError if a length or an offset in the core's array `name` is not the needed one."""
    if found != needed:
        raise DefectError(f"the core's array {name} does not have the length or the ends of its table")


def _lengths(ends: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the differences of neighbours, as np.diff does, which takes ten times as long on a few hundred entries."""
    difference: npt.NDArray[Any] = ends[1:] - ends[:-1]
    return difference


def _within(name: str, values: npt.NDArray[Any], bound: Any, least: int = 0) -> None:
    """Raise DefectError unless all entries of the core's array `name` lie in `least` .. `bound` - 1."""
    if not values.size:
        return
    # Extremes need no array of truth values; most bounds are numbers.
    above = values.max() >= bound if np.ndim(bound) == 0 else (values >= bound).any()
    if above or values.min() < least:
        wrong = (values < least) | (values >= bound)
        raise DefectError(f"the core's array {name} has the entry {values[wrong][0]} outside the array that it indexes")
