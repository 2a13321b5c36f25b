"""Draws training scenarios in which any option meets any other, and compares all that both engines leave behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.errors import ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS
from simulator.engine.jitter import Jitter
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.scenario.training_spec import frameworks
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.plan import plan_step
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES
from tests.engines import simulated_alike

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


# Options of adapters beside their rank.
_LORA: Final[tuple[dict[str, Any], ...]] = (
    {}, {"targets": "attention", "dtype": "bfloat16"}, {"base": "nf4", "dropout": 0.1}, {"base": "int8"},
    {"base": "nf4", "hidden": "float32", "dtype": "bfloat16"}, {"base": "gptq"}, {"dora": True},
    {"dora": True, "base": "int8", "dropout": 0.1},
)  # fmt: skip


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
        loss=("separate", "narrow", "native", "fused", *(("in_place", "chunked") if tp == 1 else ())),
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
        both = ("optimizer",) if segments else ("optimizer", {"what": "optimizer", "activations": True})
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
    return made | {"training": training | fixed}


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
