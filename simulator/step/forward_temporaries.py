"""How much memory do temporary arrays of a layer's forward pass take, beyond the tensors saved by the whole layer?

Operations run in order, and each may allocate arrays that end with it (`Operation.forward_peak`). Later operations have
saved nothing yet. Temporary arrays count only as far as they exceed what these operations will save.

Example: three operations save their inputs of 4, 6 and 10 bytes. The second one allocates 25 bytes at once, its output
included. At this moment 4 + 6 + 25 = 35 bytes are allocated, 15 more than the 20 bytes saved in total.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from simulator.model.operation import Operation, saved_bytes


def temporaries_within(operations: Sequence[Operation], run: Collection[Operation]) -> int:
    """Return the most bytes allocated at once in a forward pass that saves tensors, minus the tensors saved by the
    whole layer; at least 0 [B].

    Parameters
    ----------
    operations : sequence of Operation
        Operations of the layer, in order.
    run : collection of Operation
        Those that run: all, or those that a checkpointing policy recomputes.
    """
    names = {op.name for op in run if op.forward_peak}
    # Most layers have none, and a plan asks for every layer of each setting.
    if not names:
        return 0
    everything, most, sources = saved_bytes(tuple(operations)), 0, {"input"}
    tensors = {saved.name: saved for op in operations for saved in op.saved}.values()
    for place, op in enumerate(operations):
        if op.name in names:
            before = sum(saved.nbytes for saved in tensors if saved.source in sources)
            most = max(most, before + _entered(operations, place) + op.forward_peak - everything)
        sources.add(op.name)
    return most


def temporaries_without_saving(operations: Sequence[Operation]) -> int:
    """Return the most bytes that an operation with temporary arrays allocates, if a layer saves its input alone [B]."""
    return max(
        (_entered(operations, place) + op.forward_peak for place, op in enumerate(operations) if op.forward_peak),
        default=0,
    )


def _entered(operations: Sequence[Operation], place: int) -> int:
    """Return the bytes of an operation's input that exists without being saved [B]: that of a frozen matrix."""
    op = operations[place]
    saves_input = any(saved.source != op.name for saved in op.saved)
    return 0 if saves_input or place == 0 else operations[place - 1].output
