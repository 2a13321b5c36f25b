"""The events engine against a bare SimPy loop on the same random links, and a ring of 1,024 ranks."""

from __future__ import annotations

import json
import time

import networkx as nx

from benchmarks import lean_ring
from benchmarks.alone import alone, peak_memory
from benchmarks.timing import best_of
from simulator.cluster.cluster import Cluster
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.routing import Router
from simulator.collectives import ring
from simulator.collectives.algorithm import CollectiveRequest
from simulator.engine.events import execute
from simulator.records.operation import Collective, ElementSizes
from simulator.records.program import Program

NBYTES = 16 * 2**20


def cluster(links: lean_ring.Links, kind: str) -> Cluster:
    """Build a cluster: the links form a ring, or a star's uplinks (downlinks are unbounded)."""
    n = len(links.bandwidth)
    graph: nx.DiGraph[str] = nx.DiGraph()
    names = tuple(f"gpu{r}" for r in range(n))
    graph.add_nodes_from(names, kind="gpu", forwards=kind == "ring")
    if kind == "star":
        graph.add_node("switch0", kind="switch", forwards=True)
    for r, name in enumerate(names):
        target = "switch0" if kind == "star" else names[(r + 1) % n]
        graph.add_edge(name, target, bandwidth=links.bandwidth[r], latency=links.latency[r])
        if kind == "star":
            # Only uplinks bound; both kinds then have equal times.
            graph.add_edge("switch0", name, bandwidth=float("inf"), latency=0.0)
    gpus = (load_gpu("a100_sxm_80gb"),) * n
    return Cluster(kind, graph, Router(graph, kind), gpus, names, nodes=(tuple(range(n)),))


def program(world_size: int, nbytes: int = NBYTES) -> Program:
    """Return a program with a single ring all-reduce of float32."""
    elements = nbytes // 4
    schedule = ring.all_reduce(CollectiveRequest("all_reduce", world_size, elements))
    op = Collective("all_reduce", tuple(range(world_size)), schedule, elements, ElementSizes(4, 4))
    return Program(((op,),) * world_size)


def ratio(world_size: int, kind: str) -> tuple[float, float, float]:
    """Return the CPU times of the engine and of the bare loop [s], and the relative difference between their ends."""
    links = lean_ring.draw(world_size)
    played, there = program(world_size), cluster(links, kind)
    # Interleaved, because the machine is shared.
    ours, bare = best_of(5, lambda: execute(played, there), lambda: lean_ring.play(links, NBYTES))
    return ours, bare, abs(execute(played, there).end / lean_ring.play(links, NBYTES) - 1)


def large() -> dict[str, float]:
    """Return CPU time [s] and resident memory [MiB] for a ring of 1,024 ranks, in a separate process."""
    return alone("benchmarks.events")


if __name__ == "__main__":
    # Building the cluster is not timed.
    ring_of_1024 = cluster(lean_ring.draw(1024), "ring")
    start = time.process_time()
    execute(program(1024), ring_of_1024)
    used = time.process_time() - start
    print(json.dumps({"seconds": used, "mib": peak_memory()}))
