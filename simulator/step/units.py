"""What one rank computes in a step, unit by unit (embedding, layers, head), with times on its GPU.

Rule: turns a model's operations into costs of kernels and bytes of activations; knows no sharding strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Gpu
from simulator.model.cut import WHOLE, Cut
from simulator.model.head import embedding_operations, head_operations
from simulator.model.layer import layer_operations
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.parameters import Module, is_expert, modules
from simulator.step.checkpointing import KeptActivations, kept, policy_of
from simulator.step.kernel_timer import KernelCost, KernelTimer, is_eight_bit
from simulator.step.kernels.framework_operations import (
    fused_loss,
    loss_buffers,
    second_maps,
    until_needed,
    with_copies,
)
from simulator.step.pass_pieces import NO_PASS, PassPieces, Piece, backward_pieces, forward_pieces
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class Unit:
    """A module of the model with its work for one micro-batch.

    Attributes
    ----------
    name : str
    elements : int
        Of its parameters.
    forward, backward : PassPieces
    recompute : PassPieces or None
        Before its backward pass.
    input_gradient, weight_gradient : PassPieces
        The two halves of the backward pass.
    kept, recomputed : int
        Activations kept from forward to backward, and made again for it [B].
    makes : tuple of str
        Units whose activations are made again before this one's backward pass: its own, and those of its segment.
    copies : KernelCost or None
        Copies and casts around its collectives, once for each micro-batch that communicates.
    accumulate : KernelCost or None
        Adding its gradients to those of earlier micro-batches.
    resident : int
        Elements that stay whole on every rank where parameters are sharded.
    partial : int
        Elements that all ranks of a tensor-parallel group hold, and whose gradients each has a part of.
    shared : int
        Elements of a table that both ends of a pipeline have a copy of.
    tensors : int
        Parameters, each of which is an array.
    spread : bool
        Whether these are the experts of a layer, which have process groups of their own; what they compute stands with
        the layer.
    """

    name: str
    elements: int
    forward: PassPieces
    backward: PassPieces
    input_gradient: PassPieces
    weight_gradient: PassPieces
    recompute: PassPieces | None
    kept: int
    recomputed: int
    makes: tuple[str, ...] = ()
    copies: KernelCost | None = None
    accumulate: KernelCost | None = None
    resident: int = 0
    partial: int = 0
    shared: int = 0
    tensors: int = 1
    spread: bool = False

    @property
    def is_layer(self) -> bool:
        """Whether it is neither embedding nor head."""
        return self.name not in ("embedding", "head")


def units(
    step: TrainingStep, gpu: Gpu, ranks: int = 1, hbm_left: float = 1.0, *, sharded: bool = False, place: int = 0
) -> tuple[Unit, ...]:
    """Embedding, layers and head with their work for one micro-batch; several ranks copy what they communicate.

    Where parameters are `sharded` small ones may stay whole on every rank (`Sharding.keep_below`). `place` is the
    rank's own among those that cut sequences.
    """
    timer = KernelTimer(gpu, step, hbm_left)
    ends, batch = timer_of_ends(timer), batch_of(step, place)
    whole = modules(step.model, batch.cut)
    first, *layers, last = whole
    embedding = _plain("embedding", first.elements, ends, embedding_operations(step.model, batch))
    computed = (embedding, *_layers(timer, batch, layers), _head(ends, batch, last.elements))
    # Layers share their parameters, of which a mixture of experts has hundreds: what follows is worked out once.
    known: dict[int, Mapping[str, Any]] = {}
    made = []
    for unit, module in zip(computed, whole, strict=True):
        own = id(module.parameters)
        known[own] = known.get(own) or _of_gradients(timer, unit.elements, module, ranks, sharded=sharded)
        made.append(replace(unit, **known[own]))
    if batch.cut.sequence:
        made = [replace(unit, partial=partial) for unit, partial in zip(made, _partial(step, batch.cut), strict=True)]
    if step.model.tied and step.parallelism.apart:
        table = first.parameters[0].elements
        made[0] = replace(made[0], shared=table)
        # The last stage multiplies by a copy of its own.
        copied = replace(last, parameters=(*last.parameters, first.parameters[0]))
        more = _of_gradients(timer, copied.elements, copied, ranks, sharded=sharded)
        made[-1] = replace(made[-1], elements=copied.elements, shared=table, **more)
    if batch.cut.experts_apart:
        sharing = ranks * batch.cut.tensor // batch.cut.experts.tensor // batch.cut.experts.ranks
        made = _apart(timer, made, whole, ranks, sharing)
    return tuple(made)


def batch_of(step: TrainingStep, place: int = 0) -> Batch:
    """A micro-batch as a rank has it; `place` is its own among those that cut sequences."""
    itemsize, cut = find(step.precision.params).itemsize, step.parallelism.cut(place)
    return Batch(step.micro_batch_size, step.seq_len, itemsize, step.attention, step.dropout, cut=cut)


def timer_of_ends(timer: KernelTimer) -> KernelTimer:
    """Head and embedding keep the activations' dtype where layers multiply with eight bits.

    Their other kernels stream through large arrays, in a time of their own over the ideal one.
    """
    step = timer.step
    framework = replace(step.framework, elementwise=step.framework.streaming)
    matmul = step.precision.params if is_eight_bit(step.precision.matmul) else step.precision.matmul
    return replace(timer, step=replace(step, framework=framework, precision=replace(step.precision, matmul=matmul)))


def loss_operations(step: TrainingStep, batch: Batch) -> tuple[Operation, ...]:
    """The head's, as the framework has them."""
    operations = head_operations(step.model, batch)
    return fused_loss(operations) if step.framework.fused_loss else operations


