"""Every key of the schema changes a number of every base scenario, or it is told that it does not.

A new key is found here by itself, and asks for an example of another value.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.run.watchdog import StoppedError
from simulator.scenario.axes import place
from simulator.scenario.load import load_scenario
from simulator.scenario.records import KINDS, Scenario
from simulator.scenario.schema import schema

Data = dict[str, Any]

TINY: Final = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
EXPERTS: Final = {
    "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "vocab_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip
LAYERS: Final = {
    "input": [64],
    "layers": [{"linear": [64, 96]}, "gelu", {"repeat": 2, "layers": [{"mlp": 80}]}, {"linear": [96, 8]}],
}  # fmt: skip
FAULT: Final = {"step": 0, "what": "bit_flip", "bit": 30}
LOST: Final = {"step": 0, "what": "dropped"}
# Memory so slow that adding up is what a collective waits for.
SLOW_GPU: Final = {
    "vector_flops": {"float32": "20 TFLOP/s"},
    "hbm_bytes": "80 GB",
    "hbm_bandwidth": "1 MB/s",
    "sms": 100,
    "host_bandwidth": "1 GB/s",
}


def _collective(topology: str = "star_100g", ranks: int = 4, **keys: Any) -> Data:
    given = {"operation": "all_reduce", "algorithm": "ring", "size": "4012 B"} | keys
    return {"name": "base", "cluster": {"topology": topology, "world_size": ranks}, "collective": given}


def _training(topology: str = "star_100g", ranks: int = 4, **keys: Any) -> Data:
    given = {"model": TINY, "seq_len": 8, "micro_batch_size": 2} | keys
    return {"name": "base", "cluster": {"topology": topology, "world_size": ranks}, "training": given}


def _tensors(fusion: Data) -> Data:
    made = _collective(tensors=["400 B", "800 B", "40 B"], fusion=fusion)
    del made["collective"]["size"]
    return made


_HALF: Final = {
    "optimizer": "momentum",
    "loss_scaling": {"rule": "dynamic", "interval": 2},
    "faults": [{"step": 0, "what": "bit_flip", "bit": 14}],
}
_ASYNC: Final = {"strategy": "parameter_server", "asynchronous": True}
BASES: Final[Mapping[str, Data]] = {
    "ring": _collective(),
    "no payload": _collective(payload=False),
    "servers": _collective(algorithm="parameter_server"),
    "buffer": _tensors({"buffer": "1 KiB", "cycle": "1 ms"}),
    "buckets": _tensors({"buckets": "800 B"}),
    "chain": _collective(operation="broadcast", algorithm="chain", root=1),
    "exchange": _collective("torus_2d", 16, operation="all_to_all", algorithm="direct", size="4096 B"),
    "nodes": _collective("dgx_a100", 16, algorithm="hierarchical", size="16 KiB", dtype="bfloat16"),
    "hybrid": _training(sharding={"strategy": "zero3", "shard_size": 2}, gradient_accumulation_steps=2),
    "ddp": _training(ranks=2, sharding="ddp", attention="standard", precision="fp16"),
    "offload": _training("dgx_a100", ranks=2, sharding="zero2", offload="optimizer"),
    "alone": _training(ranks=1, model=TINY | {"n_layer": 4}),
    "pushed": _training(ranks=2, sharding="parameter_server"),
    "uncoordinated": _training(ranks=2, steps=2, sharding=_ASYNC),
    "real": _training(numerics=True, steps=2, precision="fp32", sharding="zero1", faults=[FAULT]),
    "real half": _training(ranks=2, numerics=True, steps=3, precision="fp16", sharding="zero2", **_HALF),
    "stopped": _training(
        ranks=2, numerics=True, steps=3, precision="fp32", sharding="zero1", faults=[{"step": 1, "what": "stopped"}]
    ),
    "real servers": _training(ranks=2, numerics=True, steps=2, precision="fp32", sharding=_ASYNC, faults=[LOST]),
    "cut": _training("dgx_h100", 16, parallelism={"tp": 2}, sharding="ddp"),
    "piped": _training(
        "dgx_h100",
        16,
        parallelism={"pp": 2, "schedule": "interleaved", "virtual_stages": 2},
        gradient_accumulation_steps=4,
        model=TINY | {"n_layer": 8},
        sharding="zero1",
    ),
    "experts": _training("dgx_h100", 16, parallelism={"ep": 2}, sharding="zero1", model=EXPERTS),
    "deduplicated": _training(
        "dgx_h100",
        16,
        parallelism={"ep": 2, "experts": {"dispatch": "deduplicated"}},
        sharding="zero1",
        model=EXPERTS,
        gradient_accumulation_steps=2,
    ),
    "long": _training("dgx_h100", 16, parallelism={"cp": 2}, sharding="zero1", model=TINY | {"n_layer": 1}),
    "eight bits": _training(
        "dgx_h100", 2, model=TINY | {"n_embd": 512}, precision={"params": "bfloat16", "matmul": "float8_e4m3fn"}
    ),
    "matrices": _training("dgx_h100", 2, optimizer="muon", sharding="zero1"),
    "adapters": _training("dgx_h100", 2, lora={"rank": 4}, sharding="zero1"),
    "cut adapters": _training(
        "dgx_h100", 16, lora={"rank": 4, "dtype": "bfloat16"}, parallelism={"tp": 2}, precision="bf16", sharding="zero1"
    ),
    "quantised": _training("dgx_h100", 2, lora={"rank": 4, "base": "nf4"}, sharding="zero1"),
    "layers": _training("dgx_h100", 2, model=LAYERS, seq_len=1, micro_batch_size=4, sharding="zero1"),
    "saved": _training(checkpoint_traffic="sharded", sharding="zero1")
    | {"cluster": {"topology": "star_100g", "world_size": 4, "storage": "1 GB/s"}},
    "launched": _training("dgx_h100", 2, framework="torchtitan", sharding="zero1"),
    # Activations are recomputed, and the loss has the peak.
    "recomputed": _training(
        ranks=2,
        model=TINY | {"n_embd": 32, "n_layer": 8, "n_positions": 512, "vocab_size": 4096},
        seq_len=512,
        activation_checkpointing="full",
        logit_shift="after_cast",
    ),
    "documents": _training("dgx_h100", 4, lengths={"distribution": "lognormal", "median": 4, "sigma": 1.0}),
    "large": _training(ranks=2, model=TINY | {"n_embd": 512, "n_positions": 512}, seq_len=512, sharding="zero3"),
}

# Axes, what is told of all points together, and what a plan searches: no point has them.
TOLD_OF_ALL: Final = ("compare", "sweep", "baseline", "answer", "budget", "plan")

_FLAPS: Final = {"lasts": "1 ms", "every": "1.1 ms", "times": 2}

# Other values of each key; those that a base has already are passed over, and the first that shows is enough.
EXAMPLES: Final[Mapping[str, tuple[Any, ...]]] = {
    "seed": (5,),
    "cluster.topology": ("h100_ethernet_100g",),
    "cluster.world_size": (8,),
    "cluster.gpu": ("h100_sxm", SLOW_GPU),
    "cluster.stragglers": ({0: 1e-6},),
    "cluster.link_factors": ({"gpu0->switch0": 0.1}, {"gpu1->switch0": 0.1}, {"gpu0->node0/port0": 0.01}),
    # A whole entry, because an event alone says neither when nor where.
    "cluster.events.[].at": ({"rank": 0, "at": "1 ns", "factor": 1e-6}, {"link": "*", "at": "1 ns", "factor": 1e-6}),
    "cluster.events.[].factor": ({"rank": 0, "factor": 1e-7}, {"link": "*", "factor": 0.1}),
    "cluster.events.[].rank": ({"rank": 0, "factor": 1e-6},),
    "cluster.events.[].link": ({"link": "*", "factor": 1e-6},),
    "cluster.events.[].node": ({"node": 0, "factor": 1e-6},),
    "cluster.events.[].lasts": ({"rank": 0, "lasts": "2 ms"}, {"link": "*", "lasts": "2 ms"}),
    "cluster.events.[].every": ({"rank": 0} | _FLAPS, {"link": "*"} | _FLAPS),
    "cluster.events.[].times": ({"rank": 0} | _FLAPS, {"link": "*"} | _FLAPS),
    # Where hosts are slow, the first transfers come late.
    "cluster.events.[].reroute_after": tuple(
        {"link": "*", "lasts": f"{2 * time} ms", "reroute_after": f"{time} ms"} for time in (1, 100)
    ),
    "cluster.storage": ("10 MB/s",),
    "training.checkpoint_traffic": ("sharded", "none"),
    "cluster.watchdog": ("1 ns",),
    "cluster.jitter.compute": (0.5,),
    "cluster.jitter.latency": (0.5,),
    "cluster.placement.gpus_per_node": (4,),
    "cluster.ecmp.hash": (3,),
    "cluster.transport": ("tcp",),
    "collective.operation": ("reduce_scatter", "scatter"),
    "collective.algorithm": ("naive", "tree"),
    "collective.size": ("8 KiB",),
    "collective.dtype": ("bfloat16", "float32"),
    "collective.reduction": ("max",),
    "collective.accumulate": ("float32",),
    "collective.payload": (False, True),
    "collective.servers.count": (2,),
    "collective.servers.on": ("workers",),
    "collective.rank_order": ([0, 2, 1, 3],),
    "collective.chunks": (3,),
    "collective.root": (2,),
    "collective.group": ([0, 1, 3],),
    "collective.group_size": (4,),
    "collective.tensors": (["400 B"] * 4,),
    "collective.fusion.buffer": ("100 B",),
    "collective.fusion.cycle": ("2 ms",),
    "collective.fusion.buckets": ("2 KiB",),
    "training.model": (TINY | {"n_embd": 32},),
    "training.seq_len": (4,),
    "training.micro_batch_size": (3,),
    "training.gradient_accumulation_steps": (3,),
    "training.global_batch": ("16seq", "96seq"),
    "training.lengths.distribution": ("lognormal",),
    "training.lengths.median": (2,),
    "training.lengths.sigma": (0.5,),
    "training.lengths.file": (lambda: lengths_file(),),
    "training.lengths.histogram": ({2: 1.0, 4: 1.0},),
    "training.lengths.max": (3,),
    "training.lengths.seed": (1,),
    "training.lengths.steps": (3,),
    "training.batching": ("pad", "bucket"),
    "training.tokens_used": (0.6,),
    "training.mtp_layers": (1,),
    "training.parallelism.dp": (3,),
    "training.parallelism.tp": (2, 1),
    "training.parallelism.pp": (2, 1),
    "training.parallelism.cp": (2, 1),
    "training.parallelism.context": ("all_gather", "ulysses"),
    "training.parallelism.balanced": (False,),
    "training.parallelism.ep": (2, 1),
    "training.parallelism.experts.dispatch": ("all_gather",),
    "training.parallelism.experts.capacity": (1.5,),
    "training.parallelism.experts.routing": ("round_robin",),
    "training.parallelism.experts.imbalance.zipf": (1.0,),
    "training.parallelism.experts.imbalance.recorded": (lambda: counts_file(),),
    # Whole mappings, because a drift needs all of them.
    "training.parallelism.experts.imbalance.walk": ({"zipf": 0.5, "walk": 0.5, "steps": 3},),
    "training.parallelism.experts.imbalance.steps": ({"zipf": 0.5, "walk": 0.5, "steps": 2},),
    "training.parallelism.experts.imbalance.seed": ({"zipf": 0.5, "walk": 0.5, "steps": 3, "seed": 7},),
    "training.parallelism.etp": (2, 1),
    "training.parallelism.experts.dtype": ("float8_e4m3fn",),
    "training.parallelism.experts.overlap": (True,),
    "training.parallelism.sequence_parallel": (False,),
    "training.parallelism.tp_overlap": ("ring_exchange", "bulk"),
    "training.parallelism.schedule": ("gpipe", "interleaved"),
    "training.parallelism.virtual_stages": (2, 1),
    "training.parallelism.microbatch_group": (4,),
    "training.parallelism.deferred_head_gradients": (1, "all"),
    "training.parallelism.stages.first_less": (1, 2),
    "training.parallelism.stages.last_less": (1, 2),
    "training.parallelism.order": (["pp", "tp", "cp", "ep", "dp"], ["dp", "tp", "cp", "ep", "pp"]),
    "training.sharding.strategy": ("ddp", "zero1", "zero2"),
    "training.sharding.reshard_after_forward": (False,),
    "training.sharding.prefetch": (0,),
    "training.sharding.bucket_size": ("1 KiB",),
    "training.sharding.shard_size": (1, 2),
    "training.sharding.layers_per_unit": (2,),
    "training.sharding.keep_below": (20,),
    "training.sharding.gradient_sync": ("shard", "last"),
    "training.sharding.servers": (2,),
    "training.sharding.servers_on": ("workers",),
    "training.sharding.asynchronous": (True, False),
    "training.sharding.staleness": (0,),
    "training.precision.params": ("float64", "float32"),
    "training.precision.grads": ("float32", "float64"),
    "training.precision.reduce": ("bfloat16",),
    "training.precision.master": (None, "float64"),
    "training.precision.matmul": ("tf32",),
    "training.precision.scaling": ("row", "block"),
    "training.activation_checkpointing.every": (2,),
    "training.activation_checkpointing.full": ([0],),
    "training.activation_checkpointing.attention": ([0],),
    "training.activation_checkpointing.selective_op": ([0],),
    "training.activation_checkpointing.feed_forward": ([0],),
    "training.activation_checkpointing.activation": ([0],),
    "training.attention": ("standard", "flash", "eager"),
    "training.attention_generation": (1,),
    "training.optimizer.name": ("sgd",),
    "training.optimizer.implementation": ("foreach", "for_loop"),
    "training.optimizer.distribution": ("all_to_all",),
    "training.optimizer.iterations": (9,),
    "training.collectives": ("closed_form", "played"),
    "training.algorithm": ("ring", "tree"),
    "training.compile": (True,),
    "training.dropout": (0.3,),
    "training.framework": ("bare",),
    "training.allocator": ("expandable_segments",),
    "training.offload.what": ("optimizer", "none"),
    "training.offload.host_rate": ("1 GB/s",),
    "training.offload.fraction": (0.5,),
    "training.offload.activations": (True,),
    "training.trainable": (["head"], ["layer 0", "head"], ["layers.*.attention.*"]),
    "training.lora.rank": (8,),
    "training.lora.dtype": ("bfloat16", "float32"),
    "training.lora.dropout": (0.1,),
    "training.lora.base": ("nf4", "int8"),
    "training.lora.dora": (True,),
    "training.lora.hidden": ("float32",),
    "training.lora.targets": ("attention",),
    "training.lora.regather": (True,),
    "training.optimizer.state_dtype": ("bfloat16", "float16"),
    "training.loss": ("chunked", "fused", "ideal", "in_place", "narrow", "native", "sharded", "vocab_parallel"),
    "training.logit_shift": ("before_cast", "after_cast"),
    "training.float32_outputs": (True,),
    "training.use_cache": (True,),
    "training.cuda_graphs": ("full_iteration", ["attn"]),
    "training.loss_scaling.rule": ("dynamic", "none"),
    "training.loss_scaling.start": (2.0,),
    "training.loss_scaling.interval": (1,),
    "training.loss_scaling.shared": (False,),
    "training.clip_norm": (0.01,),
    "training.numerics": (True, False),
    "training.steps": (3, 4),
    "training.learning.rate": (0.1,),
    "training.learning.decay": (0.5,),
    "training.learning.momentum": (0.1,),
    "training.learning.tokens": (list(range(20)),),
    "training.learning.checkpoint": (1, 2),
    "training.learning.betas": ([0.5, 0.9],),
    "training.learning.eps": (0.1,),
    "training.learning.warmup": (1, 2),
    "training.learning.schedule": ("cosine",),
    "training.learning.batches": (lambda: batches_file(),),
    "training.learning.initial": (lambda: parameters_file(),),
    "training.faults.[].step": (1,),
    "training.faults.[].what": ("doubled",),
    "training.faults.[].collective": ("gather parameters", "pull bucket 0 0"),
    "training.faults.[].transfer": (1,),
    "training.faults.[].element": (3,),
    "training.faults.[].bit": (29,),
    "training.faults.[].rank": (1,),
}
# Words for people, what is drawn, and what plays it: a number that followed from these would be wrong.
WORDS: Final = ("name", "question", "plots.kinds", "plots.points", "engine")
# Events, a placement, a policy by layers, and the layers of stages, are one value, and are told as one.
TOLD_AS_ONE: Final = (
    "cluster.events",
    "cluster.placement",
    "training.activation_checkpointing",
    "training.parallelism.stages",
    "training.parallelism.experts.imbalance",
)
# One value alone is taken yet.
NOT_BUILT: Final = ("training.parallelism.dp", "training.lengths.distribution")
# One GPU, route or piece of memory is as good as another where all are alike: these keys are varied where they are not.
ONLY_ON: Final[Mapping[str, tuple[str, ...]]] = {
    # The training that ends with its rank.
    "training.learning.checkpoint": ("stopped", "real", "ddp", "uncoordinated"),
    "cluster.placement.gpus_per_node": ("alone", "nodes"),
    "cluster.ecmp.hash": ("exchange", "ring", "alone"),
    "cluster.transport": ("nodes", "hybrid"),
    "cluster.link_factors": ("ring", "buffer", "chain", "nodes", "hybrid", "ddp", "alone", "pushed", "real"),
    "training.allocator": ("large",),
    "training.use_cache": ("recomputed", "ddp", "piped", "layers", "real"),
    "training.precision.scaling": ("eight bits", "cut"),
    "training.lora.hidden": ("quantised",),
    "training.lora.regather": ("cut adapters",),
    # The base with lengths has the one distribution already.
    "training.lengths.distribution": ("ddp", "alone"),
    # A model for real, and no more of them than it takes.
    "training.numerics": ("ddp", "alone", "pushed", "real", "real servers"),
    # Two ranks have one way to add up, whatever it is called.
    "training.algorithm": ("real", "hybrid", "pushed", "uncoordinated", "alone"),
}


_FOLDER: Final = TemporaryDirectory()


@cache
def batches_file() -> str:
    """Tokens for two steps of the base "real": four ranks with two sequences each."""
    path = f"{_FOLDER.name}/batches.npy"
    np.save(path, np.arange(2 * 8 * 9).reshape(2, 8, 9) % TINY["vocab_size"])
    return path


@cache
def counts_file() -> str:
    """Tokens of the four experts of the base "experts"."""
    path = f"{_FOLDER.name}/counts.csv"
    Path(path).write_text("expert,tokens\n0,9\n1,4\n2,2\n3,1\n", encoding="utf-8")
    return path


@cache
def lengths_file() -> str:
    """Documents of 2 and 5 tokens."""
    path = f"{_FOLDER.name}/lengths.csv"
    Path(path).write_text("length\n2\n5\n", encoding="utf-8")
    return path


@cache
def parameters_file() -> str:
    """What the base "real" ends with."""
    path, run = f"{_FOLDER.name}/initial.npz", simulate(load_scenario(BASES["real"]))
    np.savez(path, **(run.parameters or {}))
    return path


def _keys(node: Mapping[str, Any], within: Mapping[str, Any], at: tuple[str, ...] = ()) -> Iterator[str]:
    """Dotted names of what a JSON schema describes and that has no keys of its own below."""
    node = within[node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    for name, inner in node.get("properties", {}).items():
        yield from list(_keys(inner, within, (*at, name))) or [".".join((*at, name))]
    for form in node.get("anyOf", ()):
        yield from _keys(form, within, at)
    if isinstance(node.get("items"), dict):
        yield from _keys(node["items"], within, (*at, "[]"))


def keys() -> set[str]:
    """Every key of a scenario file; axes name the same keys again."""
    made = schema()
    made["properties"] = {k: v for k, v in made["properties"].items() if k not in TOLD_OF_ALL}
    return set(_keys(made, made["$defs"]))


# Entry of a list of mappings, of which the key that is varied is changed.
_FIRST: Final = {"training.faults": {"step": 0, "what": "bit_flip"}, "cluster.events": {"at": "0 s"}}


def varied(base: Data, key: str, value: Any) -> Data:
    """The base with another value of a key, or with a mapping that has the key; of a fault's key, in the fault that it
    has.
    """
    data = copy.deepcopy(base)
    if "[]" in key:
        outer, inner = key.split(".[].")
        section, _, name = outer.partition(".")
        first = data[section].get(name, [_FIRST[outer]])[0]
        key, value = outer, [{**first, **(value if isinstance(value, dict) else {inner: value})}]
    path = tuple(key.split("."))
    if isinstance(value, dict) and path[-1] in value:
        path = path[:-1]
    place(data, path, value() if callable(value) else value)
    return data


# Most keys leave the cluster as it is: points share it, as those of a sweep do.
CLUSTERS = Clusters()


def numbers(scenario: Scenario) -> Any:
    """All that a run tells, arrays included."""
    try:
        run = simulate(scenario.replaced(warnings=()), limit_memory=False, clusters=CLUSTERS)
    except StoppedError as error:
        return str(error)
    arrays = [*(run.results or ()), *(run.parameters or {}).values()]
    return run.report.to_dict(), [array.tobytes() for array in arrays]


@cache
def of_base(name: str) -> Any:
    """The numbers of a base as it stands, which says nothing in vain."""
    scenario = load_scenario(BASES[name])
    assert scenario.warnings == ()
    return numbers(scenario)


def effect(base: str, key: str) -> str | None:
    """What comes of other values: one "acts", or is "told" to be idle, or else all are "refused"; or None of these."""
    found: set[str | None] = set()
    for value in EXAMPLES[key]:
        data = varied(BASES[base], key, value)
        if data != BASES[base]:
            found.add(_effect(base, key, data))
        if found & {"acts", "told"}:
            break
    return next((word for word in ("acts", "told", "refused") if word in found), None)


def _effect(base: str, key: str, data: Data) -> str | None:
    try:
        scenario = load_scenario(data)
        changed = numbers(scenario) != of_base(base)
    except ScenarioError:
        return "refused"
    told = tuple(f"{one}:" for one in (key, *TOLD_AS_ONE) if key.startswith(one))
    warned = [line for line in scenario.warnings if line.partition(": ")[2].startswith(told)]
    assert not (warned and changed), f"{base}: changes numbers, but {warned[0]}"
    return "acts" if changed else "told" if warned else None


def test_every_key_has_an_example() -> None:
    missing = sorted(keys() - {*EXAMPLES, *WORDS})
    assert not missing, f"add another value of {', '.join(missing)} to EXAMPLES in {__file__}"
    assert {*EXAMPLES, *WORDS} == keys(), "an example of what is no key any more"


def bases_of(key: str) -> list[str]:
    """Return the names of the bases in which a key is varied."""
    kind = key.partition(".")[0]
    wanted = ONLY_ON.get(key, [name for name in BASES if name not in ("large", "recomputed", "eight bits", "stopped")])
    return [name for name in wanted if kind in BASES[name] or kind not in KINDS]


@pytest.mark.parametrize("key", EXAMPLES)
def test_a_key_changes_a_number_or_is_told_that_it_does_not(key: str) -> None:
    """In a sixth of the bases, which take turns from key to key, and in more until the key changes a number."""
    bases, turn = bases_of(key), list(EXAMPLES).index(key)
    found: dict[str, str | None] = {}
    for number, name in enumerate(sorted(bases, key=lambda name: (bases.index(name) + turn) % 6)):
        if 6 * number >= len(bases) and (key in NOT_BUILT or "acts" in found.values()):
            break
        found[name] = effect(name, key)
    assert [name for name, came in found.items() if came is None] == [], f"{key} changes nothing and is not told"
    assert key in NOT_BUILT or "acts" in found.values(), f"{key} acts nowhere"


@pytest.mark.long
@pytest.mark.parametrize("key", EXAMPLES)
def test_a_key_changes_a_number_or_is_told_that_it_does_not_in_every_base(key: str) -> None:
    found = {name: effect(name, key) for name in bases_of(key)}
    silent = [name for name, came in found.items() if came is None]
    assert not silent, f"{key} changes nothing and is not told in {', '.join(silent)}"
    assert key in NOT_BUILT or "acts" in found.values(), f"{key} acts nowhere"
