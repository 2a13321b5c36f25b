"""Flows on shared links: 8 rings over a single NIC per node."""

from __future__ import annotations

import networkx as nx

from benchmarks.timing import best_of
from simulator.cluster.cluster import Cluster
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.routing import Router
from simulator.collectives import ring
from simulator.collectives.algorithm import CollectiveRequest
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective, ElementSizes
from simulator.records.program import Program

NODES, GPUS = 8, 8


def cluster() -> Cluster:
    """Build nodes of 8 GPUs with a 25 GB/s NIC each, all at a single switch."""
    graph: nx.DiGraph[str] = nx.DiGraph()
    names = tuple(f"gpu{r}" for r in range(NODES * GPUS))
    graph.add_nodes_from(names, kind="gpu", forwards=False)
    graph.add_nodes_from([f"nic{node}" for node in range(NODES)], kind="nic", forwards=True)
    graph.add_node("switch0", kind="switch", forwards=True)
    for r, name in enumerate(names):
        nic = f"nic{r // GPUS}"
        graph.add_edge(name, nic, bandwidth=31.5e9, latency=1e-6)
        graph.add_edge(nic, name, bandwidth=31.5e9, latency=1e-6)
    for node in range(NODES):
        graph.add_edge(f"nic{node}", "switch0", bandwidth=25e9, latency=1e-6)
        graph.add_edge("switch0", f"nic{node}", bandwidth=25e9, latency=1e-6)
    gpus = (load_gpu("a100_sxm_80gb"),) * len(names)
    return Cluster("shared_nics", graph, Router(graph, "shared_nics"), gpus, names, nodes=(tuple(range(len(names))),))


def program() -> Program:
    """Return a program with a ring through the i-th GPU of every node, for each i."""
    lists: dict[int, tuple[Collective, ...]] = {}
    for i in range(GPUS):
        group = tuple(node * GPUS + i for node in range(NODES))
        schedule = ring.all_reduce(CollectiveRequest("all_reduce", NODES, 2**20))
        op = Collective(f"ring {i}", group, schedule, 2**20, ElementSizes(4, 4))
        lists |= dict.fromkeys(group, (op,))
    return Program(tuple(lists[rank] for rank in range(NODES * GPUS)))


def microseconds_a_flow(*, jittered: bool) -> float:
    """Return the CPU time per flow [us], in step or with random latencies."""
    there, played = cluster(), program()
    jitter = Jitter(latency=0.2 if jittered else 0.0, seed=1)
    (seconds,) = best_of(5, lambda: execute(played, there, jitter=jitter))
    # Each transfer is a flow.
    flows = sum(op.schedule.length() for op in played.collectives().values())
    return seconds / flows * 1e6
