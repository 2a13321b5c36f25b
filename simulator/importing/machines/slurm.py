"""How do named nodes become a machine? Trees, blocks, rings, toruses and networks, with the same node everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from simulator.basics.errors import ScenarioError, few
from simulator.basics.units import format_bandwidth
from simulator.cluster.chassis import machine_of
from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.importing.machines.gpu_kinds import DEFAULT
from simulator.importing.machines.limits import check_size
from simulator.importing.machines.machine_format import Machine
from simulator.importing.machines.node_template import NodeTemplate, node_template
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference, reference_of
from simulator.importing.machines.switch_tree import (
    NamedSwitch,
    SwitchTree,
    chosen_nodes,
    graph_of_nodes,
    graph_of_tree,
)
from simulator.importing.machines.torus import Torus
from simulator.importing.settings import Setting

# Options that a format of Slurm reads.
USES: Final = frozenset(
    {"gpu", "node", "node_list", "nic_bandwidth", "level_bandwidth", "oversubscription", "nvlink_blocks"}
)
_NODE: Final = "dgx_h100"


# A cable of two nodes: bandwidth per direction [B/s], or None if unknown, and latency beside the switches' [s].
Cable = tuple[str, str, float | None, float]


@dataclass(frozen=True, slots=True)
class Network:
    """A network in which each node has a switch of its own: place in the file, nodes, and cables of the switches."""

    place: Setting
    nodes: tuple[str, ...]
    cables: tuple[Cable, ...]


@dataclass(frozen=True, slots=True)
class SlurmLayout:
    """The layout of a cluster in a file of Slurm."""

    switches: tuple[NamedSwitch, ...] = ()  # switches of a tree
    blocks: tuple[NamedSwitch, ...] = ()  # blocks of nodes
    rings: tuple[NamedSwitch, ...] = ()  # nodes of each ring, in the ring's order
    toruses: tuple[Torus, ...] = ()  # nodes of each torus
    networks: tuple[Network, ...] = ()  # networks without a plan, of a file with cables


def machine(layout: SlurmLayout, source: str, options: MachineOptions, notes: Notes) -> Machine:
    """Return the machine of a layout.

    Raises
    ------
    ScenarioError
        The layout is empty or mixed, or as for the parts.
    """
    kinds = [kind for kind in (layout.switches, layout.blocks, layout.rings, layout.toruses, layout.networks)
             if kind]  # fmt: skip
    if len(kinds) != 1:
        several = (
            "switches, blocks, rings and toruses exclude each other" if kinds else "has no switch, block, ring or torus"
        )
        raise ScenarioError(f"{source}: {several}")
    if options.nvlink_blocks and not layout.blocks:
        raise ScenarioError(f"--nvlink-blocks: {source} has no blocks; omit it")
    topology = options.node or (_NODE if options.gpu is None else machine_of(options.gpu))
    template = node_template(topology, options, notes)
    _note_node(template, topology, options, notes)
    reference = reference_of(template.gpu if isinstance(template.gpu, str) else DEFAULT, options)
    if layout.networks or layout.toruses or layout.rings:
        graph = _graph_of_neighbours(layout, template, reference, options, notes)
    else:
        tree = SwitchTree(layout.switches or _tree_of_blocks(layout.blocks, template, options, notes))
        _note_tree(tree, layout, notes)
        graph = graph_of_tree(tree, template, reference, options, notes)
    notes.assume("latencies", "between nodes", reference.where)
    return Machine(graph, template.gpu, template.collectives)


def _note_node(template: NodeTemplate, topology: str, options: MachineOptions, notes: Notes) -> None:
    value = f"{topology}, {template.gpus} GPUs and {len(template.cards)} network cards"
    if options.node is not None:
        notes.read("node", value, Setting("--node", topology, "command line"))
    elif options.gpu is not None:
        notes.assume("node", value, f"the shipped machine with {options.gpu}; --node changes it")
    else:
        notes.assume("node", value, "the files do not describe nodes; --node changes it")
    if options.nic_bandwidth is None:
        rates = dict.fromkeys(format_bandwidth(rate) for rate in template.cards.values())
        notes.assume("network card", ", ".join(rates), f"as in {topology}; --nic-bandwidth changes it")
    if template.collectives:
        notes.assume("collective library", "measured constants", f"those of {topology}")


def _note_tree(tree: SwitchTree, layout: SlurmLayout, notes: Notes) -> None:
    source, _, line = next(iter(tree.switches.values())).place.rpartition(":")
    setting = Setting("Nodes", "", source, int(line) if line.isdigit() else None)
    nodes = {node for block in layout.blocks for node in block.nodes} or tree.nodes
    notes.read("nodes", len(nodes), setting)
    if layout.blocks:
        return
    for level in sorted(set(tree.levels.values())):
        count = sum(other == level for other in tree.levels.values())
        notes.read(f"switches of level {level}", count, setting)
    rails = max(len(leaves) for leaves in tree.leaves_of().values())
    if rails > 1:
        notes.assume("rails", rails, "nodes are below several switches: card i at switch i modulo their number")


def _tree_of_blocks(
    blocks: Sequence[NamedSwitch], template: NodeTemplate, options: MachineOptions, notes: Notes
) -> list[NamedSwitch]:
    """Return blocks as switches below a common switch; as its nodes, if each block is one NVLink domain."""
    names = {block.name for block in blocks} | {node for block in blocks for node in block.nodes}
    top = "core"
    while top in names:
        top += "_"
    sizes = dict.fromkeys(len(block.nodes) for block in blocks)
    value = f"{len(blocks)} of {' or '.join(str(size) for size in sizes)} nodes"
    source, _, line = blocks[0].place.rpartition(":")
    notes.read("blocks", value, Setting("BlockName", "", source, int(line) if line.isdigit() else None))
    if not options.nvlink_blocks:
        why = "one switch for each block, and one above; --nvlink-blocks makes a block one NVLink domain"
        notes.assume("network of the blocks", "leaf switches", why)
        return [*blocks, NamedSwitch(top, blocks[0].place, tuple(block.name for block in blocks))]
    for block in blocks:
        if not block.nodes or template.gpus % len(block.nodes):
            raise ScenarioError(
                f"{block.place}: {block.name}: {len(block.nodes)} nodes cannot share the {template.gpus} GPUs of an "
                "NVLink domain; give another --node, such as gb200_nvl72 for 18 nodes of 4 GPUs"
            )
    why = f"each block is a node with {template.gpus} GPUs (--nvlink-blocks), at one switch"
    notes.assume("network of the blocks", "one switch", why)
    return [NamedSwitch(top, blocks[0].place, (), tuple(block.name for block in blocks))]


def _neighbours(
    layout: SlurmLayout, options: MachineOptions, notes: Notes
) -> tuple[str, tuple[str, ...], Sequence[str], Sequence[Cable]]:
    """Return the kind of a layout of neighbours, the nodes to import, all nodes with a switch, and the cables."""
    if layout.networks:
        network = layout.networks[0]
        notes.read("nodes", len(network.nodes), network.place)
        notes.read("cables between nodes", len(network.cables), network.place)
        rates = dict.fromkeys(format_bandwidth(rate) for _, _, rate, _ in network.cables if rate)
        if rates:
            notes.read("between neighbours", few(list(rates), 4), network.place)
        return "network", chosen_nodes(network.nodes, options), network.nodes, network.cables
    if layout.rings:
        tree = SwitchTree(layout.rings)
        hosts = chosen_nodes(tree.nodes, options)
        _note_tree(tree, SlurmLayout(blocks=layout.rings), notes)
        circles = [[node for node in ring.nodes if node in set(hosts)] for ring in layout.rings]
        pairs = [pair for circle in circles for pair in pairwise([*circle, circle[0]] if len(circle) > 2 else circle)]
        return "ring", hosts, hosts, [(a, b, None, 0.0) for a, b in pairs]
    toruses = layout.toruses
    nodes = [node for torus in toruses for node in torus.nodes.values()]
    twice = next((node for node, count in Counter(nodes).items() if count > 1), None)
    if twice is not None:
        raise ScenarioError(f"{toruses[0].place}: node {twice} has two places in a torus; remove one")
    source, _, line = toruses[0].place.rpartition(":")
    setting = Setting("torus3d", "", source, int(line) if line.isdigit() else None)
    notes.read("nodes", len(nodes), setting)
    notes.read("toruses", ", ".join(" x ".join(map(str, torus.dims)) for torus in toruses), setting)
    cables: list[Cable] = [(a, b, None, 0.0) for torus in toruses for a, b in torus.neighbours()]
    return "torus", chosen_nodes(nodes, options), nodes, cables


def _graph_of_neighbours(
    layout: SlurmLayout, template: NodeTemplate, reference: Reference, options: MachineOptions, notes: Notes
) -> Graph:
    """Return the nodes to import, a switch of each node, and the cables between the switches."""
    kind, hosts, nodes, cables = _neighbours(layout, options, notes)
    check_size(len(hosts) * len(template.vertices) + 3 * (len(nodes) + len(cables)), "choose nodes with --node-list")
    usual = options.level_bandwidth.get(1, template.rate)
    if not cables or any(rate is None for _, _, rate, _ in cables):
        why = "the total of a node's network cards; --level-bandwidth 1=RATE changes it"
        notes.assume(f"between neighbours of a {kind}", format_bandwidth(usual), why)
    graph = graph_of_nodes(template, hosts)
    for node in nodes:
        add_vertex(graph, f"{node}/{kind}", "switch", forwards=True)
    for node in hosts:
        for card, bandwidth in template.cards.items():
            add_cable(graph, f"{node}/{card}", f"{node}/{kind}", bandwidth, reference.options["nic_latency"])
    for a, b, rate, latency in cables:
        hop = reference.options["spine_latency"] + latency
        add_cable(graph, f"{a}/{kind}", f"{b}/{kind}", rate or usual, hop)
    return graph
