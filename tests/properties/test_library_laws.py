"""Machines drawn at random, on which nothing was measured: laws that any model of a library must keep."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Plan, Task, plan
from simulator.engine import events
from simulator.engine.compiled.engine import execute
from tests.engines import CLOSE, farthest
from tests.many import many

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
# Options that are rates; twice as much must not slow anything down.
RATES = ("link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth")


def drawn_machine(generator: np.random.Generator) -> dict[str, Any]:
    """Return the keys of a topology of nodes: switch, mesh, full mesh or PCIe, with any rates."""
    gpus = int(generator.choice([2, 4, 8, 16]))
    inside = str(generator.choice(["nvswitch", "full_mesh", "mesh", "pcie"]))
    nics = int(generator.choice([count for count in (1, 2, 4, 8) if gpus % count == 0]))
    options: dict[str, Any] = {
        "gpus": gpus,
        "inside": inside,
        "hosts": 2,
        "pcie_switches": gpus,
        "pcie_bandwidth": float(generator.choice([16e9, 32e9, 63e9])),
        "pcie_latency": "0.2 us",
        "socket_bandwidth": float(generator.choice([10e9, 40e9, 200e9])),
        "socket_latency": "0.5 us",
        "nics": nics,
        "nic_bandwidth": float(generator.choice([1.25e9, 12.5e9, 25e9, 50e9])),
        "nic_latency": "1 us",
        "fabric": str(generator.choice(["rail", "leaf_spine"])),
    }
    if inside != "pcie":
        # A GPU's port at a switch, or one of several links.
        least, most = (100e9, 900e9) if inside == "nvswitch" else (20e9, 100e9)
        options |= {"link_bandwidth": float(generator.uniform(least, most)), "link_latency": "0.5 us"}
    if inside == "mesh":
        # A ring of cables, some of them double.
        pairs = sorted({tuple(sorted((gpu, (gpu + 1) % gpus))) for gpu in range(gpus)})
        options["links"] = [[a, b, int(generator.integers(1, 3))] for a, b in pairs]
    if inside == "nvswitch":
        options["in_switch_reduction"] = bool(generator.integers(2))
    library, transport = str(generator.choice(["nccl", "rccl"])), str(generator.choice(["rdma", "tcp"]))
    options = {key: f"{value / 1e9} GB/s" if key in RATES else value for key, value in options.items()}
    return {"builder": "nodes", "options": options, "gpu": "h100_sxm", "library": library, "transport": transport}


def faster(machine: dict[str, Any], rate: str) -> dict[str, Any]:
    """Return a machine with one of its rates doubled."""
    value = 2 * float(machine["options"][rate].split()[0])
    return machine | {"options": machine["options"] | {rate: f"{value} GB/s"}}


def planned(cluster: Cluster, operation: str, nbytes: int, algorithm: str) -> Plan:
    everyone = tuple(range(cluster.world_size))
    request = CollectiveRequest(operation, cluster.world_size, max(1, nbytes // 4))
    return plan(cluster, Task(request, algorithm, everyone, "float32"))


def seconds(cluster: Cluster, operation: str, nbytes: int, algorithm: str) -> float:
    return execute(planned(cluster, operation, nbytes, algorithm).program, cluster).end


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_laws_on_drawn_machines(seed: int) -> None:
    generator = np.random.default_rng(seed)
    for _ in range(many(600) if seed else 25):
        machine = drawn_machine(generator)
        size = machine["options"]["gpus"]
        ranks = int(generator.choice([2, size, size + 1, 2 * size]))
        operation, nbytes = str(generator.choice(OPERATIONS)), int(2 ** generator.uniform(12, 30))
        cluster = build(machine, ranks)
        task = planned(cluster, operation, nbytes, "auto")
        timeline = execute(task.program, cluster)
        time = timeline.end
        told = f"{machine}, {ranks} ranks, {operation} of {nbytes} B by {task.algorithm}"
        # Both engines.
        assert farthest(timeline, events.execute(task.program, cluster)) < CLOSE, told
        # More bandwidth: the same algorithm is never slower.
        rate = str(generator.choice([name for name in RATES if name in machine["options"]]))
        # Over wider cables run more rings, among which a small array is divided: a law of larger ones.
        more_rings = rate == "link_bandwidth" and machine["options"]["inside"] == "mesh"
        size_of_law = max(nbytes, 2**20) if more_rings else nbytes
        # `auto` cuts arrays into pieces, a named algorithm does not.
        wider, as_it_is = (
            seconds(one, operation, size_of_law, task.algorithm)
            for one in (build(faster(machine, rate), ranks), cluster)
        )
        assert wider <= as_it_is * (1 + CLOSE), f"twice the {rate}: {told}"
        named = seconds(cluster, operation, nbytes, task.algorithm) * (1 + CLOSE)
        # The rating bounds the model.
        rated = build({key: value for key, value in machine.items() if key != "transport"} | {"library": "none"}, ranks)
        assert seconds(rated, operation, nbytes, task.algorithm) <= named, told
        # As many ranks over two nodes are never faster than at a switch, whose ports are wider than cards.
        if ranks <= size and ranks % 2 == 0 and machine["options"]["inside"] == "nvswitch":
            half = ranks // 2
            apart = build(machine, ranks, placement=[*range(half), *range(size, size + half)])
            assert time <= seconds(apart, operation, nbytes, "auto") * 1.1, f"over nodes: {told}"


# Algorithms that NCCL has for an operation [NVIDIA/nccl, src/graph/tuning.cc].
IN_NCCL = {
    "all_reduce": ("multi_ring", "ring", "double_binary_tree", "nvls"),
    "all_gather": ("multi_ring", "ring"),
    "reduce_scatter": ("multi_ring", "ring"),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6))])
def test_auto_is_near_the_fastest_algorithm_of_the_library(seed: int) -> None:
    generator = np.random.default_rng(100 + seed)
    for _ in range(many(300) if seed else 20):
        machine = drawn_machine(generator)
        size = machine["options"]["gpus"]
        ranks = int(generator.choice([2, size, 2 * size, 3 * size]))
        operation, nbytes = str(generator.choice(list(IN_NCCL))), int(2 ** generator.uniform(12, 30))
        cluster = build(machine, ranks)
        chosen, times = planned(cluster, operation, nbytes, "auto").algorithm, dict[str, float]()
        for algorithm in IN_NCCL[operation]:
            # Inside a node, NCCL's Tree is a chain, which is no faster than its Ring. Over nodes whose GPUs have no
            # links to each other, blueconnect stands for trees.
            linked = machine["options"]["inside"] in ("mesh", "full_mesh")
            if algorithm == "double_binary_tree" and (ranks <= size or not linked):
                continue
            # Sums in switches need switches that add, of at least two ranks each.
            with suppress(ScenarioError):
                times[algorithm] = seconds(cluster, operation, nbytes, algorithm)
        told = f"{chosen}, {times}: {machine}, {ranks} ranks, {operation} of {nbytes} B"
        assert seconds(cluster, operation, nbytes, "auto") <= 1.1 * min(times.values()), told
