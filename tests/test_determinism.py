"""The same scenario and seed give the same bytes, whatever Python's hash seed is."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points

ROOT = Path(__file__).parents[1]

# Everything that a run says, as exact text: report, spans, when each transfer entered and ended, links, results.
SCRIPT = """
import hashlib, json, sys
from simulator import load_scenario, simulate

def facts(run):
    yield json.dumps(run.report.to_dict(), sort_keys=True)
    for span in run.timeline.spans:
        yield repr(span)
    for log in run.timeline.logs:
        yield log.collective + log.enter.tobytes().hex() + log.end.tobytes().hex() + repr(log.routes)
    for use in run.timeline.links:
        yield repr(use)
    for result in run.results or ():
        yield hashlib.sha256(result.tobytes()).hexdigest()

def scenario(algorithm, topology, ranks, **collective):
    facts = {"operation": "all_reduce", "algorithm": algorithm, "size": "48 KiB", "dtype": "bfloat16", **collective}
    cluster = {"topology": topology, "world_size": ranks, "jitter": {"latency": 0.2}, "stragglers": {1: 0.5}}
    return {"name": "same", "seed": 3, "cluster": cluster, "collective": facts}

for made in (
    scenario("ring", "torus_2d", 8),
    scenario("naive", "star_100g", 9, reduction="average"),
    scenario("parameter_server", "star_100g", 6, servers={"count": 2, "on": "own"}, chunks=3),
    scenario("nvls", "dgx_h100", 16),
    scenario("hierarchical", "dgx_a100", 16, accumulate="float32"),
    scenario("double_binary_tree", "fat_tree_1024", 12),
    scenario("direct", "dragonfly", 8),
    scenario("auto", "leaf_spine_100g", 8),
):
    for line in facts(simulate(load_scenario(made))):
        sys.stdout.write(line + "\\n")
"""


def played(hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_with_different_hash_seeds_say_the_same_to_the_byte() -> None:
    one, other = played("1"), played("4711")
    assert len(one.splitlines()) > 150
    assert hashlib.sha256(one.encode()).digest() == hashlib.sha256(other.encode()).digest()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_gives_the_same_table_on_any_number_of_processes(jobs: int) -> None:
    scenario = load_scenario(
        {
            "name": "same",
            "cluster": {"topology": "star_100g", "world_size": 4, "jitter": {"latency": 0.3}},
            "collective": {"operation": "all_reduce", "size": "4 KiB"},
            "compare": {"collective.algorithm": ["ring", "tree"]},
            "sweep": {"collective.size": ["1 KiB", "64 KiB"]},
        }
    )
    numbered = list(enumerate(points(scenario)))
    backward = {outcome.index: outcome.report for outcome in play_points(numbered[::-1], jobs)}
    assert [backward[i] for i, _ in numbered] == [simulate(point.scenario).report.to_dict() for _, point in numbered]


@pytest.mark.long
def test_points_that_share_clusters_have_the_figures_of_points_played_alone() -> None:
    model = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 128}
    training = {"model": model, "seq_len": 32}
    scenario = load_scenario(
        {
            "name": "shared",
            "cluster": {"topology": "dgx_h100", "world_size": 8, "stragglers": {1: 0.7}},
            "training": training | {"collectives": "played"},
            "compare": {"training.sharding": ["ddp", "zero2", "zero3", {"strategy": "zero3", "shard_size": 2}]},
            "sweep": {
                "cluster.world_size": [8, 16],
                "cluster.jitter.latency": [0.0, 0.2],
                "training.gradient_accumulation_steps": [1, 2],
            },
        }
    )
    numbered = list(enumerate(points(scenario)))
    alone = {index: simulate(point.scenario, limit_memory=False).report.to_dict() for index, point in numbered}
    for order in (numbered, numbered[::-1], numbered[::3] + numbered[1::3] + numbered[2::3]):
        together = {outcome.index: outcome.report for outcome in play_points(order)}
        assert json.dumps(together, sort_keys=True) == json.dumps(alone, sort_keys=True)
