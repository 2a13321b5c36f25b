"""Closed forms on links that differ by direction: what is claimed is what is played, to 1e-9, or nothing is claimed."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import networkx as nx
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from simulator.basics.errors import NoRouteError, ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.cluster.routing import Router
from simulator.collectives.algorithm import ALGORITHMS, ROOTED, CollectiveRequest
from tests.many import many
from tests.playing import WIDE_GPU, divisors, equal_nodes, nodes, planned, regular, star, time_of

EXACT = 1e-9
# Divisible by every number up to 9, and by 16 pieces.
ELEMENTS = 5040 * 16
S = 4.0 * ELEMENTS
Facts = tuple[float, float]


def on(cluster: Cluster, graph: nx.DiGraph[str]) -> Cluster:
    """The same machines on other links."""
    return replace(cluster, graph=graph, router=Router(graph, cluster.name))


def leaves(n: int, size: int) -> Cluster:
    """A switch for every `size` GPUs, and a spine over these."""
    graph = nx.DiGraph()
    graph.add_nodes_from((name, star(n).graph.nodes[name]) for name in star(n).ranks)
    links = [(f"gpu{rank}", f"leaf{rank // size}") for rank in range(n)]
    links += [(f"leaf{leaf}", "spine") for leaf in range(n // size)]
    graph.add_edges_from((*way, {"bandwidth": 2e9, "latency": 1e-6}) for a, b in links for way in ((a, b), (b, a)))
    nx.set_node_attributes(graph, {v: {"kind": "switch", "forwards": True} for v in graph if not v.startswith("gpu")})
    return on(star(n), graph)


def torus(*shape: int, latency: str = "1 us") -> Cluster:
    options = {"shape": list(shape), "bandwidth": "25 GB/s", "latency": latency}
    return build({"builder": "torus", "options": options}, prod(shape), gpu=WIDE_GPU)


@st.composite
def directed(draw: st.DrawFn) -> tuple[Cluster, int]:
    """Links of one kind or two, by direction or by place; a few odd, missing or one-way; and a node's size."""
    n = draw(st.integers(2, 9))
    size = draw(st.sampled_from(divisors(n)))
    flat = [star(n, n), regular("ring", n), regular("fully_connected", n), leaves(n, size), nodes(n, size)]
    cluster = draw(st.sampled_from([*flat, *([torus(size, n // size)] if 1 < size < n else [])]))
    graph = cluster.graph.copy()
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        a, b = draw(st.permutations(cluster.ranks))[:2]
        nx.add_path(graph, (a, b) if draw(st.booleans()) else (a, "aside", b))
    for link in draw(st.lists(st.sampled_from(sorted(graph.edges)), max_size=draw(st.sampled_from([0, 0, 2])))):
        if graph.has_edge(*link):
            graph.remove_edge(*link)
            if not nx.is_strongly_connected(graph):
                graph.add_edge(*link)
    graph.add_node("aside", kind="switch", forwards=True)
    facts = st.tuples(st.sampled_from([1e9, 2e9, 4e9]), st.sampled_from([0.0, 1e-6, 5e-6, 1e-4]))
    kinds: list[Facts] = draw(st.lists(facts, min_size=3, max_size=3))
    place = {vertex: number for number, vertex in enumerate(graph)}
    by = draw(st.sampled_from(["nothing", "number", "neighbour", "level", "node"]))
    for a, b in sorted(graph.edges):
        ranks = [place[v] for v in (a, b) if v in cluster.ranks]
        kind = {
            "nothing": 0,
            "number": place[a] < place[b],
            "neighbour": (place[b] - place[a]) % n == 1,
            "level": len(ranks) if a in cluster.ranks else -len(ranks),
            "node": sum(ranks) // size,
        }[by]
        graph.edges[a, b].update(bandwidth=kinds[kind % 3][0], latency=kinds[kind % 3][1])
    # Other latencies on links between switches, and anything on a few.
    for a, b in draw(st.lists(st.sampled_from(sorted(graph.edges)), max_size=draw(st.sampled_from([0, 1, 4])))):
        odd = draw(facts)
        switches = a not in cluster.ranks and b not in cluster.ranks
        graph.edges[a, b].update({"latency": odd[1]} if switches else {"bandwidth": odd[0], "latency": odd[1]})
    found = on(cluster, graph)
    if draw(st.booleans()):
        caps = {name: draw(st.sampled_from([5e8, 1e9, 3e9])) for name in ("rate_cap", "cross_rate_cap")}
        found = replace(found, collectives={"all_reduce": MachineCollective("ring", startup=1e-5, **caps)})
    return found, size


@st.composite
def asked(draw: st.DrawFn) -> tuple[Cluster, CollectiveRequest]:
    """Such a network, and what is the same for all operations that are asked of it."""
    cluster, size = draw(directed())
    n = cluster.world_size
    request = CollectiveRequest(
        "all_reduce",
        n,
        draw(st.sampled_from([0, 7, 1003, ELEMENTS])),
        root=draw(st.integers(0, n - 1)),
        rank_order=tuple(draw(st.permutations(range(n)))) if draw(st.booleans()) else (),
        servers=n,
        servers_on="own" if cluster.servers and draw(st.booleans()) else "workers",
        nodes=equal_nodes(n, size),
    )
    return cluster, request


def hold(case: tuple[Cluster, CollectiveRequest]) -> None:
    """What is claimed of any algorithm's operation is what is played."""
    cluster, request = case
    for algorithm, operation in ALGORITHMS.pairs():
        own = replace(request, operation=operation, root=request.root if operation in ROOTED else 0)
        try:
            predicted = planned(cluster, algorithm, own).predicted
        except (NoRouteError, ScenarioError):
            continue
        if predicted is not None:
            event(algorithm)
            told = algorithm, operation
            assert predicted == pytest.approx(time_of(cluster, algorithm, own), rel=EXACT), told


@settings(max_examples=30, derandomize=True)
@given(asked())
def test_what_is_claimed_is_played(case: tuple[Cluster, CollectiveRequest]) -> None:
    hold(case)


@pytest.mark.long
@settings(max_examples=many(1000), derandomize=True)
@given(asked())
def test_what_is_claimed_is_played_in_many_cases(case: tuple[Cluster, CollectiveRequest]) -> None:
    hold(case)


@pytest.mark.parametrize("root", range(5))
def test_a_chain_takes_the_links_of_its_own_direction(root: int) -> None:
    """On a ring of fast links one way and slow ones the other a broadcast goes the one way and a reduce the other."""
    n, k, forth, back = 5, 16, (4e9, 1e-6), (1e9, 7e-6)
    graph = regular("ring", n).graph.copy()
    for rank in range(n):
        ahead = (rank + 1) % n
        graph.edges[f"gpu{rank}", f"gpu{ahead}"].update(bandwidth=forth[0], latency=forth[1])
        graph.edges[f"gpu{ahead}", f"gpu{rank}"].update(bandwidth=back[0], latency=back[1])
    cluster = on(regular("ring", n), graph)
    for operation, (beta, alpha) in (("broadcast", forth), ("reduce", back)):
        expected = (n - 1) * alpha + (n - 2 + k) * S / (k * beta)
        request = CollectiveRequest(operation, n, ELEMENTS, root=root)
        assert planned(cluster, "chain", request).predicted == pytest.approx(expected, rel=EXACT)
        assert time_of(cluster, "chain", request) == pytest.approx(expected, rel=EXACT)


def test_a_chain_back_through_a_torus_shares_links_where_the_way_there_does_not() -> None:
    """From rank 3 to 4 all three dimensions are crossed, and back over other links, which other hops take too."""
    n, k, nbytes, beta = 8, 16, 16 * 2**20, 25e9
    cluster = torus(2, 2, 2, latency="0 s")
    there, back = (CollectiveRequest(operation, n, nbytes // 4) for operation in ("broadcast", "reduce"))
    expected = (n - 2 + k) * nbytes / (k * beta)
    assert planned(cluster, "chain", there).predicted == pytest.approx(expected, rel=EXACT)
    assert time_of(cluster, "chain", there) == pytest.approx(expected, rel=EXACT)
    assert time_of(cluster, "chain", back) > 1.6 * expected
    assert planned(cluster, "chain", back).predicted is None
    # Chosen is what is fastest, now that the chain's shared links are seen.
    chosen = planned(cluster, "auto", back).algorithm
    times = {name: time_of(cluster, name, back) for name, operation in ALGORITHMS.pairs() if operation == "reduce"}
    assert times[chosen] == min(times.values())


def test_a_way_beside_the_switch_that_leads_in_one_direction_only_is_a_way() -> None:
    """From rank 0 two links over another vertex are as short as the two over the switch."""
    n, beta, alpha = 3, 1e9, 1e-6
    graph = star(n).graph.copy()
    nx.set_edge_attributes(graph, beta, "bandwidth")
    nx.set_edge_attributes(graph, alpha, "latency")
    graph.add_node("aside", kind="switch", forwards=True)
    for dst in range(1, n):
        graph.add_edge(f"gpu{dst - 1}", "aside", bandwidth=beta, latency=alpha)
        graph.add_edge("aside", f"gpu{dst}", bandwidth=beta, latency=alpha)
    cluster = on(star(n), graph)
    claimed = []
    for root in range(n):
        request = CollectiveRequest("broadcast", n, ELEMENTS, root=root)
        claimed.append(planned(cluster, "direct", request).predicted)
    assert claimed == [None] * n
    # Without the way back from the vertex the star is one.
    graph.remove_edges_from([("aside", f"gpu{dst}") for dst in range(1, n)])
    request = CollectiveRequest("broadcast", n, ELEMENTS)
    expected = 2 * alpha + (n - 1) * S / beta
    assert planned(on(star(n), graph), "direct", request).predicted == pytest.approx(expected, rel=EXACT)
    assert time_of(on(star(n), graph), "direct", request) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("late", [0.0, 1e-6, 2e-6, 3e-6, 1e-4])
def test_nodes_behind_unlike_latencies_have_a_form_until_what_leaves_them_is_met_inside(late: float) -> None:
    """Two GPUs a leaf: a ring inside begins 2 us after a node has got its last chunk, over the ports to other leaves.

    A chunk out of leaf 1 is longer on its way by `late`; one round more over it, and it is longer than the way inside.
    """
    m, g = 3, 2
    n, beta, alpha = m * g, 2e9, 1e-6
    cluster = leaves(n, g)
    graph = cluster.graph.copy()
    graph.edges["leaf1", "spine"]["latency"] += late
    cluster = on(cluster, graph)
    request = CollectiveRequest("all_gather", n, ELEMENTS, nodes=equal_nodes(n, g))
    # Both GPUs of a leaf share its link to the spine. The worst two hops in a row hold the late one.
    across = (m - 1) * (4 * alpha + S / n / (beta / g)) + late
    inside = (g - 1) * (2 * alpha + m * S / n / beta)
    predicted = planned(cluster, "hierarchical", request).predicted
    if late <= 2 * alpha:
        assert predicted == pytest.approx(across + inside, rel=EXACT)
    else:
        assert predicted is None
    assert time_of(cluster, "hierarchical", request) >= (across + inside) * (1 - EXACT)
    scattered = CollectiveRequest("reduce_scatter", n, ELEMENTS, nodes=equal_nodes(n, g))
    assert planned(cluster, "hierarchical", scattered).predicted == pytest.approx(across + inside, rel=EXACT)
    assert time_of(cluster, "hierarchical", scattered) == pytest.approx(across + inside, rel=EXACT)
