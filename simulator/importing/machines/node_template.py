"""What is inside each node of a cluster? The node of a topology, copied under the node's name.

A scheduler's description names nodes and has nothing inside of them. A shipped topology, or an imported one, does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_bandwidth
from simulator.cluster.build import build, facts
from simulator.cluster.graph import Graph
from simulator.cluster.topology_file import Topology, load_topology
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Setting


@dataclass(frozen=True, slots=True)
class NodeTemplate:
    """The inside of a node."""

    topology: str  # name of the topology with this node
    gpu: Any  # key `gpu` of that topology
    collectives: Mapping[str, Any]  # key `collectives` of that topology
    vertices: Mapping[str, Mapping[str, Any]]  # attributes of each vertex, by its name in the node
    cables: Mapping[tuple[str, str], Mapping[str, Any]]  # attributes of each directed link
    cards: Mapping[str, float]  # bandwidth of each network card to its switch [B/s]

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return sum(vertex["kind"] == "gpu" for vertex in self.vertices.values())

    @property
    def rate(self) -> float:
        """Bandwidth of all network cards together [B/s]."""
        return sum(self.cards.values())

    def add_gpus(self, graph: Graph, node: str) -> None:
        """Add the GPUs of a node to a graph; GPUs come first, in the order of the nodes."""
        for name, vertex in self.vertices.items():
            if vertex["kind"] == "gpu":
                graph.add_node(f"{node}/{name}", **vertex, node=node)

    def add_rest(self, graph: Graph, node: str) -> None:
        """Add the other vertices and the cables of a node to a graph that has its GPUs."""
        for name, vertex in self.vertices.items():
            if vertex["kind"] != "gpu":
                graph.add_node(f"{node}/{name}", **vertex, **({"node": node} if vertex.get("reduces") else {}))
        for (a, b), cable in self.cables.items():
            graph.add_edge(f"{node}/{a}", f"{node}/{b}", **cable)


def node_template(topology: str, options: MachineOptions, notes: Notes) -> NodeTemplate:
    """Return the first node of a topology, with its network cards.

    Raises
    ------
    ScenarioError
        Unknown topology, or a topology without nodes or without network cards.
    """
    topology_facts = facts(topology)
    if topology_facts.node_size is None:
        raise ScenarioError(f"--node: got {topology}, which has no nodes of GPUs; give a topology such as dgx_h100")
    # Two nodes, because the node of a single one may be built without its network cards.
    ranks = min(2 * topology_facts.node_size, topology_facts.max_ranks or 2 * topology_facts.node_size)
    file, graph = load_topology(topology), build(topology, ranks, gpu=options.gpu).graph
    inside = _inside(graph, graph.graph["nodes"][0])
    cards = {name: _network(graph, name, inside) for name in inside if graph.nodes[name]["kind"] == "nic"}
    if options.nic_bandwidth:
        setting = Setting("--nic-bandwidth", "", "command line")
        notes.read("network card", format_bandwidth(options.nic_bandwidth), setting)
        cards = dict.fromkeys(cards, options.nic_bandwidth)
    if not cards or not all(cards.values()):
        hint = "give --nic-bandwidth" if cards else "give another topology"
        raise ScenarioError(f"--node: {topology} has no network card with a bandwidth; {hint}")
    reducing, local = set(graph.graph.get("reducing_switches") or ()), _local_names(inside)
    vertices = {}
    for name in inside:
        attributes = {key: value for key, value in graph.nodes[name].items() if key not in ("node", "position")}
        vertices[local[name]] = attributes | ({"reduces": True} if name in reducing else {})
    within = [(a, b, cable) for a, b, cable in graph.edges(data=True) if a in inside and b in inside]
    data = file.document.data
    return NodeTemplate(
        topology_facts.name,
        options.gpu or _gpu(file),
        data.get("collectives", {}) if isinstance(data, Mapping) else {},
        vertices,
        {(local[a], local[b]): dict(cable) for a, b, cable in within},
        {local[name]: rate for name, rate in cards.items()},
    )


def _gpu(file: Topology) -> Any:
    """Return the GPU of a topology: a name, a description, or the absolute path of a GPU file."""
    if not isinstance(file.gpu, str) or file.gpu in registry.names("gpu") or file.folder is None:
        return file.gpu
    return str((file.folder / file.gpu).resolve())


def _inside(graph: Graph, gpus: tuple[str, ...]) -> dict[str, None]:
    """Return the vertices that GPUs of a node reach without passing through a network card, GPUs first."""
    inside = dict.fromkeys(gpus)
    waiting = list(gpus)
    while waiting:
        name = waiting.pop(0)
        if graph.nodes[name]["kind"] == "nic":
            continue
        new = [other for other in graph[name] if other not in inside]
        inside |= dict.fromkeys(new)
        waiting += new
    return inside


def _network(graph: Graph, card: str, inside: Mapping[str, None]) -> float:
    """Return the bandwidth of a network card to its switch [B/s]; 0 if unknown."""
    outside = [cable["bandwidth"] for _, other, cable in graph.out_edges(card, data=True) if other not in inside]
    return float(sum(outside) or graph.nodes[card].get("network_bandwidth", 0.0))


def _local_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each vertex inside its node: "node0/nvswitch" is "nvswitch"."""
    names = list(names)
    last = [name.rpartition("/")[2] for name in names]
    unique = len(set(last)) == len(last)
    return {name: short if unique else name.replace("/", "_") for name, short in zip(names, last, strict=True)}