def _apart(timer: KernelTimer, made: Sequence[Unit], whole: Sequence[Module], ranks: int, sharing: int) -> list[Unit]:
    """Return the units with each layer's experts as a unit apart from the rest of the layer.

    The gradients of a layer's experts are reduced over `sharing` ranks, those of the rest over `ranks` ranks. `whole`
    has the module of each unit in `made`.
    """
    parts, known = list[Unit](), dict[int, tuple[Unit, Mapping[str, Any]] | None]()
    for unit, module in zip(made, whole, strict=True):
        own = id(module.parameters)
        if own not in known:
            known[own] = _experts_and_rest(timer, module, ranks, sharing)
        if (found := known[own]) is None:
            parts.append(unit)
        else:
            experts, of_rest = found
            parts.append(replace(experts, name=f"{unit.name} experts"))
            parts.append(replace(unit, elements=unit.elements - experts.elements, **of_rest))
    return parts


def _experts_and_rest(
    timer: KernelTimer, module: Module, ranks: int, sharing: int
) -> tuple[Unit, Mapping[str, Any]] | None:
    """Return the unit of a module's experts and what the rest has for its gradients; None without experts."""
    experts = Module("experts", tuple(one for one in module.parameters if is_expert(one.name)))
    rest = Module("rest", tuple(one for one in module.parameters if not is_expert(one.name)))
    if not experts.parameters:
        return None
    passes = NO_PASS, NO_PASS, NO_PASS, NO_PASS
    of_experts = _of_gradients(timer, experts.elements, experts, sharing, sharded=False)
    unit = Unit("experts", experts.elements, *passes, None, 0, 0, spread=True)
    return replace(unit, **of_experts), _of_gradients(timer, rest.elements, rest, ranks, sharded=False)


def _partial(step: TrainingStep, cut: Cut) -> Iterator[int]:
    """By module how many elements are not cut: each rank sums their gradients over its part of the sequence."""
    # As many experts as this rank has, in one piece.
    uncut = replace(WHOLE, experts=replace(cut.experts, tensor=1))
    known: dict[int, int] = {}
    for whole, own in zip(modules(step.model, uncut), modules(step.model, cut), strict=True):
        if id(own.parameters) not in known:
            same = zip(whole.parameters, own.parameters, strict=True)
            # Every rank's experts have seen all tokens that were theirs.
            known[id(own.parameters)] = sum(
                mine.elements
                for one, mine in same
                if one.shape == mine.shape and not (cut.experts_apart and is_expert(mine.name))
            )
        yield known[id(own.parameters)]


