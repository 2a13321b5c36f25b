"""Any option of a training scenario beside any other: both engines leave the same behind, or `check` has refused it."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.combinations import (
    accepted,
    any_scenario,
    compared_run,
    documents_scenario,
    own_files,
    simulated,
    training_scenario,
)
from tests.many import many

# Scenarios of each block, and blocks of a long run: a release accepts and simulates at least 5,000 scenarios.
SIZE, MANY = 6, many(160)
# Runs of each short block; the long blocks are 3,000 runs of a release.
RUNS = 14
LONG_SIZE = 50
TINY = {"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 48, "vocab_size": 64}
LLAMA = {
    "model_type": "llama", "hidden_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
    "intermediate_size": 192, "vocab_size": 500,
}  # fmt: skip
FLOAT64 = {"params": "float64", "grads": "float64", "reduce": "float64", "master": None}
MIXTRAL = LLAMA | {
    "model_type": "mixtral", "num_hidden_layers": 1, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def compared(seeds: range, scenario: Callable[[int], dict[str, Any]] = training_scenario) -> Counter[str]:
    """Simulate drawn scenarios with both engines; count what was refused, simulated, and grew from rounding."""
    counted: Counter[str] = Counter()
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            drawn = accepted(scenario(seed))
        if drawn is None:
            counted["refused"] += 1
            continue
        try:
            _, grew = simulated(drawn)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {scenario(seed)}") from error
        counted["simulated"] += 1
        counted["grew from rounding"] += grew
    # `pytest -rP` shows it.
    print(dict(counted))  # noqa: T201
    return counted


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.long)])
def test_both_engines_leave_the_same_behind(block: int) -> None:
    counted = compared(range(block * SIZE, (block + 1) * SIZE))
    assert counted["simulated"] >= SIZE // 3


@pytest.mark.long
@pytest.mark.parametrize("block", range(MANY))
def test_both_engines_leave_the_same_behind_of_many(block: int) -> None:
    counted = compared(range(1000 + block * LONG_SIZE, 1000 + (block + 1) * LONG_SIZE))
    assert counted["simulated"] >= LONG_SIZE // 3
    assert counted["grew from rounding"] <= LONG_SIZE // 5


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, many(65)))])
def test_documents_of_unequal_lengths_leave_the_same_behind_on_both_engines(block: int) -> None:
    """A release simulates 2,000 of 3,250 drawn batchings beside any other option."""
    size = LONG_SIZE if block else SIZE
    counted = compared(range(block * LONG_SIZE, block * LONG_SIZE + size), documents_scenario)
    assert counted["simulated"] >= size // 3
    assert counted["grew from rounding"] <= max(1, size // 5)


def compared_runs(seeds: range, folder: Path) -> Counter[str]:
    """Run drawn scenarios as `run` and `jobs` do, on both engines; count what came of them."""
    own_files(folder)
    counted: Counter[str] = Counter()
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            try:
                counted[compared_run(seed, folder).partition(":")[0]] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {any_scenario(seed, folder)}") from error
    # `pytest -rP` shows it.
    print(dict(counted))  # noqa: T201
    return counted


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.long)])
def test_runs_of_any_scenario_end_alike_on_both_engines(block: int, tmp_path: Path) -> None:
    counted = compared_runs(range(block * RUNS, (block + 1) * RUNS), tmp_path)
    assert counted["simulated"] >= RUNS // 2


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(60)))
def test_runs_of_many_scenarios_end_alike_on_both_engines(block: int, tmp_path: Path) -> None:
    counted = compared_runs(range(block * LONG_SIZE, (block + 1) * LONG_SIZE), tmp_path)
    assert counted["simulated"] >= LONG_SIZE // 2


def star(bandwidth: str, latency: str) -> dict[str, Any]:
    """Return a star of GPUs as a topology."""
    return {"builder": "star", "options": {"bandwidth": bandwidth, "latency": latency}}


@pytest.mark.parametrize(
    ("cluster", "training"),
    [
        pytest.param(
            {"topology": "dgx_h100", "world_size": 16},
            {
                "model": {
                    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
                    "intermediate_size": 2048, "vocab_size": 32000,
                },
                "seq_len": 4096,
                "gradient_accumulation_steps": 4,
                "parallelism": {"tp": 2, "pp": 2},
                "sharding": "zero2",
            },
            id="transfers that ended before the last rank came, zero2 in a pipeline",
        ),
        pytest.param(
            {"topology": {"builder": "fully_connected", "options": {"bandwidth": "25 GB/s", "latency": "100 ns"}},
             "world_size": 8, "gpu": "h100_sxm"},
            {"model": LLAMA, "seq_len": 96, "parallelism": {"tp": 2, "pp": 2}},
            id="transfers that ended before the last rank came, zero3 in a pipeline",
        ),
        pytest.param(
            {"topology": "star_100g", "world_size": 8, "stragglers": {0: 0.4}},
            {
                "model": TINY, "seq_len": 24, "parallelism": {"tp": 2, "cp": 2}, "sharding": "zero3",
                "algorithm": "ring", "numerics": True, "steps": 2, "precision": FLOAT64,
            },
            id="transfers that ended before the last rank came, a straggler",
        ),
        pytest.param(
            {"topology": star("2 GB/s", "23 us"), "world_size": 24, "gpu": "a100_sxm_80gb"},
            {
                "model": TINY | {"n_layer": 3, "n_positions": 256},
                "seq_len": 96,
                "parallelism": {"tp": 2, "cp": 3, "balanced": False, "order": ["tp", "dp", "ep", "pp", "cp"]},
                "sharding": {"reshard_after_forward": 6},
            },
            id="groups of six that hold ranks of two places along the sequence",
        ),
        pytest.param(
            {"topology": star("1 GB/s", "5 us"), "world_size": 6, "gpu": "a100_sxm_80gb"},
            {"model": MIXTRAL, "seq_len": 48, "parallelism": {"cp": 3, "ep": 2, "balanced": False}},
            id="groups of experts that hold ranks of two places along the sequence",
        ),
        pytest.param(
            {"topology": "leaf_spine_100g", "world_size": 8},
            {
                "model": {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 7,
                          "num_attention_heads": 8, "num_key_value_heads": 4, "intermediate_size": 192,
                          "vocab_size": 96, "tie_word_embeddings": False, "num_experts": 8, "num_experts_per_tok": 2,
                          "moe_intermediate_size": 64, "head_dim": 8},
                "seq_len": 24, "gradient_accumulation_steps": 2, "framework": "deepspeed_2021",
                "parallelism": {"tp": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2},
                "sharding": {"strategy": "zero2", "bucket_size": "4 KiB"}, "algorithm": "hierarchical",
                "collectives": "played", "optimizer": "sgd", "precision": "bf16", "dropout": True,
                "offload": "optimizer",
            },
            id="a bucket is freed and gradients are allocated at one moment, to the last digit but one",
        ),
        pytest.param(
            {"topology": "mi300x_box", "world_size": 2},
            {
                "model": LLAMA, "seq_len": 12, "gradient_accumulation_steps": 4, "parallelism": {"pp": 2},
                "sharding": {"strategy": "zero3", "gradient_sync": "last", "keep_below": 300}, "offload": "optimizer",
            },
            id="gradients that wait for the last micro-batch, of a rank that shares its states with no other",
        ),
    ],
)  # fmt: skip
def test_scenarios_on_which_the_engines_differed(cluster: dict[str, Any], training: dict[str, Any]) -> None:
    drawn = accepted({"name": "differed", "cluster": cluster, "training": training})
    assert drawn is not None
    simulated(drawn)


def test_an_algorithm_that_only_the_first_group_can_run_is_refused_before_it_is_simulated() -> None:
    """Nodes of eight: ranks 0 to 5 share a node, ranks 6 to 11 lie in two nodes, two in one and four in the other.

    Several rings run over nodes of any sizes, a hierarchy over equal nodes only.
    """
    order = ["dp", "tp", "cp", "ep", "pp"]
    training = {"model": TINY, "seq_len": 24, "parallelism": {"tp": 2, "order": order}, "sharding": "ddp"}
    cluster = {"topology": "dgx_h100", "world_size": 12}
    for algorithm, able in (("ring", True), ("multi_ring", True), ("hierarchical", False)):
        step = {"name": "uneven", "cluster": cluster, "training": training | {"algorithm": algorithm}}
        assert (accepted(step) is not None) is able, algorithm


def test_a_straggler_does_not_slow_its_host_on_either_engine() -> None:
    """The host's processors add and update while the GPU beside them is slow: the same time as with a healthy GPU."""
    cluster = {"topology": "dgx_h100", "world_size": 2}
    training = {"model": LLAMA, "seq_len": 96, "sharding": "zero1", "offload": "optimizer", "micro_batch_size": 4}
    hosts = []
    for slow in ({}, {"stragglers": {1: 0.5}}):
        drawn = accepted({"name": "host", "cluster": cluster | slow, "training": training})
        assert drawn is not None
        timeline, _ = simulated(drawn)
        hosts.append(sum(span.end - span.start for span in timeline.spans if span.rank == 1 and span.stream == "host"))
    assert hosts[0] > 0.0
    assert hosts[1] == pytest.approx(hosts[0], rel=1e-9)


def test_an_algorithm_that_a_training_step_cannot_have_is_refused_by_its_own_key() -> None:
    """Twelve ranks on nodes of eight: the error names `training.algorithm`, and no key of a lone collective."""
    cluster = {"topology": "dgx_a100", "world_size": 12}
    training = {"model": TINY, "seq_len": 24, "sharding": "ddp", "algorithm": "hierarchical"}
    with pytest.raises(ScenarioError) as caught:
        simulate(load_scenario({"name": "uneven", "cluster": cluster, "training": training}))
    assert str(caught.value) == (
        "training.algorithm: hierarchical cannot run here: nodes must be of one size, got sizes [8, 4]; write auto"
    )
