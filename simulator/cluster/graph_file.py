"""How is a topology read from another program's graph: networkx's node-link JSON, or GraphML?

Vertices have a `kind`; edges have a `bandwidth` and a `latency`, as text with a unit or as an SI number. An undirected
edge is a link in each direction. Two attributes are optional: `node`, equal for the GPUs of a node, and `reduces`, true
for a node's switch that can add.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from simulator.basics import units
from simulator.basics.document import Document, Fault, load
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.input_files import read_bytes, read_json
from simulator.cluster.graph import Graph, empty, of_kind

_KINDS: Final = ("gpu", "host", "nic", "server", "switch")
_ENDS: Final = ("gpu", "server")
# Largest file to be read again for the lines and columns of faults [B].
_MOST_READ_TWICE: Final = 2**18


def load_graph(path: Path) -> Graph:
    """Return the topology graph in a file, checked.

    Parameters
    ----------
    path : Path
        "*.graphml", or node-link JSON as `networkx.node_link_data` writes it (`edges` or `links`).

    Returns
    -------
    Graph
        GPUs in the file's order. By default `forwards` is false for GPUs and servers, and true for other kinds.

    Raises
    ------
    ScenarioError
        Invalid file; one line for each faulty vertex and edge.
    """
    if path.suffix == ".gml":
        raise ScenarioError(
            f"{path}: GML has no GPUs; `simulator import-machine {path}` puts a node of GPUs at each place"
        )
    document = _from_graphml(path) if path.suffix == ".graphml" else _from_json(path)
    graph, faults = _graph(document)
    if faults:
        _refuse(path, document, faults)
    return graph


def _refuse(path: Path, document: Document, faults: list[Fault]) -> None:
    """Raise a ScenarioError with the faults of a graph file, with lines and columns if the file is small JSON.

    A parser that records lines and columns takes 5 s per MiB, so only files with faults are read again.
    """
    placed = document if path.suffix == ".graphml" or path.stat().st_size > _MOST_READ_TWICE else load(path)
    placed.refuse([placed.fault(fault.key, fault.message) for fault in faults])


def _from_json(path: Path) -> Document:
    return Document(str(path), read_json(path))


def _from_graphml(path: Path) -> Document:
    import networkx as nx

    # If networkx opened the file, this package's size limit would not apply. networkx therefore gets the bytes.
    text = BytesIO(read_bytes(path))
    try:
        node_link = nx.node_link_data(nx.read_graphml(text), edges="edges")
    except Exception as error:  # networkx and its XML parser raise a dozen kinds of exceptions
        raise ScenarioError(f"{path}: not GraphML that can be read: {' '.join(str(error).split())}") from error
    return Document(str(path), node_link)


def _graph(document: Document) -> tuple[Graph, list[Fault]]:
    data = document.data
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list):
        return empty(), [document.fault((), "not a node-link graph; must have nodes and edges")]
    # The router has at most a single link between two vertices in each direction.
    if data.get("multigraph"):
        return empty(), [
            document.fault(
                ("multigraph",), ("got true; replace parallel edges by a single edge with the sum of their bandwidths")
            )
        ]
    graph, faults = empty(), list[Fault]()
    _add_vertices(graph, document, data["nodes"], faults)
    where = "edges" if "edges" in data else "links"
    # Older versions of networkx wrote this key as `links`.
    edges = data.get(where, [])
    both = not data.get("directed", True)
    for i, edge in enumerate(edges if isinstance(edges, list) else []):
        _add_edge(graph, document, (where, i), edge, both, faults)
    if not faults and not of_kind(graph, "gpu"):
        faults.append(document.fault(("nodes",), "has no vertex of kind 'gpu'"))
    _group_by_node(graph)
    return graph, faults


def _add_vertices(graph: Graph, document: Document, nodes: list[Any], faults: list[Fault]) -> None:
    for i, node in enumerate(nodes):
        if not isinstance(node, Mapping) or "id" not in node:
            faults.append(document.fault(("nodes", i), f"got {node!r}; must be a mapping with an id"))
            continue
        kind, forwards = node.get("kind"), node.get("forwards")
        if kind not in _KINDS:
            faults.append(document.fault(("nodes", i, "kind"), f"got {kind!r}; {one_of(_KINDS, kind)}"))
        if forwards is not None and not isinstance(forwards, bool):
            faults.append(document.fault(("nodes", i, "forwards"), f"got {forwards!r}; must be true or false"))
        if str(node["id"]) in graph:
            faults.append(document.fault(("nodes", i, "id"), f"got {node['id']!r}, which occurs twice"))
        # Further attributes, such as `position`, stay: the router reads `position`.
        facts = {key: value for key, value in node.items() if key != "id"}
        # Faulty vertices are added too: otherwise each of their edges would add a fault.
        graph.add_node(str(node["id"]), **(facts | {"forwards": kind not in _ENDS if forwards is None else forwards}))


def _add_edge(
    graph: Graph, document: Document, key: tuple[str | int, ...], edge: Any, both: bool, faults: list[Fault]
) -> None:
    if not isinstance(edge, Mapping):
        faults.append(document.fault(key, f"got {edge!r}; must be a mapping"))
        return
    ends = [str(edge.get(end)) for end in ("source", "target")]
    for end, name in zip(("source", "target"), ends, strict=True):
        if name not in graph:
            faults.append(document.fault((*key, end), f"got {name!r}; {one_of(list(graph)[:1000], name)}"))
    bandwidth = _quantity(document, (*key, "bandwidth"), edge.get("bandwidth"), "bandwidth", faults)
    latency = _quantity(document, (*key, "latency"), edge.get("latency"), "time", faults)
    if bandwidth == 0:
        faults.append(document.fault((*key, "bandwidth"), f"got {edge['bandwidth']!r}; must be more than 0"))
    if ends[0] == ends[1]:
        faults.append(document.fault(key, f"connects {ends[0]!r} with itself"))
    if faults:
        return
    # Reached only while the file has no fault: ends and figures of a faulty edge may be invalid.
    graph.add_edge(ends[0], ends[1], bandwidth=bandwidth, latency=latency)
    if both:
        graph.add_edge(ends[1], ends[0], bandwidth=bandwidth, latency=latency)


def _quantity(
    document: Document, key: tuple[str | int, ...], value: Any, kind: units.Kind, faults: list[Fault]
) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        if units.within(value, kind):
            return float(value)
        faults.append(document.fault(key, f"got {value!r}; outside the range that can be simulated"))
        return 1.0
    try:
        return units.parse(value, kind)
    except ValueError as error:
        faults.append(document.fault(key, "is missing; give it" if value is None else str(error)))
        return 1.0


def _group_by_node(graph: Graph) -> None:
    """Store in a graph's attributes each node's GPUs and the switches that can add, if GPUs name their nodes."""
    nodes: dict[str, list[str]] = {}
    reducing: dict[str, str] = {}
    for name, facts in graph.nodes(data=True):
        node = facts.get("node", facts.get("box"))  # `box` is the former word for node
        if facts.get("kind") == "gpu" and node is not None:
            nodes.setdefault(str(node), []).append(name)
        if facts.get("reduces") and node is not None:
            reducing[str(node)] = name
    # Nodes count only if every GPU names its node; switches only if every node has a reducing switch.
    if nodes and sum(map(len, nodes.values())) == len(of_kind(graph, "gpu")):
        graph.graph["nodes"] = tuple(map(tuple, nodes.values()))
        graph.graph["reducing_switches"] = tuple(reducing.values()) if reducing.keys() == nodes.keys() else ()
