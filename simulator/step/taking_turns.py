"""Two passes of one rank whose kernels take turns, so that one computes while the other's exchanges are under way.

DualPipe runs a forward pass beside a backward pass for this [1]_. Here their operations are put in one order of issue,
and streams do the rest: what overlaps comes out of the engine.

Rule: each pass keeps its own order, and an operation still follows all that it waits for.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1 and figure 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.records.operation import Collective, Compute, Op

COMPUTE = "compute"


def taking_turns(one: Sequence[Op], other: Sequence[Op]) -> list[Op]:
    """The operations of two passes in the order in which they are issued.

    One after the other where neither exchanges anything, for then there is nothing to hide; and where the second waits
    for something of the first, such as room for the parameters that it gathers.
    """
    parts = _parts(one), _parts(other)
    names = {op.name for op in one}
    if max(map(len, parts)) == 1 or any(name in names for op in other for name in op.after):
        return [*one, *other]
    order = sorted((number / len(own), which, number) for which, own in enumerate(parts) for number in range(len(own)))
    return [op for _, which, number in order for op in parts[which][number]]


def _parts(ops: Sequence[Op]) -> list[list[Op]]:
    """Cut before all kernels that wait for an exchange of the same pass."""
    exchanges = {op.name for op in ops if isinstance(op, Collective)}
    parts: list[list[Op]] = [[]]
    for op in ops:
        waits = isinstance(op, Compute) and op.stream == COMPUTE and not exchanges.isdisjoint(op.after)
        if waits and any(isinstance(before, Compute) for before in parts[-1]):
            parts.append([])
        parts[-1].append(op)
    return parts
