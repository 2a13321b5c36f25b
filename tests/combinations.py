"""Draws training scenarios in which any option meets any other, and compares all that both engines leave behind."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import yaml

from simulator.basics.errors import DefectError, ScenarioError, SimulatorError
from simulator.cli.commands.check import command as check
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS
from simulator.engine.jitter import Jitter
from simulator.model.operation import GRAPH_SCOPES
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.run.jobs.sharing import share
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.build_training import to_step
from simulator.scenario.jobs_file import load_jobs
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.step.checkpointing import MODULES
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.plan import plan_step
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import frameworks
from tests.engines import CLOSE, GROWS, LeftBehind, growth, left_behind, simulated_alike
from tests.families import CONFIGS, small
from tests.own_parts import OPTIMIZER, SCHEDULE, SHARDING
from tools.docs_commands import ROOT, blocks

MOST_RANKS: Final = 48
DENSE: Final = ("gpt2", "llama", "qwen2", "mistral")
EXPERTS: Final = ("mixtral", "qwen3_moe")
TOPOLOGIES: Final[Mapping[str, int]] = {
    "star_100g": 64, "dgx_h100": 64, "dgx_a100": 64, "aws_p5": 64, "leaf_spine_100g": 64, "h100_ethernet_100g": 64,
    "mi300x_box": 8, "torus_2d": 16,
}  # fmt: skip
ORDERS: Final = (
    ["tp", "cp", "ep", "dp", "pp"],
    ["tp", "cp", "ep", "pp", "dp"],
    ["tp", "dp", "ep", "pp", "cp"],
    ["pp", "dp", "cp", "ep", "tp"],
)


TRACED: Final = sorted((Path(__file__).parent / "traced").glob("*.json"))
# Files of parts outside the package, by key.
OWN: Final = {
    "schedule": SCHEDULE.file, "sharding": SHARDING.file, "optimizer": OPTIMIZER.file, "algorithm": "mine.py",
}  # fmt: skip
# Configurations with windows, latent attention, shared experts, groups of experts and other norms.
KINDS: Final = tuple(name for name, keys in CONFIGS.items() if "image_size" not in keys)

# Latent attention, shared experts, and a router that first chooses two of four groups of experts.
GROUPED: Final[dict[str, Any]] = {
    "model_type": "deepseek_v3", "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "num_hidden_layers": 4, "first_k_dense_replace": 1, "num_attention_heads": 8, "num_key_value_heads": 8,
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "vocab_size": 96, "max_position_embeddings": 1024, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
    "topk_group": 2, "n_shared_experts": 1, "topk_method": "noaux_tc",
}  # fmt: skip

# Options of adapters beside their rank.
_LORA: Final[tuple[dict[str, Any], ...]] = (
    {}, {"targets": "attention", "dtype": "bfloat16"}, {"dtype": "bfloat16", "regather": True},
    {"base": "nf4", "dropout": 0.1}, {"base": "int8"},
    {"base": "nf4", "hidden": "float32", "dtype": "bfloat16"}, {"base": "gptq"}, {"dora": True},
    {"dora": True, "base": "int8", "dropout": 0.1},
)  # fmt: skip

# Sides of a torus that a job fills, by its number of ranks.
_SIDES: Final = {
    2: (2,), 3: (3,), 4: (2, 2), 6: (3, 2), 8: (4, 2), 9: (3, 3), 12: (4, 3), 16: (4, 4), 18: (3, 3, 2), 24: (4, 3, 2),
}  # fmt: skip


class Draw:
    """Choices of one seed.

    Parameters
    ----------
    seed : sequence of int
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._generator = np.random.default_rng(list(seed))

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices, each as likely as the others."""
        return choices[int(self._generator.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        """Return True with this probability."""
        return bool(self._generator.random() < share)

    def some(self, share: float, **keys: Sequence[Any]) -> dict[str, Any]:
        """Return some of the keys, each with this probability, with one of its values."""
        return {key: self.pick(*values) for key, values in keys.items() if self.chance(share)}

    def some_of(self, choices: Iterable[str]) -> list[str]:
        """Return some of the choices, at least one, in their order."""
        names = list(choices)
        kept = [name for name in names if self.chance(0.5)]
        return kept or [self.pick(*names)]

    def between(self, low: float, high: float) -> float:
        """Return a number between two others."""
        return float(round(self._generator.uniform(low, high), 3))


def training_scenario(seed: int, family: int = 34, **fixed: Any) -> dict[str, Any]:
    """Return a training scenario as data, drawn from all options.

    Parameters
    ----------
    seed : int
    family : int
        Another family draws other scenarios for the same seeds.
    **fixed
        Keys of `training` that are not drawn.
    """
    draw = Draw([family, seed])
    # Defects show on few ranks as on many, and few are simulated in a tenth of the time.
    most = draw.pick(8, 16, 16, MOST_RANKS)
    tp, cp = draw.pick(1, 1, 2, 4), draw.pick(1, 1, 2, 3)
    pp = draw.pick(1, 2, 2, 3, 4)
    dp = draw.pick(1, 2, 2, 3, 4)
    while tp * cp * pp * dp > most:
        tp, cp, pp, dp = (max(1, size - 1) if size == max(tp, cp, pp, dp) else size for size in (tp, cp, pp, dp))
    ranks = tp * cp * pp * dp
    schedule = fixed.pop("schedule", None) or draw.pick(*SCHEDULES.names())
    chunks = SCHEDULES.find(schedule).chunks or draw.pick(1, 2)
    micro_batches = draw.pick(1, pp, 2 * pp, 2 * pp, 2 * pp + 1, 2 * pp + 2)
    experts = draw.chance(0.35)
    sharding = _sharding(draw, dp * cp, whole=tp * pp * cp > 1 or experts)
    lost = draw.pick({}, {}, {"last_less": 1}, {"first_less": 1, "last_less": 1}) if pp > 1 else {}
    # Without what is lost the first and the last stage have the embedding and the head alone.
    layers = pp * chunks + draw.pick(-sum(lost.values()), 0, 0, 1, 3)
    model = _model(draw, experts, 8 if cp < 3 else 24, layers)
    parallelism: dict[str, Any] = {"tp": tp, "pp": pp, "cp": cp}
    if pp > 1:
        parallelism |= {"schedule": schedule}
        if SCHEDULES.find(schedule).chunks is None:
            parallelism |= {"virtual_stages": chunks} | draw.some(0.2, microbatch_group=(1, pp, pp + 1))
        parallelism |= {"stages": lost} if lost else {}
        # A chunked loss, which needs tp 1, computes the weight gradients of the head in the forward pass.
        if tp > 1 and schedule in ("1f1b", "interleaved") and sharding["strategy"] in ("ddp", "zero1"):
            parallelism |= draw.some(0.3, deferred_head_gradients=(1, 2, "all"))
    if experts:
        parallelism |= {"ep": draw.pick(*[n for n in (1, 2, 4) if (dp * cp) % n == 0])} | draw.some(0.3, etp=(1, tp))
        spread = {"dispatch": ("all_to_all", "all_gather", "deduplicated"), "capacity": ("none", 1.25)}
        parallelism["experts"] = draw.some(0.3, **spread, imbalance=(1.5, {"zipf": 0.3}))
        if parallelism["experts"].get("dispatch") == "deduplicated":
            parallelism["experts"] |= draw.some(0.5, routing=("uniform", "round_robin"))
    if cp > 1:
        ways = ("ring", "all_gather", "ulysses", {"ulysses": cp, "ring": 1})
        parallelism |= draw.some(0.5, context=ways, balanced=(True, False))
    parallelism |= draw.some(0.3, order=ORDERS)
    if tp > 1:
        parallelism |= draw.some(0.3, tp_overlap=("none", "ring_exchange", "bulk"))
        parallelism |= {} if experts else draw.some(0.3, sequence_parallel=(True, False))
    training: dict[str, Any] = {
        "model": model,
        "seq_len": 12 * cp * tp * draw.pick(1, 2),
        "micro_batch_size": draw.pick(1, 1, 2),
        "gradient_accumulation_steps": micro_batches,
        "parallelism": parallelism,
        "sharding": sharding,
        "framework": draw.pick(*frameworks()),
        "algorithm": draw.pick("auto", "auto", *_algorithms(sharding["strategy"])),
        "collectives": draw.pick("auto", "played", "played"),
    }
    training |= draw.some(
        0.25,
        activation_checkpointing=("none", "full", "selective_op", "attention", {"every": 2} if pp > 1 else "sqrt"),
        attention=("flash", "standard", "eager") if cp == 1 else ("flash",),
        optimizer=(
            "adam",
            "momentum",
            "sgd",
            "lion",
            "adam_8bit",
            "adafactor",
            "muon",
            {"implementation": "foreach"},
            {"implementation": "for_loop"},
            {"name": "muon", "distribution": draw.pick(*_ways(sharding))},
        ),
        precision=("bf16", "fp32", "fp16", {"params": "bfloat16", "grads": "float32"}),
        compile=(True, False),
        dropout=(True, False),
        logit_shift=("none", "before_cast", "after_cast"),
        float32_outputs=(False, True),
        use_cache=(False, True),
        loss=(
            "ideal",
            "separate",
            "narrow",
            "vocab_parallel",
            "sharded",
            "native",
            "fused",
            *(("in_place", "chunked") if tp == 1 else ()),
        ),
        allocator=("caching", "expandable_segments"),
        trainable=(
            ["head"],
            ["embedding", f"layers {(layers - 1) // 2}-{layers - 1}", "head"],
            ["layers.*.attention.*", "*.norm?.*"],
        )
        if layers > 0
        else ("all",),
    )
    segments = training.get("activation_checkpointing") == "sqrt"
    training |= {} if segments else draw.some(0.2, offload=("activations",))
    if STRATEGIES.find(sharding["strategy"]).updater is Updater.OWNERS:
        part = {"what": "optimizer", "fraction": 0.4}
        both = ("optimizer", part) if segments else ("optimizer", part, {"what": "optimizer", "activations": True})
        training |= draw.some(0.25, offload=both, clip_norm=(1.0,))
    made = {"name": "drawn", "seed": seed, "cluster": _cluster(draw, ranks), "training": training | fixed}
    # Drawn last: seeds keep the scenarios that they had before.
    if "trainable" not in training and not experts:
        training |= draw.some(0.2, lora=[{"rank": 4, **draw.pick(*_LORA)}])
    training |= draw.some(0.15, tokens_used=(0.6,))
    if not isinstance(training.get("optimizer"), dict):
        training |= draw.some(0.15, optimizer=("paged_adam", "paged_adam_8bit"))
    if "trainable" not in training and "lora" not in training and not segments:
        training |= draw.some(0.15, mtp_layers=(1, 2))
    graphs = ("full_iteration", *(draw.some_of(GRAPH_SCOPES) for _ in range(2)))
    training |= draw.some(0.2, cuda_graphs=graphs)
    if "activation_checkpointing" not in training:
        modules = [name for name in MODULES if experts or ("moe" not in name and "expert" not in name)]
        training |= draw.some(0.25, activation_checkpointing=(draw.some_of(modules),))
    if parallelism.get("ep", 1) > 1 and parallelism.get("schedule", "interleaved") == "interleaved":
        parallelism["experts"] |= draw.some(0.4, overlap=(True,))
    unequal = draw.some(0.2, lengths=({"distribution": "lognormal", "median": 12, "sigma": 1.0, "seed": seed},))
    if (
        unequal
        and "tokens_used" not in training
        and "asynchronous" not in sharding
        and parallelism.get("balanced", True)
    ):
        training |= unequal | {"batching": draw.pick(*_batchings(parallelism))}
    # Draws of their own, beside which the others stay.
    shape = Draw([family, seed, 1])
    if shape.chance(0.15) and (sides := _SIDES.get(made["cluster"]["world_size"])):
        built = {"shape": list(sides), "bandwidth": "25 GB/s", "latency": "1 us"}
        made["cluster"] |= {"topology": {"builder": "torus", "options": built}, "gpu": "h100_sxm"}
        training |= shape.some(0.3, framework=("maxtext_rocm",))
    return made | {"training": training | fixed}


def documents_scenario(seed: int) -> dict[str, Any]:
    """Return a drawn training scenario whose documents have unequal lengths."""
    data, draw = training_scenario(seed, 51), Draw([51, seed, 2])
    training = data["training"]
    training.pop("tokens_used", None)
    training["sharding"].pop("asynchronous", None)
    training["parallelism"].pop("balanced", None)
    median, sigma = draw.pick(6, 12, 30), draw.pick(0.3, 1.0, 1.6)
    training["lengths"] = {"distribution": "lognormal", "median": median, "sigma": sigma, "seed": seed}
    training["batching"] = draw.pick(*_batchings(training["parallelism"]))
    return data


def _batchings(parallelism: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the batchings that go with a layout."""
    cut = any(parallelism.get(name, 1) > 1 for name in ("tp", "pp", "cp", "ep"))
    return ("pad", "pack", "pack_balanced") if cut else ("pad", "pack", "pack_balanced", "pad_to_longest", "bucket")


