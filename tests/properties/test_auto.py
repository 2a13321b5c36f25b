"""Whatever machine, size, group and operation: `auto` takes what is, when played, about the fastest that libraries run.

What libraries run is what NCCL's model weighs (src/graph/tuning.cc): rings, trees between nodes, sums in switches where
a node has two ranks at one; gathers in rings; whatever has a receiver of its own for each part sent by each to each.
"""

from __future__ import annotations

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.play import play

MACHINES = (
    "dgx_a100", "dgx_h100", "dgx_b200", "dgx_h200", "aws_p4de", "aws_p5", "aws_p5en", "aws_p6_b200", "gcp_a3_mega",
    "gb200_nvl72", "hf_h100", "h100_ethernet_100g", "mi300x_box", "star_100g", "leaf_spine_100g",
    "dgx_b300", "mi325x_box", "gh200",
)  # fmt: skip
RINGS = ("ring", "multi_ring")
# On a network without nodes: what MPI libraries run (Thakur, Rabenseifner & Gropp 2005).
FLAT = ("halving_doubling", "tree", "double_binary_tree")
LIBRARIES = {
    "all_reduce": (*RINGS, "blueconnect", "nvls"),
    "all_gather": RINGS,
    "reduce_scatter": RINGS,
    "broadcast": ("chain",),
    "reduce": ("chain",),
    "all_to_all": ("direct",),
    "gather": ("direct",),
    "scatter": ("direct",),
}
# The seventh of a second that a draw takes goes into plays of up to so many transfers.
MOST = 1_000_000


def time(cluster: Cluster, group: tuple[int, ...], operation: str, nbytes: int, algorithm: str) -> float | None:
    """Played, or of a closed form, which other tests hold to plays; None where it cannot be, or is too long."""
    try:
        made = plan(cluster, Task(CollectiveRequest(operation, len(group), max(1, nbytes // 4)), algorithm, group))
    except ScenarioError:
        return None
    if made.predicted is not None:
        return made.predicted
    if made.ops[0].schedule.has_more_than(MOST):
        return None
    return play("compiled", made.program, cluster, keep=(group[0],)).end


def drawn_group(generator: np.random.Generator, ranks: int) -> tuple[int, ...]:
    """All ranks; one of every eight; or the first few of every eight."""
    first = int(generator.integers(8))
    groups = (
        tuple(range(ranks)),
        tuple(range(first, ranks, 8)),
        tuple(rank for rank in range(ranks) if rank % 8 < 4),
    )
    group = groups[int(generator.integers(3))]
    return group if len(group) > 1 else groups[0]


@pytest.mark.parametrize(
    ("seed", "draws"), [(0, 40), *(pytest.param(seed, 125, marks=pytest.mark.long) for seed in range(5))]
)
def test_auto_is_about_the_fastest_of_what_libraries_run(seed: int, draws: int) -> None:
    generator, slow, count = np.random.default_rng(seed), [], 0
    while count < draws:
        name = str(generator.choice(MACHINES))
        ranks = int(generator.choice([2, 3, 4, 6, 8, 16, 24, 32, 48, 64, 96, 128]))
        operation, nbytes = str(generator.choice(list(LIBRARIES))), int(2 ** generator.uniform(3, 30))
        cluster = build(name, ranks)
        group = drawn_group(generator, ranks)
        own = time(cluster, group, operation, nbytes, "auto")
        if own is None:
            continue
        count += 1
        # Up to four ranks at a switch: NCCL's model prefers rings.
        few = len(group) < 5 and len({cluster.node_of().get(rank) for rank in group}) == 1
        able = [
            name for name in (*LIBRARIES[operation], *(FLAT if cluster.flat else ())) if not (few and name == "nvls")
        ]
        times = {name: time(cluster, group, operation, nbytes, name) for name in able}
        fastest = min((t for t in times.values() if t is not None), default=own)
        if own > 1.1 * fastest:
            slow.append((name, ranks, len(group), operation, nbytes, own, times))
    assert not slow
