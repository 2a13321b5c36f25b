"""Rules between keys of `training`, the model and the GPU.

A generator covers one topic in a few lines and is named after the key in its reports. Every generator runs, therefore
all faults in a file are reported at once. Rules for `numerics: true` are in numerics_rules.py.

Example: `_shard_size` reports at `sharding.shard_size`, and involves `sharding.strategy` and `cluster.world_size`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import dtypes, registry
from simulator.basics.document import Key
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.basics.spec import servers_among
from simulator.basics.work_unit import SAMPLE
from simulator.cluster.limits import no_server_ports
from simulator.collectives.algorithm import Auxiliary, CollectiveRequest
from simulator.model.expert_counts import read_counts
from simulator.model.layer_list import LayerList
from simulator.model.model import adapters
from simulator.model.shape import Transformer
from simulator.model.trainable import ALL, trained_of
from simulator.scenario import numerics_rules, own_parts, parallelism_rules
from simulator.scenario.build_training import accumulation, with_accumulation
from simulator.scenario.caching import memoized
from simulator.scenario.collective_rules import chosen, proof_faults
from simulator.scenario.records import ClusterSpec
from simulator.scenario.rule_violation import RuleViolation, any_listening, any_of, first_duplicate
from simulator.step.framework import load_framework
from simulator.step.lengths import MOST_SEQUENCES, PACKING
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts
    from simulator.cluster.cluster import Gpu
    from simulator.model.model import Model


@dataclass(frozen=True, slots=True)
class TrainingFiles:
    """Readers for the files named in `training`; each file is read once for every point of a sweep."""

    model: Callable[[Any, int], Model]  # reader for the model
    learning: numerics_rules.LearningFiles  # readers for the files named in `training.learning`


# Distributions of whole matrices under strategies that do not shard every state.
_DISTRIBUTIONS_OF: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"ddp": ("replicated", "owners"), "zero1": ("gathered", "owners", "all_to_all")}
)


def training_files(base: Path) -> TrainingFiles:
    """Return functions reading the files named in `training`, each once; `base` is the folder for relative paths."""
    from simulator.model.load import load_model

    return TrainingFiles(
        memoized(lambda model, seq_len: load_model(model, seq_len, base)), numerics_rules.learning_files(base)
    )


def conflicts(
    shape: TrainingSpec, cluster: ClusterSpec, facts: TopologyFacts | None, files: TrainingFiles, base: Path
) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule between the keys of `training`, the model and the GPU.

    `facts` is None if the topology is invalid.
    """
    broken = list(own_parts.unusable(shape, base))
    if broken:
        # The rules below look into the parts.
        yield from broken
        return
    shape = own_parts.located(shape, base)
    sizes = list(parallelism_rules.sizes(shape, cluster.world_size))
    yield from sizes
    # `copies`: ranks holding the same part of the model. With invalid sizes this number is unknown, and world_size is
    # the stand-in.
    copies = cluster.world_size if sizes else shape.parallelism.holders(cluster.world_size)
    if not sizes:
        yield from _global_batch(shape, cluster.world_size)
    # The rules below read the number of micro-batches, which may follow from `global_batch`.
    shape = with_accumulation(shape, cluster.world_size)
    yield from _collectives(shape, cluster)
    yield from _shard_size(shape, copies)
    yield from _reshard_after_forward(shape, copies)
    yield from _gradient_sync(shape)
    yield from _algorithm(shape, copies, base)
    yield from _servers(shape, cluster.world_size, facts)
    yield from _offload(shape)
    yield from _checkpoint_traffic(shape, cluster, base)
    yield from _optimizer(shape)
    yield from _precision_master(shape)
    yield from _precision_matmul(shape)
    yield from _precision_of_gpu(shape, cluster, facts, base)
    yield from _attention_generation(shape, cluster, facts, base)
    model = None
    try:
        model = files.model(shape.model, shape.seq_len)
    except ScenarioError as error:
        yield from _model_conflicts(error, shape)
    yield from _mtp_layers(shape, model)
    if isinstance(model, Transformer):
        model = model.predicting(shape.mtp_layers)
    yield from _framework(shape, base)
    yield from parallelism_rules.conflicts(shape, model, None if sizes else cluster.world_size)
    yield from _tokens_used(shape, model)
    yield from _lengths(shape, model, copies, base)
    yield from _recorded_experts(shape, model, base)
    yield from _lora(shape, model, _gpu(cluster, facts, base))
    yield from _trainable(shape, model)
    yield from _loss(shape, model)
    yield from _activation_checkpointing(shape, model)
    yield from _layers_per_unit(shape, model)
    yield from numerics_rules.conflicts(shape, cluster, model, files.learning)


