"""GPUs on a grid whose edges are joined: two dimensions make a doughnut, three a torus of cubes.

Rule: a GPU has a cable to both neighbours in every dimension and passes on what is not for it. Like streets on which
leaving the map on the right brings you back on the left.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Annotated

from pydantic import Field

from simulator.cluster.graph import Graph, add_cable, add_vertex, empty, require
from simulator.cluster.limits import GraphSize, TopologyLimits
from simulator.cluster.quantity import Bandwidth, Count, Seconds

Lengths = Annotated[Sequence[Count], Field(min_length=1)]


def torus(*, shape: Lengths, bandwidth: Bandwidth, latency: Seconds) -> Graph:
    """Join GPUs on a periodic grid.

    Parameters
    ----------
    shape : sequence of int
        GPUs along each dimension, such as (4, 4, 4). GPUs are numbered with the last dimension fastest.
    bandwidth : float
        Of each cable and direction [B/s].
    latency : float
        Of each cable [s].

    Returns
    -------
    Graph
        The product of the lengths GPUs, all forwarding. Each has two cables a dimension: one where the length is 2,
        none where it is 1. The distance of two GPUs is the sum over dimensions of min(d, length - d).

    Examples
    --------
    >>> torus(shape=(3, 3), bandwidth=1e9, latency=1e-6).number_of_edges()
    36
    """
    require(len(shape) >= 1 and min(shape) >= 1, f"got shape {list(shape)}; every length must be at least 1")
    graph = empty()
    names = {place: f"gpu{i}" for i, place in enumerate(product(*map(range, shape)))}
    for name in names.values():
        add_vertex(graph, name, "gpu", forwards=True)
    for place, name in names.items():
        for axis, length in enumerate(shape):
            onward = (*place[:axis], (place[axis] + 1) % length, *place[axis + 1 :])
            if onward != place:
                add_cable(graph, name, names[onward], bandwidth, latency)
    return graph


def limits(*, shape: Sequence[int], **_: object) -> TopologyLimits:
    """Its GPUs are the product of its lengths."""
    return TopologyLimits(max_ranks=prod(shape))


def size(world_size: int, servers: int, *, shape: Sequence[int], **_: object) -> GraphSize:
    """Return the size of a graph with a cable for each GPU and dimension; length 2 has half as many, length 1 none."""
    gpus = prod(shape)
    return GraphSize(gpus, sum(gpus if length > 2 else gpus * (length - 1) // 2 for length in shape))
