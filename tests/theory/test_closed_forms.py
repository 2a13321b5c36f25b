"""Time on an idle network, against formulas written out here; none is taken from the algorithms.

alpha is the latency of a route [s], beta the bandwidth of a link in one direction [B/s], S the bytes of the array, N
the ranks, c the bytes of the largest chunk. Sources: Patarasuk & Yuan, JPDC 2009 (ring); Thakur, Rabenseifner & Gropp,
IJHPCA 2005 (trees, halving and doubling); Sanders, Speck & Traff, Parallel Computing 35, 2009 (two trees).
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor, log2
from typing import Any

import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.idle import Across
from tests.playing import (
    OVER_SWITCHES,
    TOLD_NODES,
    WIDE_GPU,
    assert_time,
    equal_nodes,
    nodes,
    planned,
    regular,
    star,
    time_of,
)

WORLD_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16)
# Divisible by every number up to 16.
ELEMENTS = 720_720
S = 4.0 * ELEMENTS
EXACT = 1e-9


def on_a_star(n: int, alpha: float, beta: float) -> dict[tuple[str, str], float]:
    """Every port carries one array at a time; expected seconds by algorithm and operation."""
    c, m = S / n, n - 1
    levels, p = ceil(log2(n)), 2 ** floor(log2(n))
    uneven = n != p
    game = 2 * log2(p) * alpha + 2 * (p - 1) * S / (p * beta) + uneven * 2 * (alpha + S / beta)
    forms = {
        ("ring", "all_reduce"): 2 * m * (alpha + c / beta),
        ("ring", "reduce_scatter"): m * (alpha + c / beta),
        ("ring", "all_gather"): m * (alpha + c / beta),
        ("naive", "all_reduce"): 2 * (alpha + m * S / beta),
        ("direct", "all_reduce"): 2 * (alpha + m * c / beta),
        ("direct", "reduce_scatter"): alpha + m * c / beta,
        ("direct", "all_gather"): alpha + m * c / beta,
        ("direct", "all_to_all"): alpha + m * c / beta,
        ("direct", "scatter"): alpha + m * c / beta,
        ("direct", "gather"): alpha + m * c / beta,
        ("direct", "broadcast"): alpha + m * S / beta,
        ("direct", "reduce"): alpha + m * S / beta,
        ("halving_doubling", "all_reduce"): game,
        ("tree", "all_reduce"): 2 * levels * S / beta + (2 * levels - uneven) * alpha,
        ("tree", "reduce"): levels * (alpha + S / beta),
        ("tree", "broadcast"): levels * S / beta + (levels - uneven) * alpha,
        # 16 pieces follow each other along N - 1 hops.
        ("chain", "broadcast"): m * alpha + (m - 1 + 16) * (S / 16) / beta,
        ("chain", "reduce"): m * alpha + (m - 1 + 16) * (S / 16) / beta,
    }
    if not uneven:
        forms["halving_doubling", "reduce_scatter"] = game / 2
        forms["halving_doubling", "all_gather"] = game / 2
        forms["tree", "scatter"] = levels * alpha + m * c / beta
        forms["tree", "gather"] = levels * alpha + m * c / beta
    return forms


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.one_of(3)
def test_forms_on_a_star(n: int) -> None:
    alpha, beta = 2 * 5e-6, 100e9 / 8
    for (algorithm, operation), expected in on_a_star(n, alpha, beta).items():
        assert_time(expected, star(n), algorithm, CollectiveRequest(operation, n, ELEMENTS))


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.one_of(3)
def test_parameter_servers_on_a_star(n: int) -> None:
    alpha, beta = 2 * 5e-6, 100e9 / 8
    for k in sorted({1, 2, n, n + 1} & set(range(1, 17))):
        own = CollectiveRequest("all_reduce", n, ELEMENTS, servers=k, servers_on="own")
        assert_time(2 * (alpha + max(S, n * S / k) / beta), star(n, k), "parameter_server", own)
    hosted = CollectiveRequest("all_reduce", n, ELEMENTS, servers=n, servers_on="workers")
    assert_time(2 * (alpha + (n - 1) * (S / n) / beta), star(n), "parameter_server", hosted)


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_pushing_and_pulling_in_slices_approaches_half_the_time_of_one_server(n: int) -> None:
    alpha, beta, k = 2 * 5e-6, 100e9 / 8, 60
    sliced = time_of(star(n, 1), "parameter_server", CollectiveRequest("all_reduce", n, ELEMENTS, chunks=k))
    # Pushes fill the server's ingress without a pause; the last slice is pulled after the last push.
    least = 2 * alpha + (1 + 1 / k) * n * S / beta
    assert least * (1 - EXACT) <= sliced <= least * 1.001


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.one_of(3)
def test_the_largest_chunk_rules_an_uneven_ring(n: int) -> None:
    alpha, beta = 2 * 5e-6, 100e9 / 8
    for elements in (0, 1, n - 1, n + 1, 1003, 99_991):
        hop = alpha + ceil(elements / n) * 4 / beta
        assert_time(2 * (n - 1) * hop, star(n), "ring", CollectiveRequest("all_reduce", n, elements))
        assert_time((n - 1) * hop, star(n), "ring", CollectiveRequest("reduce_scatter", n, elements))


@pytest.mark.parametrize("n", WORLD_SIZES)
@pytest.mark.one_of(3)
def test_forms_on_a_full_mesh(n: int) -> None:
    alpha, beta, c = 1e-6, 50e9, S / n
    cluster = regular("fully_connected", n)
    on_star = on_a_star(n, alpha, beta)
    forms = {pair: on_star[pair] for pair in on_star if pair[0] in ("ring", "tree", "halving_doubling", "chain")}
    forms["naive", "all_reduce"] = 2 * (alpha + S / beta)
    forms["direct", "all_reduce"] = 2 * (alpha + c / beta)
    for one_hop in ("reduce_scatter", "all_gather", "all_to_all", "scatter", "gather"):
        forms["direct", one_hop] = alpha + c / beta
    forms["direct", "broadcast"] = forms["direct", "reduce"] = alpha + S / beta
    for (algorithm, operation), expected in forms.items():
        assert_time(expected, cluster, algorithm, CollectiveRequest(operation, n, ELEMENTS))
    hosted = CollectiveRequest("all_reduce", n, ELEMENTS, servers=n, servers_on="workers")
    assert_time(2 * (alpha + c / beta), cluster, "parameter_server", hosted)


@pytest.mark.parametrize("n", WORLD_SIZES)
def test_on_a_ring_graph_only_the_ring_has_a_form(n: int) -> None:
    alpha, beta = 1e-6, 50e9
    cluster = regular("ring", n)
    assert_time(2 * (n - 1) * (alpha + S / (n * beta)), cluster, "ring", CollectiveRequest("all_reduce", n, ELEMENTS))
    if n > 3:
        for algorithm in ("naive", "direct", "halving_doubling", "tree"):
            assert planned(cluster, algorithm, CollectiveRequest("all_reduce", n, ELEMENTS)).predicted is None


@pytest.mark.parametrize(
    ("m", "g", "nics"), [(2, 2, 2), (2, 4, 4), (2, 4, 2), (3, 4, 1), (4, 4, 4), (3, 5, 5), (2, 8, 4)]
)
def test_hierarchical_over_nodes_shares_the_network_cards(m: int, g: int, nics: int) -> None:
    n = m * g
    alpha1, beta1 = 2 * 0.5e-6, 300e9
    # GPU, PCIe, card, leaf, card, PCIe, GPU; a card is shared by g / nics GPUs.
    alpha2, beta2 = 2 * (0.25e-6 + 0.25e-6 + 1e-6), 25e9 / (g / nics)
    way = (g - 1) * (alpha1 + S / (g * beta1)) + (m - 1) * (alpha2 + S / (g * m * beta2))
    cluster = nodes(n, g, nics)
    assert_time(2 * way, cluster, "hierarchical", CollectiveRequest("all_reduce", n, ELEMENTS))
    assert_time(way, cluster, "hierarchical", CollectiveRequest("reduce_scatter", n, ELEMENTS))
    assert_time(way, cluster, "hierarchical", CollectiveRequest("all_gather", n, ELEMENTS))


@pytest.mark.parametrize("n", [4, 6, 12, 16])
def test_hierarchical_with_groups_on_a_star(n: int) -> None:
    alpha, beta = 2 * 5e-6, 100e9 / 8
    for g in (d for d in range(2, n) if n % d == 0):
        m = n // g
        expected = 2 * (g - 1) * (alpha + S / (g * beta)) + 2 * (m - 1) * (alpha + S / (g * m * beta))
        assert_time(
            expected, star(n), "hierarchical", CollectiveRequest("all_reduce", n, ELEMENTS, nodes=equal_nodes(n, g))
        )


def longest_window(steps: int, latencies: list[float], times: list[float]) -> float:
    """Last end of `steps` rounds of a ring whose hops have a latency and a time for their piece each.

    A piece enters a hop when it has come and the hop is free, so the last end is the largest sum over a window of hops
    in a row: each one's latency and time once, the slowest one's time again for each round more than it has hops.
    """
    n, found = len(times), 0.0
    for first in range(n):
        travelled = slowest = 0.0
        for hops in range(1, steps + 1):
            at = (first + hops - 1) % n
            travelled += latencies[at] + times[at]
            slowest = max(slowest, times[at])
            found = max(found, travelled + (steps - hops) * slowest)
    return found


def capped(cluster: Cluster, **facts: Any) -> Cluster:
    return replace(cluster, collectives={"all_reduce": MachineCollective("multi_ring", **facts)})


@pytest.mark.parametrize(
    ("m", "g", "nics"), [(2, 2, 2), (2, 4, 4), (3, 4, 4), (4, 4, 4), (3, 5, 5), (5, 3, 3), (2, 8, 4)]
)
@pytest.mark.parametrize("cards", [1e9, 3e9, 12.5e9])
def test_many_rings_keep_every_card_busy_and_share_a_ranks_cap_inside(m: int, g: int, nics: int, cards: float) -> None:
    # G rings leave every rank, and each gets that part of the cap inside a node; one ring crosses at every rank.
    n, inside, startup = m * g, 40e9, 20e-6
    # A number of elements that n g divides, so that all pieces are of one size.
    elements = 1260 * n * g
    nbytes = 4.0 * elements
    alpha1, alpha2 = 2 * 0.5e-6, 2 * (0.25e-6 + 0.25e-6 + 1e-6)
    piece = nbytes / (n * g)
    hop = {False: piece / (inside / g), True: piece / cards}
    leaves = [i % g == g - 1 for i in range(n)]
    latencies, times = [alpha2 if leaves[i] else alpha1 for i in range(n)], [hop[leaves[i]] for i in range(n)]
    cluster = capped(nodes(n, g, nics), startup=startup, rate_cap=inside, cross_rate_cap=cards)
    for operation, steps in (("all_gather", n - 1), ("reduce_scatter", n - 1), ("all_reduce", 2 * (n - 1))):
        expected = startup + longest_window(steps, latencies, times)
        assert_time(expected, cluster, "multi_ring", CollectiveRequest(operation, n, elements))
    # Without latencies only the slower of both counts: the bus bandwidth is that of all cards, or that of a port.
    if cards * g < inside:
        busbw = (n - 1) / n * nbytes / longest_window(n - 1, [0.0] * n, times)
        assert busbw <= g * cards * (1 + EXACT)
        assert busbw >= 0.6 * g * cards


@pytest.mark.parametrize("elements", [0, 1, 7, 12 * 3, 12 * 4 + 5, 1003])
@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "all_reduce"])
def test_many_rings_have_a_form_for_parts_that_differ_too(operation: str, elements: int) -> None:
    cluster = capped(nodes(12, 4), rate_cap=40e9, cross_rate_cap=10e9)
    request = CollectiveRequest(operation, 12, elements)
    predicted = planned(cluster, "multi_ring", request).predicted
    assert predicted == pytest.approx(time_of(cluster, "multi_ring", request), rel=EXACT)


def test_many_rings_that_can_fill_a_port_together_have_no_form() -> None:
    # Three rings of a rank share its port of 300 GB/s as they meet, which no formula foresees.
    assert planned(nodes(8, 4), "multi_ring", CollectiveRequest("all_gather", 8, ELEMENTS)).predicted is None
    # One ring a port and a card for each rank: nothing meets, with an odd number of nodes either.
    for n in (6, 8):
        request = CollectiveRequest("all_gather", n, ELEMENTS)
        predicted = planned(nodes(n, 2), "multi_ring", request).predicted
        assert predicted == pytest.approx(time_of(nodes(n, 2), "multi_ring", request), rel=EXACT)


def test_many_rings_use_as_many_cards_as_a_node_has() -> None:
    # Bus bandwidth over nodes of 8 with cards of 25 GB/s: one ring 25, eight rings 200.
    n, elements = 32, 32 * 8 * 2**17
    cluster = nodes(n, 8)
    request = CollectiveRequest("all_gather", n, elements)
    nbytes = 4 * elements * (n - 1) / n
    assert nbytes / time_of(cluster, "ring", request) <= 25e9
    assert 0.97 * 200e9 <= nbytes / time_of(cluster, "multi_ring", request) <= 200e9


def test_a_switch_that_adds_beats_the_ring_by_the_ratio_of_their_volumes() -> None:
    # busbw 2(N-1)/(N+1) beta against beta; the filling of the pipeline and latencies cost a tenth at this size.
    n, elements = 8, 64 * 2**20
    cluster = nodes(n, n)
    ring = time_of(cluster, "ring", CollectiveRequest("all_reduce", n, elements))
    nvls = time_of(cluster, "nvls", CollectiveRequest("all_reduce", n, elements, chunks=64))
    assert 0.9 * 2 * (n - 1) / (n + 1) <= ring / nvls <= 2 * (n - 1) / (n + 1)


@pytest.mark.parametrize("n", range(4, 33))
@pytest.mark.one_of(3)
def test_two_trees_with_64_pieces_come_near_the_full_bandwidth(n: int) -> None:
    beta = 100e9 / 8
    cluster = star(n, latency="0 s")
    time = time_of(cluster, "double_binary_tree", CollectiveRequest("all_reduce", n, 64 * n * 100, chunks=64))
    nbytes = 4 * 64 * n * 100
    assert 2 * (n - 1) * nbytes / (n * beta) <= time * (1 + EXACT)
    assert time <= 1.2 * 2 * nbytes / beta


def test_a_full_mesh_of_nvlinks_overruns_the_hbm_of_a_naive_root() -> None:
    n, beta, hbm = 8, 300e9, 2039e9
    mesh = {"builder": "fully_connected", "options": {"bandwidth": "300 GB/s", "latency": "0 s"}}
    cluster = build(mesh, n, gpu="a100_sxm_80gb")
    assert cluster.hbm_bandwidth(0) == hbm
    request = CollectiveRequest("all_reduce", n, ELEMENTS)
    # Each of 7 arrays is read, added to what is read, and written; then the sum is only copied.
    expected = 3 * (n - 1) * S / hbm + S / beta
    assert time_of(cluster, "naive", request) == pytest.approx(expected, rel=EXACT)
    assert expected / (2 * S / beta) == pytest.approx(2.04, abs=0.005)
    assert planned(cluster, "naive", request).predicted is None
    # A ring's 3 x 300 GB/s are within it.
    assert_time(2 * (n - 1) * S / (n * beta), cluster, "ring", request)


@pytest.mark.parametrize("times", [1.5, 2.5, 3.0, 4.0])
def test_a_ring_adds_as_fast_as_hbm_reads_twice_and_writes(times: float) -> None:
    """Of HBM with so many times a port's bandwidth a flow that is added gets a third; copies need none of it."""
    n, alpha, beta = 4, 10e-6, 12.5e9
    options = {"bandwidth": "12.5 GB/s", "latency": "5 us"}
    gpu = {**WIDE_GPU, "hbm_bandwidth": f"{12.5 * times} GB/s"}
    cluster = build({"builder": "star", "options": options}, n, gpu=gpu)
    adding, copying = ((n - 1) * (alpha + S / n / rate) for rate in (min(beta, beta * times / 3), beta))
    assert_time(adding + copying, cluster, "ring", CollectiveRequest("all_reduce", n, ELEMENTS), foreseen=times >= 3)
    for algorithm in ("direct", "naive", "chain", "tree", "halving_doubling", "double_binary_tree"):
        is_played_time_or_not_given(
            cluster, algorithm, CollectiveRequest("reduce" if algorithm == "chain" else "all_reduce", n, 96)
        )


