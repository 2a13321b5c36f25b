"""Rules between keys of `training`, and between them and what is known of the model and the GPU.

Rule: one generator a topic, each a few lines; all of them run, so that every fault of a file is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics import dtypes, registry
from simulator.basics.document import Key
from simulator.errors import ScenarioError, UnknownNameError
from simulator.scenario import numbers_rules
from simulator.scenario.conflict import Conflict, any_listening, any_of, repeated
from simulator.scenario.remembered import remembered
from simulator.scenario.shape import ClusterShape
from simulator.scenario.training_making import precision
from simulator.scenario.training_shape import TrainingShape
from simulator.step.strategies import catalog as strategies
from simulator.step.strategies.strategy import Updater

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts
    from simulator.cluster.cluster import Gpu
    from simulator.model.shape import Transformer


@dataclass(frozen=True, slots=True)
class Asks:
    """Questions about files, each of which is read once for all points.

    Attributes
    ----------
    model : function (model, seq_len)
        Which model is this?
    files : AskFiles
    """

    model: Callable[[Any, int], Transformer]
    files: numbers_rules.AskFiles


def asks_of(base: Path) -> Asks:
    """Make the questions; paths start from `base`."""
    from simulator.model.load import load_model

    return Asks(remembered(lambda model, seq_len: load_model(model, seq_len, base)), numbers_rules.files_of(base))


def conflicts(
    shape: TrainingShape, cluster: ClusterShape, facts: TopologyFacts | None, ask: Asks, base: Path
) -> Iterator[Conflict]:
    """Find every broken rule; `facts` is None where the topology itself is at fault."""
    yield from _parallelism(shape, cluster.world_size)
    yield from _shard_size(shape, cluster.world_size)
    yield from _mesh(shape, cluster.world_size)
    yield from _gradient_sync(shape)
    yield from _algorithm(shape)
    yield from _servers(shape, cluster.world_size, facts)
    yield from _offload(shape)
    yield from _master(shape)
    yield from _matmul(shape)
    yield from _computed(shape, cluster, facts, base)
    model = None
    try:
        model = ask.model(shape.model, shape.seq_len)
    except ScenarioError as error:
        yield from _unusable(error, shape)
    yield from _layers(shape, model)
    yield from _units(shape, model)
    yield from numbers_rules.conflicts(shape, cluster, model, ask.files)


def _conflict(name: str, message: str, *involved: str, of_key: bool = False) -> Conflict:
    dotted = f"training.{name}"
    return Conflict(tuple(dotted.split(".")), message, (dotted, *involved), of_key)


def _shard_size(shape: TrainingShape, world_size: int) -> Iterator[Conflict]:
    size = shape.sharding.shard_size
    if size is None:
        return
    involved = ("training.sharding.strategy", "cluster.world_size")
    if "shard_size" not in strategies.find(shape.sharding.strategy).options:
        able = any_listening("shard_size")
        told = f"got {size}, but {shape.sharding.strategy} has no sharding groups; leave it out, or write {able}"
        yield _conflict("sharding.shard_size", told, *involved)
    elif world_size % size:
        near = max(n for n in range(1, min(size, world_size) + 1) if world_size % n == 0)
        told = f"got {size}; must divide world_size {world_size}; try {near}"
        yield _conflict("sharding.shard_size", told, *involved)


def _mesh(shape: TrainingShape, world_size: int) -> Iterator[Conflict]:
    """Parameters are spread over a part of the ranks that share one copy."""
    ranks, whole = shape.sharding.reshard_after_forward, shape.sharding.shard_size or world_size
    if isinstance(ranks, bool):
        return
    involved = ("training.sharding.strategy", "training.sharding.shard_size", "cluster.world_size")
    if not strategies.find(shape.sharding.strategy).shards_parameters:
        able = any_listening("reshard_after_forward")
        told = f"got {ranks}, but {shape.sharding.strategy} gathers no parameters; leave it out, or write {able}"
        yield _conflict("sharding.reshard_after_forward", told, *involved)
    elif whole % ranks or ranks == whole:
        told = (
            f"got {ranks}; must divide the {whole} ranks that share one copy of the states, and be fewer; or write true"
        )
        yield _conflict("sharding.reshard_after_forward", told, *involved)


def _algorithm(shape: TrainingShape) -> Iterator[Conflict]:
    """What a strategy sends must be what the algorithm can carry out; each sums the gradient's norm besides."""
    from simulator.collectives import catalog

    if shape.algorithm == "auto":
        return
    needed = strategies.find(shape.sharding.strategy).operations
    able = catalog.operations(shape.algorithm)
    missing = [operation for operation in needed if operation not in able]
    if missing:
        told = f"got {shape.algorithm!r}, which has no {missing[0]}; {shape.sharding.strategy} needs it"
        yield _conflict("algorithm", told, "training.sharding.strategy")


