"""How are nodes joined by a scale-out network: leaf switches, and spines above them?

Every network card has a cable to a leaf, and every leaf has a bundle of cables to each spine. In a rail fabric, card i
of every node in a pod is connected to leaf i of the pod, so cards with the same number are one switch apart. In a
leaf-spine fabric, every card of a node is connected to the same leaf.

Example: 2 nodes with 2 cards each, in one pod.

    rail        node 0: card 0 -- leaf0, card 1 -- leaf1      leaf_spine     node 0: cards 0, 1 -- leaf0
                node 1: card 2 -- leaf0, card 3 -- leaf1                     node 1: cards 2, 3 -- leaf0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.cluster.limits import GraphSize
from simulator.cluster.node import Node, gpu_names, nic_names

FabricKind = Literal["rail", "leaf_spine"]

# A 64-port leaf has 32 upward ports: NVIDIA DGX SuperPOD H100 reference architecture, network fabrics.
_MOST_SPINES: Final = 32


@dataclass(frozen=True, slots=True)
class ScaleOutFabric:
    """A network between nodes, with leaf switches and spine switches, for any number of nodes."""

    kind: FabricKind  # whether a leaf serves one card of each node, or every card
    nodes_per_leaf: int  # nodes per pod (rail), or nodes per leaf
    # `nic_bandwidth`, `nic_latency`: Bandwidth [B/s] and latency [s] of the cable from a card to its leaf.
    nic_bandwidth: float
    nic_latency: float
    spine_latency: float  # latency of a cable from leaf to spine [s]
    spines: int | None  # number of spines; None: half the leaves, rounded up to a power of two, at most 32
    oversubscription: float  # bandwidth down divided by bandwidth up, at a leaf with its full set of cables


def add_fabric(graph: Graph, fabric: ScaleOutFabric, node: Node, nodes: int, servers: int) -> None:
    """Add leaf and spine switches to a graph, and connect the nodes' network cards and the servers.

    Parameters
    ----------
    graph : Graph
        Contains the nodes' network cards.
    nodes, servers : int
        Number of nodes, and of servers with their own card. Servers are assigned to the leaves in turn.
    """
    # A rail pod has a leaf for each card number (`width`); a leaf-spine "pod" is a single leaf.
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
    """Give each GPU a `position` that counts leaf by leaf; routing chooses the spine by the position.

    Consecutive GPUs in a rail fabric are connected to different leaves. If routing counted GPUs in their usual order,
    every GPU at a leaf could receive through the same few spines; counted leaf by leaf, GPUs use the spines evenly.
    """
    # Maximum number of GPUs per card.
    share = -(-node.gpus // node.nics)
    for number in range(nodes):
        pod, place = divmod(number, fabric.nodes_per_leaf)
        for i, gpu in enumerate(gpu_names(node, number)):
            card = i * node.nics // node.gpus
            # First GPU in the node that uses this card.
            first = -(-card * node.gpus // node.nics)
            leaf = pod * node.nics + card
            graph.nodes[gpu]["position"] = (leaf * fabric.nodes_per_leaf + place) * share + i - first


def _add_spines(graph: Graph, fabric: ScaleOutFabric, leaves: list[str], cards: int) -> None:
    if len(leaves) == 1:
        return
    # The bundle of all cables between a leaf and a spine is a single link with their total bandwidth.
    count = _spines(fabric.spines, len(leaves))
    # `cards` is the number at a full leaf, so a partly filled pod has the same links as a full pod.
    bandwidth = cards * fabric.nic_bandwidth / (fabric.oversubscription * count)
    for i in range(count):
        spine = add_vertex(graph, f"spine{i}", "switch", forwards=True)
        for leaf in leaves:
            add_cable(graph, leaf, spine, bandwidth, fabric.spine_latency)


def _spines(spines: int | None, leaves: int) -> int:
    """Return the number of spine switches: `spines` if given, else half the leaves, a power of two, at most 32."""
    return spines or min(_MOST_SPINES, 1 << ((leaves + 1) // 2 - 1).bit_length())


def fabric_size(
    kind: FabricKind, nodes_per_leaf: int, spines: int | None, nics: int, nodes: int, servers: int
) -> GraphSize:
    """Return the vertex and cable counts for the network between nodes added by `add_fabric`."""
    leaves = -(-nodes // nodes_per_leaf) * (nics if kind == "rail" else 1)
    above = _spines(spines, leaves) if leaves > 1 else 0
    return GraphSize(leaves + above + servers, nodes * nics + servers + leaves * above)