def _ways(sharding: dict[str, Any]) -> tuple[str, ...]:
    """Return the ways in which muon's whole matrices can come together under a sharding."""
    if sharding["strategy"] == "ddp":
        return "replicated", "owners"
    whole = ("owners",) if sharding["strategy"] == "zero1" and "shard_size" not in sharding else ()
    return "gathered", "all_to_all", *whole


def _model(draw: Draw, experts: bool, heads: int, layers: int) -> dict[str, Any]:
    """Return a small model as a Hugging Face configuration."""
    kind = draw.pick(*EXPERTS) if experts else draw.pick(*DENSE)
    width = 8 * heads
    if kind == "gpt2":
        return {
            "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "n_positions": 1024,
            "vocab_size": 96, "tie_word_embeddings": draw.pick(True, False),
        }  # fmt: skip
    made = {
        "model_type": kind, "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": draw.pick(heads, 4), "intermediate_size": 192, "vocab_size": 96,
        "tie_word_embeddings": draw.pick(True, False),
    }  # fmt: skip
    if kind == "mixtral":
        made |= {"num_local_experts": 4, "num_experts_per_tok": draw.pick(1, 2)}
    if kind == "qwen3_moe":
        made |= {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 8}
    return made


def _algorithms(strategy: str) -> list[str]:
    """Return the algorithms that have all collective operations of a sharding strategy."""
    needed = set(STRATEGIES.find(strategy).operations)
    return [name for name in ALGORITHMS.names() if needed <= set(ALGORITHMS.operations(name))]


