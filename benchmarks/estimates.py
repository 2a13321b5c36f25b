"""Times estimated by `simulator check`, beside real times: for shipped scenarios and for random points."""

from __future__ import annotations

import json
import random
import sys
import time
import warnings
from typing import Any

from benchmarks.alone import alone
from simulator.basics import registry
from simulator.basics.errors import SimulatorError
from simulator.run.cost_estimate import effort
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Point
from simulator.sweeps.sweep import play_points

_TOPOLOGIES = (
    "dgx_h100",
    "dgx_a100",
    "star_100g",
    "leaf_spine_100g",
    "fat_tree_1024",
    "dragonfly",
    "h100_ethernet_100g",
)


def shipped() -> list[float]:
    """Return estimated / real CPU time for each shipped scenario."""
    return list(alone("benchmarks.estimates", "shipped").values())


def drawn(count: int) -> list[float]:
    """Return estimated / real CPU time for random points."""
    return list(alone("benchmarks.estimates", "drawn", str(count)).values())


def _draw(draw: random.Random) -> dict[str, Any]:
    """Draw a point: a collective or a training step on any network, sometimes with noise or a slow rank."""
    ranks = draw.choice([4, 8, 16, 64, 256])
    cluster: dict[str, Any] = {"topology": draw.choice(_TOPOLOGIES), "world_size": ranks}
    if draw.random() < 0.15:
        # With random latencies, an exchange of 256 ranks takes minutes.
        cluster["jitter"] = draw.choice([{"compute": 0.05}, {"latency": 0.1}][: 2 if ranks <= 64 else 1])
    if draw.random() < 0.15:
        cluster["stragglers"] = {1: 0.8}
    scenario: dict[str, Any] = {"name": "drawn", "cluster": cluster}
    if draw.random() < 0.45:
        scenario["collective"] = {
            "operation": draw.choice(["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]),
            "algorithm": draw.choice(["auto", "ring", "tree", "direct", "halving_doubling", "double_binary_tree"]),
            "size": draw.choice(["4 KiB", "1 MiB", "16 MiB", "256 MiB"]),
            "payload": draw.choice([False, False, "auto"]),
        }
        return scenario
    scenario["training"] = {
        "model": draw.choice(["gpt2", "gpt2_xl", "llama3_8b", "llama3_70b"]),
        "seq_len": 1024,
        "sharding": draw.choice(["ddp", "zero1", "zero3", {"strategy": "zero3", "shard_size": min(ranks, 8)}]),
        "activation_checkpointing": draw.choice(["none", "full"]),
        "gradient_accumulation_steps": draw.choice([1, 4]),
        "collectives": draw.choice(["auto", "auto", "played", "closed_form"]),
    }
    return scenario


def _ratio(found: tuple[Point, ...]) -> float:
    # The first call imports modules.
    effort(found[0].scenario)
    told = sum(effort(point.scenario).seconds for point in found)
    began = time.process_time()
    # In this process, for its CPU time.
    list(play_points(list(enumerate(found))))
    return told / (time.process_time() - began)


def _ratios(which: str, count: int) -> dict[str, float]:
    warnings.simplefilter("ignore")
    if which == "shipped":
        return {name: _ratio(points(load_scenario(name))) for name in registry.names("scenario")}
    # A fixed seed: the same points on every run.
    draw, ratios = random.Random(0), dict[str, float]()
    while len(ratios) < count:
        try:
            ratios[str(len(ratios))] = _ratio(points(load_scenario(_draw(draw))))
        except SimulatorError:
            # Skip an invalid draw, such as an algorithm without support for this number of ranks.
            continue
    return ratios


if __name__ == "__main__":
    print(json.dumps(_ratios(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
