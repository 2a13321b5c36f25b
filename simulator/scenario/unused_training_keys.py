"""Which keys of `training` change no number in a step, and what would each need to have an effect?

Same rules as in unused_keys.py. Each generator covers something that a step may lack: real numbers, a loss scale,
options of its strategy, attention scores in memory, collectives, parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from simulator.basics import dtypes
from simulator.basics.document import Key
from simulator.basics.dtypes import find
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_memory
from simulator.model.layer_list import LayerList
from simulator.model.load import load_model
from simulator.model.model import modules
from simulator.model.shape import Transformer
from simulator.scenario.build_training import (
    scaling_rule,
    to_step,
    with_accumulation,
)
from simulator.scenario.resolve import bytes_text
from simulator.step.checkpointing import RECOMPUTED_WHOLE, policy_of
from simulator.step.framework import load_framework
from simulator.step.learning_spec import LearningSpec
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.sharding import Sharding
from simulator.step.spec import State, Updater
from simulator.step.strategies.strategy import STRATEGIES, shards_gradients
from simulator.step.training_spec import TrainingSpec

# Options of `sharding` that strategies without use for them ignore. Any other option would change the meaning of a
# strategy, and is refused in training_rules.py.
_IGNORED_OPTIONS: Final = (
    "reshard_after_forward", "prefetch", "layers_per_unit", "keep_below", "bucket_size", "servers", "servers_on",
)  # fmt: skip
_ALONE: Final = "a single rank sends no data"
# Keys with effect only if ranks send data to each other.
_BETWEEN_RANKS: Final = (
    ("training", "algorithm"),
    ("training", "precision", "reduce"),
    ("training", "loss_scaling", "shared"),
    ("training", "sharding", "keep_below"),
)
# Keys with effect also if a single rank copies data to its host (offload).
_ON_LINKS: Final = (
    ("training", "collectives"),
    ("training", "sharding", "bucket_size"),
    ("cluster", "link_factors"),
    ("cluster", "jitter", "latency"),
    ("cluster", "placement"),
    ("cluster", "ecmp", "hash"),
)


def unused(shape: TrainingSpec, world_size: int, base: Path) -> Iterator[tuple[Key, str]]:
    """Yield (key, reason) for each training key that changes no number of this step; `base` is the file's folder."""
    # The rules below need the number of micro-batches, and `global_batch` alone does not show it.
    shape = with_accumulation(shape, world_size)
    yield from _without_numbers(shape)
    yield from _loss_scaling(shape)
    if not shape.lora.rank:
        for name in ("targets", "dtype", "dropout", "base", "dora", "hidden", "regather"):
            yield ("training", "lora", name), "every parameter is trained; write a rank, such as lora: {rank: 16}"
    elif shape.parallelism.tp == 1 or not shape.parallelism.sequence_parallel:
        yield ("training", "lora", "regather"), "inputs of matrices are whole without sequence parallelism"
    elif isinstance(shape.lora.targets, tuple) and set(shape.lora.targets) <= {"o", "down"}:
        yield ("training", "lora", "regather"), "no adapted matrix has a gathered input"
    elif shape.lora.kept_per_input(find(shape.precision.resolved().params).itemsize):
        yield ("training", "lora", "regather"), "copies of the whole inputs are kept, in another dtype or with dropout"
    if shape.lengths is None:
        yield ("training", "batching"), "every document has seq_len tokens; write lengths"
    yield from _optimizer(shape)
    yield from _sharding(shape)
    yield from _precision(shape, base)
    if not load_framework(shape.framework, base).host.issue:
        yield ("training", "cuda_graphs"), f"no kernel waits for the host of framework {shape.framework}"
    yield from _bucket_size(shape, world_size, base)
    yield from _one_copy(shape, world_size)
    yield from _lone_shards(shape, world_size, base)
    yield from _attention(shape)
    yield from _layer_list(shape, base)
    yield from _collectives(shape)
    yield from _parallelism(shape, world_size, base)
    if shape.offload.what == "none":
        for key in ("host_rate", "fraction"):
            yield ("training", "offload", key), "no data is on the host; write offload: {what: optimizer}"
    elif shape.offload.fraction == 1:
        yield ("training", "optimizer", "implementation"), "the host updates all states in a fused loop"
    if STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
        yield ("training", "optimizer", "implementation"), "servers update, not GPUs"
    if world_size == 1:
        yield from dict.fromkeys(_BETWEEN_RANKS, _ALONE).items()
        # With offload, a single rank's copies to the host use links too.
        if shape.offload.what == "none":
            yield from dict.fromkeys(_ON_LINKS, _ALONE).items()


