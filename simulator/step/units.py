"""What does a rank compute in a step, unit by unit (embedding, layers, head), and how long does it take on its GPU?

A unit has kernel costs and activation bytes, made from the model's operations; it knows no sharding strategy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from simulator.basics.dtypes import find, is_narrow
from simulator.cluster.cluster import Gpu
from simulator.model.adapters import FROZEN
from simulator.model.head import logits_memory
from simulator.model.layer import LayerProgram, layer_program
from simulator.model.layer_list import LayerList
from simulator.model.model import (
    LayerKind,
    first_operations,
    layer_operations,
    modules,
    passed_bytes,
)
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.parameters import Module, Parameter, is_expert
from simulator.model.partition import WHOLE, ModelPartition
from simulator.model.shape import Transformer
from simulator.model.trained import TrainedParts, operation_parameter
from simulator.step.activation_memory import gradients_within, temporaries_within, temporaries_without_saving
from simulator.step.checkpointing import RECOMPUTED_WHOLE, kept, policy_of
from simulator.step.framework import Framework, HostTime
from simulator.step.kernel_timer import KernelCost, KernelTimer
from simulator.step.kernels.framework_operations import (
    second_maps,
    until_needed,
    with_copies,
    with_narrow_inputs,
    with_nf4_tensors,
    with_output_by_tokens,
    with_weighted_activations,
)
from simulator.step.kernels.losses import backward_bytes, forward_bytes, freed_early, loss_operations
from simulator.step.optimizers.optimizer import Shape
from simulator.step.pass_pieces import NO_PASS, PassPieces, Piece, backward_pieces, forward_pieces
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of the model (embedding, layer or head) with its work for a micro-batch.

    Attributes
    ----------
    input_gradient, weight_gradient : PassPieces
        The two halves of the backward pass.
    kept, recomputed : int
        Saved activations from forward to backward pass, and activations recomputed for the backward pass [B].
    temporaries, temporaries_again : int
        Most bytes of temporary arrays in its forward pass and in its recompute, beyond `kept` and `recomputed` [B].
    matrices : tuple of (shape, count)
        Shapes of its trained matrices, each with the number of matrices of this shape.
    """

    name: str
    # Number of parameters; quantised ones count for their bytes, in elements of the working parameters' dtype
    elements: int
    forward: PassPieces
    backward: PassPieces
    input_gradient: PassPieces
    weight_gradient: PassPieces
    recompute: PassPieces | None  # recompute before the backward pass
    kept: int
    recomputed: int
    # Units whose activations are recomputed before this unit's backward pass: itself and the rest of its segment
    makes: tuple[str, ...] = ()
    # Most bytes of gradients of activations in its backward pass, beyond saved tensors freed by then [B]
    within: int = 0
    temporaries: int = 0
    temporaries_again: int = 0
    # Bytes of its input, and again of the input's gradient, that stay allocated until the backward pass has left the
    # last unit that holds any [B]
    holds: int = 0
    freed_early: int = 0  # part of `kept` and `recomputed` that is freed before weight gradients are computed [B]
    # Bytes of the head's input and of the logits' gradient, which wait for a deferred weight gradient [B]
    deferred: int = 0
    # Copies and casts around its collectives, once for each micro-batch with communication
    copies: KernelCost | None = None
    accumulate: KernelCost | None = None  # addition of its gradients to earlier micro-batches' gradients
    resident: int = 0  # elements that stay whole on every rank if parameters are sharded
    partial: int = 0  # elements replicated over tensor-parallel ranks, each with a part of their gradients
    shared: int = 0  # elements of an embedding table with a copy on the first and the last pipeline stage
    tensors: int = 1  # number of trained parameter tensors
    vectors: int = 0  # those of at most one dimension (norms and biases)
    matrices: tuple[tuple[Shape, int], ...] = ()
    # Whether the unit holds a layer's expert-parallel experts, which have process groups of their own; their kernels
    # belong to the layer
    spread: bool = False
    frozen: int = 0  # number of parameters without gradient and optimizer states, among `elements`
    back: bool = True  # whether gradients pass back through the unit; False before the first trained unit

    @property
    def trained(self) -> int:
        """Number of parameters with gradient and optimizer states."""
        return self.elements - self.frozen

    @property
    def own_rule(self) -> tuple[tuple[Shape, int], ...]:
        """Matrices to which an optimizer's rule for matrices applies: those of layers, not the tables of embedding and
        head.
        """
        return self.matrices if self.is_layer else ()

    @property
    def in_matrices(self) -> int:
        """Number of parameters in matrices to which an optimizer's rule for matrices applies."""
        return sum(prod(shape) * count for shape, count in self.own_rule)

    @property
    def is_layer(self) -> bool:
        """True for layers and experts, False for embedding and head."""
        return self.name not in ("embedding", "head")