def _conflict(name: str, message: str, *involved: str, of_key: bool = False) -> RuleViolation:
    # A rule involves its own key, besides the keys given.
    dotted = f"training.{name}"
    return RuleViolation(tuple(dotted.split(".")), message, (dotted, *involved), of_key)


def _collectives(shape: TrainingSpec, cluster: ClusterSpec) -> Iterator[RuleViolation]:
    """Yield a violation if links change during the step, but collectives are not simulated on links."""
    if cluster.events and shape.collectives == "closed_form":
        message = "got closed_form, which knows no links that change (cluster.events); write auto or played"
        yield _conflict("collectives", message, "cluster.events")


def _checkpoint_traffic(shape: TrainingSpec, cluster: ClusterSpec, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation if a checkpoint in flight has nowhere to go, or its traffic has no effect on this step."""
    if shape.checkpoint_traffic == "none":
        return
    name, got = "checkpoint_traffic", f"got {shape.checkpoint_traffic}"
    if cluster.storage is None:
        yield _conflict(name, f"{got}; needs a storage, such as cluster.storage: 20 GB/s", "cluster.storage")
    if shape.collectives == "closed_form":
        yield _conflict(name, f"{got}; collectives: closed_form knows no other traffic", "training.collectives")
    if shape.numerics:
        yield _conflict(name, f"{got}; numerics: true has a checkpoint of its own (learning)", "training.numerics")
    if STRATEGIES.find(shape.sharding.strategy, base).updater is Updater.SERVERS:
        yield _conflict(name, f"{got}; parameter servers hold the states", "training.sharding.strategy")


def _global_batch(shape: TrainingSpec, world_size: int) -> Iterator[RuleViolation]:
    """Yield a violation if ranks cannot share the global batch evenly, or another number of micro-batches is given."""
    if shape.global_batch is None:
        return
    sizes = (f"training.parallelism.{kind}" for kind in ("tp", "pp", "cp"))
    involved = ("training.seq_len", "training.micro_batch_size", "cluster.world_size", *sizes)
    try:
        steps = accumulation(shape, world_size)
    except ValueError as error:
        yield _conflict("global_batch", str(error), *involved)
        return
    number = shape.gradient_accumulation_steps
    # The default, 1, contradicts nothing; only a number written by the user does.
    if "gradient_accumulation_steps" in shape.model_fields_set and number != steps:
        message = f"got {number}, but global_batch {shape.global_batch} needs {steps}; omit one key"
        yield _conflict("gradient_accumulation_steps", message, "training.global_batch", *involved)


def _tokens_used(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    """Yield a violation for a share of padding in batches that cannot have padding."""
    if shape.tokens_used == 1.0:
        return
    if shape.numerics:
        message = f"got {shape.tokens_used:g}, but the batches of a real training have no padding; omit the key"
        yield _conflict("tokens_used", message, "training.numerics")
    if model is not None and model.work_unit == SAMPLE:
        message = f"got {shape.tokens_used:g}, but samples of {model.name} are no sequences of tokens; omit the key"
        yield _conflict("tokens_used", message, "training.model")


def _recorded_experts(shape: TrainingSpec, model: Model | None, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for recorded counts of each expert's tokens that cannot be read or have another number of
    experts than the model, and if both these loads and the documents are given for several steps.
    """
    path, key = shape.parallelism.experts.located(base).recorded, "parallelism.experts.imbalance"
    steps, experts = shape.parallelism.experts.steps, 0
    if path:
        try:
            steps, _, experts = read_counts(path).shape
        except ValueError as error:
            yield _conflict(key, str(error))
            return
    if shape.lengths is not None and shape.lengths.steps > 1 and steps > 1:
        yield _conflict(key, "steps have other documents already; give the steps of one of the two", "training.lengths")
    if not path:
        return
    if isinstance(model, Transformer) and model.num_experts != experts:
        message = f"{path} has counts of {experts} experts, but {model.name} has {model.num_experts}"
        yield _conflict(key, message, "training.model")


def _lengths(shape: TrainingSpec, model: Model | None, copies: int, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for documents of unequal lengths in a step that cannot have them; `copies` are the ranks that
    hold the same part of the model.
    """
    if shape.lengths is None:
        return
    cut, padded = shape.parallelism, shape.batching in ("pad_to_longest", "bucket")
    several = next((name for name in ("tp", "pp", "cp", "ep") if getattr(cut, name) > 1), None)
    samples = model is not None and model.work_unit == SAMPLE
    sequences = shape.micro_batch_size * shape.gradient_accumulation_steps * copies
    reasons = (
        (
            "micro_batch_size", sequences > MOST_SEQUENCES,
            f"a step has {sequences:,} sequences, whose documents are drawn one by one; at most {MOST_SEQUENCES:,}",
        ),
        ("tokens_used", shape.tokens_used != 1.0, "follows from lengths and batching; omit the key"),
        (
            "numerics", shape.numerics and (shape.batching not in PACKING or shape.micro_batch_size > 1),
            "a real training packs documents into one sequence a micro-batch; write batching: pack and "
            "micro_batch_size: 1",
        ),
        (
            "parallelism.cp", shape.numerics and cut.cp > 1,
            "a real training cuts no packed sequences over context-parallel ranks; write cp: 1",
        ),
        ("model", samples, "samples of this model are no sequences of tokens; omit lengths"),
        ("sharding.strategy", shape.sharding.asynchronous, "asynchronous workers have equal batches; omit lengths"),
        (
            f"parallelism.{several}", padded and several is not None,
            f"ranks of a group exchange micro-batches of unequal size under batching {shape.batching}, which is not "
            "simulated; write batching: pack, or pad",
        ),
        (
            "parallelism.balanced", cut.unlike_places > 1,
            "documents are cut evenly over context-parallel ranks; write balanced: true",
        ),
    )  # fmt: skip
    for key, breaks, message in reasons:
        if breaks:
            yield _conflict(key, message, "training.lengths")
    try:
        _ = shape.lengths.located(base).source
    except ValueError as error:
        yield _conflict("lengths.file", str(error))


def _mtp_layers(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    """Yield a violation for layers that predict further tokens in a model, or beside keys, that cannot have any."""
    if not shape.mtp_layers:
        return
    reasons = (
        ("lora.rank", shape.lora.rank > 0, "beside adapters", "omit lora"),
        ("trainable", shape.trainable != ALL, "beside frozen parts of the model", "omit trainable"),
        ("numerics", shape.numerics, "in real training", "write numerics: false"),
        (
            "activation_checkpointing", shape.activation_checkpointing == "sqrt", "in segments of sqrt",
            "write activation_checkpointing: full",
        ),
    )  # fmt: skip
    for key, unable, where, other in reasons:
        if unable:
            message = (
                f"got {shape.mtp_layers}, but layers that predict further tokens are not supported {where}; write 0, "
                f"or {other}"
            )
            yield _conflict("mtp_layers", message, f"training.{key}")
    if model is not None and not (isinstance(model, Transformer) and model.causal and model.patches is None):
        message = (
            f"got {shape.mtp_layers}, but {model.name} is no decoder, whose next tokens could be predicted; write 0"
        )
        yield _conflict("mtp_layers", message, "training.model")


def _shard_size(shape: TrainingSpec, copies: int) -> Iterator[RuleViolation]:
    size = shape.sharding.shard_size
    if size is None:
        return
    involved = ("training.sharding.strategy", "cluster.world_size")
    # Strategies declare their options, therefore a new strategy needs no change here.
    if "shard_size" not in STRATEGIES.find(shape.sharding.strategy).options:
        able = any_listening("shard_size")
        message = f"got {size}, but {shape.sharding.strategy} has no sharding groups; omit the key, or write {able}"
        yield _conflict("sharding.shard_size", message, *involved)
    elif copies % size:
        # Suggest the largest divisor up to the given size.
        near = max(n for n in range(1, min(size, copies) + 1) if copies % n == 0)
        group = "world_size" if shape.parallelism.size == 1 else "the data-parallel ranks,"
        message = f"got {size}; must divide {group} {copies}; try {near}"
        yield _conflict("sharding.shard_size", message, *involved)


def _reshard_after_forward(shape: TrainingSpec, copies: int) -> Iterator[RuleViolation]:
    """Yield a violation if a number `reshard_after_forward` does not divide the ranks sharing a copy of the states."""
    ranks, group = shape.sharding.reshard_after_forward, shape.sharding.shard_size or copies
    # True and False suit every group; numbers must divide the group.
    if isinstance(ranks, bool):
        return
    involved = ("training.sharding.strategy", "training.sharding.shard_size", "cluster.world_size")
    if not STRATEGIES.find(shape.sharding.strategy).shards_parameters:
        able = any_listening("reshard_after_forward")
        message = f"got {ranks}, but {shape.sharding.strategy} gathers no parameters; omit the key, or write {able}"
        yield _conflict("sharding.reshard_after_forward", message, *involved)
    # A number equal to the whole group would mean `true`.
    elif group % ranks or ranks == group:
        message = (
            f"got {ranks}; must divide the {group} ranks that share one copy of the states, and must be smaller; or "
            "write true"
        )
        yield _conflict("sharding.reshard_after_forward", message, *involved)


def _algorithm(shape: TrainingSpec, copies: int, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation if the algorithm lacks a collective operation of the sharding strategy, or does it wrongly.

    The algorithm is proved on the ranks that share a part of the model (`copies`), or on the groups into which
    `shard_size` divides them, and for sums between these groups. Other groups are proved when they are planned.
    """
    try:
        algorithm = chosen(shape.algorithm, base)
    except ScenarioError as error:
        yield _conflict("algorithm", str(error))
        return
    if algorithm is None:
        return
    if algorithm.auxiliary is Auxiliary.SERVERS:
        message = f"got {shape.algorithm!r}; servers hold a training's parameters: write sharding: parameter_server"
        yield _conflict("algorithm", message)
        return
    needed = STRATEGIES.find(shape.sharding.strategy).operations
    missing = [operation for operation in needed if operation not in algorithm.plans]
    if missing:
        message = f"got {shape.algorithm!r}, which has no {missing[0]}; {shape.sharding.strategy} needs this operation"
        yield _conflict("algorithm", message, "training.sharding.strategy")
    size = shape.sharding.shard_size or copies
    sums = {("all_reduce", copies // size)} if "all_reduce" in needed else set()
    for operation, ranks in sorted({(operation, size) for operation in needed} | sums):
        if operation in algorithm.plans and ranks > 1:
            # The number of elements does not matter: every rank has a part of several.
            request = CollectiveRequest(operation, ranks, 3 * ranks)
            for message in proof_faults(shape.algorithm, algorithm, request):
                yield _conflict("algorithm", message)


def _gradient_sync(shape: TrainingSpec) -> Iterator[RuleViolation]:
    strategy, sync = STRATEGIES.find(shape.sharding.strategy), shape.sharding.gradient_sync
    if sync != "every" and "gradient_sync" not in strategy.options:
        when, able = strategy.sending.value, any_listening("gradient_sync")
        message = f"got {sync!r}, but {strategy.name} communicates gradients in {when}; omit the key, or write {able}"
        yield _conflict("sharding.gradient_sync", message, "training.sharding.strategy")


def _servers(shape: TrainingSpec, world_size: int, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    sharding = shape.sharding
    if STRATEGIES.find(sharding.strategy).updater is not Updater.SERVERS:
        return
    # A single worker has nobody to share parameters with.
    if world_size < 2:
        message = f"got {sharding.strategy!r}, which needs at least 2 workers; write ddp for a single worker"
        yield _conflict("sharding.strategy", message, "cluster.world_size")
    if sharding.servers_on == "workers" and servers_among(sharding.servers, world_size) > world_size:
        message = f"got {sharding.servers}, which is more than the {world_size} workers that host the servers"
        yield _conflict("sharding.servers", message, "training.sharding.servers_on", "cluster.world_size")
    if sharding.servers_on == "own" and facts is not None and not facts.own_servers:
        message = f"got 'own', but {no_server_ports(facts.name)}; or write workers"
        yield _conflict("sharding.servers_on", message, "cluster.topology", "training.sharding.strategy")


def _optimizer(shape: TrainingSpec) -> Iterator[RuleViolation]:
    setting, optimizer = shape.optimizer, OPTIMIZERS.find(shape.optimizer.name)
    if optimizer.of_matrices is not None:
        yield from _of_matrices(shape)
    if optimizer.paged:
        away = shape.offload.what != "none"
        if away or STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
            where = "host's processors" if away else "parameter servers"
            message = f"got {setting.name!r}, whose states are paged for the GPU's update, beside an update of {where}"
            yield _conflict("optimizer.name", message, "training.offload" if away else "training.sharding.strategy")
    if setting.implementation in ("foreach", "for_loop") and optimizer.separate is None:
        message = f"got {setting.implementation!r}, but {setting.name} has a fused kernel alone; write auto"
        yield _conflict("optimizer.implementation", message, "training.optimizer.name")
    if setting.implementation == "fused" and not optimizer.has_fused:
        able = ", ".join(name for name, optimizer in OPTIMIZERS.by_name.items() if optimizer.has_fused)
        message = (
            f"got 'fused', but {setting.name} has no fused kernel (optimizers with a fused kernel: {able}); write "
            "foreach or for_loop"
        )
        yield _conflict("optimizer.implementation", message, "training.optimizer.name")


def _of_matrices(shape: TrainingSpec) -> Iterator[RuleViolation]:
    """Yield violations of keys for an optimizer that updates whole matrices."""
    setting, strategy = shape.optimizer, STRATEGIES.find(shape.sharding.strategy)
    if strategy.updater is Updater.SERVERS:
        message = f"got {setting.name!r}, which needs whole matrices; parameter servers hold parts of them"
        yield _conflict("optimizer.name", message, "training.sharding.strategy")
        return
    if shape.offload.what != "none":
        message = f"got {setting.name!r}, whose matrices are multiplied on the GPU; write offload: none"
        yield _conflict("optimizer.name", message, "training.offload")
    able = _DISTRIBUTIONS_OF.get(strategy.name, ("gathered", "all_to_all"))
    if setting.distribution not in ("auto", *able):
        message = f"got {setting.distribution!r}; with {strategy.name}: auto, {', '.join(able)}"
        yield _conflict("optimizer.distribution", message, "training.sharding.strategy")
    if setting.distribution == "owners" and shape.sharding.shard_size is not None:
        message = "got 'owners', which needs a single copy of the states; omit sharding.shard_size"
        yield _conflict("optimizer.distribution", message, "training.sharding.shard_size")


def _lora(shape: TrainingSpec, model: Model | None, gpu: Gpu | None) -> Iterator[RuleViolation]:
    """Yield a violation if the model cannot have the adapters, or the GPU cannot multiply their frozen matrices."""
    if shape.lora.rank and shape.lora.base == "int8" and gpu is not None and "int8" not in gpu.peak_flops:
        message = f"got 'int8', but {gpu.name} has no rate of matmuls in int8; write nf4, or params"
        yield _conflict("lora.base", message, "cluster.gpu", "cluster.topology", "training.lora.rank")
    if shape.lora.rank and shape.lora.dora:
        # Norms of rows would be sums over ranks, which PEFT does not compute; its GPTQ matrices refuse DoRA.
        if shape.parallelism.tp > 1:
            message = "got true with tp above 1; PEFT computes lengths of whole matrices; write tp: 1, or dora: false"
            yield _conflict("lora.dora", message, "training.parallelism.tp", "training.lora.rank")
        if shape.lora.base == "gptq":
            message = "got true, but PEFT has no DoRA beside gptq; write base: nf4, or dora: false"
            yield _conflict("lora.dora", message, "training.lora.base", "training.lora.rank")
    if shape.lora.rank and shape.lora.hidden == "float32":
        # PEFT casts norms beside matrices of bitsandbytes alone; exchanges between ranks have the activations' dtype.
        for key, unable, advice in (
            (
                "lora.base",
                shape.lora.base in ("params", "gptq"),
                "whose norms PEFT leaves as they are; write base: nf4",
            ),
            ("parallelism.tp", shape.parallelism.tp > 1, "which is not supported yet; write tp: 1"),
            ("lora.dora", shape.lora.dora, "which is not supported yet; write dora: false"),
        ):
            if unable:
                value = {"lora.base": f"base {shape.lora.base}", "parallelism.tp": "tp above 1"}.get(key, "dora")
                message = f"got 'float32' beside {value}, {advice}, or hidden: params"
                yield _conflict("lora.hidden", message, f"training.{key}", "training.lora.rank")
    if model is None:
        return
    try:
        adapters(shape.lora, model)
    except ValueError as error:
        yield _conflict("lora.targets", str(error), "training.model", "training.lora.rank")


def _trainable(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    """Yield a violation if parts of the model cannot be frozen as asked, or beside other keys."""
    if model is None or shape.trainable == ALL:
        return
    try:
        trained = trained_of(shape.trainable, model)
    except ValueError as error:
        yield _conflict("trainable", str(error), "training.model")
        return
    if trained is None:
        return
    for key, unable, advice in (
        ("lora.rank", shape.lora.rank > 0, "adapters on a frozen model; omit trainable, or lora"),
        ("numerics", shape.numerics, "real training, which trains every parameter; omit trainable"),
        (
            "activation_checkpointing",
            shape.activation_checkpointing == "sqrt",
            "segments of sqrt over frozen and trained layers; write full",
        ),
        (
            "sharding.strategy",
            STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS,
            "parameter servers, which push every parameter; write ddp or zero3",
        ),
    ):
        if unable:
            yield _conflict("trainable", f"got {_brief(shape.trainable)} beside {advice}", f"training.{key}")
    # The table is the embedding's parameter, and no pattern of the head's paths names it.
    table = "token" in trained.of("embedding")
    if model.tied and ("head" in shape.trainable) != table and {"embedding", "head"} & {*shape.trainable}:
        message = f"got {_brief(shape.trainable)}; {model.name} shares a table between embedding and head; name both"
        yield _conflict("trainable", message, "training.model")


def _brief(parts: Sequence[str]) -> str:
    """Return the trained parts as text: "[head, layer 3]"."""
    return f"[{', '.join(parts)}]"


def _offload(shape: TrainingSpec) -> Iterator[RuleViolation]:
    strategy = STRATEGIES.find(shape.sharding.strategy)
    # Offload needs states with a single owner each. Under ddp every rank updates everything; servers have no GPU.
    if shape.offload.what != "none" and strategy.updater is not Updater.OWNERS:
        able = any_of(name for name in STRATEGIES.names() if STRATEGIES.find(name).updater is Updater.OWNERS)
        message = (
            f"got {shape.offload.what!r}, but with {strategy.name} {strategy.updater.value}; write sharding: {able}"
        )
        yield _conflict("offload", message, "training.sharding.strategy")
    if shape.offload.activations and shape.activation_checkpointing == "sqrt":
        message = "got activations with segments of sqrt, which are recomputed together; write full"
        yield _conflict("offload", message, "training.activation_checkpointing")


def _precision_master(shape: TrainingSpec) -> Iterator[RuleViolation]:
    params, master = shape.precision.params, shape.precision.master
    if master in (None, "auto"):
        return
    # A master copy is useful only if wider than the parameters.
    if dtypes.find(str(master)).bits <= dtypes.find(params).bits:
        message = (
            f"got {master!r}, which is not wider than the parameters' {params}; omit the key for float32, or write none"
        )
        yield _conflict("precision.master", message, "training.precision.params")


def _precision_matmul(shape: TrainingSpec) -> Iterator[RuleViolation]:
    params, matmul = shape.precision.params, shape.precision.matmul
    # Tensor cores round float32 inputs to tf32 themselves. Casting up before a matmul would gain nothing.
    if matmul == "tf32" and params != "float32":
        message = (
            f"got 'tf32', which takes float32 inputs, but params are {params}; omit the key, or write params: float32"
        )
    elif matmul not in ("auto", "tf32", params) and dtypes.find(matmul, stored=False).bits >= dtypes.find(params).bits:
        message = f"got {matmul!r}, which is not narrower than the parameters' {params}; omit the key"
    else:
        return
    yield _conflict("precision.matmul", message, "training.precision.params")


def _precision_of_gpu(
    shape: TrainingSpec, cluster: ClusterSpec, facts: TopologyFacts | None, base: Path
) -> Iterator[RuleViolation]:
    """Yield a violation if the GPU has no peak rate for a dtype used in computation."""
    gpu = _gpu(cluster, facts, base)
    if gpu is None:
        return
    dtype = shape.precision.resolved()
    # With an automatic matmul dtype, both keys mean the same dtype: report it once, at `params`.
    dtype_of = {"precision.params": dtype.params}
    if shape.precision.matmul not in ("auto", dtype.params):
        dtype_of["precision.matmul"] = dtype.matmul
    if shape.lora.rank:
        dtype_of["lora.dtype"] = shape.lora.dtype
    for key, name in dtype_of.items():
        if name not in gpu.peak_flops:
            able = ", ".join(sorted(d for d in gpu.peak_flops if dtypes.find(d, stored=False).is_float))
            message = f"got {name!r}, which {gpu.name} does not support; one of {able}"
            yield _conflict(key, message, "cluster.gpu", "cluster.topology")
    matrices = OPTIMIZERS.find(shape.optimizer.name).of_matrices
    if matrices is not None and matrices.dtype not in gpu.peak_flops:
        message = f"got {shape.optimizer.name!r}, which multiplies in {matrices.dtype}; {gpu.name} does not support it"
        yield _conflict("optimizer.name", message, "cluster.gpu", "cluster.topology")


@cache
def _shipped_gpu(name: str) -> Gpu:
    """Return the GPU with this name from the catalog; each file is read once per process."""
    from simulator.cluster.gpu_file import load_gpu

    return load_gpu(name)


def _attention_generation(
    shape: TrainingSpec, cluster: ClusterSpec, facts: TopologyFacts | None, base: Path
) -> Iterator[RuleViolation]:
    """Yield a violation if the GPU has no kernels for the chosen flash attention generation."""
    from simulator.step.kernels.kernel_time import attention_generations

    gpu = _gpu(cluster, facts, base)
    # Standard attention uses plain matmuls.
    if gpu is None or shape.attention != "flash":
        return
    generations = attention_generations(gpu)
    if shape.attention_generation not in ("auto", *generations):
        allowed = ", ".join(map(str, generations))
        # Dao-AILab/flash-attention, README: FlashAttention-3 requires an H100 or H800.
        chips = {3: "Hopper", 4: "Blackwell"}.get(int(shape.attention_generation), "")
        number = shape.attention_generation
        why = f", because generation {number} has kernels for {chips} GPUs only" if chips else ""
        message = f"got {shape.attention_generation}; {gpu.name} runs flash attention generations {allowed}{why}"
        yield _conflict("attention_generation", message, "training.attention", "cluster.gpu", "cluster.topology")


def _gpu(cluster: ClusterSpec, facts: TopologyFacts | None, base: Path) -> Gpu | None:
    """Return the cluster's GPU type, or None if it cannot be read; cluster_rules.py reports the reason."""
    from simulator.cluster.gpu_file import load_gpu

    name = cluster.gpu if cluster.gpu is not None else facts.gpu if facts is not None else None
    # A sweep asks for every point; shipped GPUs come from the cache.
    if isinstance(name, str) and name in registry.names("gpu"):
        return _shipped_gpu(name)
    if cluster.gpu is None:
        return None
    try:
        return load_gpu(cluster.gpu, base)
    except (ScenarioError, OSError, ValueError, TypeError):
        return None


def _framework(shape: TrainingSpec, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation at `training.framework` for each fault in the named framework file."""
    try:
        load_framework(shape.framework, base)
    except ScenarioError as error:
        for line in str(error).splitlines():
            yield _conflict("framework", line)


def _model_conflicts(error: ScenarioError, shape: TrainingSpec) -> Iterator[RuleViolation]:
    """Yield a violation at `training.model`, or a key inside, for each reason in `error` why the model is unusable."""
    text = str(error).removeprefix(f"{error.kind}: ") if isinstance(error, UnknownNameError) else str(error)
    for line in text.splitlines():
        # The model may be fine and the sequence too long for it: then the fault belongs to `seq_len`.
        long = re.search(r"(?:^|: )seq_len: (.*)", line)
        if long:
            yield _conflict("seq_len", long[1], "training.model")
        elif isinstance(shape.model, Mapping):
            key, message = _inside(line, shape.model)
            yield RuleViolation(("training", "model", *key), message, ("training.model",))
        else:
            yield _conflict("model", line)


def _inside(line: str, model: Mapping[str, Any]) -> tuple[Key, str]:
    """Return (key path, rest) of an error line about an inline model: the model's key named by the line, and the text.

    >>> _inside("model: hidden_size: got 0; must be at least 1", {"hidden_size": 0})
    (('hidden_size',), 'got 0; must be at least 1')
    """
    match = re.match(r"model: ([A-Za-z0-9_.]+): (.*)", line)
    # Errors may name a derived quantity; only a key written in the scenario has a place in the file.
    if match is None or match[1].split(".")[0] not in model:
        return (), line.removeprefix("model: ")
    return tuple(match[1].split(".")), match[2]


def _layers_per_unit(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    size = shape.sharding.layers_per_unit
    if model is not None and size > model.num_layers:
        message = f"got {size}; {model.name} has {model.num_layers} layers"
        yield _conflict("sharding.layers_per_unit", message, "training.model")


def _loss(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    """Yield a violation if Liger's kernels cannot compute the loss, with the head in chunks or after it."""
    if shape.loss not in ("in_place", "chunked") or isinstance(model, LayerList):
        return
    if shape.parallelism.tp > 1:
        what = "a chunk" if shape.loss == "chunked" else "the kernel"
        message = (
            f"got {shape.loss} with tp above 1; {what} needs the whole vocabulary on each rank; write fused, or tp: 1"
        )
        yield _conflict("loss", message, "training.parallelism.tp")
    if shape.loss == "chunked" and model is not None and model.patches is not None:
        message = f"got chunked; {model.name} computes logits of its class tokens alone; write fused"
        yield _conflict("loss", message, "training.model")


def _activation_checkpointing(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    """Yield a violation for each layer in `activation_checkpointing` that the model lacks, or that is named twice."""
    policy, key = shape.activation_checkpointing, ("training", "activation_checkpointing")
    # Two forms of lists: (("full", (0, 1)), ...) by policy, or plain layer numbers.
    entries: Sequence[int | tuple[str, tuple[int, ...]]] = policy if isinstance(policy, tuple) else ()
    policies = {policy, *(entry[0] for entry in entries if isinstance(entry, tuple))}
    if isinstance(model, LayerList) and (unable := [one for one in ("feed_forward", "activation") if one in policies]):
        message = (
            f"got {unable[0]!r}, which names a block of a transformer; {model.name} is a list of layers; write full or "
            "selective_op"
        )
        yield RuleViolation(key, message, ("training.activation_checkpointing", "training.model"))
    layers: list[tuple[Key, int]] = []
    for i, entry in enumerate(entries):
        if isinstance(entry, tuple):
            layers += [((*key, entry[0], j), layer) for j, layer in enumerate(entry[1])]
        else:
            layers.append(((*key, i), entry))
    # Across policies too: a layer has one policy.
    twice = first_duplicate([layer for _, layer in layers])
    if twice is not None:
        message = f"got layer {layers[twice][1]} twice; name each once"
        yield RuleViolation(layers[twice][0], message, ("training.activation_checkpointing",))
    for place, layer in layers:
        if model is not None and layer >= model.num_layers:
            message = f"got layer {layer}; {model.name} has layers 0 .. {model.num_layers - 1}"
            yield RuleViolation(place, message, ("training.activation_checkpointing", "training.model"))
