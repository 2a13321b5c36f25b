"""Activation checkpointing (recomputation): which bytes of a layer a policy keeps, and which operations it runs again.

Rule: policies by name; each says bytes and operations, never times.

References
----------
.. [1] Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174, 2016.
.. [2] Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from typing import Final

from simulator.model.kernel import Attention, Matmul
from simulator.model.operation import Operation, saved_bytes
from simulator.model.shape import Transformer
from simulator.step.spec import Checkpointing

POLICIES: Final = ("none", "full", "sqrt", "attention", "selective_op")


@dataclass(frozen=True, slots=True)
class KeptActivations:
    """What a policy does with one layer.

    Attributes
    ----------
    nbytes : int
        Kept from forward to backward [B].
    recomputed : int
        Made again before the layer's backward pass, and freed after it [B].
    operations : tuple of Operation
        Run again.
    segment : int
        Layers that are run again together, this one last: 1 but for `sqrt`, and 0 where a later layer sees to it.
    """

    nbytes: int
    recomputed: int
    operations: tuple[Operation, ...]
    segment: int = 1


def kept(
    policy: Checkpointing, layer: int, model: Transformer, operations: tuple[Operation, ...], entry: int
) -> KeptActivations:
    """What is kept of a layer.

    Parameters
    ----------
    policy : Checkpointing
        One of POLICIES; k for every k-th layer; the layers that are checkpointed in full; pairs of a policy and its
        layers, of which the others have none.
    layer : int
        Its number, from 0.
    model : Transformer
    operations : tuple of Operation
        The layer's.
    entry : int
        Bytes of the layer's input [B].
    """
    everything = saved_bytes(operations)
    policy = policy_of(policy, layer)
    if policy == "none":
        return KeptActivations(everything, 0, ())
    if policy == "full":
        return KeptActivations(entry, everything - entry, operations)
    if policy == "sqrt":
        return _segment(layer, model.num_layers, everything, entry, operations)
    if policy == "attention":
        quadratic = tuple(op for op in operations if op.quadratic)
        names = {op.name for op in quadratic}
        # Scores' outputs are made again; Q and K, from which they are, stay.
        again = sum({s.name: s.nbytes for op in operations for s in op.saved if s.source in names}.values())
        return KeptActivations(everything - again, again, quadratic)
    if policy == "selective_op":
        return _selective(operations, everything, entry)
    raise ValueError(f"checkpointing: got {policy!r}; one of {', '.join(POLICIES)}")


def policy_of(policy: Checkpointing, layer: int) -> str:
    """The policy's name that holds for one layer.

    Examples
    --------
    >>> [policy_of((("full", (0, 1)), ("selective_op", (2,))), layer) for layer in range(4)]
    ['full', 'full', 'selective_op', 'none']
    """
    if isinstance(policy, str):
        return policy
    if isinstance(policy, int):
        return "full" if layer % policy == 0 else "none"
    for entry in policy:
        if isinstance(entry, tuple):
            if layer in entry[1]:
                return entry[0]
        elif layer == entry:
            return "full"
    return "none"


def _segment(
    layer: int, layers: int, everything: int, entry: int, operations: tuple[Operation, ...]
) -> KeptActivations:
    """Only the input of each of about sqrt(L) segments is kept; a segment is run again from it as a whole [1]_."""
    count = max(1, round(sqrt(layers)))
    sizes = [layers // count + (i < layers % count) for i in range(count)]
    ends = list(accumulate(sizes))
    number = next(i for i, end in enumerate(ends) if layer < end)
    first = ends[number] - sizes[number]
    nbytes = entry if layer == first else 0
    return KeptActivations(nbytes, everything - nbytes, operations, sizes[number] if layer == ends[number] - 1 else 0)


def _selective(operations: tuple[Operation, ...], everything: int, entry: int) -> KeptActivations:
    """Attention's output and every second matmul's are kept, the others run again (torchtitan's default)."""
    kept_bytes, again, matmuls = entry, [], 0
    for op in operations:
        is_matmul = any(isinstance(k, Matmul) for k in op.forward)
        matmuls += is_matmul
        if any(isinstance(k, Attention) for k in op.forward):
            # With its output flash attention keeps the statistics that it returns beside it.
            kept_bytes += sum(saved.nbytes for saved in op.saved if saved.source == op.name)
        elif is_matmul and matmuls % 2 == 1:
            kept_bytes += op.output
        else:
            again.append(op)
    # What follows the last operation whose output a backward pass needs is not run again.
    while again and again[-1].name.startswith(("residual2", "down", "combine")):
        again.pop()
    return KeptActivations(kept_bytes, max(everything - kept_bytes, 0), tuple(again))
