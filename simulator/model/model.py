"""A model of any kind: parameters, operations and FLOPs of a transformer or of a list of layers.

Code that trains a model reads it through these functions, and knows no kind of model.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.model import flops, head, layer, parameters
from simulator.model.adapters import TARGET_GROUPS, Lora
from simulator.model.layer_list import Layer, LayerList
from simulator.model.operation import Batch, Operation, needed_backward
from simulator.model.parameters import Module
from simulator.model.partition import (
    WHOLE,
    ModelPartition,
    context_refusal,
    expert_tensor_refusal,
    experts_refusal,
    refusal,
)
from simulator.model.shape import Transformer

Model = Transformer | LayerList
# A kind of layer: for a transformer a model of equal layers (see `Transformer.of_layer`).
LayerKind = Transformer | Layer

# Forward pass, gradients of inputs and gradients of weights cost the same.
_PASSES = 3.0


def modules(model: Model, cut: ModelPartition = WHOLE) -> tuple[Module, ...]:
    """Return embedding, layers and head of a model with their parameters on a rank, in forward order."""
    return model.modules if isinstance(model, LayerList) else parameters.modules(model, cut)


def total(model: Model) -> int:
    """Return the number of parameter elements in a model; a tied head counts once."""
    return sum(module.elements for module in modules(model))


def first_operations(model: Model, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations before the first layer: of the embedding, or of a list's first layer."""
    operations = _of(model.first, batch) if isinstance(model, LayerList) else head.embedding_operations(model, batch)
    return needed_backward(operations, batch)


def layer_operations(kind: LayerKind, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a layer of a kind (see `kinds` of a model) on a micro-batch, in forward order."""
    operations = _of(kind, batch) if isinstance(kind, Layer) else layer.layer_operations(kind, batch)
    return needed_backward(operations, batch)


def last_operations(model: Model, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations after the last layer, with the loss, whose kernels move each array once."""
    operations = _of(model.last, batch) if isinstance(model, LayerList) else head.head_operations(model, batch)
    return needed_backward(operations, batch)


def training_flops_per_token(model: Model, seq_len: int) -> float:
    """Return the training FLOPs per token without recomputation, the numerator of MFU: for a list of layers three
    times the forward pass of its matmuls, convolutions and attention [FLOP].
    """
    if isinstance(model, LayerList):
        return _PASSES * model.forward_flops_per_sample / model.tokens
    return flops.model_flops_per_token(model, seq_len)


def passed_bytes(model: Model, layer: int, batch: Batch) -> int:
    """Return the bytes of a micro-batch's activations that enter the layer with this number on a rank [B]; for the
    number of layers, those that leave the last layer.
    """
    if isinstance(model, LayerList):
        return model.entry_of(layer).of(batch)
    return batch.tokens_between * model.hidden_size * batch.stream.itemsize


def refusals(model: Model, cut: ModelPartition, seq_len: int) -> Iterator[tuple[str, str]]:
    """Yield a key of `parallelism` and the reason for each way in which a model cannot be cut over ranks."""
    if isinstance(model, LayerList):
        sizes = {"tp": cut.tensor, "cp": cut.context.ranks, "ep": cut.experts.ranks, "etp": cut.experts.tensor}
        for key, size in sizes.items():
            if size > 1 and not (key == "etp" and size == cut.tensor):
                yield key, f"got {size}; {model.name} is a list of layers, which ranks cannot cut yet; write 1"
        return
    for key, reason in (
        ("tp", refusal(model, cut, seq_len)),
        ("cp", context_refusal(model, cut, seq_len)),
        ("ep", experts_refusal(model, cut)),
        ("etp", expert_tensor_refusal(model, cut)),
    ):
        if reason:
            yield key, reason


def _of(listed: Layer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a listed layer on a micro-batch."""
    return tuple(operation.of(batch) for operation in listed.operations)


def adapters(spec: Lora, model: Model) -> Lora | None:
    """Return `spec` with the names of the model's adapted matrices as `targets`; None for rank 0, without adapters.

    Raises
    ------
    ValueError
        The model lacks a matrix that `spec` names, or has layers for which adapters are not supported.
    """
    if spec.rank == 0:
        return None
    if isinstance(model, LayerList):
        raise ValueError(f"adapters are not supported yet for the layers of {model.name}; omit lora")
    able = model.adapter_targets
    if not able:
        part = "latent attention" if model.latent is not None else "layers of one block"
        raise ValueError(f"adapters are not supported yet for the {part} of {model.name}")
    requested = spec.targets if not isinstance(spec.targets, str) else TARGET_GROUPS.get(spec.targets, able)
    # A group's word means those of its matrices that the model has.
    targets = tuple(target for target in able if target in requested)
    missing = [target for target in requested if target not in able] if not isinstance(spec.targets, str) else []
    if missing or not targets:
        where = "expert layers, whose matrices cannot have adapters yet" if model.num_experts else "no such matrix"
        names = ", ".join(missing) or str(spec.targets)
        raise ValueError(f"got {names}; {model.name} has {where}; write some of {', '.join(able)}")
    return spec.replaced(targets=targets)
