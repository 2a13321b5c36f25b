"""How much memory do a layer's temporary arrays, and the gradients of its activations, take beyond its saved tensors?

Bare kernels alone are counted so, operation by operation. The program of a framework counts every array
(`simulator.model.layer.LayerProgram`).

Forward, operations run in order, and each may allocate arrays that end with it (`Operation.forward_peak`). Later
operations have saved nothing yet. Temporary arrays count only as far as they exceed what these operations will save.

Example: three operations save their inputs of 4, 6 and 10 bytes. The second one allocates 25 bytes at once, its output
included. At this moment 4 + 6 + 25 = 35 bytes are allocated, 15 more than the 20 bytes saved in total.

Backward, operations run in reverse. Each reads the gradient of its output, writes the gradient of its input, and then
frees both the gradient of its output and the tensors that it saved. The gradient of the residual stream waits beside
the operations of a branch.

Example: the MLP of a gated layer, hidden size h, three times as wide (bytes in units of h). Saved: gate and up 6, the
function's output 3, the product 3 (the input of `down`), the input of `up` 1. The gradient of the layer's output, 1,
waits all the time::

    down          gradient of its input 3            13 + 1 + 3 = 17 bytes; frees the product, 3
    activation    of its output 3, of its input 6    10 + 1 + 9 = 20 bytes; frees 9
    up            of its output 6, of its input 1     1 + 1 + 7 = 9 bytes

At most 20 bytes, 7 more than were saved. If the matrices are frozen, `down` and `up` save no input: 9 bytes are saved
and 1 + 9 = 10 more are allocated at most.
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


def gradients_within(operations: Sequence[Operation], entry: int) -> int:
    """Return the peak, over a layer's backward pass, of the bytes of activation gradients held minus the bytes of saved
    tensors already freed; at least 0 [B].

    Parameters
    ----------
    operations : sequence of Operation
        Operations of the layer, in the order of the forward pass.
    entry : int
        Size of the layer's input, and of the gradient of this input, which counts too [B].
    """
    if not any(op.backward for op in operations):
        return 0
    # A tensor is freed after the last operation of the backward pass that needs it: the first of the forward pass.
    frees: dict[str, int] = {}
    for place, op in enumerate(operations):
        for saved in op.saved:
            frees.setdefault(saved.name, place)
    live = everything = saved_bytes(tuple(operations))
    most, waiting, joins = 0, 0, False
    for place in reversed(range(len(operations))):
        op = operations[place]
        if op.name.startswith("residual"):
            # Both summands have the gradient of the sum: a single array, which waits for the branch to end.
            waiting, joins = op.output, True
            most = max(most, live + waiting - everything)
        else:
            before = operations[place - 1].output if place else entry
            # The gradient of a branch's last output is the array that waits.
            gradient = 0 if joins else op.output
            most, joins = max(most, live + waiting + gradient + max(before, op.backward_peak) - everything), False
        live -= sum(saved.nbytes for saved in {s.name: s for s in op.saved}.values() if frees[saved.name] == place)
    return most
