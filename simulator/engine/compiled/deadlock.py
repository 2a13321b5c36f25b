"""Which operations wait for each other in a deadlock? The DeadlockError lists every stream left without an end."""

from __future__ import annotations

from simulator.basics.arrays import Floats
from simulator.basics.errors import DeadlockError
from simulator.engine.compiled.core import Times
from simulator.engine.compiled.fields import Problem
from simulator.engine.compiled.prepared import CoreProgram
from simulator.engine.program_checks import waiting_text
from simulator.records.operation import Collective


def deadlock(prepared: CoreProgram, problem: Problem, times: Times) -> DeadlockError:
    """Return the error for a deadlock; it names the operation or ranks for which each blocked stream waits."""

    def column(values: Floats, rank: int) -> list[float]:
        first = int(problem.out_begin[prepared.played_rank[rank]])
        return [float(value) for value in values[first : first + len(prepared.program.ranks[rank])]]

    # In the order of ranks and of their streams, as in the events engine.
    order = {f"rank {rank} ({op.stream})": "" for rank, ops in enumerate(prepared.program.ranks) for op in ops}
    waiting: dict[str, str] = {}
    reached: dict[str, set[int]] = {}
    for rank, ops in enumerate(prepared.program.ranks):
        for op, start in zip(ops, column(times.start, rank), strict=True):
            # NaN marks operations that did not start or did not end; only NaN differs from itself.
            if isinstance(op, Collective) and start == start:
                reached.setdefault(op.name, set()).add(rank)
    for rank, ops in enumerate(prepared.program.ranks):
        ended = {op.name for op, end in zip(ops, column(times.end, rank), strict=True) if end == end}
        for op, start in zip(ops, column(times.start, rank), strict=True):
            who = f"rank {rank} ({op.stream})"
            if op.name in ended or who in waiting:
                continue
            # An operation that has started waits for other ranks, not for operations.
            awaited = next((name for name in op.after if name not in ended), None) if start != start else None
            missing = [r for r in getattr(op, "group", ()) if r not in reached.get(op.name, set())]
            waiting[who] = waiting_text(op, awaited, missing)
    return DeadlockError(times.now, {who: waiting[who] for who in order if who in waiting})
