"""How nodes are joined by a scale-out network: leaf switches, and spines above them.

Rule: every network card has one cable to a leaf, every leaf one bundle of cables to each spine. In a rail fabric card
i of every node of a pod hangs on leaf i of the pod, so that cards of the same number are one switch apart; in a
leaf-spine fabric all cards of a node hang on the same leaf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.cluster.limits import GraphSize
from simulator.cluster.node import Node, gpu_names, nic_names

FabricKind = Literal["rail", "leaf_spine"]

# A 64-port leaf has 32 ports upwards: NVIDIA DGX SuperPOD H100 reference architecture, network fabrics.
_MOST_SPINES: Final = 32


@dataclass(frozen=True, slots=True)
class ScaleOutFabric:
    """A network of leaves and spines between nodes, whatever their number.

    Attributes
    ----------
    kind : {"rail", "leaf_spine"}
    nodes_per_leaf : int
        Nodes of a pod (rail), or nodes at a leaf.
    nic_bandwidth, nic_latency : float
        Of the cable from a card to its leaf [B/s], [s].
    spine_latency : float
        Of a cable from leaf to spine [s].
    spines : int or None
        None: half as many as leaves, rounded up to a power of two, at most 32.
    oversubscription : float
        Bandwidth of a leaf's full set of cables down over its bandwidth up.
    """

    kind: FabricKind
    nodes_per_leaf: int
    nic_bandwidth: float
    nic_latency: float
    spine_latency: float
    spines: int | None
    oversubscription: float


def add_fabric(graph: Graph, fabric: ScaleOutFabric, node: Node, nodes: int, servers: int) -> None:
    """Join nodes, and servers with a card of their own, by leaves and spines.

    Parameters
    ----------
    graph : Graph
        Has the nodes' network cards.
    fabric : ScaleOutFabric
    node : Node
    nodes, servers : int
        How many there are. Servers take the leaves in turn.
    """
    pods = -(-nodes // fabric.nodes_per_leaf)
    width = node.nics if fabric.kind == "rail" else 1
    leaves = [add_vertex(graph, f"leaf{i}", "switch", forwards=True) for i in range(pods * width)]
    for number in range(nodes):
        pod = number // fabric.nodes_per_leaf
        for i, card in enumerate(nic_names(node, number)):
            add_cable(graph, card, leaves[pod * width + i % width], fabric.nic_bandwidth, fabric.nic_latency)
    if fabric.kind == "rail":
        _number_gpus_by_leaf(graph, fabric, node, nodes)
    for i in range(servers):
        server = add_vertex(graph, f"server{i}", "server", forwards=False)
        add_cable(graph, server, leaves[i % len(leaves)], fabric.nic_bandwidth, fabric.nic_latency)
    _add_spines(graph, fabric, leaves, cards=fabric.nodes_per_leaf * node.nics // width)


def _number_gpus_by_leaf(graph: Graph, fabric: ScaleOutFabric, node: Node, nodes: int) -> None:
    """Give each GPU a `position` that counts leaf by leaf, by which routing chooses the spine.

    Consecutive GPUs of a rail fabric hang on different leaves. If routing counted GPUs in their usual order, all GPUs
    of one leaf could receive through the same few spines; counted leaf by leaf, they receive through all alike.
    """
    share = -(-node.gpus // node.nics)  # GPUs of a card, at most
    for number in range(nodes):
        pod, place = divmod(number, fabric.nodes_per_leaf)
        for i, gpu in enumerate(gpu_names(node, number)):
            card = i * node.nics // node.gpus
            first = -(-card * node.gpus // node.nics)  # the first GPU of the node that uses this card
            leaf = pod * node.nics + card
            graph.nodes[gpu]["position"] = (leaf * fabric.nodes_per_leaf + place) * share + i - first


def _add_spines(graph: Graph, fabric: ScaleOutFabric, leaves: list[str], cards: int) -> None:
    if len(leaves) == 1:
        return
    count = _spines(fabric.spines, len(leaves))
    bandwidth = cards * fabric.nic_bandwidth / (fabric.oversubscription * count)
    for i in range(count):
        spine = add_vertex(graph, f"spine{i}", "switch", forwards=True)
        for leaf in leaves:
            add_cable(graph, leaf, spine, bandwidth, fabric.spine_latency)


def _spines(spines: int | None, leaves: int) -> int:
    """Return `spines` if given, otherwise half the number of leaves, rounded up to a power of two."""
    return spines or min(_MOST_SPINES, 1 << ((leaves + 1) // 2 - 1).bit_length())


def fabric_size(
    kind: FabricKind, nodes_per_leaf: int, spines: int | None, nics: int, nodes: int, servers: int
) -> GraphSize:
    """Return the size that `add_fabric` adds."""
    leaves = -(-nodes // nodes_per_leaf) * (nics if kind == "rail" else 1)
    above = _spines(spines, leaves) if leaves > 1 else 0
    return GraphSize(leaves + above + servers, nodes * nics + servers + leaves * above)
