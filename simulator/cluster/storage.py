"""Where do checkpoints go? A storage is a vertex that all GPUs reach, behind a single link with its bandwidth.

Example: a star with two GPUs. Links lead towards the storage only, hence no other route passes through its port::

    gpu0 --- switch0 --- gpu1
                |
          storage0/port --> storage0
"""

from __future__ import annotations

from typing import Final

from simulator.cluster.graph import Graph, add_vertex, of_kind

STORAGE: Final = "storage0"


def add_storage(graph: Graph, bandwidth: float) -> str:
    """Add a storage that takes `bandwidth` B/s in all to a topology graph; return the name of its vertex.

    Its port has a link from every switch outside of nodes; without such switches, from every network card, host or GPU.
    """
    port = add_vertex(graph, f"{STORAGE}/port", "storage", forwards=True)
    add_vertex(graph, STORAGE, "storage", forwards=False)
    outside = [name for name in of_kind(graph, "switch") if "/" not in name]
    found = (outside, of_kind(graph, "nic"), of_kind(graph, "host"), of_kind(graph, "gpu"))
    for name in next(names for names in found if names):
        graph.add_edge(name, port, bandwidth=bandwidth, latency=0.0)
    graph.add_edge(port, STORAGE, bandwidth=bandwidth, latency=0.0)
    return STORAGE
