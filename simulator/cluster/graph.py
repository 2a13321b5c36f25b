"""How a topology is written as a graph: vertices, cables, and functions that add them.

Rule: a cable is two directed links, each with its own bandwidth and latency; a vertex has a kind, and says whether
traffic of others may pass through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.DiGraph[str]
else:
    # networkx takes long to import and is needed only when something is built.
    Graph = Any


def empty() -> Graph:
    """Start a topology without vertices."""
    import networkx as nx

    return nx.DiGraph()


def add_vertex(graph: Graph, name: str, kind: str, *, forwards: bool) -> str:
    """Add a vertex and return its name.

    Parameters
    ----------
    graph : Graph
    name : str
    kind : {"gpu", "nic", "switch", "host", "server"}
    forwards : bool
        Whether routes between others may pass through it.
    """
    graph.add_node(name, kind=kind, forwards=forwards)
    return name


def add_cable(graph: Graph, a: str, b: str, bandwidth: float, latency: float) -> None:
    """Join two vertices by a link in each direction.

    Parameters
    ----------
    graph : Graph
    a, b : str
    bandwidth : float
        Of each direction [B/s].
    latency : float
        [s]
    """
    graph.add_edge(a, b, bandwidth=bandwidth, latency=latency)
    graph.add_edge(b, a, bandwidth=bandwidth, latency=latency)


def require(holds: bool, message: str) -> None:
    """Refuse a bad argument of a builder.

    Raises
    ------
    ValueError
        With this message, unless it holds.
    """
    if not holds:
        raise ValueError(message)


def require_all(*rules: tuple[bool, str]) -> None:
    """Refuse bad arguments of a builder, all at once.

    Raises
    ------
    ValueError
        With a line for each message whose rule does not hold.
    """
    broken = [message for holds, message in rules if not holds]
    if broken:
        raise ValueError("\n".join(broken))


def of_kind(graph: Graph, kind: str) -> list[str]:
    """List the vertices of a kind in the order in which they were added."""
    return [name for name, facts in graph.nodes(data=True) if facts.get("kind") == kind]
