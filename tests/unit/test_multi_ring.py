"""Several rings over nodes: who sends over which card, and how a machine's cap is shared."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.multi_ring import orders
from simulator.collectives.ring import ALGORITHM as RING
from simulator.collectives.ring import widest_order
from simulator.engine.play import play
from simulator.records.chunks import chunk_sizes, split
from simulator.records.transfers import write_out
from simulator.report.numbers.summary import with_link_use
from tests.playing import equal_nodes, nodes, planned, time_of


def request(m: int, g: int) -> CollectiveRequest:
    return CollectiveRequest("all_gather", m * g, 1000, nodes=equal_nodes(m * g, g))


def hops(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(order, [*order[1:], order[0]], strict=True))


@pytest.mark.parametrize(("m", "g"), [(2, 2), (2, 8), (3, 2), (3, 3), (3, 4), (4, 5), (5, 8), (7, 3)])
def test_every_card_sends_for_one_ring_and_receives_for_one(m: int, g: int) -> None:
    rings = orders(request(m, g))
    assert len(rings) == g
    assert all(sorted(ring) == list(range(m * g)) for ring in rings)
    crossing = [(a, b) for ring in rings for a, b in hops(ring) if a // g != b // g]
    assert sorted(a for a, _ in crossing) == sorted(b for _, b in crossing) == list(range(m * g))
    # All other rings that pass a rank stay in its node.
    inside = Counter(a for ring in rings for a, b in hops(ring) if a // g == b // g)
    assert set(inside.values()) == {g - 1}


@pytest.mark.parametrize(("m", "g"), [(2, 2), (2, 8), (3, 3), (3, 4), (4, 5), (5, 8), (7, 3)])
def test_a_ring_that_crosses_stays_on_its_rail(m: int, g: int) -> None:
    crossing = [(a, b) for a, b in chain(*map(hops, orders(request(m, g)))) if a // g != b // g]
    assert all(a % g == b % g for a, b in crossing)


@pytest.mark.parametrize("sizes", [(4, 2), (8, 8, 3), (3, 5, 2, 4), (2, 1)])
def test_unequal_nodes_have_as_many_rings_as_the_smallest_has_ranks(sizes: tuple[int, ...]) -> None:
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    grouped = tuple(tuple(range(start, start + size)) for start, size in zip(starts, sizes, strict=True))
    rings = orders(CollectiveRequest("all_gather", sum(sizes), 1000, nodes=grouped))
    assert len(rings) == min(sizes)
    assert all(sorted(ring) == list(range(sum(sizes))) for ring in rings)
    node_of = {rank: number for number, node in enumerate(grouped) for rank in node}
    # Each ring enters and leaves each node once, and no card sends for two rings.
    crossing = [(a, b) for ring in rings for a, b in hops(ring) if node_of[a] != node_of[b]]
    assert len(crossing) == len(sizes) * min(sizes)
    assert len({a for a, _ in crossing}) == len({b for _, b in crossing}) == len(crossing)


@pytest.mark.parametrize(("m", "g"), [(2, 4), (4, 8), (2, 6)])
def test_rings_over_full_meshes_use_each_link_once(m: int, g: int) -> None:
    rings = orders(replace(request(m, g), mesh=True))
    used = Counter(hop for ring in rings for hop in hops(ring) if hop[0] // g == hop[1] // g)
    assert used == Counter((a, b) for a in range(m * g) for b in range(m * g) if a != b and a // g == b // g)
    crossing = [(a, b) for a, b in chain(*map(hops, rings)) if a // g != b // g]
    assert all(a % g == b % g for a, b in crossing)


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize(
    ("topology", "ranks"), [("dgx_h100", 12), ("dgx_a100", 19), ("mi300x_box", 16), ("mi300x_box", 21)]
)
@pytest.mark.one_of(3)
def test_rings_over_unequal_nodes_and_meshes_are_alike_on_both_engines(
    operation: str, topology: str, ranks: int
) -> None:
    """Times, logs and the bytes on each link; 1,003 elements give parts of two sizes."""
    cluster = build(topology, ranks)
    for elements in (1003, 2**18):
        made = planned(cluster, "multi_ring", CollectiveRequest(operation, ranks, elements))
        one, other = (with_link_use(play(name, made.program, cluster)) for name in ("events", "compiled"))
        assert one.end == pytest.approx(other.end, rel=1e-9)
        for mine, theirs in zip(one.logs, other.logs, strict=True):
            assert mine.end == pytest.approx(theirs.end, rel=1e-9)
            assert mine.nbytes.tolist() == theirs.nbytes.tolist()
        for used, same in zip(one.links, other.links, strict=True):
            assert (used.name, used.nbytes) == (same.name, pytest.approx(same.nbytes, rel=1e-9))
            assert used.busy == pytest.approx(same.busy, rel=1e-9)
        if made.predicted is not None:
            assert one.end == pytest.approx(made.predicted, rel=1e-9)


def test_a_search_for_a_ring_ends_where_there_is_none() -> None:
    """Fifteen GPUs are all connected, and the sixteenth only with the first: then none of 14! paths closes.

    Two groups of eight behind one GPU each way have no ring either, though each GPU has several links.
    """
    pendant = [[float((a != b and {a, b} <= {*range(15)}) or {a, b} == {0, 15}) for b in range(16)] for a in range(16)]
    assert widest_order(pendant) == ()
    halves = [[float((a != b and (a < 8) == (b < 8)) or {a, b} == {0, 8}) for b in range(16)] for a in range(16)]
    assert widest_order(halves) == ()


def test_meshes_of_gpus_send_over_all_links() -> None:
    """32 MI300X, 1 GiB: each card of 50 GB/s carries 2 x 31 / 32 of an eighth of the array; a ring has one link."""
    cluster = replace(build("mi300x_box", 32), library=None)
    wanted = CollectiveRequest("all_reduce", 32, 2**28)
    assert planned(cluster, "auto", wanted).algorithm == "multi_ring"
    assert time_of(cluster, "auto", wanted) == pytest.approx(2 * 31 / 32 * 2**30 / 8 / 50e9, rel=0.02)


def test_with_one_node_or_nodes_of_one_rank_it_is_the_ring() -> None:
    for grouped in (equal_nodes(6, 6), equal_nodes(6, 1), ()):
        wanted = CollectiveRequest("all_reduce", 6, 1003, nodes=grouped)
        ours = planned(nodes(6, 6), "multi_ring", wanted).program.collectives()["all_reduce"].schedule
        theirs = RING.plans["all_reduce"](wanted)
        for name in ("src", "dst", "first", "channel", "waiter", "awaited"):
            assert getattr(write_out(ours), name).tolist() == getattr(write_out(theirs), name).tolist()


@pytest.mark.parametrize("elements", [0, 1, 7, 1003])
def test_a_part_is_the_same_whether_it_is_cut_or_not(elements: int) -> None:
    schedule = planned(nodes(8, 4), "multi_ring", CollectiveRequest("all_gather", 8, elements)).program.collectives()
    sizes = chunk_sizes(schedule["all_gather"].schedule, elements).reshape(8, 4)
    assert sizes.sum(axis=1).tolist() == split(elements, 8).tolist()
    assert all(row.tolist() == split(int(row.sum()), 4).tolist() for row in sizes)


def with_cap(cluster: Cluster, cap: float) -> Cluster:
    return replace(cluster, collectives={"all_gather": MachineCollective("multi_ring", rate_cap=cap)})


def test_rings_that_leave_a_rank_inside_share_the_cap_and_a_group_of_one_node_has_it_whole() -> None:
    cluster = with_cap(nodes(8, 4), 30e9)
    over = planned(cluster, "multi_ring", CollectiveRequest("all_gather", 8, 800)).program.collectives()["all_gather"]
    one_node = CollectiveRequest("all_gather", 4, 4000)
    inside = planned(cluster, "multi_ring", one_node, group=(0, 1, 2, 3)).program.collectives()["all_gather"]
    assert (over.caps.inside, inside.caps.inside) == (7.5e9, 30e9)
    expected = 3 * (1e-6 + 4000 / 30e9)
    assert time_of(cluster, "multi_ring", one_node, group=(0, 1, 2, 3)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("world_size", [16, 24, 64, 512])
def test_the_shipped_machine_has_a_form_and_comes_near_to_all_its_cards(operation: str, world_size: int) -> None:
    cluster = build("dgx_h100", world_size)
    nbytes = 4 * 2**30
    made = planned(cluster, "auto", CollectiveRequest(operation, world_size, nbytes // 4))
    assert made.algorithm == "multi_ring"
    assert made.predicted is not None
    busbw = nbytes * (world_size - 1) / world_size / made.predicted
    # A rank is not faster than in one node. Over 64 nodes the steps take as long as a third of the transfers.
    alone = cluster.in_node[operation].rate_cap * cluster.in_node[operation].factor(nbytes)
    assert (0.85 if world_size <= 64 else 0.7) * alone <= busbw <= alone <= 8 * 50e9
    if world_size <= 64:
        played = time_of(cluster, "auto", CollectiveRequest(operation, world_size, nbytes // 4))
        assert played == pytest.approx(made.predicted, rel=1e-9)