def _optimizer(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    optimizer = OPTIMIZERS.find(shape.optimizer.name)
    if optimizer.of_matrices is None:
        for name in ("distribution", "iterations"):
            yield ("training", "optimizer", name), f"{optimizer.name} multiplies no matrices; write muon"
    if optimizer.has_own_dtype:
        bits = "eight bits" if optimizer.block else "float32"
        yield ("training", "optimizer", "state_dtype"), f"{optimizer.name} has states of {bits}"


def _without_numbers(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    if shape.numerics:
        yield ("training", "cuda_graphs"), "no kernel of a real training waits for a host"
        if not any(fault.what == "stopped" for fault in shape.faults):
            yield ("training", "learning", "checkpoint"), "no rank stops; add {step: 2, what: stopped} to faults"
        # An own optimizer's update gets every constant.
        if shape.optimizer.name != "momentum" and OPTIMIZERS.find(shape.optimizer.name).numbers is None:
            yield (
                ("training", "learning", "momentum"),
                (f"optimizer {shape.optimizer.name} has no momentum; write momentum"),
            )
        return
    why = "needs a real training; write numerics: true"
    for name in LearningSpec.model_fields:
        yield ("training", "learning", name), why
    yield ("training", "clip_norm"), f"{why} (the time of the gradient norm is always simulated)"
    if not shape.sharding.asynchronous:
        yield ("training", "steps"), "one step is simulated; several steps need numerics: true, or asynchronous servers"


def _loss_scaling(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    rule, key = scaling_rule(shape.loss_scaling, shape.precision), ("training", "loss_scaling")
    if STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
        for name in ("rule", "start", "interval", "shared"):
            yield (*key, name), "servers apply gradients without a check for overflows"
        return
    if rule == "none":
        for name in ("start", "interval", "shared"):
            yield (*key, name), "the loss is not scaled; write rule: dynamic, or precision: fp16"
        return
    if rule == "static":
        yield (*key, "interval"), "a static scale does not grow"
    if not shape.numerics:
        for name in ("start", "interval"):
            yield (*key, name), "needs a real training; write numerics: true"


def _sharding(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    sharding = shape.sharding
    for name in _IGNORED_OPTIONS:
        if name not in STRATEGIES.find(sharding.strategy).options:
            able = STRATEGIES.listening(name)
            yield ("training", "sharding", name), f"applies to {', '.join(able)}, not to {sharding.strategy}"
    # In a pipeline, a stage may hold dense layers only, which form units.
    if shape.parallelism.ep > 1 and shape.parallelism.pp == 1:
        yield ("training", "sharding", "layers_per_unit"), "with ep above 1, each layer is gathered on its own"
    key, once = ("training", "sharding", "gradient_sync"), shape.gradient_accumulation_steps == 1
    if sharding.gradient_sync == "shard" and (once or sharding.shard_size is None):
        yield key, "'shard' needs a shard_size and gradient_accumulation_steps above 1"
    dtypes = shape.precision.resolved()
    # Without "last", kept gradients may have a dtype different from the parameters'; memory differs even with a single
    # micro-batch.
    if sharding.gradient_sync == "last" and once and dtypes.grads == dtypes.params:
        yield key, "'last' needs gradient_accumulation_steps above 1"


def _precision(shape: TrainingSpec, base: Path) -> Iterator[tuple[Key, str]]:
    key = ("training", "precision", "scaling")
    if find(shape.precision.resolved().matmul, stored=False).bits != 8:
        yield key, "needs a matmul dtype of eight bits; write matmul: float8_e4m3fn"
    elif shape.precision.scaling == "row" and load_framework(shape.framework, base).kernels.row_scaled == 1.0:
        yield key, f"{shape.framework} has no measured cost of scales for each row; write framework: torchtitan"


def _bucket_size(shape: TrainingSpec, world_size: int, base: Path) -> Iterator[tuple[Key, str]]:
    """Yield a reason if the units of the model (embedding, layers, head) fill the same buckets as with the default."""
    size, usual = shape.sharding.bucket_size, Sharding().bucket_size
    # Experts on other ranks fill buckets of their own.
    reads = "bucket_size" in STRATEGIES.find(shape.sharding.strategy).options
    if size == usual or not reads or shape.parallelism.ep > 1:
        return
    try:
        step = to_step(shape, world_size, base)
        units = modules(step.model, step.parallelism.cut())
    # Invalid settings are reported by the rules.
    except (ScenarioError, ValueError):
        return
    itemsize = dtypes.find(step.precision.grads).itemsize
    gradients = [unit.elements * itemsize for unit in units]
    # Pipeline stages cut the list of units: the buckets are the same for any cut if every unit fills a bucket.
    full = min(gradients) >= max(size, usual)
    buckets = _buckets(gradients, size)
    if full or (shape.parallelism.pp == 1 and buckets == _buckets(gradients, usual)):
        if len(buckets) > 1:
            why = f"a bucket ends with a whole layer, and {units[1].name} alone has {format_memory(gradients[1])}"
        else:
            why = f"a single bucket holds all {format_memory(sum(gradients))}"
        yield (
            ("training", "sharding", "bucket_size"),
            f"{why} of gradients; {bytes_text(size)} therefore acts like the default of {bytes_text(usual)}",
        )


def _buckets(gradients: Sequence[int], size: int) -> list[int]:
    """Return the bytes of each bucket of at least `size` bytes, filled from the last unit to the first.

    >>> _buckets([10, 30, 30, 1], 2), _buckets([10, 30, 30, 1], 40)
    ([31, 30, 10], [61, 10])
    """
    buckets, filled = [], 0
    for nbytes in reversed(gradients):
        filled += nbytes
        if filled >= size:
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets


def _lone_shards(shape: TrainingSpec, world_size: int, base: Path) -> Iterator[tuple[Key, str]]:
    """Yield the keys of sharding if each group that would share model states has one rank (`step.plan.on_ranks`)."""
    sharding, copies = shape.sharding, shape.parallelism.holders(world_size)
    lone = shards_gradients(sharding.strategy) and (sharding.shard_size or copies) == 1
    if not lone or not _without_experts(shape, base):
        return
    strategy = "ddp" if shape.offload.what == "none" else "zero2"
    for name in ("strategy", "reshard_after_forward", "prefetch", "layers_per_unit", "keep_below", "gradient_sync"):
        if (name, sharding.strategy) != ("strategy", strategy):
            yield ("training", "sharding", name), f"a rank shares its states with no other, as under {strategy}"


def _one_copy(shape: TrainingSpec, world_size: int) -> Iterator[tuple[Key, str]]:
    """Yield the keys about the exchange of gradients if no two ranks hold gradients of the same parameters."""
    layout, strategy = shape.parallelism, STRATEGIES.find(shape.sharding.strategy)
    # Context-parallel ranks sum gradients like data-parallel ranks, and experts may have copies on tensor ranks.
    if world_size != layout.tp * layout.pp or layout.ep > 1 or layout.etp not in (None, layout.tp):
        return
    # With offload, buckets travel to the host. A strategy that shards gradients packs them in buckets even alone.
    if world_size == 1 or shape.offload.what != "none" or strategy.updater is Updater.SERVERS:
        return
    names = ["keep_below"] if State.GRADIENTS in strategy.shards else ["keep_below", "bucket_size"]
    for name in names:
        yield (
            ("training", "sharding", name),
            "tp x pp is world_size, therefore a single data-parallel rank has no gradients to exchange",
        )


def _attention(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    if shape.attention != "flash":
        why = f"applies to flash attention, but attention is {shape.attention}"
        yield ("training", "attention_generation"), why
        return
    policy = shape.activation_checkpointing
    # A policy by layer is a tuple; its entries are (policy, layers), or plain layers for "full".
    by_layer = policy if isinstance(policy, tuple) else ()
    names = {entry[0] if isinstance(entry, tuple) else "full" for entry in by_layer}
    if policy == "attention" or names == {"attention"}:
        why = "'attention' recomputes scores, but flash attention stores no scores; write full, or attention: standard"
        yield ("training", "activation_checkpointing"), why


def _layer_list(shape: TrainingSpec, base: Path) -> Iterator[tuple[Key, str]]:
    """Yield the keys that describe a transformer's kernels, if the model is a list of layers or has no such kernels."""
    try:
        model = load_model(shape.model, shape.seq_len, base)
    # Invalid models are reported by the rules.
    except ScenarioError:
        return
    if isinstance(model, LayerList):
        yield ("training", "attention"), f"the layers of {model.name} name their own kernels"
        yield ("training", "loss"), f"{model.name} names its loss in its own file"
        yield ("training", "dropout"), f"the layers of {model.name} name their own dropout, by the layer dropout"
        if not model.has_attention:
            yield ("training", "attention_generation"), f"{model.name} has no layer of attention"
        copies = [("training", name) for name in ("logit_shift", "float32_outputs", "use_cache")]
        yield from dict.fromkeys(copies, f"{model.name} is no language model").items()
    else:
        yield from _copies(shape, model)


def _copies(shape: TrainingSpec, model: Transformer) -> Iterator[tuple[Key, str]]:
    """Yield the keys on copies of the logits, and on returned keys and values, if a step has no such copies."""
    shift, outputs, cache = (("training", name) for name in ("logit_shift", "float32_outputs", "use_cache"))
    if shape.loss == "chunked":
        yield from dict.fromkeys((shift, outputs), "a chunked loss never holds all logits").items()
    elif model.patches is not None:
        yield shift, f"{model.name} computes logits of its class tokens alone"
    if model.latent is not None:
        yield cache, f"{model.name} makes keys and values from latent vectors, which are saved anyway"
    elif shape.parallelism.pp > 1:
        yield cache, "stages of a pipeline pass on hidden states alone; write pp: 1"
    elif not any(
        policy_of(shape.activation_checkpointing, layer) in RECOMPUTED_WHOLE for layer in range(model.num_layers)
    ):
        yield cache, "no layer is recomputed as a whole, and the others save keys and values anyway"


def _collectives(shape: TrainingSpec) -> Iterator[tuple[Key, str]]:
    if STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
        for name in ("collectives", "algorithm"):
            yield ("training", name), "workers send to servers and have no collectives"
    elif shape.numerics:
        yield ("training", "collectives"), "numerics: true simulates every transfer"


def _trains_head(shape: TrainingSpec, world_size: int, base: Path) -> bool:
    """Return True if a transformer's head has a weight gradient; also if the settings are invalid."""
    try:
        step = to_step(shape, world_size, base)
    # Invalid settings are reported by the rules.
    except (ScenarioError, ValueError):
        return True
    return step.trains_head


def _without_experts(shape: TrainingSpec, base: Path) -> str:
    """Return a clause that the model has no experts; empty if it has some, or is invalid."""
    try:
        model = load_model(shape.model, shape.seq_len, base)
    # Invalid models are reported by the rules.
    except ScenarioError:
        return ""
    return "" if isinstance(model, Transformer) and model.num_experts else f"{model.name} has no experts"


def _parallelism(shape: TrainingSpec, world_size: int, base: Path) -> Iterator[tuple[Key, str]]:
    layout, key = shape.parallelism, ("training", "parallelism")
    if layout.tp == 1:
        yield (*key, "sequence_parallel"), "needs tp above 1"
    if layout.tp == 1 or not layout.sequence_parallel:
        yield (*key, "tp_overlap"), "needs tp above 1 and sequence_parallel"
    if layout.ep == 1:
        none = _without_experts(shape, base)
        for name in ("dispatch", "capacity", "imbalance", "dtype", "overlap"):
            yield (*key, "experts", name), none or "needs ep above 1"
        yield (*key, "experts", "routing"), none or "needs ep above 1 and experts.dispatch: deduplicated"
    else:
        if layout.experts.capacity is not None:
            yield (*key, "experts", "imbalance"), "with a capacity every expert takes the same number of tokens"
        if shape.gradient_accumulation_steps == 1:
            yield (*key, "experts", "overlap"), "needs several micro-batches: gradient_accumulation_steps above 1"
        if layout.experts.dispatch != "deduplicated":
            yield (*key, "experts", "routing"), "only copies of dispatch: deduplicated depend on it"
    if layout.cp == 1:
        for name in ("context", "balanced"):
            yield (*key, name), "needs cp above 1"
    elif layout.ulysses == layout.cp:
        yield (
            (*key, "balanced"),
            ("every rank has the whole sequence for some heads, therefore every rank has the same load"),
        )
    if layout.tp == 1 and layout.pp == 1 and layout.cp == 1:
        yield (*key, "order"), "needs tp, pp or cp above 1"
    if layout.pp == 1:
        for name in ("schedule", "virtual_stages", "microbatch_group", "stages", "deferred_head_gradients"):
            yield (*key, name), "needs pp above 1"
        return
    if layout.deferred_head_gradients and not _trains_head(shape, world_size, base):
        yield (*key, "deferred_head_gradients"), "the model has no head with a trained matrix"
    schedule = SCHEDULES.find(layout.schedule)
    if schedule.chunks is not None:
        yield (*key, "virtual_stages"), f"{layout.schedule} has {schedule.chunks} stages per rank"
    if not schedule.grouped:
        yield (
            (*key, "microbatch_group"),
            (f"{layout.schedule} has no groups of micro-batches; write schedule: interleaved"),
        )
