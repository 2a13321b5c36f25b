"""Rings over all links of a node: disjoint, proved as schedules, and as fast as the links together."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cluster.build import build
from simulator.collectives import multi_ring
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.channels import Lanes, disjoint_rings, with_ends
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.verify import verify
from tests.commands import commands_in

# NVIDIA, DGX-1 with Tesla V100 system architecture, figure 4: pairs of GPUs with two NVLinks, and with one.
TWO = ((0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7))
ONE = ((0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7))
OPERATIONS = ("all_reduce", "reduce_scatter", "all_gather")


def mesh(size: int, cables: dict[tuple[int, int], int]) -> Lanes:
    return tuple(tuple(cables.get((min(a, b), max(a, b)), 0) for b in range(size)) for a in range(size))


def full(size: int, lanes: int) -> Lanes:
    return mesh(size, dict.fromkeys(combinations(range(size), 2), lanes))


CUBE = mesh(8, {**dict.fromkeys(TWO, 2), **dict.fromkeys(ONE, 1)})


def used(rings: tuple[tuple[int, ...], ...]) -> Counter[tuple[int, int]]:
    return Counter(hop for ring in rings for hop in zip(ring, (*ring[1:], ring[0]), strict=True))


@pytest.mark.parametrize(
    ("lanes", "rings"),
    [(full(2, 2), 2), (full(4, 2), 6), (CUBE, 6), (full(8, 1), 6), (mesh(3, {(0, 1): 1, (1, 2): 1}), 0)],
)
def test_rings_use_as_many_links_as_each_gpu_has_in_pairs(lanes: Lanes, rings: int) -> None:
    """NVIDIA/nccl issue 307: six rings on a DGX-1. A GPU with seven links has three pairs of rings and a link over."""
    assert len(disjoint_rings(lanes)) == rings


@given(st.integers(2, 7).flatmap(lambda n: st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n)))
def test_every_ring_visits_every_gpu_and_no_link_is_used_twice(counts: list[int]) -> None:
    size = int(len(counts) ** 0.5)
    lanes = mesh(size, {(a, b): counts[a * size + b] for a, b in combinations(range(size), 2)})
    rings = disjoint_rings(lanes)
    assert all(sorted(ring) == list(range(size)) for ring in rings)
    assert all(count <= lanes[a][b] for (a, b), count in used(rings).items())


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("lanes", [full(4, 2), CUBE], ids=["four", "cube"])
def test_rings_over_links_carry_out_the_operation(lanes: Lanes, operation: str, nodes: int) -> None:
    size = len(lanes)
    places = tuple(tuple(range(node * size, (node + 1) * size)) for node in range(nodes))
    paths = with_ends(disjoint_rings(lanes), [f"card{place // 2}" for place in range(size)], nodes)
    request = CollectiveRequest(operation, nodes * size, 101, nodes=places, rings=paths)
    verify(multi_ring.plan(request))
    if nodes == 2:
        # As many rings enter over each card, and as many leave over it.
        for end in (0, -1):
            assert set(Counter(path[end] // 2 for path in paths).values()) == {len(paths) // (size // 2)}


@pytest.mark.parametrize(("ranks", "links"), [(2, 2), (4, 6)])
def test_gathers_on_a_mesh_are_as_fast_as_all_its_links(ranks: int, links: int) -> None:
    """Four V100, each with two NVLinks of 25 GB/s to every other one: 50 and 150 GB/s of the bus."""
    options = {"gpus": 4, "inside": "full_mesh", "link_bandwidth": "50 GB/s", "link_latency": "0 us"}
    slots = {"pcie_bandwidth": "16 GB/s", "pcie_latency": "0 us"}
    box = {"builder": "nodes", "options": options | slots, "gpu": "v100_sxm_32gb", "library": "none"}
    request = CollectiveRequest("all_gather", ranks, 2**26)
    for algorithm in ("multi_ring", "auto"):
        planned = plan(build(box, ranks), Task(request, algorithm, tuple(range(ranks))))
        rate = (ranks - 1) / ranks * 4 * 2**26 / (planned.predicted or 0.0) if planned.predicted else None
        assert rate is None or rate == pytest.approx(links * 25e9, rel=1e-6)
        assert planned.algorithm == algorithm or algorithm == "auto"


def test_the_command_prints_rings_that_use_no_link_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six rings of a DGX-1, as NCCL finds: each of its 2 x 24 directed links is in one of them."""
    run = commands_in(tmp_path, monkeypatch, capsys)
    head, *rings = run("show", "dgx1_v100", "--world-size", "8", "--channels").out.splitlines()
    assert head == "dgx1_v100: 6 rings over links of their own"
    orders = tuple(tuple(int(name.removeprefix("gpu")) for name in ring.split()) for ring in rings)
    assert all(sorted(order) == list(range(8)) for order in orders)
    assert used(orders) == {(a, b): CUBE[a][b] for a in range(8) for b in range(8) if CUBE[a][b]}