def _sharding(draw: Draw, copies: int, *, whole: bool) -> dict[str, Any]:
    """Return a sharding; a model that is split over ranks cannot have parameter servers (`whole`)."""
    names = [name for name in STRATEGIES.names() if not (whole and name == "parameter_server")]
    strategy = draw.pick(*names, "zero3", "zero3")
    made: dict[str, Any] = {"strategy": strategy}
    if strategy == "parameter_server":
        return made | draw.some(0.5, servers=(1, 2), servers_on=("own", "workers"), asynchronous=(True, False))
    sizes = [size for size in range(2, copies) if copies % size == 0] or [copies]
    if strategy != "zero3":
        grouped = draw.some(0.3, shard_size=sizes) if strategy in ("zero1", "zero2") else {}
        return made | grouped | draw.some(0.5, bucket_size=("4 KiB", "64 KiB"))
    return made | draw.some(
        0.3,
        reshard_after_forward=(True, False, *sizes),
        prefetch=(0, 1, 2),
        shard_size=sizes,
        layers_per_unit=(1, 2),
        keep_below=(0, 300),
        gradient_sync=("every", "shard", "last"),
    )


def _cluster(draw: Draw, ranks: int) -> dict[str, Any]:
    rate, latency = draw.pick("1 GB/s", "2 GB/s", "25 GB/s"), draw.pick("100 ns", "5 us", "23 us")
    built = {"bandwidth": rate, "latency": latency}
    shipped = [name for name, most in TOPOLOGIES.items() if ranks <= most]
    topology = draw.pick(
        *shipped, *({"builder": name, "options": built} for name in ("star", "fully_connected", "ring"))
    )
    made: dict[str, Any] = {"topology": topology, "world_size": ranks}
    if isinstance(topology, dict):
        made["gpu"] = draw.pick("h100_sxm", "a100_sxm_80gb")
    if draw.chance(0.3):
        made["stragglers"] = {draw.pick(*range(ranks)): draw.between(0.3, 0.9)}
    if draw.chance(0.15):
        made["jitter"] = draw.some(0.7, compute=(0.05,), latency=(0.1,))
    return made