def _gradient_sync(shape: TrainingShape) -> Iterator[Conflict]:
    strategy, sync = strategies.find(shape.sharding.strategy), shape.sharding.gradient_sync
    if sync != "every" and "gradient_sync" not in strategy.options:
        when, able = strategy.sending.value, any_listening("gradient_sync")
        told = f"got {sync!r}, but {strategy.name} communicates gradients in {when}; leave it out, or write {able}"
        yield _conflict("sharding.gradient_sync", told, "training.sharding.strategy")


def _servers(shape: TrainingShape, world_size: int, facts: TopologyFacts | None) -> Iterator[Conflict]:
    sharding = shape.sharding
    if strategies.find(sharding.strategy).updater is not Updater.SERVERS:
        return
    if world_size < 2:
        told = f"got {sharding.strategy!r}, which takes at least 2 workers; write ddp for one"
        yield _conflict("sharding.strategy", told, "cluster.world_size")
    if sharding.servers_on == "workers" and sharding.servers > world_size:
        told = f"got {sharding.servers}, more than the {world_size} workers that they live on"
        yield _conflict("sharding.servers", told, "training.sharding.servers_on", "cluster.world_size")
    if sharding.servers_on == "own" and facts is not None and not facts.own_servers:
        told = f"got 'own', but {facts.name} has no ports for servers; write workers, or use star or leaf-spine"
        yield _conflict("sharding.servers_on", told, "cluster.topology", "training.sharding.strategy")


def _offload(shape: TrainingShape) -> Iterator[Conflict]:
    strategy = strategies.find(shape.sharding.strategy)
    if shape.offload.what != "none" and strategy.updater is not Updater.OWNERS:
        able = any_of(name for name in strategies.names() if strategies.find(name).updater is Updater.OWNERS)
        told = f"got {shape.offload.what!r}, but with {strategy.name} {strategy.updater.value}; write sharding: {able}"
        yield _conflict("offload", told, "training.sharding.strategy")


def _parallelism(shape: TrainingShape, world_size: int) -> Iterator[Conflict]:
    dp = shape.parallelism.dp
    # The other groups have one rank each: anything else was refused before.
    if dp is not None and dp != world_size:
        told = f"got {dp}; dp x tp x pp x cp x ep must be world_size {world_size}; leave dp out, or write {world_size}"
        yield _conflict("parallelism.dp", told, "cluster.world_size")


def _master(shape: TrainingShape) -> Iterator[Conflict]:
    params, master = shape.precision.params, shape.precision.master
    if master in (None, "auto"):
        return
    if dtypes.find(str(master)).bits <= dtypes.find(params).bits:
        told = f"got {master!r}, no wider than the parameters' {params}; leave it out for float32, or write null"
        yield _conflict("precision.master", told, "training.precision.params")


def _matmul(shape: TrainingShape) -> Iterator[Conflict]:
    params, matmul = shape.precision.params, shape.precision.matmul
    # Tensor cores round float32 inputs to tf32 by themselves; a cast up before a matmul would gain nothing.
    if matmul == "tf32" and params != "float32":
        told = (
            f"got 'tf32', which takes float32 inputs, but params are {params}; leave it out, or write params: float32"
        )
    elif matmul not in ("auto", "tf32", params) and dtypes.find(matmul).bits >= dtypes.find(params).bits:
        told = f"got {matmul!r}, no narrower than the parameters' {params}; leave it out"
    else:
        return
    yield _conflict("precision.matmul", told, "training.precision.params")