def units(
    step: TrainingStep, gpu: Gpu, ranks: int = 1, hbm_left: float = 1.0, *, sharded: bool = False, place: int = 0
) -> tuple[Unit, ...]:
    """Return embedding, layers and head of a step's model, each with kernel costs and activation bytes for a
    micro-batch.

    Parameters
    ----------
    ranks : int
        Data-parallel ranks; several ranks copy what they communicate.
    hbm_left : float
        Share of HBM bandwidth left by a collective in flight.
    sharded : bool
        Whether parameters are sharded; small tensors may then stay whole (`Sharding.keep_below`).
    place : int
        The rank's place among context-parallel ranks.
    """
    timer = KernelTimer(gpu, step, hbm_left)
    batch = batch_of(step, place)
    parts = modules(step.model, batch.cut)
    if step.trained is None:
        computed = _computed(timer, batch, parts)
    else:
        computed = _partly_trained(timer, batch, parts, step.trained)
        parts = _with_frozen(step.trained, parts)
    # Equal layers share a `parameters` object, which may list hundreds of experts: compute their values once.
    costs: dict[int, Mapping[str, Any]] = {}
    stack = []
    for unit, module in zip(computed, parts, strict=True):
        key = id(module.parameters)
        costs[key] = costs.get(key) or _of_gradients(timer, unit.elements, module, ranks, sharded=sharded)
        stack.append(replace(unit, **costs[key]))
        holds = step.framework.memory.keeps_input_gradients and sharded and ranks > 1
        stack[-1] = stack[-1] if holds and stack[-1].frozen > 0 and unit.back else replace(stack[-1], holds=0)
    # With sequence parallelism, each rank sums the gradients of norms over its part of the sequence only. The whole
    # side of an adapter sees the part of the other side that lies on the rank.
    if batch.cut.sequence or (batch.adapters is not None and batch.cut.tensor > 1):
        stack = [replace(unit, partial=partial) for unit, partial in zip(stack, _partial(step, batch.cut), strict=True)]
    # The update sums the gradients of both copies. Layers that predict further tokens look these up on the last stage.
    if (step.model.tied or step.model.mtp_layers) and step.parallelism.apart:
        first, last = parts[0], parts[-1]
        table = first.parameters[0]
        shared = table.elements if table.trained else 0
        stack[0] = replace(stack[0], shared=shared)
        # The last stage holds a copy of the embedding table.
        copied = replace(last, parameters=(*last.parameters, table))
        more = _of_gradients(timer, copied.held(batch.itemsize), copied, ranks, sharded=sharded)
        stack[-1] = replace(stack[-1], elements=copied.held(batch.itemsize), shared=shared, **more)
    # Experts are a separate unit only if other ranks hold different experts.
    if batch.cut.experts_apart:
        sharing = ranks * batch.cut.tensor // batch.cut.experts.tensor // batch.cut.experts.ranks
        stack = _split(timer, stack, parts, ranks, sharing)
    return tuple(stack)


def _computed(timer: KernelTimer, batch: Batch, parts: Sequence[Module]) -> tuple[Unit, ...]:
    """Return the units of a model with their passes and saved bytes, without what depends on the sharding."""
    ends, step = timer_of_ends(timer), timer.step
    first, *layers, last = parts
    embedding = _plain("embedding", first.held(batch.itemsize), ends, first_operations(step.model, batch))
    return (embedding, *_layers(timer, batch, layers), _head(ends, batch, last.held(batch.itemsize)))


