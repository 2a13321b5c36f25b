"""Which activations of a layer does a checkpointing policy save, and which operations does it recompute?

A policy determines bytes and operations, and no times.

Example: four layers under "sqrt" form two segments, 0-1 and 2-3. Only the inputs of layers 0 and 2 are saved. Before
the backward pass of layer 3, layers 2 and 3 are recomputed together.

References
----------
.. [1] Chen, Xu, Zhang & Guestrin, "Training deep nets with sublinear memory cost", arXiv:1604.06174, 2016.
.. [2] Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import sqrt
from types import MappingProxyType
from typing import Final

from simulator.model.kernel import Attention, Matmul
from simulator.model.layer import LAST_UNNEEDED
from simulator.model.model import Model
from simulator.model.operation import Operation, Saved, saved_bytes

# A policy for every layer; k to recompute every k-th layer; layers to recompute; or pairs (policy, layers).
Checkpointing = str | int | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]
POLICIES: Final = ("none", "full", "sqrt", "attention", "selective_op", "feed_forward", "activation")

_SHARED: Final = frozenset(
    ("shared up", "shared gating", "shared activation", "shared activation product", "shared down")
)
# Megatron-Core's modules that may be recomputed by themselves (--recompute-modules), with the operations of each.
MODULES: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "core_attn": frozenset(("attention",)),
        "layernorm": frozenset(("norm1", "norm2")),
        "mla_up_proj": frozenset(("query", "query norm", "query up", "kv norm", "kv up", "latent rotary")),
        "mlp": frozenset(("norm2", "up", "gating", "activation", "activation product", "down")),
        "moe": frozenset(
            (
                *("shared up", "shared activation", "shared down", "router", "latent down", "dispatch"),
                *(
                    "sort by expert",
                    "up",
                    "activation",
                    "down",
                    "expert bias",
                    "sort by sender",
                    "combine",
                    "latent up",
                ),
            )
        ),
        "moe_act": frozenset(("activation",)),
        "shared_experts": _SHARED,
    }
)
# Modules of layers with experts alone; "mlp" is of the other layers.
_OF_EXPERTS: Final = ("moe", "moe_act", "shared_experts")
# Between the names of modules that are recomputed together.
JOINED: Final = "+"

# Policies that recompute keys and values.
RECOMPUTED_WHOLE: Final = ("full", "sqrt")


@dataclass(frozen=True, slots=True)
class KeptActivations:
    """A layer's activations saved by a checkpointing policy, and the operations recomputed."""

    nbytes: int  # saved from forward to backward pass [B]
    recomputed: int  # recomputed before the layer's backward pass, and freed afterwards [B]
    operations: tuple[Operation, ...]  # recomputed operations
    # Number of layers recomputed together before this layer's backward pass, this layer last: 1 except under `sqrt`,
    # and 0 if a later layer's recompute includes this layer.
    segment: int = 1
    calls: int = 1  # number of functions that are recomputed each by itself


def kept(
    policy: Checkpointing, layer: int, model: Model, operations: tuple[Operation, ...], entry: int
) -> KeptActivations:
    """Return the bytes of activations that a checkpointing policy saves for a layer, and the recomputed bytes and
    operations.

    Parameters
    ----------
    policy : Checkpointing
        A name in POLICIES; k for every k-th layer; the layers with full recompute; or pairs of a policy and its layers,
        with "none" for other layers.
    layer : int
        Number of the layer, from 0.
    operations : tuple of Operation
        Operations of the layer.
    entry : int
        Size of the layer's input [B].
    """
    everything = saved_bytes(operations)
    policy = policy_of(policy, layer)
    if policy == "none":
        return KeptActivations(everything, 0, ())
    if policy == "full":
        # A layer may save less than its input, or a copy in place of its input.
        entered = {saved.name: saved.nbytes for op in operations for saved in op.saved if saved.source == "input"}
        return KeptActivations(entry, max(everything - min(entry, sum(entered.values())), 0), operations)
    if policy == "sqrt":
        return _segment(layer, model.num_layers, everything, entry, operations)
    if policy == "attention":
        quadratic = tuple(op for op in operations if op.quadratic)
        names = {op.name for op in quadratic}
        # Tensors made by operations on scores are recomputed from Q and K, which stay saved.
        again = sum({s.name: s.nbytes for op in operations for s in op.saved if s.source in names}.values())
        return KeptActivations(everything - again, again, quadratic)
    if policy == "selective_op":
        return _selective(operations, everything, entry)
    if policy in ("feed_forward", "activation"):
        return _feed_forward(operations, everything, from_norm=policy == "feed_forward")
    if names := set(policy.split(JOINED)) & set(MODULES):
        return _modules(operations, everything, names)
    raise ValueError(f"checkpointing: got {policy!r}; one of {', '.join(POLICIES)}, or of {', '.join(MODULES)}")