def _layers(timer: KernelTimer, batch: Batch, layers: list[Module]) -> Iterator[Unit]:
    step = timer.step
    entry = batch.tokens_between * step.model.hidden_size * batch.itemsize
    # Layers are alike but for the first of some models, and so are most of their recomputations: each is timed once.
    models = {dense: step.model.of_layer(0) if dense else step.model for dense in (True, False)}
    kinds = {dense: layer_operations(model, batch) for dense, model in models.items()}
    if step.framework.keeps_copies:
        kinds = {dense: with_copies(operations, models[dense], batch) for dense, operations in kinds.items()}
    passes = {dense: _passes(timer, operations) for dense, operations in kinds.items()}
    costs: dict[tuple[bool, tuple[str, ...]], PassPieces] = {}
    elements = {id(layer.parameters): layer.elements for layer in {id(one.parameters): one for one in layers}.values()}
    for i, layer in enumerate(layers):
        dense = i < step.model.dense_layers
        keeping = kept(step.checkpointing, i, step.model, kinds[dense], entry)
        recompute = None
        if keeping.operations and keeping.segment:
            recompute = _recompute(timer, keeping, costs, dense=dense)
            if step.framework.split_maps and policy_of(step.checkpointing, i) == "selective_op":
                recompute += PassPieces((Piece(timer.cost(second_maps(step.model, batch))),))
        makes = tuple(f"layer {j}" for j in range(i - keeping.segment + 1, i + 1)) if keeping.recomputed else ()
        memory = (keeping.nbytes, keeping.recomputed, makes)
        yield Unit(f"layer {i}", elements[id(layer.parameters)], *passes[dense], recompute, *memory)


def _recompute(
    timer: KernelTimer,
    keeping: KeptActivations,
    costs: dict[tuple[bool, tuple[str, ...]], PassPieces],
    *,
    dense: bool,
) -> PassPieces:
    """What is run again before a layer's backward pass: whole layers, the last of them as far as it is needed."""

    def cost(operations: tuple[Operation, ...]) -> PassPieces:
        key = dense, tuple(op.name for op in operations)
        if key not in costs:
            costs[key] = forward_pieces(timer, operations)
        return costs[key]

    again = cost(until_needed(keeping.operations) if timer.step.framework.stops_early else keeping.operations)
    for _ in range(keeping.segment - 1):
        again += cost(keeping.operations)
    return again


def _head(timer: KernelTimer, batch: Batch, elements: int) -> Unit:
    model, framework = timer.step.model, timer.step.framework
    head = _plain("head", elements, timer, loss_operations(timer.step, batch))
    if framework.fused_loss or not framework.loss_buffers:
        return head
    buffers = loss_buffers(model, batch, compiled=timer.step.compiled, logits=framework.keeps_logits)
    return replace(head, recomputed=buffers, makes=(head.name,))


def _of_gradients(timer: KernelTimer, elements: int, module: Module, ranks: int, *, sharded: bool) -> Mapping[str, Any]:
    """What a unit of so many elements has besides its passes: for its gradients and its sharding."""
    step, copied = timer.step, timer.step.framework.parameter_bytes * elements
    computed, accumulated = find(step.precision.params).itemsize, find(step.precision.grads).itemsize
    added = (computed + 2 * accumulated) * elements
    small = sum(p.elements for p in module.parameters if p.elements < step.sharding.keep_below)
    return {
        "copies": timer.copies(copied) if ranks > 1 and copied else None,
        # One kernel that reads what is new and adds it in place.
        "accumulate": timer.copies(added) if step.accumulation > 1 or computed != accumulated else None,
        "resident": small if ranks > 1 and sharded else 0,
        "tensors": len(module.parameters),
    }


def _passes(
    timer: KernelTimer, operations: tuple[Operation, ...]
) -> tuple[PassPieces, PassPieces, PassPieces, PassPieces]:
    """Forward, backward, and the two halves of that."""
    return (
        forward_pieces(timer, operations),
        backward_pieces(timer, operations),
        backward_pieces(timer, operations, "input"),
        backward_pieces(timer, operations, "weights"),
    )


def _plain(name: str, elements: int, timer: KernelTimer, operations: tuple[Operation, ...]) -> Unit:
    return Unit(name, elements, *_passes(timer, operations), None, saved_bytes(operations), 0)
