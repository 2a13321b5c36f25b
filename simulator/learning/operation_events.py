"""In which order a played step's operations change numbers: as they end, or, an asynchronous pull, as it begins.

Rule: sorts what the timeline says; does nothing with numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.learning.setting import Setting
from simulator.records.operation import Collective, Compute, Exchange


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """An operation of a rank that does something with numbers, as it ends, or as it begins.

    Attributes
    ----------
    time : float
        [s]
    rank : int
    op : Compute or Collective
    ends : bool
    """

    time: float
    rank: int
    op: Compute | Collective
    ends: bool = True


def operation_events(setting: Setting) -> Iterator[OperationEvent]:
    """What happens to numbers, in the order of the clock.

    A worker that waits for nobody takes parameters as its pull starts; all else happens as operations end. Of things at
    one time those that end come first: servers have updated before anybody looks.
    """
    ops = [{op.name: op for op in own} for own in setting.plan.program.ranks]
    keyed: list[tuple[tuple[float, bool, float, int], OperationEvent]] = []
    for span in setting.timeline.spans:
        op = ops[span.rank][span.name]
        if not isinstance(op, Compute | Collective) or op.act is None:
            continue
        keyed.append(((span.end, False, span.start, span.rank), OperationEvent(span.end, span.rank, op)))
        if op.act.effect is Exchange.PULL and setting.plan.step.sharding.asynchronous:
            begins = OperationEvent(span.start, span.rank, op, ends=False)
            keyed.append(((span.start, True, span.start, span.rank), begins))
    return (event for _, event in sorted(keyed, key=lambda pair: pair[0]))