def _partly_trained(
    timer: KernelTimer, batch: Batch, parts: Sequence[Module], trained: TrainedParts
) -> tuple[Unit, ...]:
    """Return the units of a model with frozen parts: frozen parameters have no gradient, and units before the first
    trained one compute no gradient and save nothing.
    """
    by_key: dict[tuple[bool, frozenset[str], bool], tuple[Unit, ...]] = {}
    stack, behind = list[Unit](), False
    for place, module in enumerate(parts):
        parameters, first = trained.of(module.name), module.name == trained.first
        names = frozenset(map(operation_parameter, parameters))
        every = parameters >= {parameter.name for parameter in module.parameters}
        # A tied head multiplies by the embedding's table.
        if timer.step.model.tied and module is parts[-1]:
            table = "token" in trained.of("embedding")
            names, every = names | ({"logits.weight"} if table else set()), every and table
        behind = behind or first
        key = every, names, first
        if key not in by_key:
            part = batch if every else replace(batch, adapters=FROZEN, trained=names, begins=first)
            by_key[key] = _computed(timer, part, parts)
        unit = by_key[key][place]
        if not behind:
            still = replace(unit, backward=NO_PASS, input_gradient=NO_PASS, weight_gradient=NO_PASS, recompute=None)
            unit = replace(
                still, kept=0, recomputed=0, makes=(), within=0, temporaries_again=0, freed_early=0, back=False
            )
        stack.append(unit)
    return tuple(stack)


def _with_frozen(trained: TrainedParts, parts: Sequence[Module]) -> tuple[Module, ...]:
    """Return the modules with all parameters but the trained ones frozen; modules with equal parameters share them."""
    cache: dict[tuple[int, frozenset[str]], tuple[Parameter, ...]] = {}
    new_parts = []
    for module in parts:
        names = trained.of(module.name)
        if not names >= {tensor.name for tensor in module.parameters}:
            key = id(module.parameters), names
            cache[key] = cache.get(key) or tuple(
                replace(tensor, trained=tensor.name in names) for tensor in module.parameters
            )
            module = replace(module, parameters=cache[key])
        new_parts.append(module)
    return tuple(new_parts)


def batch_of(step: TrainingStep, place: int = 0) -> Batch:
    """Return a step's micro-batch from a rank's view; `place` is the rank's index among context-parallel ranks."""
    itemsize, cut = find(step.precision.params).itemsize, step.parallelism.cut(place, step.experts_in_node)
    # A tensor that is cast before the exchange travels in eight or four bits. Real training gathers its own arrays.
    if step.framework.kernels.casts_once and is_narrow(step.precision.matmul) and step.lesson is None:
        cut = replace(cut, gather_dtype=step.precision.matmul)
    heaviest = step.heaviest
    return Batch(
        heaviest.sequences,
        heaviest.seq_len,
        itemsize,
        step.keys.attention,
        step.keys.dropout is not False,
        cut=cut,
        adapters=step.model.adapters,
        float16=step.precision.params == "float16",
        documents=heaviest.documents,
        program=step.program,
        autocast=step.autocasts,
    )


def host_ratio(units: Iterable[Unit], framework: Framework, *, hooks: bool) -> float:
    """Return the time of the host to launch a micro-batch's forward, recompute and backward passes through embedding,
    layers and head, divided by the time of the passes' kernels without collectives; above 1, GPUs wait for the host.

    With `hooks`, the time to gather each unit's parameters for both passes and to reduce its gradients counts, too. The
    optimizer's update is left out.

    >>> from simulator.step.framework import BARE
    >>> host_ratio((), BARE, hooks=True)
    0.0
    """
    exchange, sharding = (framework.host.parts.get(name, HostTime(1.0, 1.0)) for name in ("exchange", "sharding"))
    each = framework.host.issue * (2 * sharding.forward + sharding.backward) if hooks else 0.0
    host = kernels = 0.0
    for unit in units:
        host += each
        for run in (unit.forward, unit.recompute or NO_PASS, unit.backward):
            host += run.cost.host + framework.host.issue * exchange.forward * len(run.exchanges)
            kernels += run.alone
    return host / kernels if kernels else 0.0


