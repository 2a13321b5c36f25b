"""Parameter servers against the ring: who carries how much, and who wins when.

alpha 10 us, beta 12.5 GB/s, S bytes, N workers. Sources: Li et al., OSDI 2014; Patarasuk & Yuan, JPDC 2009 (ring).
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.collectives import parameter_server
from simulator.collectives.algorithm import CollectiveRequest
from simulator.report.numbers.summary import CollectiveReport
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from tests.playing import star, time_of

ALPHA, BETA = 10e-6, 12.5e9


def scenario(world_size: int, size: str, **collective: Any) -> dict[str, Any]:
    return {
        "name": "servers",
        "cluster": {"topology": "star_100g", "world_size": world_size},
        "collective": {"operation": "all_reduce", "size": size, "payload": False, **collective},
    }


def played(world_size: int, size: str, **collective: Any) -> Any:
    return simulate(load_scenario(scenario(world_size, size, **collective)))


def test_one_server_for_64_workers_carries_64_arrays_each_way_and_is_the_bottleneck() -> None:
    s, n = 256 * 2**20, 64
    run = played(n, "256 MiB", algorithm="parameter_server", servers={"count": 1, "on": "own"})
    carried = {use.name: use.nbytes for use in run.timeline.links}
    assert carried["switch0->server0"] == carried["server0->switch0"] == n * s
    assert carried["gpu7->switch0"] == carried["switch0->gpu7"] == s
    assert run.report.bottleneck.link in ("switch0->server0", "server0->switch0")
    assert run.report.bottleneck.bytes == n * s
    # One way in the push, the other in the pull: each is busy half of the time.
    assert run.report.bottleneck.busy_fraction == pytest.approx(0.5, abs=0.001)
    assert "server0" in run.report.because
    assert run.report.time_s == pytest.approx(2 * (ALPHA + n * s / BETA), rel=1e-9)
    assert run.report.predicted_s == pytest.approx(run.report.time_s, rel=1e-9)
    assert run.report.wire_bytes == 2 * n * s


def test_the_ring_is_63_times_faster_for_64_workers_and_4_times_for_two() -> None:
    for n, factor in ((64, 63), (2, 4)):
        server = played(n, "256 MiB", algorithm="parameter_server", servers={"count": 1, "on": "own"})
        ring = played(n, "256 MiB", algorithm="ring")
        assert server.report.time_s / ring.report.time_s == pytest.approx(factor, rel=0.05)
        assert server.report.time_s / ring.report.time_s == pytest.approx(n * n / (n - 1), rel=0.05)


@pytest.mark.parametrize("n", [2, 8, 16, 64])
def test_a_server_on_every_worker_has_the_rings_bandwidth_term_and_two_latencies(n: int) -> None:
    s = 256 * 2**20
    time = played(n, "256 MiB", algorithm="parameter_server", servers={"count": n, "on": "workers"}).report.time_s
    ring = 2 * (n - 1) * s / (n * BETA)
    assert time == pytest.approx(ring, rel=0.01)
    assert time - ring == pytest.approx(2 * ALPHA, rel=1e-6)


def test_the_ring_loses_to_one_server_only_for_tiny_arrays() -> None:
    # (N - 2) alpha > (S / beta)(N - 1 + 1/N)
    for n in (2, 4, 16, 64):
        for elements in (2, 64, 1024, 16_384, 65_536, 2**20):
            s = 4 * elements
            ring = time_of(star(n), "ring", CollectiveRequest("all_reduce", n, elements))
            server = time_of(star(n, 1), "parameter_server", CollectiveRequest("all_reduce", n, elements))
            if elements % n == 0:
                assert (ring > server * (1 + 1e-9)) == ((n - 2) * ALPHA > (s / BETA) * (n - 1 + 1 / n) * (1 + 1e-9))


def test_n_servers_of_their_own_beat_the_ring_from_47_workers_on() -> None:
    # N(N - 2) > S / (alpha beta); the array is cut evenly for each N.
    s = 256 * 2**20
    for n in (32, 46, 47, 64):
        elements = s // 4 // n * n
        ring = time_of(star(n), "ring", CollectiveRequest("all_reduce", n, elements))
        servers = time_of(star(n, n), "parameter_server", CollectiveRequest("all_reduce", n, elements, servers=n))
        assert (servers < ring) == (n * (n - 2) > s / (ALPHA * BETA)), n


@pytest.mark.parametrize(
    ("count", "on", "expected"), [(1, "own", 16), (4, "own", 16), (1, "workers", 14), (8, "workers", 14)]
)
def test_bytes_on_the_wire_do_not_depend_on_the_number_of_servers(count: int, on: str, expected: int) -> None:
    # 2 N S to servers of their own, 2(N-1) S to workers' hosts.
    run = played(8, "1 MiB", algorithm="parameter_server", servers={"count": count, "on": on})
    assert run.report.wire_bytes == expected * 2**20


def test_the_server_that_lives_on_worker_0_makes_its_port_the_bottleneck() -> None:
    run = played(8, "1 MiB", algorithm="parameter_server", servers={"count": 1, "on": "workers"})
    carried = {use.name: use.nbytes for use in run.timeline.links}
    assert carried["switch0->gpu0"] == carried["gpu0->switch0"] == 7 * 2**20
    assert carried["switch0->gpu3"] == carried["gpu3->switch0"] == 2**20


NODES = {
    "builder": "nodes",
    "library": "none",
    "options": {
        "gpus": 8, "inside": "nvswitch", "link_bandwidth": "300 GB/s", "link_latency": "0.5 us", "hosts": 1,
        "pcie_bandwidth": "63 GB/s", "pcie_latency": "0.25 us", "nics": 1, "nic_bandwidth": "12.5 GB/s",
        "nic_latency": "1 us", "fabric": "rail",
    },
}  # fmt: skip


@pytest.mark.parametrize(("count", "hosts"), [(1, (0,)), (4, (0, 8, 16, 24)), (6, (0, 8, 16, 24, 1, 9))])
def test_servers_on_workers_are_spread_over_nodes_before_a_node_gets_a_second(
    count: int, hosts: tuple[int, ...]
) -> None:
    nodes = tuple(tuple(range(first, first + 8)) for first in range(0, 32, 8))
    assert parameter_server.ServerLayout(32, count, own=False, nodes=nodes).hosts == hosts
    run = simulate(
        load_scenario(
            scenario(32, "96 MiB", algorithm="parameter_server", servers={"count": count, "on": "workers"})
            | {"cluster": {"topology": NODES, "world_size": 32, "gpu": "a100_sxm_80gb"}}
        )
    )
    # A node's card receives 24 parts for each of the node's servers, and what its 8 workers pull from other servers.
    arrived = {use.name: use.nbytes / (96 * 2**20) for use in run.timeline.links}
    for node in range(4):
        own = sum(host // 8 == node for host in hosts) / count
        assert arrived[f"leaf0->nic{node}"] == pytest.approx(24 * own + 8 * (1 - own))


def test_a_server_in_each_of_four_nodes_is_four_times_as_fast_as_one() -> None:
    times = [
        simulate(
            load_scenario(
                scenario(32, "96 MiB", algorithm="parameter_server", servers={"count": count, "on": "workers"})
                | {"cluster": {"topology": NODES, "world_size": 32, "gpu": "a100_sxm_80gb"}}
            )
        ).report.time_s
        for count in (1, 4)
    ]
    # One card takes the gradients of the 24 workers in other nodes; with four servers each takes a quarter of them.
    assert times[0] == pytest.approx(2 * 24 * 96 * 2**20 / BETA, rel=0.01)
    assert times[0] / times[1] == pytest.approx(4, rel=0.05)


def test_servers_spread_over_nodes_add_up_the_gradients_of_every_worker() -> None:
    def losses(topology: Any) -> tuple[float, ...]:
        sharding = {"strategy": "parameter_server", "servers": 2, "servers_on": "workers"}
        step = {
            "model": {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 16},
            "seq_len": 8, "numerics": True, "steps": 3, "sharding": sharding, "framework": "bare",
            "precision": {"params": "float64", "grads": "float64", "reduce": "float64", "master": None},
        }  # fmt: skip
        cluster = {"topology": topology, "world_size": 4, "gpu": "a100_sxm_80gb"}
        return simulate(load_scenario({"name": "servers", "cluster": cluster, "training": step})).report.learning.losses

    pairs = NODES | {"options": NODES["options"] | {"gpus": 2, "nics": 1}}
    # On a star the servers run on workers 0 and 1, on nodes of two GPUs on workers 0 and 2: the sums are the same.
    assert losses(pairs) == pytest.approx(losses("star_100g"), rel=1e-12)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_all_servers_on_workers_take_the_time_of_a_ring_on_their_cables(workers: int) -> None:
    """A server on each of N workers receives (N-1) S / N and sends as much back: 2 (N-1) / N S / B beside latencies."""
    servers = {"count": "all", "on": "workers"}
    # The file names another number of workers, which the sweep changes.
    made = scenario(2, "16 MiB", algorithm="parameter_server", servers=servers)
    (point,) = points(load_scenario(made | {"sweep": {"cluster.world_size": [workers]}}))
    report = simulate(point.scenario).report
    assert isinstance(report, CollectiveReport)
    assert report.time_s == pytest.approx(2 * (workers - 1) / workers * 2**24 / BETA, rel=0.05)


def test_all_is_one_server_per_worker_in_training() -> None:
    sharding = {"strategy": "parameter_server"}
    made = {
        "name": "all", "cluster": {"topology": "star_100g", "world_size": 4},
        "training": {"model": "gpt2", "seq_len": 128, "micro_batch_size": 1, "sharding": sharding},
        "compare": {"training.sharding.servers": [4, "all"]},
    }  # fmt: skip
    four, every = (simulate(point.scenario).report.to_dict() for point in points(load_scenario(made)))
    assert four == every
