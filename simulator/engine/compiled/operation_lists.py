"""How are operation lists stored in arrays? Ranks with a common list share streams, queues, waits and memberships."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.columns import Columns, Known, begins
from simulator.engine.compiled.fields import COLLECTIVE, KERNEL, MEMORY, ON_GPU, TAKES_SMS
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.records.operation import Collective, Compute, Op

_OP_COLUMNS: Final = (
    "queue", "after", "op_kind", "op_flags", "op_stream", "op_alone", "op_contended", "op_work", "op_instance",
    "op_member",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Lists:
    """The simulated ranks and their lists of operations; ranks with equal operations share a list."""

    ops: Sequence[Sequence[Op]]  # the distinct lists of operations
    # Family of each operation of each list; -1 for operations that are no collectives.
    family_at: Sequence[Sequence[int]]
    kind_of: Sequence[int]  # kind of each family
    # List of each simulated rank; shape (ranks,).
    list_of: Ints
    # Speed of each simulated rank, 1 for a healthy GPU; shape (ranks,).
    speeds: Floats
    # Factors on durations, as in `Program`; shape (rows, ranks).
    work: Floats


def first_instances(lists: Lists, kinds: Sequence[SimulatedKind]) -> Ints:
    """Return, for each collective family, the number given to the first process group's collective; then the total.

    A family is the same operation on several process groups, numbered consecutively.
    """
    return begins(len(kinds[kind].members) for kind in lists.kind_of)


def operation_lists(lists: Lists, kinds: Sequence[SimulatedKind]) -> dict[str, Any]:
    """Return the core's arrays, by field of problem.h, for the ranks' operations and their process groups."""
    columns, tables = Columns(), Known()
    table_of = [_table(tables, kind) for kind in kinds]
    first = first_instances(lists, kinds).tolist()
    streams: list[int] = []
    queues: list[int] = []
    columns.add(**dict.fromkeys(_OP_COLUMNS, ()), after_begin=0)
    for ops, families in zip(lists.ops, lists.family_at, strict=True):
        # Waits refer to names; the core needs places.
        place_of = {op.name: place for place, op in enumerate(ops)}
        if len(place_of) != len(ops):
            raise ValueError("a rank has two operations of one name")
        by_stream: dict[str, list[int]] = {}
        for place, op in enumerate(ops):
            by_stream.setdefault(op.stream, []).append(place)
        # Streams are numbered in order of first appearance.
        numbers = {stream: at for at, stream in enumerate(by_stream)}
        kernels = [op if isinstance(op, Compute) else None for op in ops]
        kinds_and_flags = [_operation(op) for op in ops]
        columns.add(
            op_kind=[kind for kind, _ in kinds_and_flags],
            op_flags=[flags for _, flags in kinds_and_flags],
            op_stream=[numbers[op.stream] for op in ops],
            op_alone=[kernel.duration if kernel else 0.0 for kernel in kernels],
            op_contended=[_contended(kernel) if kernel else 0.0 for kernel in kernels],
            op_work=[kernel.work if kernel else -1 for kernel in kernels],
            op_instance=[first[family] if family >= 0 else 0 for family in families],
            op_member=[table_of[lists.kind_of[family]] if family >= 0 else 0 for family in families],
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
        # The column contains counts up to here, after a leading 0.
        "after_begin": np.cumsum(values["after_begin"]),
        "list_begin": begins(map(len, lists.ops)),
        "stream_begin": begins(streams),
        "queue_begin": begins(queues),
        "member_group": table[:, 0],
        "member_place": table[:, 1],
    }


def _table(tables: Known, kind: SimulatedKind) -> int:
    """Return the kind's row in the membership tables; kinds with equal groups share a row."""
    return tables.number((kind.which.tobytes(), kind.place.tobytes()), lambda: (kind.which, kind.place))


def _operation(op: Op) -> tuple[int, int]:
    """Return an operation's code for the core (kernel, collective or memory) and its flags."""
    if isinstance(op, Compute):
        return KERNEL, ON_GPU if op.on_gpu else 0
    if isinstance(op, Collective):
        return COLLECTIVE, TAKES_SMS if op.takes_sms else 0
    return MEMORY, 0


def _contended(kernel: Compute) -> float:
    """Return a kernel's duration while a collective runs on the same GPU [s]."""
    return kernel.duration if kernel.contended is None else kernel.contended
