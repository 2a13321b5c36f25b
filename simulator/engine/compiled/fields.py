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
    "op_work": _INT32, "work": _FLOAT,
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
    "changed_links": ("change_link", "change_capacity"), "changed_ranks": ("change_rank", "change_speed"),
    "avoided": ("avoided_link",), "ranks": ("list_of", "speed", "out_begin", "noise_rank"), "queued": ("queue",),
    "operations": ("op_kind", "op_flags", "op_stream", "op_alone", "op_contended", "op_work", "op_instance",
                   "op_member"),
    "worked": ("work",),
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
    "change_link_begin": ("changes", "changed_links"), "change_rank_begin": ("changes", "changed_ranks"),
    "avoided_begin": ("detours", "avoided"), "list_begin": ("lists", "operations"),
    "stream_begin": ("lists", "streams"), "queue_begin": ("streams", "queued"),
    "after_begin": ("operations", "awaited"),
    "group_begin": ("groups", "members"), "shape_row": ("shapes", "rows"), "shape_part": ("shapes", "parts"),
    "initial_begin": ("shapes", "starters"), "initial_list": ("starters", "started"), "inner_begin": ("rows", "inner"),
    "outer_begin": ("rows", "outer"), "route_begin": ("routes", "taken"), "busy_begin": ("routed", "busy"),
}  # fmt: skip
# Numbers that the core needs to check indices, in the C struct's order.
LENGTHS: Final = (*_LENGTHS, "lists", "streams", "groups", "starters", "detours", "routings", "results", "logged")
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
        ("outside", ctypes.c_char_p), ("entry", ctypes.c_int64),
        ("ended", ctypes.c_int64), ("now", ctypes.c_double), ("stop", ctypes.c_int32),
    ]  # fmt: skip


class LengthsStruct(ctypes.Structure):
    """The C struct `Lengths` of problem.h, numbers of entries of the core's arrays, as a ctypes structure."""

    _fields_ = [(name, ctypes.c_int64) for name in LENGTHS]


@dataclass(frozen=True, eq=False)
class Problem:
    """Input of the compiled core: a program in flat arrays."""

    values: Mapping[str, Any]  # values by field of problem.h
    # First entry of each rank among the operations of the results; shape (ranks,).
    out_begin: Ints
    operations: int  # number of operations of all simulated ranks
    logged: int  # number of transfers whose times are logged

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


def lengths_of(problem: Problem) -> LengthsStruct:
    """Return the lengths of the arrays of a problem, with which the core checks every index before it runs (border.h).

    Raises
    ------
    DefectError
        Arrays that belong together differ in length.
    """
    v = problem.values
    size = {of: int(v.get(of, v[names[0]].size)) for of, names in _LENGTHS.items()}
    size |= {of: v[begin].size - 1 for begin, (of, _) in _OFFSETS.items() if of in ("lists", "streams", "groups")}
    size |= {"starters": v["initial_list"].size - 1, "detours": v["detours"], "routings": v["routings"]}
    size |= {"routed": v["detours"] * v["routings"], "results": problem.operations, "logged": problem.logged}
    needed = {name: size[of] for of, names in _LENGTHS.items() for name in names}
    needed |= {begin: size[of] + 1 for begin, (of, _) in _OFFSETS.items()}
    # A factor for each rank in each row.
    if size["worked"] % max(1, size["ranks"]):
        raise DefectError(
            f"the core's array work has {size['worked']} entries, which {size['ranks']} ranks do not divide"
        )
    needed |= {name: _QUANTILES for name in ("noise_compute", "noise_latency") if name in v}
    for name, length in needed.items():
        if v[name].size != length:
            raise DefectError(f"the core's array {name} has {v[name].size} entries in place of {length}")
    return LengthsStruct(**size)
