"""Sums on a torus take the bucket algorithm's formula, and every link of every rank carries the same bytes.

Jain & Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus interconnects", ICS 2010: with D sides
of L ranks and links of bandwidth B in both directions, a reduce-scatter of n bytes takes D (L - 1) latencies, and the
time of n (N - 1) / N bytes over 2 D links.
"""

from collections import Counter
from math import prod

import pytest

from simulator import simulate
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Plan, Task, plan
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.torus import sides_of_group
from simulator.engine.play import play
from simulator.records.chunks import chunk_sizes, transfer_elements
from simulator.records.transfers import write_out
from simulator.testing.machines import WIDE_GPU

RATE, LATENCY = 100e9, 1e-6


def torus(*shape: int) -> Cluster:
    options = {"shape": list(shape), "bandwidth": "100 GB/s", "latency": "1 us"}
    return build({"builder": "torus", "options": options}, prod(shape), gpu=WIDE_GPU)


def planned(
    cluster: Cluster, operation: str, elements: int, algorithm: str = "torus", group: range | None = None
) -> Plan:
    ranks = tuple(group or range(cluster.world_size))
    return plan(cluster, Task(CollectiveRequest(operation, len(ranks), elements), algorithm, ranks))


@pytest.mark.parametrize("shape", [(4, 4), (3, 3, 3), (5, 5)])
@pytest.mark.parametrize(("operation", "passes"), [("all_reduce", 2), ("reduce_scatter", 1), ("all_gather", 1)])
def test_a_square_or_cube_takes_the_bucket_algorithms_time(shape: tuple[int, ...], operation: str, passes: int) -> None:
    cluster, ranks, links = torus(*shape), prod(shape), 2 * len(shape)
    elements = ranks * links * 1000
    wanted = passes * (sum(shape) - len(shape)) * LATENCY + passes * 4 * elements * (ranks - 1) / ranks / links / RATE
    found = planned(cluster, operation, elements)
    assert found.predicted == pytest.approx(wanted, rel=1e-12)
    for engine in ("events", "compiled"):
        assert play(engine, found.program, cluster).end == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("shape", [(3, 5), (3, 4, 5)])
def test_with_unequal_sides_every_link_of_a_dimension_carries_the_same(shape: tuple[int, ...]) -> None:
    cluster, ranks = torus(*shape), prod(shape)
    elements = ranks * 2 * len(shape) * 10
    schedule = planned(cluster, "reduce_scatter", elements).ops[0].schedule
    transfers = write_out(schedule)
    carried = Counter[tuple[int, int]]()
    for src, dst, sent in zip(
        transfers.src.tolist(), transfers.dst.tolist(), transfer_elements(transfers, chunk_sizes(schedule, elements)),
        strict=True,
    ):  # fmt: skip
        assert cluster.graph.has_edge(cluster.ranks[src], cluster.ranks[dst]), "only neighbours"
        carried[src, dst] += int(sent)
    assert len(carried) == 2 * len(shape) * ranks
    assert len(set(carried.values())) <= len(shape)
    assert sum(carried.values()) == (ranks - 1) * elements


def test_the_groups_that_go_round_dimensions_are_found() -> None:
    cluster = torus(3, 4, 5)
    every = tuple(range(60))
    assert sides_of_group(cluster, every) == (3, 4, 5)
    assert sides_of_group(cluster, every[:20]) == (4, 5), "a layer"
    assert sides_of_group(cluster, every[3::5]) == (3, 4), "a layer across"
    assert sides_of_group(cluster, every[:5]) == (5,), "a row"
    assert sides_of_group(cluster, every[2::20]) == (3,), "a column"
    assert sides_of_group(cluster, every[:4]) == (), "part of a row has no link round"
    assert sides_of_group(cluster, every[::-1]) == (), "another order"
    assert sides_of_group(build("dgx_h100", 8), tuple(range(8))) == ()


@pytest.mark.parametrize(("topology", "links"), [("tpu_v5p", 6), ("tpu_v6e", 4), ("tpu_ironwood", 6)])
def test_large_sums_on_tpus_reach_the_rating_of_all_links(topology: str, links: int) -> None:
    """Google Cloud documentation, TPU v6e: an all-reduce of a pod of 256 reaches 102.4 TB/s, 400 GB/s a chip."""
    cluster = build(topology, 256 if topology == "tpu_v6e" else 512)
    n, elements = cluster.world_size, 2**28
    found = planned(cluster, "all_reduce", elements, "auto")
    assert found.algorithm == "torus"
    bus = 2 * (n - 1) / n * 4 * elements / play("auto", found.program, cluster).end
    assert 0.95 * links * RATE < bus <= links * RATE


def test_a_group_of_a_row_goes_round_it_in_both_directions() -> None:
    cluster = torus(4, 4)
    found = planned(cluster, "all_gather", 4 * 2 * 1000, group=range(4, 8))
    assert found.predicted == pytest.approx(3 * LATENCY + 3 / 4 * 4 * 8000 / 2 / RATE, rel=1e-12)


def test_a_storage_beside_the_chips_changes_no_collective() -> None:
    options = {"shape": [4, 4], "bandwidth": "100 GB/s", "latency": "1 us"}
    cluster = {"topology": {"builder": "torus", "options": options, "gpu": "tpu_v5p"}, "world_size": 16}
    collective = {"operation": "all_reduce", "size": "64 MiB", "payload": False}
    scenario = {"name": "sum", "cluster": cluster, "collective": collective}
    alone = simulate(scenario)
    assert alone.plan.algorithm == "torus"
    beside = simulate(scenario | {"cluster": cluster | {"storage": "100 GB/s"}})
    assert beside.plan.algorithm == "torus"
    assert beside.report.time_s == alone.report.time_s


@pytest.mark.parametrize("shape", [(10, 10, 10), (8, 8, 16), (4, 4, 8), (5, 7)])
@pytest.mark.parametrize("elements", [2**24 + 1, 2**26])
def test_auto_takes_the_torus_where_chunks_or_sides_are_unequal(shape: tuple[int, ...], elements: int) -> None:
    cluster = torus(*shape)
    found = planned(cluster, "all_reduce", elements, "auto")
    assert found.algorithm == "torus"
    record = ALGORITHMS.find("torus")
    op = found.ops[0]
    request = CollectiveRequest("all_reduce", prod(shape), elements, sides=shape)
    network = IdleNetwork(cluster, tuple(cluster.ranks), tuple(range(prod(shape))))
    guess = record.about(request, op.sizes, network)
    assert guess is not None
    # As any estimate: at most a quarter too short (choose.py).
    assert 0.98 * guess <= play("auto", found.program, cluster).end <= 1.25 * guess


def test_rings_over_a_small_torus_are_compared_with_it() -> None:
    # On unequal sides the torus does not fill all links, and edge-disjoint rings do.
    cluster = torus(3, 4)
    assert planned(cluster, "all_reduce", 2**26, "auto").algorithm == "multi_ring"
    times = [
        play("auto", planned(cluster, "all_reduce", 2**26, name).program, cluster).end
        for name in ("multi_ring", "torus")
    ]
    assert times[0] < times[1] < 1.25 * times[0]
