"""How much memory do the gradients of activations take inside a layer's backward pass?

The backward pass runs a layer's operations in reverse. Each operation reads the gradient of its output, writes the
gradient of its input, and then frees both the gradient of its output and the tensors that it saved. The gradient of the
residual stream waits beside the operations of a branch.

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

from collections.abc import Sequence

from simulator.model.operation import Operation, saved_bytes


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
