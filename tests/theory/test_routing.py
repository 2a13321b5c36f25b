"""Routes and topologies against the mathematics of their graphs."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from collections import Counter
from itertools import combinations, permutations, product
from math import prod

import networkx as nx
import pytest

from simulator.basics.errors import NoRouteError
from simulator.cluster.builders.dragonfly import dragonfly
from simulator.cluster.builders.fat_tree import fat_tree
from simulator.cluster.builders.fully_connected import fully_connected
from simulator.cluster.builders.hypercube import hypercube
from simulator.cluster.builders.nodes import nodes
from simulator.cluster.builders.ring import ring
from simulator.cluster.builders.star import star
from simulator.cluster.builders.torus import torus
from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, of_kind
from simulator.cluster.routing import Router

B, A = 12.5e9, 5e-6


def hops(router: Router, src: str, dst: str) -> int:
    return len(router.route(src, dst).links)


def path(router: Router, src: str, dst: str) -> list[str]:
    return [src] + [router.vertices[router.targets[link]] for link in router.route(src, dst).links]


def two_by(spines: int, gpus: int) -> Graph:
    """Two leaves with some GPUs each, joined by spines."""
    graph = empty()
    for i in range(2 * gpus):
        add_vertex(graph, f"gpu{i}", "gpu", forwards=False)
    for i in range(2 * gpus):
        add_cable(graph, f"gpu{i}", add_vertex(graph, f"leaf{i // gpus}", "switch", forwards=True), B, A)
    for i in range(spines):
        spine = add_vertex(graph, f"spine{i}", "switch", forwards=True)
        add_cable(graph, "leaf0", spine, B, A)
        add_cable(graph, "leaf1", spine, B, A)
    return graph


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 16])
def test_a_ring_has_a_diameter_of_half_its_size(n: int) -> None:
    graph = ring(n, bandwidth=B, latency=A)
    router = Router(graph)
    assert graph.number_of_edges() == {1: 0, 2: 2}.get(n, 2 * n)
    assert max(hops(router, a, b) for a in graph for b in graph) == n // 2


@pytest.mark.parametrize("n", [1, 2, 9])
def test_every_route_of_a_star_has_two_links(n: int) -> None:
    graph = star(n, bandwidth=B, latency=A, servers=2)
    router = Router(graph)
    ends = of_kind(graph, "gpu") + of_kind(graph, "server")
    assert len(ends) == n + 2
    assert {hops(router, a, b) for a, b in permutations(ends, 2)} == {2}
    assert router.route("gpu0", "server0").latency == pytest.approx(2 * A, rel=1e-15)
    assert graph.degree["switch0"] == 2 * (n + 2)


def test_several_bandwidths_repeat_port_by_port() -> None:
    router = Router(star(4, bandwidth=[8.0, 2.0], latency=A))
    assert [router.route(f"gpu{i}", "switch0").bandwidth for i in range(4)] == [8.0, 2.0, 8.0, 2.0]
    assert router.route("gpu0", "gpu2").bandwidth == 8.0
    assert router.route("gpu0", "gpu1").bandwidth == 2.0


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_a_full_mesh_has_every_pair_one_hop_apart(n: int) -> None:
    graph = fully_connected(n, bandwidth=B, latency=A)
    assert graph.number_of_edges() == n * (n - 1)
    router = Router(graph)
    assert all(hops(router, a, b) == 1 for a, b in permutations(graph, 2))


@pytest.mark.parametrize("shape", [(5,), (4, 4), (3, 5), (2, 3, 4), (4, 4, 4), (1, 6), (2, 2)])
def test_distance_on_a_torus_is_the_sum_of_the_shorter_ways_round(shape: tuple[int, ...]) -> None:
    graph = torus(shape=shape, bandwidth=B, latency=A)
    router = Router(graph)
    places = list(product(*map(range, shape)))
    for a, b in combinations(range(len(places)), 2):
        apart = [abs(x - y) for x, y in zip(places[a], places[b], strict=True)]
        assert hops(router, f"gpu{a}", f"gpu{b}") == sum(min(d, n - d) for d, n in zip(apart, shape, strict=True))
    cables = sum({1: 0, 2: prod(shape) // 2}.get(n, prod(shape)) for n in shape)
    assert graph.number_of_edges() == 2 * cables


def test_half_of_a_torus_is_cut_from_the_other_by_two_planes() -> None:
    graph = torus(shape=(4, 4), bandwidth=B, latency=A)
    half = {f"gpu{i}" for i in range(8)}
    assert sum(a in half and b not in half for a, b in graph.edges) == 2 * 4


@pytest.mark.parametrize("d", [0, 1, 3, 5])
def test_distance_on_a_hypercube_is_the_number_of_unequal_digits(d: int) -> None:
    graph = hypercube(2**d, bandwidth=B, latency=A)
    router = Router(graph)
    assert graph.number_of_edges() == 2 * d * 2**d // 2
    for a, b in permutations(range(2**d), 2):
        assert hops(router, f"gpu{a}", f"gpu{b}") == (a ^ b).bit_count()
    assert max(hops(router, a, b) for a in graph for b in graph) == d


def test_a_hypercube_grows_to_the_next_power_of_two() -> None:
    assert [len(hypercube(n, bandwidth=B, latency=A)) for n in (1, 2, 3, 5, 9)] == [1, 2, 4, 8, 16]


@pytest.mark.parametrize("k", [2, 4, 6, 8])
def test_a_fat_tree_of_k_ports_has_its_counts(k: int) -> None:
    graph = fat_tree(1, k=k, bandwidth=B, latency=A)
    gpus, switches = of_kind(graph, "gpu"), of_kind(graph, "switch")
    assert len(gpus) == k**3 // 4
    assert len(switches) == 5 * k**2 // 4
    assert all(graph.out_degree[switch] == k for switch in switches)
    router = Router(graph)
    apart = Counter(hops(router, "gpu0", gpu) for gpu in gpus[1:])
    assert apart == +Counter({2: k // 2 - 1, 4: (k // 2) ** 2 - k // 2, 6: k**3 // 4 - (k // 2) ** 2})


def test_a_fat_tree_has_full_bisection_and_oversubscription_divides_it() -> None:
    for ratio in (1.0, 4.0):
        graph = fat_tree(16, k=4, bandwidth=B, latency=A, oversubscription=ratio)
        for _, _, edge in graph.edges(data=True):
            edge["capacity"] = edge["bandwidth"]
        for i in range(8):
            graph.add_edge("left", f"gpu{i}", capacity=B)
            graph.add_edge(f"gpu{i + 8}", "right", capacity=B)
        assert nx.maximum_flow_value(graph, "left", "right") == pytest.approx(8 * B / ratio)


def test_a_fat_tree_takes_the_smallest_even_k_that_has_room() -> None:
    sizes = {n: len(of_kind(fat_tree(n, bandwidth=B, latency=A), "gpu")) for n in (1, 2, 3, 16, 17, 54, 55)}
    assert sizes == {1: 2, 2: 2, 3: 16, 16: 16, 17: 54, 54: 54, 55: 128}


@pytest.mark.parametrize("k", [4, 6, 8])
def test_every_shift_crosses_a_fat_tree_without_sharing_a_link(k: int) -> None:
    """The property that D-mod-k routing was made for."""
    router = Router(fat_tree(1, k=k, bandwidth=B, latency=A))
    n = k**3 // 4
    for shift in range(1, n, 5):
        used = Counter(link for i in range(n) for link in router.route(f"gpu{i}", f"gpu{(i + shift) % n}").links)
        assert max(used.values()) == 1


@pytest.mark.parametrize(("p", "a", "h"), [(1, 2, 1), (2, 4, 2), (3, 3, 1)])
def test_a_dragonfly_joins_every_two_groups_by_one_cable(p: int, a: int, h: int) -> None:
    graph = dragonfly(hosts=p, routers=a, global_links=h, bandwidth=B, latency=A)
    groups = a * h + 1
    assert len(of_kind(graph, "gpu")) == p * a * groups
    between = Counter()
    for src, dst in graph.edges:
        if src.startswith("router") and dst.startswith("router"):
            pair = int(src[6:]) // a, int(dst[6:]) // a
            between[pair] += pair[0] != pair[1]
            assert pair[0] != pair[1] or src != dst
    assert {between[pair] for pair in permutations(range(groups), 2)} == {1}
    assert {graph.out_degree[router] for router in of_kind(graph, "switch")} == {p + a - 1 + h}
    router = Router(graph)
    gpus = of_kind(graph, "gpu")
    assert max(hops(router, gpus[0], gpu) for gpu in gpus) == 5


def test_from_a_vertex_to_itself_there_is_nothing_to_cross() -> None:
    route = Router(star(2, bandwidth=B, latency=A)).route("gpu0", "gpu0")
    assert (route.links, route.latency, route.bandwidth) == ((), 0.0, float("inf"))


def test_a_route_has_the_sum_of_latencies_and_the_least_bandwidth() -> None:
    graph = empty()
    for name in "abcd":
        add_vertex(graph, name, "gpu", forwards=True)
    for (a, b), bandwidth, latency in zip(("ab", "bc", "cd"), (3.0, 1.0, 2.0), (0.25, 0.5, 1.0), strict=True):
        add_cable(graph, a, b, bandwidth, latency)
    router = Router(graph)
    route = router.route("a", "d")
    assert [router.link_name(link) for link in route.links] == ["a->b", "b->c", "c->d"]
    assert (route.latency, route.bandwidth) == (1.75, 1.0)
    assert router.link_names[router.link("c", "b")] == "c->b"
    assert router.route("a", "d") is route


def test_no_route_passes_through_a_vertex_that_does_not_forward() -> None:
    graph = empty()
    for name, forwards in (("a", True), ("idle", False), ("b", True), ("x", True), ("y", True)):
        add_vertex(graph, name, "gpu", forwards=forwards)
    for a, b in (("a", "idle"), ("idle", "b"), ("a", "x"), ("x", "y"), ("y", "b")):
        add_cable(graph, a, b, B, A)
    router = Router(graph)
    assert path(router, "a", "b") == ["a", "x", "y", "b"]
    assert path(router, "a", "idle") == ["a", "idle"]
    assert path(router, "idle", "y") in (["idle", "b", "y"],)


def test_unreachable_is_an_error_that_names_both_ends_and_the_topology() -> None:
    graph = star(2, bandwidth=B, latency=A)
    add_vertex(graph, "gpu9", "gpu", forwards=False)
    with pytest.raises(NoRouteError, match="no route from gpu0 to gpu9 in topology 'island'") as caught:
        Router(graph, "island").route("gpu0", "gpu9")
    assert (caught.value.src, caught.value.dst) == ("gpu0", "gpu9")
    with pytest.raises(NoRouteError):
        Router(graph).route("gpu9", "gpu0")


def test_a_one_way_street_is_only_taken_forwards() -> None:
    graph = ring(5, bandwidth=B, latency=A)
    graph.remove_edges_from([(f"gpu{(i + 1) % 5}", f"gpu{i}") for i in range(5)])
    router = Router(graph)
    assert [hops(router, "gpu0", f"gpu{i}") for i in range(5)] == [0, 1, 2, 3, 4]


def test_consecutive_destinations_take_different_ways() -> None:
    """At a fork of c ways destination i takes way i mod c."""
    router = Router(two_by(spines=4, gpus=8))
    taken = [path(router, "gpu0", f"gpu{i}")[2] for i in range(8, 16)]
    assert taken == [f"spine{i % 4}" for i in range(8, 16)]
    back = [path(router, "gpu8", f"gpu{i}")[2] for i in range(4)]
    assert back == ["spine0", "spine1", "spine2", "spine3"]


def test_destinations_that_say_their_position_are_counted_by_it() -> None:
    graph = two_by(spines=4, gpus=8)
    for i in range(8, 16):
        graph.nodes[f"gpu{i}"]["position"] = i // 2
    router = Router(graph)
    taken = {i: path(router, "gpu0", f"gpu{i}")[2] for i in (8, 9, 10, 12, 15)}
    assert taken == {i: f"spine{i // 2 % 4}" for i in taken}


def test_the_way_does_not_depend_on_the_source() -> None:
    router = Router(two_by(spines=4, gpus=8))
    assert len({path(router, f"gpu{i}", "gpu13")[2] for i in range(8)}) == 1


def test_the_hash_spreads_sources_too_and_follows_its_seed() -> None:
    graph = two_by(spines=4, gpus=64)
    pairs = [(f"gpu{i}", f"gpu{64 + i}") for i in range(64)]
    ways = {seed: [path(Router(graph, ecmp_seed=seed), *pair)[2] for pair in pairs] for seed in (0, 1)}
    assert ways[0] == [path(Router(graph, ecmp_seed=0), *pair)[2] for pair in pairs]
    assert ways[0] != ways[1]
    assert len({path(Router(graph, ecmp_seed=0), f"gpu{i}", "gpu100")[2] for i in range(64)}) == 4
    assert all(len(set(chosen)) == 4 for chosen in ways.values())


@pytest.mark.parametrize("seed", range(4))
def test_who_shares_the_first_fork_with_others_does_not_share_the_next_with_them(seed: int) -> None:
    """Between pods of a fat tree of 8 ports a flow goes up by one of 4 ways, and then again by one of 4, to 16 cores.

    A hash without the fork chooses alike at both, so that 4 cores carry everything. Of 2,048 flows each core gets 128
    by chance; chi-squared of 15 degrees of freedom is above 37.7 once in a thousand.
    """
    router = Router(fat_tree(1, k=8, bandwidth=B, latency=A), ecmp_seed=seed)
    flows = Counter(path(router, f"gpu{i}", f"gpu{64 + j}")[3] for i in range(64) for j in range(0, 64, 2))
    assert len(flows) == 16
    assert sum((taken - 128) ** 2 / 128 for taken in flows.values()) < 37.7


def test_routes_are_as_short_as_an_independent_search_finds() -> None:
    """Random directed graphs, in which some vertices do not forward, against networkx on the graph that is left."""
    rng = random.Random(5)
    for _ in range(30):
        graph = empty()
        graph.update(nx.gnp_random_graph(25, 0.09, seed=rng.randrange(10**6), directed=True))
        graph = nx.relabel_nodes(graph, str)
        for vertex in graph:
            graph.nodes[vertex].update(kind="gpu", forwards=rng.random() < 0.7)
        nx.set_edge_attributes(graph, {edge: {"bandwidth": B, "latency": A} for edge in graph.edges})
        router = Router(graph)
        for src, dst in permutations(graph, 2):
            open_ = [v for v, facts in graph.nodes(data=True) if facts["forwards"] or v in (src, dst)]
            inner = graph.subgraph(open_)
            if nx.has_path(inner, src, dst):
                found = path(router, src, dst)
                assert len(found) - 1 == nx.shortest_path_length(inner, src, dst)
                assert nx.is_path(inner, found)
            else:
                with pytest.raises(NoRouteError):
                    router.route(src, dst)


def test_a_router_survives_pickling_with_its_routes() -> None:
    router = Router(fat_tree(16, bandwidth=B, latency=A), "tree")
    kept = router.route("gpu0", "gpu15")
    again = pickle.loads(pickle.dumps(router))
    assert again.route("gpu0", "gpu15") == kept
    assert again.route("gpu3", "gpu9") == router.route("gpu3", "gpu9")
    assert again.link_names == router.link_names


def test_routes_do_not_depend_on_the_hash_seed() -> None:
    script = (
        "from simulator.cluster.builders.fat_tree import fat_tree\n"
        "from simulator.cluster.routing import Router\n"
        "r = Router(fat_tree(54, bandwidth=1e9, latency=1e-6))\n"
        "print([r.route(f'gpu{i}', f'gpu{i * 7 % 54}').links for i in range(54)])\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }  # fmt: skip
    assert len(told) == 1


def test_neighbours_of_a_large_pod_use_their_own_cards() -> None:
    graph = nodes(
        2048, gpus=8, inside="nvswitch", link_bandwidth=450e9, pcie_bandwidth=63e9, pcie_latency=0.0, nics=8,
        nic_bandwidth=50e9,
    )  # fmt: skip
    router = Router(graph)
    assert path(router, "gpu7", "gpu8")[2] == "nic7"
    assert path(router, "gpu7", "gpu8")[-3] == "nic8"
    used = Counter(link for i in range(2048) for link in router.route(f"gpu{i}", f"gpu{(i + 1) % 2048}").links)
    assert max(used.values()) == 1


def test_all_rails_of_two_pods_cross_the_spines_at_full_rate() -> None:
    """Node b of pod 0 sends to node b of pod 1, all eight rails at once: no link carries more than its bandwidth."""
    graph = nodes(
        512, gpus=8, inside="nvswitch", link_bandwidth=450e9, pcie_bandwidth=63e9, pcie_latency=0.0, nics=8,
        nic_bandwidth=50e9,
    )  # fmt: skip
    router = Router(graph)
    load = Counter(link for i in range(256) for link in router.route(f"gpu{i}", f"gpu{i + 256}").links)
    assert all(flows * 50e9 <= router.bandwidth[link] for link, flows in load.items())
