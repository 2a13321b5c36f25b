"""In which order do a simulated step's operations change numbers? In the order of their ends.

Only an asynchronous worker's pull reads parameters at its start. This module sorts the timeline's spans and does
nothing with numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.learning.setting import TrainingContext
from simulator.records.operation import Collective, Compute, Exchange


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """A moment in a simulated step when an operation changes numbers: the operation's end or start."""

    time: float  # moment [s]
    rank: int  # rank that runs the operation
    op: Compute | Collective  # the operation
    ends: bool = True  # True at the operation's end, False at its start


def operation_events(setting: TrainingContext) -> Iterator[OperationEvent]:
    """Yield the moments of a simulated step when operations change numbers, in clock order.

    An asynchronous worker reads parameters at the start of its pull; all other operations act at their end. At equal
    times, ends come before starts: servers have updated before a worker reads.
    """
    ops = [{op.name: op for op in rank_ops} for rank_ops in setting.plan.program.ranks]
    keyed: list[tuple[tuple[float, bool, float, int], OperationEvent]] = []
    for span in setting.timeline.spans:
        op = ops[span.rank][span.name]
        if not isinstance(op, Compute | Collective) or op.act is None:
            continue
        # Ties between ends go to the operation that started first, then to the lower rank, so the order is
        # reproducible.
        keyed.append(((span.end, False, span.start, span.rank), OperationEvent(span.end, span.rank, op)))
        if op.act.effect is Exchange.PULL and setting.plan.step.sharding.asynchronous:
            begins = OperationEvent(span.start, span.rank, op, ends=False)
            keyed.append(((span.start, True, span.start, span.rank), begins))
    return (event for _, event in sorted(keyed, key=lambda pair: pair[0]))