def is_played_time_or_not_given(cluster: Cluster, algorithm: str, request: CollectiveRequest) -> None:
    predicted = planned(cluster, algorithm, request).predicted
    assert predicted in (None, pytest.approx(time_of(cluster, algorithm, request), rel=EXACT)), algorithm


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2), (2, 0, 3, 1)])
def test_a_ring_whose_hops_share_a_card_has_no_form_that_forgets_it(order: tuple[int, ...]) -> None:
    """Two nodes of two GPUs with a card each: in three of these orders every hop leaves its node, all hops alike."""
    is_played_time_or_not_given(nodes(4, 2, 1), "ring", CollectiveRequest("all_reduce", 4, ELEMENTS, rank_order=order))


@pytest.mark.parametrize("latencies", [(1.0, 5.0, 2.0), (4.0, 4.0, 1.0, 4.0, 0.0), (2.0, 7.0), (3.0, 0.0, 9.0, 1.0)])
def test_after_any_number_of_steps_a_ring_is_as_late_as_its_hops_add_up_to(latencies: tuple[float, ...]) -> None:
    """Written out: whoever comes over a hop is its latency later; the latest of all after each step."""
    late = [0.0] * len(latencies)
    for steps in range(1, 4 * len(latencies)):
        late = [late[hop - 1] + latency for hop, latency in enumerate(latencies)]
        assert Across(latencies, 1.0).latency(steps) == max(late)


