"""Rules between keys of `training`, and between them and what is known of the model and the GPU.

Rule: one generator a topic, each a few lines; all of them run, so that every fault of a file is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator import dtypes, registry
from simulator.document import Key
from simulator.errors import ScenarioError, UnknownNameError
from simulator.scenario.conflict import Conflict, repeated
from simulator.scenario.remembered import remembered
from simulator.scenario.shape import ClusterShape
from simulator.scenario.training_making import precision
from simulator.scenario.training_shape import TrainingShape

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts
    from simulator.cluster.cluster import Gpu
    from simulator.model.shape import Transformer

AskModel = Callable[[Any, int], "Transformer"]


def models_of(base: Path) -> AskModel:
    """Make the question "which model is this?", which reads each model's file once a sequence length."""
    from simulator.model.load import load_model

    return remembered(lambda model, seq_len: load_model(model, seq_len, base))


def conflicts(
    shape: TrainingShape, cluster: ClusterShape, facts: TopologyFacts | None, ask: AskModel, base: Path
) -> Iterator[Conflict]:
    """Find every broken rule; `facts` is None where the topology itself is at fault."""
    yield from _parallelism(shape, cluster.world_size)
    yield from _shard_size(shape, cluster.world_size)
    yield from _master(shape)
    yield from _matmul(shape)
    yield from _computed(shape, cluster, facts, base)
    model = None
    try:
        model = ask(shape.model, shape.seq_len)
    except ScenarioError as error:
        yield from _unusable(error, shape)
    yield from _layers(shape, model)


def _conflict(name: str, message: str, *involved: str, of_key: bool = False) -> Conflict:
    dotted = f"training.{name}"
    return Conflict(tuple(dotted.split(".")), message, (dotted, *involved), of_key)


def _shard_size(shape: TrainingShape, world_size: int) -> Iterator[Conflict]:
    size = shape.sharding.shard_size
    if size is None:
        return
    involved = ("training.sharding.strategy", "cluster.world_size")
    if shape.sharding.strategy != "zero3":
        told = f"got {size}, but {shape.sharding.strategy} has no sharding groups; leave it out, or write zero3"
        yield _conflict("sharding.shard_size", told, *involved)
    elif world_size % size:
        near = max(n for n in range(1, min(size, world_size) + 1) if world_size % n == 0)
        told = f"got {size}; must divide world_size {world_size}; try {near}"
        yield _conflict("sharding.shard_size", told, *involved)


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
        told = f"got {master!r}, no wider than the parameters' {params}; leave it out, or write null"
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


def _layers(shape: TrainingShape, model: Transformer | None) -> Iterator[Conflict]:
    policy, key = shape.activation_checkpointing, ("training", "activation_checkpointing")
    if not isinstance(policy, tuple):
        return
    twice = repeated(list(policy))
    if twice is not None:
        told = f"got layer {policy[twice]} twice; name each once"
        yield Conflict((*key, twice), told, ("training.activation_checkpointing",))
    for i, layer in enumerate(policy):
        if model is not None and layer >= model.num_layers:
            told = f"got layer {layer}; {model.name} has layers 0 .. {model.num_layers - 1}"
            yield Conflict((*key, i), told, ("training.activation_checkpointing", "training.model"))
