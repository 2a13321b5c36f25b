"""How is a topology written in graph form: vertices, cables, and functions to add both?

A cable is two directed links, each with its own bandwidth and latency. A vertex has a kind, and says whether traffic of
other vertices may pass.
"""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.DiGraph[str]
else:
    # networkx takes long to import, and is needed only if a graph is built.
    Graph = Any


def empty() -> Graph:
    """Return a topology graph without vertices."""
    import networkx as nx

    return nx.DiGraph()


def add_vertex(graph: Graph, name: str, kind: str, *, forwards: bool) -> str:
    """Add a vertex to a topology graph and return its name.

    Parameters
    ----------
    name : str
        Name of the vertex.
    kind : {"gpu", "nic", "switch", "host", "server"}
        Kind of the vertex.
    forwards : bool
        Whether routes between other vertices may pass through this vertex.
    """
    graph.add_node(name, kind=kind, forwards=forwards)
    return name


def add_cable(graph: Graph, a: str, b: str, bandwidth: float, latency: float) -> None:
    """Add a cable to a topology graph: a link in each direction between two vertices.

    Parameters
    ----------
    a, b : str
        Names of the vertices.
    bandwidth : float
        Bandwidth of each direction [B/s].
    latency : float
        Latency of each direction [s].
    """
    graph.add_edge(a, b, bandwidth=bandwidth, latency=latency)
    graph.add_edge(b, a, bandwidth=bandwidth, latency=latency)


def links_named(graph: Graph, name: str) -> list[tuple[str, str]]:
    """Return the links (src, dst) with a name, or whose names match a shell pattern; empty if no link matches.

    Parameters
    ----------
    graph : Graph
        Topology graph.
    name : str
        Name 'src->dst', or a shell pattern of such names: `nic*->leaf3`, `*gpu0*`.
    """
    src, _, dst = name.partition("->")
    # A vertex of a graph file may have a `*` in its name: an existing link is no pattern.
    if graph.has_edge(src, dst):
        return [(src, dst)]
    matches = re.compile(fnmatch.translate(name)).match
    return [(a, b) for a, b in graph.edges if matches(f"{a}->{b}")]


def require(holds: bool, message: str) -> None:
    """Raise ValueError with a message if a builder's argument is invalid (`holds` is False)."""
    if not holds:
        raise ValueError(message)


def require_all(*rules: tuple[bool, str]) -> None:
    """Raise a single ValueError with the message of each rule that does not hold, a line each."""
    broken = [message for holds, message in rules if not holds]
    if broken:
        raise ValueError("\n".join(broken))


def of_kind(graph: Graph, kind: str) -> list[str]:
    """Return the names of the graph's vertices with this kind, in insertion order."""
    return [name for name, facts in graph.nodes(data=True) if facts.get("kind") == kind]
