"""Records with a topology's limits (GPUs, servers) and graph size, known before the graph is built.

Both are computed from the options alone, so that checking a scenario never builds a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Memory per vertex or directed link, with attributes and the router's tables (docs/speed.md) [B]; time to build a
# vertex or link on one core [s].
_BYTES_A_PART: Final = 900
_SECONDS_A_PART: Final = 6.5e-6


@dataclass(frozen=True, slots=True)
class TopologyLimits:
    """A topology's limits, known without building the graph."""

    max_ranks: int | None = None  # number of GPUs; None if it grows with the world size
    own_servers: bool = False  # whether parameter servers can have separate ports
    node_size: int | None = None  # GPUs per node; None without nodes
    in_switch_reduction: bool = False  # whether a node's switch can add
    one_route: bool = False  # whether there is at most one shortest route between any two GPUs, for any number of ranks


def no_server_ports(topology: str) -> str:
    """Return the message that a topology has no ports for separate servers, and what a topology with ports needs."""
    return (
        f"topology {topology} has no ports for separate servers; these need builder star, builder fat_tree, "
        "builder nodes with 'fabric: leaf_spine', or a graph with a vertex of 'kind: server' for each server"
    )


@dataclass(frozen=True, slots=True)
class GraphSize:
    """Vertex and cable counts for a topology's graph, known without building the graph."""

    vertices: int  # number of vertices
    cables: int  # number of cables; each is two directed links

    @property
    def parts(self) -> int:
        """Number of vertices and directed links."""
        return self.vertices + 2 * self.cables

    @property
    def nbytes(self) -> int:
        """Approximate memory of the graph [B]."""
        return self.parts * _BYTES_A_PART

    @property
    def seconds(self) -> float:
        """Approximate time to build the graph [s]."""
        return self.parts * _SECONDS_A_PART