def layers(draw: Draw) -> list[Any]:
    """Return layers that follow one another on tokens of 64 numbers: blocks with shortcuts, or no blocks at all."""
    kinds = [
        {"linear": [64, 64]}, {"mlp": draw.pick(32, 96)}, {"attention": {"heads": draw.pick(2, 4)}}, "layer_norm",
        "rms_norm", "gelu", "relu", "dropout", "modulate", {"residual": ["layer_norm", {"mlp": 128}]},
        {"branch": {"input": [16], "layers": [{"linear": [16, 64]}, "silu"]}},
        {"cost": {"flops": 20_000, "parameters": 300, "activations": 512}},
    ]  # fmt: skip
    some = [draw.pick(*kinds) for _ in range(draw.pick(2, 4, 6))]
    if draw.chance(0.3):
        return [{"linear": [64, 64]}, *some, {"linear": [64, 8]}]
    blocks = [{"repeat": draw.pick(1, 2, 3), "layers": some}, {"block": [{"mlp": 48}, "relu"]}]
    ends = [{"linear": [64, 64]}], [{"linear": [64, 8]}]
    first, last = (end if draw.chance(0.8) else [] for end in ends)
    return [*first, *blocks, *blocks[: draw.pick(0, 1)], *last]


def list_scenario(seed: int) -> dict[str, Any]:
    """Return a training step of a drawn list of layers, or of a traced module."""
    draw = Draw([91, seed])
    if draw.chance(0.4):
        model = json.loads(draw.pick(*TRACED).read_text())
    else:
        model = {
            "input": [8, 64],
            "layers": layers(draw),
            "loss": draw.pick("cross_entropy", "mean_squared_error", "none"),
        }
    pp, dp = draw.pick(1, 1, 2), draw.pick(1, 2, 4)
    training = {
        "model": model,
        "seq_len": model.get("tokens", 1),
        "micro_batch_size": draw.pick(1, 3),
        "gradient_accumulation_steps": draw.pick(pp, 2 * pp),
        "parallelism": {"pp": pp} | (draw.some(0.5, schedule=("gpipe", "1f1b", "zb_h1")) if pp > 1 else {}),
        "sharding": draw.pick("zero3", "ddp", "zero1", "zero2", {"strategy": "zero3", "keep_below": 100}),
        "activation_checkpointing": draw.pick("none", "full", "selective_op", "attention", {"every": 2}),
        "framework": draw.pick("torchtitan", "megatron_core", "transformers", "bare"),
        "optimizer": draw.pick("adam", "sgd", "muon", "adam_8bit"),
        "precision": draw.pick("bf16", "fp32", "fp8"),
        "compile": draw.chance(0.3),
    }
    topology = {"builder": "star", "options": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    cluster = {"topology": topology, "world_size": pp * dp, "gpu": "h100_sxm"}
    if draw.chance(0.3):
        cluster["stragglers"] = {0: 0.8}
    if draw.chance(0.3):
        cluster["jitter"] = {"compute": 0.05, "latency": 0.05}
    training |= draw.some(
        0.3, trainable=(["head"], ["layer 0"], ["embedding", "head"]), offload=("optimizer",), precision=("fp16",)
    )
    return {"name": "layers", "seed": seed, "cluster": cluster, "training": training}


def any_scenario(seed: int, folder: Path) -> dict[str, Any]:
    """Return a scenario of one step, or a file of jobs, as data, drawn from all options of a cluster and a training.

    Most seeds are drawn until `load` accepts the scenario; the others show what is refused.

    Parameters
    ----------
    seed : int
    folder : Path
        Folder of files of parts (`own_files`), which some scenarios name.
    """
    for attempt in range(1 if seed % 10 == 0 else 30):
        data = _any_scenario(seed, attempt, folder)
        try:
            if "jobs" in data:
                load_jobs(data)
            else:
                load_scenario(data)
        except ScenarioError:
            continue
        return data
    return data


def _any_scenario(seed: int, attempt: int, folder: Path) -> dict[str, Any]:
    """Return the scenario of an attempt of a seed, whether it is valid or not."""
    draw = Draw([60, seed, attempt])
    number = 30 * seed + attempt
    # Files of jobs take seconds, the advice for steps that do not fit up to a minute: each is a small share.
    if seed % 40 == 25:
        return _jobs(draw, number)
    listed = draw.chance(0.12)
    data = list_scenario(50_000 + number) if listed else training_scenario(number, 60)
    training, cluster = data["training"], data["cluster"]
    if not listed:
        _more_of_training(draw, training, folder)
    # A step that does not fit: its time is simulated alike, and its memory is looked at in every way.
    if seed % 40 == 15 and cluster["world_size"] <= 8:
        training["micro_batch_size"] = draw.pick(10**5, 10**6, 10**7)
    training["precision"] = draw.pick(
        training.get("precision", "bf16"), *("bf16", "fp32", "fp16", "tf32", "fp8", "nvfp4", "fp64"),
        {"matmul": "float8_e4m3fn", "scaling": draw.pick("tensor", "row", "block")},
        {"params": "bfloat16", "grads": "float32", "reduce": draw.pick("bfloat16", "float32"), "master": None},
        {"params": "float32", "matmul": "bfloat16"},
    )  # fmt: skip
    if "gpu" in cluster:
        cluster["gpu"] = draw.pick(cluster["gpu"], "h100_sxm", "b200", "mi300x", "rtx_4090")
    if draw.chance(0.25):
        cluster["storage"] = draw.pick("10 MB/s", "1 GB/s", "40 GB/s")
        training["checkpoint_traffic"] = "sharded"
    if draw.chance(0.15):
        cluster["placement"] = [int(one) for one in np.random.default_rng(number).permutation(cluster["world_size"])]
    if draw.chance(0.15):
        cluster["link_factors"] = {draw.pick("gpu0->*", "*->gpu1", "*"): draw.pick(0.3, 0.7)}
    cluster |= draw.some(0.1, watchdog=("10 s",), ecmp=({"hash": 7},))
    # Drawn from a stream of its own: seeds keep the scenarios that they had before.
    if "experts" in training.get("parallelism", {}) and Draw([62, seed, attempt]).chance(0.3):
        training["model"] = GROUPED
        training["parallelism"].pop("stages", None)
    if draw.chance(0.5):
        cluster["events"] = [_event(draw, cluster["world_size"]) for _ in range(draw.pick(1, 1, 2, 3))]
    return data


def _more_of_training(draw: Draw, training: dict[str, Any], folder: Path) -> None:
    """Add options of a training step that `training_scenario` does not draw."""
    parallelism, layers = training["parallelism"], 4
    if draw.chance(0.3):
        training["model"] = small(draw.pick(*KINDS), layers)
        parallelism.pop("stages", None)
    training |= draw.some(
        0.12,
        activation_checkpointing=({"full": [0]}, {"selective_op": [0], "attention": [1]}, [0, 1], {"activation": [0]}),
        attention_generation=(1, 3, 4),
        loss_scaling=("dynamic", "static"),
        clip_norm=(1.0,),
        offload=(
            "optimizer",
            "activations",
            {"what": "optimizer", "activations": True, "host_rate": "50 GB/s"},
            {"what": "optimizer", "fraction": 0.4},
        ),
        optimizer=("paged_adam", {"name": "adam", "state_dtype": "bfloat16"}, {"name": "muon", "iterations": 3}),
        lora=({"rank": 4, **draw.pick(*_LORA)},),
    )
    if "experts" in parallelism:
        parallelism["experts"] |= draw.some(0.15, dtype=("float8_e4m3fn",))
    if draw.chance(0.1):
        parallelism["schedule"] = str(folder / OWN["schedule"])
    if draw.chance(0.06):
        training["sharding"] = {"strategy": str(folder / OWN["sharding"])}
    if draw.chance(0.06):
        training["optimizer"] = {"name": str(folder / OWN["optimizer"])}
    if draw.chance(0.06):
        training["algorithm"] = str(folder / OWN["algorithm"])


def _event(draw: Draw, ranks: int) -> dict[str, Any]:
    """Return an event of a link, a rank or a node during the milliseconds of a small step."""
    micros = int(10 ** draw.between(0.0, 4.0))
    event: dict[str, Any] = {"at": f"{micros} us", "factor": draw.pick(0, 0.1, 0.5, 0.9)}
    event |= draw.pick(
        {"rank": draw.pick(*range(ranks))}, {"rank": draw.pick(*range(ranks))}, {"node": 0}, {"link": "gpu0->*"},
        {"link": "*->gpu0"}, {"link": "*"},
    )  # fmt: skip
    # What is down or dead for good mostly ends in a deadlock.
    if draw.chance(0.8 if event["factor"] == 0 else 0.5):
        event["lasts"] = f"{max(1, micros // draw.pick(1, 3))} us"
        if draw.chance(0.3):
            event |= {"every": f"{2 * micros + 2} us", "times": 3}
        elif "link" in event and event["factor"] == 0 and draw.chance(0.5):
            event["reroute_after"] = "0 s"
    return event


def _jobs(draw: Draw, seed: int) -> dict[str, Any]:
    """Return a file of two or three trainings on one cluster as data."""
    jobs = {}
    for number, name in enumerate(("a", "b", "c")[: draw.pick(2, 2, 2, 3)]):
        for attempt in range(40):
            data = training_scenario(1000 * seed + 50 * number + attempt, 61)
            own = data["cluster"]["world_size"] <= 4
            if own and data["training"]["sharding"]["strategy"] != "parameter_server" and accepted(data) is not None:
                break
        jobs[name] = {"training": data["training"], "world_size": data["cluster"]["world_size"]} | draw.some(
            0.3, steps=(1, 2), start=("100 us", "3 ms"), placement=("spread",), priority=(2,)
        )
    cluster = {"topology": draw.pick("leaf_spine_100g", "dgx_h100", "h100_ethernet_100g"), "nodes": 24}
    if draw.chance(0.4):
        cluster["events"] = [_event(draw, 2)]
    return {"cluster": cluster, "jobs": jobs}


def own_files(folder: Path) -> None:
    """Write the files of parts that `any_scenario` names into a folder."""
    for part in (SCHEDULE, SHARDING, OPTIMIZER):
        part.write(folder)
    page = ROOT / "docs" / "howto" / "own_algorithm.md"
    source = next(one.body for one in blocks(page.read_text(encoding="utf-8")) if one.file.endswith(".py"))
    (folder / OWN["algorithm"]).write_text(source)


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run leaves behind on one engine: an error, or a report, further times and a timeline.

    Attributes
    ----------
    error : SimulatorError or None
    report : mapping or sequence
        The report as plain data; of jobs their outcomes.
    left : LeftBehind or None
    timeline : Timeline or None
    """

    error: SimulatorError | None = None
    report: Any = None
    left: LeftBehind | None = None
    timeline: Timeline | None = None


def run_on(engine: str, data: Mapping[str, Any]) -> Ended:
    """Simulate a scenario or a file of jobs on an engine as `run` and `jobs` do; any error but a SimulatorError, and
    every DefectError, passes.
    """
    try:
        if "jobs" in data:
            shared = share(replace(load_jobs(data), engine=engine))  # type: ignore[arg-type]
            report = [[job.name, job.alone, *job.step_ends, job.nbytes] for job in shared.jobs]
            return Ended(None, report, left_behind(shared.timeline), shared.timeline)
        found = simulate(load_scenario({**data, "engine": engine}))
        return Ended(None, found.report.to_dict(), left_behind(found.timeline), found.timeline)
    except DefectError:
        raise
    except SimulatorError as error:
        return Ended(error)


def compared_run(seed: int, folder: Path) -> str:
    """Simulate a drawn scenario on both engines; compare everything that they leave behind; return what came of it.

    A scenario that `run` refuses is refused by `check` too, each line at a key.
    """
    data = any_scenario(seed, folder)
    one, other = (run_on(engine, data) for engine in ("events", "compiled"))
    if one.error is None and other.error is None:
        _same_end(one, other)
        return "jobs" if "jobs" in data else "simulated"
    assert type(one.error) is type(other.error), f"{one.error!r} on one engine, {other.error!r} on the other"
    texts = [re.sub(r"\d[\d.,e+-]*", "#", str(ended.error)) for ended in (one, other)]
    assert texts[0] == texts[1], f"{one.error} on one engine, {other.error} on the other"
    if not isinstance(one.error, ScenarioError):
        return type(one.error).__name__
    for line in str(one.error).splitlines():
        assert re.search(r"\b(training|cluster|jobs|link)\b", line), f"no key in {line}"
    if "jobs" not in data:
        file = folder / "checked.yaml"
        file.write_text(yaml.safe_dump(data))
        with pytest.raises(ScenarioError), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            check(str(file), [])
    return "refused: " + re.sub(r"\d+", "#", str(one.error).splitlines()[0])


def _same_end(one: Ended, other: Ended) -> None:
    """Fail if two engines' timelines or reports differ by more than a rounding that contention may have let grow."""
    assert one.left is not None
    assert other.left is not None
    assert one.timeline is not None
    assert other.timeline is not None
    apart = one.left.distance(other.left)
    if apart > CLOSE:
        assert apart < 1.0, "engines differ by more than a time"
        assert growth(one.timeline, other.timeline) <= GROWS, "engines differ by more than a rounding that grew"
        return
    if one.left.order != other.left.order or one.left.samples != other.left.samples:
        return
    _same(one.report, other.report, max(1.0, one.timeline.end) * 1e-8, "report")


def _same(one: Any, other: Any, tolerance: float, key: str) -> None:
    """Fail if plain data differs; numbers may differ by a rounding."""
    if isinstance(one, Mapping):
        assert list(one) == list(other), key
        for name in one:
            _same(one[name], other[name], tolerance, f"{key}.{name}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), key
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            _same(a, b, tolerance, f"{key}.{number}")
    elif isinstance(one, float) and isinstance(other, float):
        assert math.isfinite(one), key
        assert math.isclose(one, other, rel_tol=1e-6, abs_tol=tolerance), f"{key}: {one} and {other}"
    else:
        assert one == other, f"{key}: {one} and {other}"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn scenario that `check` accepts, as a program on its cluster.

    Attributes
    ----------
    scenario : Scenario
    program : Program
    cluster : Cluster
    jitter : Jitter
    """

    scenario: Scenario
    program: Program
    cluster: Cluster
    jitter: Jitter


def accepted(data: Mapping[str, Any]) -> Drawn | None:
    """Return the program of a scenario; None if `check` refuses the scenario, in one line a fault."""
    try:
        scenario = load_scenario(data)
        if scenario.training is None:
            raise ValueError("a training scenario is needed")
        jitter = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
        cluster = Clusters().of(scenario)
        step = to_step(scenario.training, scenario.cluster.world_size)
        plan = plan_step(cluster, step, steady=jitter.compute == 0 and jitter.latency == 0)
    except ScenarioError as error:
        if not all(line.startswith("<dict>: ") or "training." in line for line in str(error).splitlines()):
            raise
        return None
    return Drawn(scenario, plan.program, cluster, jitter)


def simulated(drawn: Drawn) -> tuple[Timeline, bool]:
    """Simulate a drawn program with both engines; return the timeline, and whether a rounding's difference grew."""
    allocator = drawn.scenario.training.allocator if drawn.scenario.training is not None else None
    expected, grew = simulated_alike(drawn.program, drawn.cluster, jitter=drawn.jitter, allocator=allocator)
    return expected, bool(grew)