def _computed(
    shape: TrainingShape, cluster: ClusterShape, facts: TopologyFacts | None, base: Path
) -> Iterator[Conflict]:
    """What the GPU has no arithmetic for cannot be played."""
    gpu = _gpu(cluster, facts, base)
    if gpu is None:
        return
    dtype = precision(shape.precision)
    named = (
        {"params": dtype.params}
        if shape.precision.matmul in ("auto", dtype.params)
        else {
            "params": dtype.params,
            "matmul": dtype.matmul,
        }
    )
    for key, name in named.items():
        if name not in gpu.peak_flops:
            able = ", ".join(sorted(d for d in gpu.peak_flops if dtypes.find(d, stored=False).is_float))
            told = f"got {name!r}, in which {gpu.name} cannot compute; one of {able}"
            yield _conflict(f"precision.{key}", told, "cluster.gpu", "cluster.topology")


@cache
def _shipped_gpu(name: str) -> Gpu:
    """A GPU of the catalog, whose file is read once a process."""
    from simulator.cluster.gpu_file import load_gpu

    return load_gpu(name)


def _gpu(cluster: ClusterShape, facts: TopologyFacts | None, base: Path) -> Gpu | None:
    """The GPU where it can be known here; what is wrong with it is told by the cluster's rules."""
    from simulator.cluster.gpu_file import load_gpu

    wanted = cluster.gpu if cluster.gpu is not None else facts.gpu if facts is not None else None
    if isinstance(wanted, str) and wanted in registry.names("gpu"):
        return _shipped_gpu(wanted)
    if cluster.gpu is None:
        return None
    try:
        return load_gpu(cluster.gpu, base)
    except (ScenarioError, OSError, ValueError, TypeError):
        return None


def _unusable(error: ScenarioError, shape: TrainingShape) -> Iterator[Conflict]:
    """Tell at `training.model`, or at the key inside it, why it cannot be used."""
    text = str(error).removeprefix(f"{error.kind}: ") if isinstance(error, UnknownNameError) else str(error)
    for line in text.splitlines():
        long = re.search(r"(?:^|: )seq_len: (.*)", line)
        if long:
            yield _conflict("seq_len", long[1], "training.model")
        elif isinstance(shape.model, Mapping):
            key, told = _inside(line, shape.model)
            yield Conflict(("training", "model", *key), told, ("training.model",))
        else:
            yield _conflict("model", line)


def _inside(line: str, model: Mapping[str, Any]) -> tuple[Key, str]:
    """The key of an inline model that a line is about, and the rest of the line."""
    found = re.match(r"model: ([A-Za-z0-9_.]+): (.*)", line)
    if found is None or found[1].split(".")[0] not in model:
        return (), line.removeprefix("model: ")
    return tuple(found[1].split(".")), found[2]


def _units(shape: TrainingShape, model: Transformer | None) -> Iterator[Conflict]:
    size = shape.sharding.layers_per_unit
    if model is not None and size > model.num_layers:
        told = f"got {size}; {model.name} has {model.num_layers} layers"
        yield _conflict("sharding.layers_per_unit", told, "training.model")


def _layers(shape: TrainingShape, model: Transformer | None) -> Iterator[Conflict]:
    """Each layer is there, and named once."""
    policy, key = shape.activation_checkpointing, ("training", "activation_checkpointing")
    if not isinstance(policy, tuple):
        return
    named: list[tuple[Key, int]] = []
    for i, entry in enumerate(policy):
        if isinstance(entry, tuple):
            named += [((*key, entry[0], j), layer) for j, layer in enumerate(entry[1])]
        else:
            named.append(((*key, i), entry))
    twice = repeated([layer for _, layer in named])
    if twice is not None:
        told = f"got layer {named[twice][1]} twice; name each once"
        yield Conflict(named[twice][0], told, ("training.activation_checkpointing",))
    for place, layer in named:
        if model is not None and layer >= model.num_layers:
            told = f"got layer {layer}; {model.name} has layers 0 .. {model.num_layers - 1}"
            yield Conflict(place, told, ("training.activation_checkpointing", "training.model"))
