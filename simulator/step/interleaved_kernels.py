"""In which order are the kernels of two simultaneous passes on a rank issued? Alternately, cut at the exchanges.

DualPipe runs a forward pass beside a backward pass to hide exchanges [1]_. Here, the operations of both passes become a
single order of issue; the streams and the engine determine the overlap. Each pass keeps its own order, and an operation
still follows its dependencies.

Example: a forward pass with kernels a1 and a2, and a backward pass with kernels b1 and b2. The exchange x follows a1,
and a2 waits for x; y follows b1, and b2 waits for y. The order of issue is ::

    a1  x  b1  y  a2  b2

While x is in flight, b1 computes; while y is in flight, a2 computes.

References
----------
.. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 3.2.1 and figure 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.records.operation import Collective, Compute, Op
from simulator.step.streams import dimension_of

COMPUTE = "compute"


def interleaved_kernels(first: Sequence[Op], second: Sequence[Op]) -> list[Op]:
    """Return two simultaneous passes' operations as a single list in issue order, alternating between the passes at
    exchanges.

    The second pass follows the whole first pass if neither has a kernel waiting for an exchange, because there is
    nothing to hide, or if the second waits for an operation in the first, for example until gathered parameters are
    freed.
    """
    parts = _parts(first), _parts(second)
    names = {op.name for op in first}
    if max(map(len, parts)) == 1 or any(name in names for op in second for name in op.after):
        return [*first, *second]
    # Merge by relative position, because the passes may have unequal numbers of parts: 2 and 4 parts give a0 b0 b1 a1
    # b2 b3. Ties go to the first pass.
    order = sorted((number / len(row), which, number) for which, row in enumerate(parts) for number in range(len(row)))
    return [op for _, which, number in order for op in parts[which][number]]


def _parts(ops: Sequence[Op]) -> list[list[Op]]:
    """Return a pass's operations in lists, cut before each kernel that waits for an exchange of this pass.

    A pass that exchanges tokens with experts is cut at these exchanges alone: they take long, and the exchanges of
    tensor parallelism between them would leave short parts that hide little.
    """
    collectives = [op for op in ops if isinstance(op, Collective)]
    of_experts = {op.name for op in collectives if dimension_of(op.stream) == "ep"}
    exchanges = of_experts or {op.name for op in collectives}
    parts: list[list[Op]] = [[]]
    for op in ops:
        waits = isinstance(op, Compute) and op.stream == COMPUTE and not exchanges.isdisjoint(op.after)
        # Parts without a kernel could hide nothing, hence they stay joined with the next kernel.
        if waits and any(isinstance(before, Compute) for before in parts[-1]):
            parts.append([])
        parts[-1].append(op)
    return parts