def policy_of(policy: Checkpointing, layer: int) -> str:
    """Return the name of the checkpointing policy of the layer with this number, from a policy name, an interval k, or
    a list of layers.

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


def policies_in(policy: Checkpointing) -> frozenset[str]:
    """Return the names of the checkpointing policies in use, except "none".

    >>> sorted(policies_in((("full", (0, 1)), ("selective_op", (2,)))))
    ['full', 'selective_op']
    """
    if isinstance(policy, str):
        return frozenset({policy}) - {"none"}
    if isinstance(policy, int):
        return frozenset({"full"})
    return frozenset(entry[0] if isinstance(entry, tuple) else "full" for entry in policy)


def _segment(
    layer: int, layers: int, everything: int, entry: int, operations: tuple[Operation, ...]
) -> KeptActivations:
    """Return a layer's saved and recomputed activations under "sqrt": save inputs of about sqrt(L) segments, recompute
    whole segments [1]_.
    """
    count = max(1, round(sqrt(layers)))
    sizes = [layers // count + (i < layers % count) for i in range(count)]
    ends = list(accumulate(sizes))
    number = next(i for i, end in enumerate(ends) if layer < end)
    first = ends[number] - sizes[number]
    # Inputs of the segment's other layers are recomputed too.
    nbytes = entry if layer == first else 0
    return KeptActivations(
        nbytes, max(everything - nbytes, 0), operations, sizes[number] if layer == ends[number] - 1 else 0
    )


def _selective(operations: tuple[Operation, ...], everything: int, entry: int) -> KeptActivations:
    """Return a layer's saved and recomputed activations under "selective_op" (torchtitan): save outputs of attention,
    of every second matmul, and of all-to-all exchanges.

    torchtitan's list of saved operations names `aten.mm` and `all_to_all_single`. Matmuls of experts are grouped
    (`aten._grouped_mm`), and the router's is exempt: both run again, uncounted (pytorch/torchtitan,
    models/deepseek_v3/infra/parallelize.py and distributed/activation_checkpoint.py). So do the kernels of a scan.
    """
    kept_bytes, again, matmuls, exchanged = entry, list[Operation](), 0, set[str]()
    separate = any(op.name in ("queries", "gating") for op in operations)
    uncounted = ("mamba scan", *(("router", "up", "down") if any(op.name == "dispatch" for op in operations) else ()))
    for op in operations:
        is_matmul = op.name not in uncounted and any(isinstance(k, Matmul) for k in op.forward)
        # Separate matmuls of one input count as a single matmul: queries, keys and values; gate and up.
        beside = op.name in ("keys", "values") or (separate and op.name == "up")
        matmuls += is_matmul and not beside
        if any(isinstance(k, Attention) for k in op.forward):
            # Flash attention also saves statistics.
            kept_bytes += sum(saved.nbytes for saved in op.saved if saved.source == op.name)
        # Odd-numbered matmuls are saved, even-numbered matmuls recomputed.
        elif is_matmul and matmuls % 2 == 1:
            kept_bytes += op.output
            # Every second one of the separate matmuls runs again.
            again += [op] if beside and op.name != "values" else []
        elif op.name in ("dispatch", "combine") and op.communications:
            # Combine receives the experts' outputs, which it saves.
            kept_bytes += op.output if op.name == "dispatch" else saved_bytes((op,))
            exchanged |= {saved.name for saved in op.saved}
        else:
            again.append(op)
    again = _needed(again, [s for op in operations for s in op.saved if s.name not in exchanged])
    return KeptActivations(kept_bytes, max(everything - kept_bytes, 0), tuple(again))


def _feed_forward(operations: tuple[Operation, ...], everything: int, *, from_norm: bool) -> KeptActivations:
    """Return a layer's saved and recomputed activations if the feed-forward block is recomputed.

    With `from_norm`, the block is recomputed from its norm on; otherwise only its activation functions (inputs saved).
    """
    names = [op.name for op in operations]
    # The block begins with its norm, or with its first matrix if the norm is elsewhere.
    starts = [names.index(name) for name in ("norm2", "shared up", "router", "up") if name in names]
    # A layer of another block alone has none.
    begin = min(starts, default=len(names))
    again = [*operations[begin:]] if from_norm else [op for op in operations if "activation" in op.name]
    # The experts' outputs stay saved.
    again = _needed(again, [saved for op in operations if op.name == "down" for saved in op.saved])
    sources = {op.name for op in again}
    # A norm's statistics stay saved beside its input.
    tensors = {s.name: s for op in operations for s in op.saved if s.source in sources and s.name != "norm2 statistics"}
    freed = sum(tensor.nbytes for tensor in tensors.values())
    return KeptActivations(everything - freed, freed, tuple(again))


def _modules(operations: tuple[Operation, ...], everything: int, names: set[str]) -> KeptActivations:
    """Return a layer's saved and recomputed activations if some of its modules are recomputed.

    What a module makes is not saved, but for the outputs of attention, of a feed-forward block and of experts, which
    the next operation saves (Megatron-Core, core/tensor_parallel/random.py: CheckpointWithoutOutput discards the
    outputs of norms, up-projections and activations; CheckpointFunction keeps them).
    """
    has_experts = any(op.name == "router" for op in operations)
    present = {op.name for op in operations}
    modules = [
        name
        for name in names
        if (name != "mlp" if has_experts else name not in _OF_EXPERTS) and present & MODULES[name]
    ]
    inside = frozenset[str]().union(*(MODULES[name] for name in modules))
    again = tuple(op for op in operations if op.name in inside)
    outputs = {f"{op.name} output" for op in again if op.name in ("attention", "down", "combine", "shared down")}
    if "latent up" in present:
        outputs.discard("combine output")
    saved = {tensor.name: tensor for op in operations for tensor in op.saved}
    # The next operation's own copy may be narrower ("attention output in 8 bits").
    freed = sum(
        tensor.nbytes
        for name, tensor in saved.items()
        if tensor.source in inside and name.partition(" in ")[0] not in outputs
    )
    # The norms before attention and before the feed-forward block are two functions.
    norms = len(present & MODULES["layernorm"]) - 1 if "layernorm" in modules else 0
    return KeptActivations(everything - freed, freed, again, calls=len(modules) + norms)


def _needed(again: list[Operation], tensors: list[Saved]) -> list[Operation]:
    """Return recomputed operations without those after the last output that a backward pass needs, of the saved
    `tensors` that are recomputed.

    A matrix with an adapter saves a tensor of its own, the output of A. Combine may save the experts' outputs, in the
    order after the exchange. The mask of a dropout behind the region is kept from the forward pass.
    """
    outputs = any(saved.source == "down" for saved in tensors)
    while again and again[-1].name.startswith((*LAST_UNNEEDED, "down", "sort by sender", "combine")):
        last = again[-1]
        # The matrix after latent experts saves its input.
        if last.name == "combine" and any(saved.source == "combine" for saved in tensors):
            break
        if outputs and (last.name in ("down", "sort by sender") or (last.name == "combine" and last.communications)):
            break
        again = again[:-1]
    return again
