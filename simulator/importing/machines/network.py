"""How are equal nodes joined? Each network card has a cable to the leaf switch of its rail, with spines above."""

from __future__ import annotations

from simulator.basics.errors import ScenarioError
from simulator.cluster.graph import Graph, empty
from simulator.cluster.node import Node
from simulator.cluster.scale_out import ScaleOutFabric, add_fabric
from simulator.importing.machines.limits import check_size
from simulator.importing.machines.node_graph import NodeRates, add_gpus, add_parts, merged_cards
from simulator.importing.machines.node_parts import NodeParts
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference


def graph_of(
    parts: NodeParts, reference: Reference, socket_bandwidth: float, options: MachineOptions, notes: Notes
) -> Graph:
    """Return the graph of a number of equal nodes, and note the figures that no file gives.

    Raises
    ------
    ScenarioError
        Several nodes without network cards, or too many parts.
    """
    defaults, count = reference.options, options.nodes or 1
    merged = merged_cards(parts)
    if len(merged.cards) < len(parts.cards):
        why = "a GPU uses all cards at its bridge at once: their rates are added"
        notes.assume("network cards", f"{len(merged.cards)} for {len(parts.cards)}", why)
    if count == 1 and options.oversubscription != 1:
        raise ScenarioError("--oversubscription: has no effect on a single node; give --nodes, or omit it")
    if count > 1 and not merged.cards:
        raise ScenarioError(f"--nodes: got {count}; the file has no network card, so its node stands alone")
    each = len(merged.gpus) + len(merged.places) + len(merged.cards)
    check_size(3 * count * each + count * len(merged.links.peers), "take fewer --nodes")
    rates = NodeRates(defaults["link_latency"], defaults["pcie_latency"], socket_bandwidth, defaults["socket_latency"])
    notes.assume("latencies", "of cables and switches", reference.where)
    graph = empty()
    # GPUs come first, so that GPU i is vertex i in the router.
    for number in range(count):
        add_gpus(graph, merged, number, f"node{number}")
    for number in range(count):
        add_parts(graph, merged, rates, number, f"node{number}")
    if count > 1:
        _join(graph, merged, reference, count, options, notes)
    return graph


def _join(
    graph: Graph, parts: NodeParts, reference: Reference, count: int, options: MachineOptions, notes: Notes
) -> None:
    defaults = reference.options
    ratio = options.oversubscription
    widest = max(card.network for card in parts.cards)
    fabric = ScaleOutFabric(
        "rail", defaults["nodes_per_leaf"], widest, defaults["nic_latency"], defaults["spine_latency"], None, ratio
    )
    # The network reads only the numbers of GPUs and cards.
    node = Node(len(parts.gpus), "pcie", 0, 0, 1, 0, 0, 0, 0, 0, len(parts.cards))
    add_fabric(graph, fabric, node, count, servers=0)
    for number in range(count):
        for i, card in enumerate(parts.cards):
            name = f"nic{number * len(parts.cards) + i}"
            for leaf in [vertex for vertex in graph[name] if vertex.startswith("leaf")]:
                graph.edges[name, leaf]["bandwidth"] = graph.edges[leaf, name]["bandwidth"] = card.network
    why = f"card i of each of {min(count, fabric.nodes_per_leaf)} nodes at one leaf switch, spines above"
    notes.assume("network between nodes", "rail", f"no file describes it: {why}, {ratio:g} to 1")