def timer_of_ends(timer: KernelTimer) -> KernelTimer:
    """Return a copy of the kernel timer for embedding and head.

    Head and embedding keep the activations' dtype if layers multiply in eight or four bits. No program lists the
    kernels of their norms.
    """
    step = timer.step
    framework = replace(step.framework, program="bare")
    matmul = step.precision.params if is_narrow(step.precision.matmul) else step.precision.matmul
    narrow = step.with_keys(precision=step.precision.replaced(matmul=matmul))
    return replace(timer, step=replace(narrow, framework=framework))


def _split(timer: KernelTimer, stack: Sequence[Unit], parts: Sequence[Module], ranks: int, sharing: int) -> list[Unit]:
    """Return the units with each layer's expert-parallel experts split off into a unit of their own, before the layer.

    Gradients of experts are reduced over `sharing` ranks, the rest over `ranks` ranks. `parts` has the module of each
    unit in `stack`.
    """
    pieces, splits = list[Unit](), dict[int, tuple[Unit, Mapping[str, Any]] | None]()
    for unit, module in zip(stack, parts, strict=True):
        key = id(module.parameters)
        if key not in splits:
            splits[key] = _experts_and_rest(timer, module, ranks, sharing)
        if (split := splits[key]) is None:
            pieces.append(unit)
        else:
            experts, of_rest = split
            pieces.append(replace(experts, name=f"{unit.name} experts", back=unit.back))
            pieces.append(replace(unit, elements=unit.elements - experts.elements, **of_rest))
    return pieces


def _experts_and_rest(
    timer: KernelTimer, module: Module, ranks: int, sharing: int
) -> tuple[Unit, Mapping[str, Any]] | None:
    """Return a unit for a module's experts, and the gradient costs of its rest; None without experts."""
    experts = Module("experts", tuple(tensor for tensor in module.parameters if is_expert(tensor.name)))
    rest = Module("rest", tuple(tensor for tensor in module.parameters if not is_expert(tensor.name)))
    if not experts.parameters:
        return None
    passes = NO_PASS, NO_PASS, NO_PASS, NO_PASS
    size = find(timer.step.precision.params).itemsize
    of_experts = _of_gradients(timer, experts.held(size), experts, sharing, sharded=False)
    unit = Unit("experts", experts.held(size), *passes, None, 0, 0, spread=True)
    return replace(unit, **of_experts), _of_gradients(timer, rest.held(size), rest, ranks, sharded=False)


def _partial(step: TrainingStep, cut: ModelPartition) -> Iterator[int]:
    """Yield for each module the trained elements replicated over tensor-parallel ranks, with gradients summed by each
    rank over only the rank's tokens or its part of an adapter.
    """
    # The rank's own number of experts, without sharding their matrices.
    uncut = replace(WHOLE, experts=replace(cut.experts, tensor=1))
    counts: dict[tuple[int, frozenset[str] | None], int] = {}
    for full, module in zip(modules(step.model, uncut), modules(step.model, cut), strict=True):
        names = None if step.trained is None else step.trained.of(module.name)
        key = id(module.parameters), names
        if key not in counts:
            trained = [names is None or tensor.name in names for tensor in module.parameters]
            same = zip(full.parameters, module.parameters, trained, strict=True)
            # Expert gradients are complete: a rank's experts have seen every token routed to them.
            counts[key] = sum(
                tensor.elements
                for entire, tensor, updated in same
                if tensor.trained and updated and entire.shape == tensor.shape
                if not (cut.experts_apart and is_expert(tensor.name))
            )
        yield counts[key]


