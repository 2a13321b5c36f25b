"""Lists of operations as arrays: streams and their queues, what waits for what, which rank takes part where.

Rule: ranks that share a list share its arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.columns import Columns, Known, begins
from simulator.engine.compiled.fields import COLLECTIVE, KERNEL, MEMORY, ON_GPU, TAKES_SMS
from simulator.records.program import Collective, Compute, Op

_OP_COLUMNS: Final = (
    "queue", "after", "op_kind", "op_flags", "op_stream", "op_alone", "op_contended", "op_instance", "op_member",
)  # fmt: skip


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


def operation_lists(lists: Lists, number: Mapping[str, int]) -> dict[str, Any]:
    """Lists of operations, and which rank takes part where in what."""
    columns, tables = Columns(), Known()
    streams: list[int] = []
    queues: list[int] = []
    columns.add(**dict.fromkeys(_OP_COLUMNS, ()), after_begin=0)
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
        "list_begin": begins(map(len, lists.ops)),
        "stream_begin": begins(streams),
        "queue_begin": begins(queues),
        "member_group": table[:, 0],
        "member_place": table[:, 1],
    }


def _table(tables: Known, lists: Lists, own: Sequence[Collective]) -> int:
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
