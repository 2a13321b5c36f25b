"""Links that are not watched change nothing: every program as it is played, and with flows looked for on all links.

Both engines leave out the same links, so neither can prove the other here. What is played with every link watched
knows nothing of `prune_links`.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, ROOTED, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective, Compute, ElementSizes, Op, RateCaps
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule
from tests.engines import farthest
from tests.many import many
from tests.playing import WIDE_GPU
from tests.programs import FAMILIES, Case, drawn, uneven

CLOSE = 1e-9
CASES, MANY = 5, many(600)
ALIKE_BUT_FOR = (
    {}, {"stream": "stream 0"}, {"caps": RateCaps(5e9)}, {"caps": RateCaps(across=5e9)}, {"elements": 1000},
)  # fmt: skip
DRAWN_ALGORITHMS = ("ring", "direct", "direct", "tree", "halving_doubling", "naive", "multi_ring", "nvls")


def inside(kind: str, **more: Any) -> Mapping[str, Any]:
    """Nodes of four GPUs, whose cards are as many as told or half as many."""
    options = {
        "gpus": 4, "inside": kind, "hosts": 2, "pcie_bandwidth": "31.5 GB/s", "pcie_latency": "0.5 us",
        "socket_bandwidth": "20 GB/s", "socket_latency": "0.3 us", "nics": 2, "nic_bandwidth": "25 GB/s",
        "nic_latency": "1 us", "fabric": "leaf_spine", "nodes_per_leaf": 2, "spine_latency": "0.3 us",
    } | more  # fmt: skip
    return {"builder": "nodes", "options": options, "gpu": "a100_sxm_80gb"}


def tree(builder: str, **options: Any) -> Mapping[str, Any]:
    return {
        "builder": builder,
        "options": {"bandwidth": "25 GB/s", "latency": "0.6 us", **options},
        "gpu": "a100_sxm_80gb",
    }


# What it is called here, what is built, and how many ranks at most.
MACHINES: dict[str, tuple[str | Mapping[str, Any], int]] = {
    "dgx_h100": ("dgx_h100", 16),
    "mi300x_box": ("mi300x_box", 16),
    "h100_ethernet_100g": ("h100_ethernet_100g", 16),
    "pcie_workstation": ("pcie_workstation", 4),
    "mixed_links": ("mixed_links", 12),
    "ring_nvlink": ("ring_nvlink", 8),
    "hypercube": ("hypercube", 8),
    "fully connected": (tree("fully_connected"), 6),
    "torus of 3 x 4": (tree("torus", shape=[3, 4]), 12),
    "torus of 2 x 3 x 2": (tree("torus", shape=[2, 3, 2]), 12),
    "dragonfly": (tree("dragonfly", hosts=2, routers=2, global_links=1, global_latency="1 us"), 12),
    "fat tree": (tree("fat_tree", k=4), 16),
    "fat tree, oversubscribed": (tree("fat_tree", k=4, oversubscription=3.0), 16),
    "cards for two": (inside("nvswitch", link_bandwidth="300 GB/s", link_latency="0.5 us"), 12),
    "no fast links": (inside("pcie"), 12),
    "a star with servers": ("star_100g", 8),
    "mesh in a node": (inside("full_mesh", link_bandwidth="64 GB/s", link_latency="1 us", nics=4, fabric="rail"), 12),
}


def machine(generator: np.random.Generator, name: str) -> Cluster:
    """A machine with some ranks; in half of all draws some links are slower, each direction by its own share."""
    topology, most = MACHINES[name]
    facts: dict[str, Any] = {}
    if isinstance(topology, str):
        ranks = int(generator.integers(2, most + 1))
    else:
        ranks = most if generator.random() < 0.5 else int(generator.integers(2, most + 1))
        facts["ecmp_seed"] = None if generator.random() < 0.5 else int(generator.integers(100))
    facts["servers"] = 2 if name == "a star with servers" else 0
    if generator.random() < 0.3:
        # Additions take three times their rate of it, so that it is the bottleneck in some of these.
        facts["gpu"] = WIDE_GPU | {"hbm_bandwidth": f"{generator.uniform(20, 600):.0f} GB/s"}
    cluster = build(topology, ranks, **facts)
    if generator.random() < 0.5:
        return build(topology, ranks, link_factors=uneven(cluster, generator), **facts)
    return cluster


def group_of(generator: np.random.Generator, ranks: int) -> tuple[int, ...]:
    """All ranks, neighbours, or one of each so many; in any order."""
    size = int(generator.integers(2, ranks + 1))
    first = int(generator.integers(0, ranks - size + 1))
    chosen = range(ranks) if generator.random() < 0.4 else range(first, first + size)
    apart = list(chosen)[:: 2 if generator.random() < 0.3 and len(chosen) > 3 else 1]
    return tuple(int(rank) for rank in (generator.permutation(apart) if generator.random() < 0.3 else apart))


def operation(generator: np.random.Generator, cluster: Cluster, name: str, stream: str) -> Collective:
    """Any collective of any algorithm over some of the ranks, some of them with bounds on a flow's rate."""
    op = None
    while op is None:
        with suppress(ValueError):
            op = drawn_operation(generator, cluster)
    fastest = max(cluster.router.bandwidth)
    if generator.random() < 0.3:
        op = replace(op, caps=replace(op.caps, inside=fastest * float(generator.uniform(0.05, 1.2))))
    if generator.random() < 0.3:
        op = replace(op, caps=replace(op.caps, across=fastest * float(generator.uniform(0.05, 1.2))))
    return replace(op, name=name, stream=stream)