def _layers(timer: KernelTimer, batch: Batch, layers: list[Module]) -> Iterator[Unit]:
    """Yield a unit for each layer, with timed passes, saved bytes and recompute."""
    step = timer.step
    # Passes are timed once per kind of layer, recompute once per distinct list of operations. Kinds have numbers here.
    models: list[LayerKind] = list(step.model.kinds)
    kinds = [of_framework(timer, kind, batch) for kind in models]
    passes = [_passes(timer, operations) for operations in kinds]
    predictions = [
        _prediction(timer, batch) if isinstance(kind, Transformer) and kind.mtp_layers else None for kind in models
    ]
    counted = step.framework.memory.activation_gradients
    programs = [_counted_program(timer, kind, batch) for kind in models]
    within = [
        program.gradients if program else gradients_within(operations, operations[-1].output) if counted else 0
        for operations, program in zip(kinds, programs, strict=True)
    ]
    of = {layer: number for number, members in enumerate(step.model.kinds.values()) for layer in members}
    costs: dict[tuple[int, tuple[tuple[str, int], ...]], PassPieces] = {}
    elements = {
        id(layer.parameters): layer.held(batch.itemsize)
        for layer in {id(module.parameters): module for module in layers}.values()
    }
    for i, layer in enumerate(layers):
        keeping = kept(
            step.keys.activation_checkpointing, i, step.model, kinds[of[i]], passed_bytes(step.model, i, batch)
        )
        recompute = None
        if keeping.operations and keeping.segment:
            last, *others = [(of[j], kinds[of[j]]) for j in range(i, i - keeping.segment, -1)]
            recompute = _recompute(timer, (last[0], keeping.operations), others, costs)
            # Frameworks with separate matrices recompute every second matmul, inside merged operations too.
            kind, selective = models[of[i]], policy_of(step.keys.activation_checkpointing, i) == "selective_op"
            split = step.framework.kernels.split_maps and batch.program == "bare"
            if isinstance(kind, Transformer) and split and selective:
                recompute += PassPieces((Piece(timer.cost(second_maps(kind, batch))),))
            if host := step.framework.host.parts.get("recompute"):
                recompute = recompute.with_host(keeping.calls * step.framework.host.issue * host.backward)
        # A segment is recomputed before its last layer's backward pass.
        makes = tuple(f"layer {j}" for j in range(i - keeping.segment + 1, i + 1)) if keeping.recomputed else ()
        # A layer that is recomputed as a whole saves its input alone in the forward pass.
        every, recomputes_all = kinds[of[i]], len(keeping.operations) == len(kinds[of[i]])
        forward = temporaries_without_saving(every) if recomputes_all else temporaries_within(every, every)
        # Reentrant checkpointing detaches the layer's input, which alone it saves.
        whole_layer = policy_of(step.keys.activation_checkpointing, i) == "full"
        unit = Unit(
            f"layer {i}",
            elements[id(layer.parameters)],
            *passes[of[i]],
            recompute,
            keeping.nbytes,
            keeping.recomputed,
            makes,
            within=within[of[i]],
            temporaries=forward if counted else 0,
            temporaries_again=temporaries_within(every, keeping.operations) if counted else 0,
            holds=keeping.nbytes if whole_layer else 0,
        )
        program, prediction = programs[of[i]], predictions[of[i]]
        if program:
            forward = program.temporaries_without_saving if recomputes_all else program.temporaries
            again = program.temporaries if recomputes_all else 0
            unit = replace(unit, temporaries=forward, temporaries_again=again)
        yield unit if prediction is None else _predicting(unit, prediction)


def _counted_program(timer: KernelTimer, kind: LayerKind, batch: Batch) -> LayerProgram | None:
    """Return the program of a kind of layer if its memory is counted array by array; None for bare kernels, whose
    memory follows from the saved tensors.
    """
    counted = timer.step.framework.memory.activation_gradients and batch.program != "bare"
    return layer_program(kind, batch) if counted and isinstance(kind, Transformer) else None


def _prediction(timer: KernelTimer, batch: Batch) -> Unit:
    """Return a unit for a layer's further token: norm, logits and loss of the head, with the head's matrix."""
    return _head(timer_of_ends(timer), batch, 0)