def test_hbm_of_a_slow_rank_bounds_what_it_adds_but_not_what_it_copies() -> None:
    n, beta = 4, 50e9
    mesh = {"builder": "fully_connected", "options": {"bandwidth": "50 GB/s", "latency": "1 us"}}
    cluster = build(mesh, n, gpu={**WIDE_GPU, "hbm_bandwidth": "200 GB/s"}, stragglers={2: 0.5})
    # Rank 2 adds at 100/3 GB/s, slower than its link; in a broadcast nobody adds.
    reduce = time_of(cluster, "direct", CollectiveRequest("reduce", n, ELEMENTS, root=2))
    assert reduce == pytest.approx(1e-6 + 3 * (n - 1) * S / 100e9, rel=EXACT)
    assert_time(1e-6 + S / beta, cluster, "direct", CollectiveRequest("broadcast", n, ELEMENTS, root=2))


def inline(builder: str, **options: Any) -> dict[str, Any]:
    return {"builder": builder, "options": {"bandwidth": "25 GB/s", "latency": "1 us", **options}}


@pytest.mark.parametrize(
    ("topology", "world_size", "group"),
    [
        ({"builder": "hypercube", "options": {"bandwidth": "25 GB/s", "latency": "1 us"}}, 8, (1, 2, 4)),
        ({"builder": "hypercube", "options": {"bandwidth": "25 GB/s", "latency": "1 us"}}, 8, (3, 5, 6)),
        (
            {"builder": "torus", "options": {"shape": [3, 3], "bandwidth": "25 GB/s", "latency": "1 us"}},
            9,
            (1, 3, 2, 6),
        ),
        (
            {"builder": "torus", "options": {"shape": [4, 4], "bandwidth": "25 GB/s", "latency": "1 us"}},
            16,
            (1, 4, 3, 12),
        ),
        ({"builder": "ring", "options": {"bandwidth": ["9 GB/s", "5 GB/s"], "latency": "1 us"}}, 4, (0, 2)),
        ("dragonfly", 32, tuple(range(0, 32, 4))),
        ("fat_tree_1024", 64, tuple(range(0, 64, 9))),
        ("dgx_a100", 16, (0, 8)),
        ("dgx_h100", 16, tuple(range(16))),
        ("mi300x_box", 8, tuple(range(8))),
        ("leaf_spine_100g", 8, (0, 2, 4, 6)),
        ("pcie_workstation", 4, (0, 1, 2, 3)),
        ("mixed_links", 6, (0, 2, 4)),
        ("mixed_links", 6, (0, 1, 2)),
    ],
)
@pytest.mark.one_of(3)
def test_what_is_predicted_is_met_even_where_the_network_only_looks_like_a_star(
    topology: Any, world_size: int, group: tuple[int, ...]
) -> None:
    cluster = build(topology, world_size) if isinstance(topology, str) else build(topology, world_size, gpu=WIDE_GPU)
    n = len(group)
    for algorithm, operation in ALGORITHMS.pairs():
        if algorithm in OVER_SWITCHES or (algorithm in TOLD_NODES and len({len(b) for b in cluster.nodes}) > 1):
            continue
        request = CollectiveRequest(operation, n, 240 * n * 7, servers=n, servers_on="workers")
        predicted = planned(cluster, algorithm, request, group=group).predicted
        if predicted is not None:
            assert time_of(cluster, algorithm, request, group=group) == pytest.approx(predicted, rel=EXACT), algorithm


@pytest.mark.parametrize("size", [2, 8])
def test_an_nvswitch_node_is_a_star_whose_pcie_ports_do_not_matter(size: int) -> None:
    alpha, beta = 1e-6, 300e9
    forms = on_a_star(size, alpha, beta)
    for algorithm in ("ring", "naive", "direct", "tree", "halving_doubling"):
        expected = forms[algorithm, "all_reduce"]
        assert_time(expected, nodes(size, size), algorithm, CollectiveRequest("all_reduce", size, ELEMENTS))
