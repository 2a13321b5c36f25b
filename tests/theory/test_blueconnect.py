"""All-reduce over many nodes: as many steps as a pair of binary trees takes, as many bytes a card as a ring.

Cho et al., "BlueConnect", MLSys 2019: reduce-scatters over the factors of the number of ranks, then gathers back. The
number of steps from node to node that NCCL's trees take is its own model's, 2 log2 of the nodes (src/graph/tuning.cc).
"""

from __future__ import annotations

from math import log2, prod

import pytest

from simulator.cluster.build import build
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.play import play
from tests.playing import assert_time, equal_nodes, nodes, time_of

ELEMENTS = 2**14 * 3**2 * 5
S = 4 * ELEMENTS
# GPU, switch, GPU; and GPU, PCIe, card, leaf, card, PCIe, GPU, over rails of one leaf.
INSIDE, ACROSS = 2 * 0.5e-6, 2 * (0.25e-6 + 0.25e-6 + 1e-6)
LINK, CARD = 300e9, 25e9


@pytest.mark.parametrize(("factors", "size"), [((2,), 4), ((2, 2), 4), ((2, 3), 2), ((2, 2, 2, 2), 2), ((5,), 3)])
def test_each_level_sends_less_than_the_one_before(factors: tuple[int, ...], size: int) -> None:
    m = prod(factors)
    way, left = (size - 1) * (INSIDE + S / (size * LINK)), S / size
    for factor in factors:
        way += (factor - 1) * (ACROSS + left / factor / CARD)
        left /= factor
    cluster, n = nodes(m * size, size), m * size
    assert_time(2 * way, cluster, "blueconnect", CollectiveRequest("all_reduce", n, ELEMENTS), foreseen=False)
    assert_time(way, cluster, "blueconnect", CollectiveRequest("reduce_scatter", n, ELEMENTS), foreseen=False)
    assert_time(way, cluster, "blueconnect", CollectiveRequest("all_gather", n, ELEMENTS), foreseen=False)


@pytest.mark.parametrize("algorithm", ["blueconnect", "nvls"])
@pytest.mark.parametrize("m", [2, 4, 8, 16, 32])
def test_a_few_bytes_take_as_many_steps_between_nodes_as_trees(algorithm: str, m: int) -> None:
    request = CollectiveRequest("all_reduce", 2 * m, 2 * m, chunks=1, nodes=equal_nodes(2 * m, 2))
    assert ALGORITHMS.find(algorithm).steps(request).across == 2 * log2(m)
    alone = time_of(nodes(2, 2), algorithm, CollectiveRequest("all_reduce", 2, 2, chunks=1))
    time = time_of(nodes(2 * m, 2), algorithm, request)
    assert time == pytest.approx(alone + 2 * log2(m) * ACROSS, rel=0.02)


@pytest.mark.parametrize("algorithm", ["blueconnect", "nvls"])
@pytest.mark.parametrize("m", [4, 16])
def test_segments_do_not_wait_for_each_others_latencies(algorithm: str, m: int) -> None:
    # Of 32 segments each would pay 2 log2(m) latencies if the next one began when it is through. So small an array is
    # nearly latencies alone: each further segment may add one, as it follows the one before.
    cluster = nodes(2 * m, 2)
    times = [time_of(cluster, algorithm, CollectiveRequest("all_reduce", 2 * m, 64 * m, chunks=k)) for k in (1, 32)]
    assert times[1] - times[0] <= 1.05 * 31 * ACROSS
    # And of large arrays cards are hardly ever idle: no more than the way of two segments in 32.
    large = 2 * m * 2**18
    busy = 2 * (m - 1) / m * (4 * large / 2) / CARD
    assert (
        busy
        < time_of(cluster, algorithm, CollectiveRequest("all_reduce", 2 * m, large, chunks=32))
        < busy * (1 + 3 / 32)
    )


def test_eight_bytes_over_64_nodes_take_at_most_half_as_long_again_as_nccls_tree() -> None:
    # NCCL's constants for its LL protocol [us]: 6.8 to begin with, 0.6 a step over NVLink, 5.0 over the network.
    tree = 6.8 + 2 * (7 * 0.6 + 6 * 5.0)
    cluster = build("dgx_h100", 512)
    planned = plan(cluster, Task(CollectiveRequest("all_reduce", 512, 2), "auto", tuple(range(512))))
    assert play("compiled", planned.program, cluster, keep=(0,)).end * 1e6 <= 1.5 * tree