def _predicting(unit: Unit, prediction: Unit) -> Unit:
    """Return a copy of a layer's `unit` with the forward pass of `prediction` (norm, logits, loss) after the layer's,
    the backward pass of `prediction` before the layer's, and the bytes of both [B].

    The activations of `prediction` are kept, and its forward pass is not repeated, even if the layer is recomputed.
    """
    return replace(
        unit,
        forward=unit.forward + prediction.forward,
        backward=prediction.backward + unit.backward,
        input_gradient=prediction.input_gradient + unit.input_gradient,
        weight_gradient=prediction.weight_gradient + unit.weight_gradient,
        kept=unit.kept + prediction.kept,
        recomputed=unit.recomputed + prediction.recomputed,
        makes=unit.makes or ((unit.name,) if prediction.recomputed else ()),
        # The layer has freed its own temporary arrays when the logits are computed.
        temporaries=max(unit.temporaries, prediction.temporaries),
        freed_early=prediction.freed_early,
    )


def of_framework(timer: KernelTimer, kind: LayerKind, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations of a kind of layer, with the copies of the step's framework."""
    operations, framework = layer_operations(kind, batch), timer.step.framework
    if not isinstance(kind, Transformer):
        return operations
    # A program lists the copies that its kernels save. A compiler's kernels save them, too (tests/theory/
    # test_measured_fine_tuning.py, torchtune's ladder).
    if framework.kernels.keeps_copies and batch.program == "bare":
        operations = with_copies(operations, kind, batch, split_maps=framework.kernels.split_maps)
    if framework.kernels.weights_activations:
        operations = with_weighted_activations(operations, batch)
    if framework.kernels.casts_once and is_narrow(timer.step.precision.matmul):
        operations = with_narrow_inputs(operations, batch, timer.step.precision.matmul)
    if framework.kernels.nf4_tensors and not timer.step.keys.compile:
        operations = with_nf4_tensors(operations)
    if batch.attention == "flash" and framework.copies_output_on(timer.gpu):
        operations = with_output_by_tokens(operations)
    return operations


def _recompute(
    timer: KernelTimer,
    last: tuple[int, tuple[Operation, ...]],
    others: Sequence[tuple[int, tuple[Operation, ...]]],
    costs: dict[tuple[int, tuple[tuple[str, int], ...]], PassPieces],
) -> PassPieces:
    """Return the timed recompute of a segment before its last layer's backward pass: other layers entirely, the last
    layer only as far as needed. Each layer is given by the number of its kind and its recomputed operations.
    """

    def cost(kind: int, operations: tuple[Operation, ...]) -> PassPieces:
        """Return the timed forward pass through some operations of a kind of layer; cached in `costs`."""
        # The last operation may run again in part.
        key = kind, tuple((op.name, len(op.forward)) for op in operations)
        if key not in costs:
            costs[key] = forward_pieces(timer, operations)
        return costs[key]

    kind, operations = last
    again = cost(kind, until_needed(operations) if timer.step.framework.kernels.stops_early else operations)
    # `others` lie before the last layer, the nearest first.
    for other in others:
        again = cost(*other) + again
    return again


def _head(timer: KernelTimer, batch: Batch, elements: int) -> Unit:
    """Return the unit of the head with `elements` parameters, and with the loss's temporary buffers."""
    model = timer.step.model
    head = _plain("head", elements, timer, loss_operations(timer.step, batch))
    if isinstance(model, LayerList):
        return head
    if timer.step.deferred and timer.step.trains_head:
        entered = batch.tokens_between * model.hidden_size * batch.itemsize
        head = replace(head, deferred=entered + logits_memory(model, batch).logits)
    head = replace(head, temporaries=forward_bytes(timer.step, batch) + _returned(timer.step, batch))
    buffers = backward_bytes(timer.step, batch)
    if not buffers:
        return head
    # Loss buffers behave like recomputed tensors: allocated at the backward pass, freed afterwards.
    return replace(head, recomputed=buffers, freed_early=freed_early(timer.step, batch), makes=(head.name,))


def _returned(step: TrainingStep, batch: Batch) -> int:
    """Return the bytes that recomputed layers return as keys and values, and that exist beside the head's forward pass
    [B].

    Keys and values are views of the output of the matrix for queries, keys and values, unless rotary positions make
    new keys. They are counted with the head, where the forward pass has its peak.
    """
    if not step.keys.use_cache or step.parallelism.pp > 1:
        return 0
    returned = 0
    for kind, layers in step.model.kinds.items():
        if not isinstance(kind, Transformer):
            continue
        outputs = {op.name: op.output for op in layer_operations(kind, batch)}
        nbytes = outputs.get("qkv", 0) or outputs.get("keys", 0) + outputs.get("values", 0)
        if kind.positions == "rotary" and "qkv" in outputs:
            nbytes = nbytes * 2 * kind.kv_width // (kind.num_heads * kind.head_dim + 2 * kind.kv_width)
        returned += nbytes * sum(
            policy_of(step.keys.activation_checkpointing, layer) in RECOMPUTED_WHOLE for layer in layers
        )
    return returned


def _of_gradients(timer: KernelTimer, elements: int, module: Module, ranks: int, *, sharded: bool) -> Mapping[str, Any]:
    """Return a unit's fields for gradients and sharding, such as copies, frozen elements and matrices."""
    step = timer.step
    frozen = module.frozen(find(step.precision.params).itemsize)
    trained = elements - frozen
    # Frozen parameters are copied only if they are gathered.
    copied = step.framework.sharding.parameter_bytes * (elements if sharded else trained)
    computed, accumulated = find(step.trained_dtype).itemsize, find(step.precision.grads).itemsize
    # A kernel reads the new gradient and adds it in place: one read, one read and write. A matmul that accumulates
    # writes the sum instead of the new gradient, and reads the accumulated gradient.
    added = (accumulated if step.framework.memory.accumulates_in_matmul else computed + 2 * accumulated) * trained
    small = sum(p.elements for p in module.parameters if p.trained and p.elements < step.sharding.keep_below)
    return {
        # A single rank communicates nothing.
        "copies": timer.copies(copied) if ranks > 1 and copied else None,
        "accumulate": timer.copies(added) if trained and (step.accumulation > 1 or computed != accumulated) else None,
        "resident": small if ranks > 1 and sharded else 0,
        "tensors": sum(p.trained for p in module.parameters),
        "vectors": sum(p.trained and len(p.shape) < 2 for p in module.parameters),
        "frozen": frozen,
        "matrices": tuple(sorted(Counter(_matrices(step, module)).items())),
    }


def _matrices(step: TrainingStep, module: Module) -> Iterator[Shape]:
    """Yield the shapes of a module's trained matrices as the framework holds them: some hold queries, keys and values,
    and the two first matrices of a gated MLP, apart.
    """
    for tensor in module.parameters:
        if not tensor.trained or len(tensor.shape) < 2:
            continue
        if isinstance(step.model, LayerList):
            # A convolution's filters are the rows of a matrix.
            yield tensor.shape[0], prod(tensor.shape[1:])
        elif not step.framework.kernels.split_maps:
            yield tensor.shape
        elif tensor.name == "qkv.weight":
            # The rank's share of query heads and key heads.
            model, (rows, columns) = step.model, tensor.shape
            keys = rows * model.kv_width // (model.attention_width + 2 * model.kv_width)
            yield from ((rows - 2 * keys, columns), (keys, columns), (keys, columns))
        elif step.model.gated and tensor.name.endswith("up.weight") and not tensor.name.startswith(("query", "kv")):
            yield from 2 * ((tensor.shape[0] // 2, *tensor.shape[1:]),)
        else:
            yield tensor.shape


def _passes(
    timer: KernelTimer, operations: tuple[Operation, ...]
) -> tuple[PassPieces, PassPieces, PassPieces, PassPieces]:
    """Return the timed passes: forward, backward, and the input and weight halves of backward."""
    return (
        forward_pieces(timer, operations),
        backward_pieces(timer, operations),
        backward_pieces(timer, operations, "input"),
        backward_pieces(timer, operations, "weights"),
    )


def _plain(name: str, elements: int, timer: KernelTimer, operations: tuple[Operation, ...]) -> Unit:
    """Return a unit whose passes run the given operations, without recompute."""
    return Unit(name, elements, *_passes(timer, operations), None, saved_bytes(operations), 0)
