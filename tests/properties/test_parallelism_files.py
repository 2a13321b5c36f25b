"""Files with any sizes of parallelism: each is refused in lines that say what would fit, or it can be planned."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.plan import plan_step
from tests.many import many

DENSE = {"model_type": "gpt2", "n_embd": 48, "n_layer": 6, "n_head": 6, "n_positions": 96, "vocab_size": 100}
EXPERTS = {
    "model_type": "mixtral", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 6, "num_experts_per_tok": 2,
}  # fmt: skip
# What a line says beside what was given: a bound, a list of what fits, or what to write.
SAYS_WHAT_FITS = re.compile(
    r"must|may be|write|leave|omit|fits|one of|cannot be cut into|not supported yet|did you mean"
)


def drawn(seed: int) -> dict[str, Any]:
    rng = random.Random(seed)
    sizes = {kind: rng.choice([1, 1, 2, 3, 4, 5, 8]) for kind in ("tp", "pp", "cp", "ep")}
    keys: dict[str, Any] = {kind: size for kind, size in sizes.items() if rng.random() < 0.5}
    choices: dict[str, list[Any]] = {
        "dp": [1, 2, 3, 8],
        "schedule": list(SCHEDULES.names()),
        "virtual_stages": [1, 2, 3, 7],
        "microbatch_group": [1, 2, 4, 9],
        "stages": ["auto", [3, 3], [1, 2, 3], [6], {"first_less": 1}, {"last_less": 5}],
        "context": ["ring", "all_gather", "ulysses", {"ulysses": 2, "ring": 2}],
        "balanced": [True, False],
        "sequence_parallel": [True, False],
        "etp": [1, 2, 3],
        "tp_overlap": ["ring_exchange", "bulk"],
        "experts": [{"capacity": 1.5}, {"dispatch": "deduplicated", "imbalance": 2.0}, {"imbalance": {"zipf": 0.3}}],
        "order": [["pp", "dp", "cp", "ep", "tp"]],
    }
    for name, values in choices.items():
        if rng.random() < 0.25:
            keys[name] = rng.choice(values)
    training = {
        "model": rng.choice([DENSE, EXPERTS]),
        "seq_len": rng.choice([96, 90, 64, 7]),
        "micro_batch_size": 1,
        "gradient_accumulation_steps": rng.choice([1, 2, 4, 7, 16]),
        "sharding": rng.choice(["ddp", "zero1", "zero2", "zero3", {"strategy": "zero3", "shard_size": 2}]),
        "activation_checkpointing": rng.choice(["none", "full", "sqrt", "selective_op"]),
        "attention": rng.choice(["flash", "flash", "standard"]),
        "parallelism": keys,
    }
    cluster = {"topology": rng.choice(["dgx_h100", "star_100g"]), "world_size": rng.choice([1, 2, 4, 6, 8, 12, 16])}
    return {"name": "sizes", "cluster": cluster, "training": training}


def tried(seeds: range) -> Counter[str]:
    """Load each; what loads is planned."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        data = drawn(seed)
        try:
            scenario = load_scenario(data)
        except ScenarioError as error:
            counted["refused"] += 1
            for line in str(error).splitlines():
                assert "training." in line, (seed, line)
                assert SAYS_WHAT_FITS.search(line), (seed, line)
            continue
        counted["planned"] += 1
        assert scenario.training is not None
        plan_step(build_cluster(scenario), to_step(scenario.training, scenario.cluster.world_size))
    # `pytest -rP` shows it.
    print(dict(counted))  # noqa: T201
    return counted


def test_wrong_sizes_are_told_with_what_fits_and_right_ones_are_planned() -> None:
    counted = tried(range(300))
    assert min(counted["refused"], counted["planned"]) >= 30


@pytest.mark.long
def test_many_wrong_sizes() -> None:
    cases = many(3000)
    assert tried(range(1000, 1000 + cases))["refused"] >= cases * 2 // 3