def drawn_operation(generator: np.random.Generator, cluster: Cluster) -> Collective:
    """As it is planned; ValueError where the algorithm cannot do it among so many."""
    served = bool(cluster.servers) and generator.random() < 0.7
    algorithm = "parameter_server" if served else str(generator.choice(DRAWN_ALGORITHMS))
    what: Any = str(generator.choice(sorted(ALGORITHMS.operations(algorithm))))
    group = group_of(generator, cluster.world_size)
    elements = int(10 ** generator.uniform(2, 6))
    root = int(generator.integers(len(group))) if what in ROOTED else 0
    servers: dict[str, Any] = {"servers": 2, "servers_on": "own"} if served else {}
    request = CollectiveRequest(what, len(group), elements, root=root, **servers)
    return plan(cluster, Task(request, algorithm, group, "float32")).ops[0]


def crowded(name: str, seed: int) -> Case:
    """One to four collectives on one to three streams, from any starts; some are there twice."""
    generator = np.random.default_rng([411, list(MACHINES).index(name), seed])
    cluster = machine(generator, name)
    streams = int(generator.integers(1, 4))
    longest = float(generator.choice([0.0, 1e-6, 1e-4, 1e-3]))
    lists: list[list[Op]] = [
        [Compute(f"late {s}", longest * float(generator.random()), stream=f"stream {s}") for s in range(streams)]
        for _ in range(cluster.world_size)
    ]
    for number in range(int(generator.integers(1, 5))):
        op = operation(generator, cluster, str(number), f"stream {generator.integers(streams)}")
        copies = [op]
        if generator.random() < 0.4:
            # Alike in everything but perhaps one thing.
            change: Any = ALIKE_BUT_FOR[int(generator.integers(len(ALIKE_BUT_FOR)))]
            copies.append(replace(op, **change))
        for again, copy in enumerate(copies):
            for rank in op.group:
                lists[rank].append(replace(copy, name=f"{op.name}, {again}"))
    jitter = Jitter(0.0, 0.2, seed) if generator.random() < 0.2 else None
    return Case(Program(tuple(map(tuple, lists))), cluster, jitter)


def agrees(case: Case, *which: object) -> None:
    """Played with the links that matter, and with all; `which` names the case where it fails."""
    found, expected = (
        execute(case.program, case.cluster, jitter=case.jitter, limit_memory=False, watch_all=every)
        for every in (False, True)
    )
    assert farthest(expected, found) <= CLOSE, which


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.one_of(3)
def test_links_that_are_left_out_change_no_collective(name: str) -> None:
    for seed in range(CASES):
        agrees(crowded(name, seed), name, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_links_that_are_left_out_change_no_program(family: str) -> None:
    """Training steps and collectives as both engines play them."""
    for seed in range(1 if family == "zero3 with copies" else 3):
        case = drawn(family, seed)
        if case is not None:
            agrees(case, family, seed)


@pytest.mark.parametrize("ranks", [8, 12, 16, 24])
def test_links_that_are_left_out_change_no_exchange_of_all_with_all(ranks: int) -> None:
    """The most flows that ever are on a DGX's links at once: through its switch, cards, PCIe and rails."""
    cluster = build("dgx_h100", ranks)
    request = CollectiveRequest("all_to_all", ranks, 100_000 * ranks)
    agrees(Case(plan(cluster, Task(request, "direct", tuple(range(ranks)), "float32")).program, cluster))


@pytest.mark.parametrize(("streams", "end"), [((0, 0), 5.0), ((0, 1), 6.0)])
def test_servers_may_be_at_several_operations_of_a_rank_at_once(streams: tuple[int, int], end: float) -> None:
    """A rank sends to a server, which sends on to another over a cable of half the bandwidth; and all of it again.

    With S / B = 1: one after the other the second copy leaves the first server at 2, when the first copy has half of
    its way to go, which takes to 4 at half of the cable; then 1/2 is left of the second one, to 5. Both at once share
    the rank's port too: they leave the server at 2 and share the cable to 6.
    """
    bandwidth, elements = 12.5e9, 12_500
    unit = 4 * elements / bandwidth
    factors = {"switch0->server1": 0.5}
    options = {"bandwidth": "12.5 GB/s", "latency": "0 us"}
    cluster = build({"builder": "star", "options": options}, 1, gpu=WIDE_GPU, servers=2, link_factors=factors)
    columns = np.array([(0, 1, 0, 1, 0, -1), (1, 2, 0, 1, 1, 0)]).T
    src, dst, first, count, channel, after = columns
    one = Round(src, dst, first, count, first > 0, channel, after[:, None])
    schedule = Schedule("send", "by hand", 1, 2, 1, ReductionOrder.IN_SEQUENCE, lambda: iter([one]))
    op = Collective("first", (0,), schedule, elements, ElementSizes(4, 4), auxiliaries=("server0", "server1"))
    ops = (replace(op, stream=f"stream {streams[0]}"), replace(op, name="second", stream=f"stream {streams[1]}"))
    logs = execute(Program((ops,)), cluster).logs
    assert max(float(log.end.max()) for log in logs) == pytest.approx(end * unit, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", MACHINES)
def test_links_that_are_left_out_change_none_of_many_collectives(name: str) -> None:
    for seed in [*range(CASES, 12), *range(10_000, 10_000 + MANY)]:
        agrees(crowded(name, seed), name, seed)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_links_that_are_left_out_change_none_of_many_programs(family: str) -> None:
    for seed in [*range(1, 6), *range(10_000, 10_000 + MANY // 2)]:
        case = drawn(family, seed)
        if case is not None:
            agrees(case, family, seed)
