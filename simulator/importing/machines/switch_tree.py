"""How do named switches join the nodes of a cluster? Who is below whom comes from the file, rates from the user.

A switch of the file is one vertex, and all cables between two switches are one link. If no bandwidth is given, a switch
sends up as much as it receives from below, divided by the oversubscription at leaf switches.

    leaf1 -- pod1 -- core        level 1: leaf1, leaf2; level 2: pod1; level 3: core
    leaf2 -- pod1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.errors import ScenarioError, few, one_of
from simulator.basics.units import format_bandwidth
from simulator.cluster.graph import Graph, add_cable, add_vertex, empty
from simulator.importing.machines.hostlist import expand
from simulator.importing.machines.limits import MOST_NODES, check_size
from simulator.importing.machines.node_template import NodeTemplate
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference

_MOST_SWITCHES: Final = 10_000


@dataclass(frozen=True, slots=True)
class NamedSwitch:
    """A switch of a file: its name, its place in the file, and the names of switches and nodes below."""

    name: str
    place: str
    switches: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()


class SwitchTree:
    """Switches of a file with their levels and parents.

    Raises
    ------
    ScenarioError
        A switch occurs twice, is unknown, or is below itself; a name is both a switch and a node; or there are too many
        names.
    """

    def __init__(self, switches: Sequence[NamedSwitch]) -> None:
        self.switches = _by_name(switches)
        self.nodes = tuple(dict.fromkeys(node for switch in switches for node in switch.nodes))
        if len(self.nodes) > MOST_NODES:
            raise ScenarioError(f"has {len(self.nodes):,} nodes; must have at most {MOST_NODES:,}")
        self.parents: dict[str, list[str]] = {name: [] for name in self.switches}
        for switch in switches:
            for child in dict.fromkeys(switch.switches):
                if child not in self.switches:
                    raise ScenarioError(
                        f"{switch.place}: {switch.name}: got switch {child!r}; {one_of(self.switches, child)}"
                    )
                self.parents[child].append(switch.name)
        both = [name for name in self.nodes if name in self.switches]
        if both:
            raise ScenarioError(f"{self.switches[both[0]].place}: {both[0]}: is a switch and a node; rename one")
        self.levels = self._levels()

    def _levels(self) -> dict[str, int]:
        """Return the level of each switch: 1 without switches below, else one more than the highest of these."""
        levels: dict[str, int] = {}
        waiting = {name: len(set(switch.switches)) for name, switch in self.switches.items()}
        ready = [name for name, count in waiting.items() if not count]
        while ready:
            name = ready.pop(0)
            levels[name] = 1 + max((levels[child] for child in self.switches[name].switches), default=0)
            for parent in self.parents[name]:
                waiting[parent] -= 1
                if not waiting[parent]:
                    ready.append(parent)
        circle = [name for name in self.switches if name not in levels]
        if circle:
            raise ScenarioError(
                f"{self.switches[circle[0]].place}: {circle[0]}: is below itself; a dragonfly, whose switches name "
                "each other, is no tree: write a topology with builder: dragonfly"
            )
        return levels

    def uplinks(self, node_rate: float, options: MachineOptions) -> dict[str, float]:
        """Return the bandwidth from each switch to all switches above together [B/s]."""
        homes = self.leaves_of()
        below = dict.fromkeys(self.switches, 0.0)
        for leaves in homes.values():
            for leaf in leaves:
                below[leaf] += node_rate / len(leaves)
        uplinks: dict[str, float] = {}
        for name, level in sorted(self.levels.items(), key=lambda entry: entry[1]):
            default = below[name] / (options.oversubscription if self.switches[name].nodes else 1)
            uplinks[name] = options.level_bandwidth.get(level, default)
            for parent in self.parents[name]:
                below[parent] += uplinks[name] / len(self.parents[name])
        return uplinks

    def leaves_of(self) -> dict[str, list[str]]:
        """Return the switches above each node, in the file's order; several are rails."""
        leaves: dict[str, list[str]] = {node: [] for node in self.nodes}
        for name, switch in self.switches.items():
            for node in dict.fromkeys(switch.nodes):
                leaves[node].append(name)
        return leaves


def _by_name(switches: Sequence[NamedSwitch]) -> dict[str, NamedSwitch]:
    if len(switches) > _MOST_SWITCHES:
        raise ScenarioError(
            f"{switches[0].place}: has {len(switches):,} switches; must have at most {_MOST_SWITCHES:,}"
        )
    by_name: dict[str, NamedSwitch] = {}
    for switch in switches:
        first = by_name.setdefault(switch.name, switch)
        if first is not switch:
            raise ScenarioError(f"{switch.place}: {switch.name}: occurs twice, first in {first.place}")
    return by_name


def chosen_nodes(nodes: Sequence[str], options: MachineOptions) -> tuple[str, ...]:
    """Return the nodes to import: the nodes of --node-list in its order, or else all nodes.

    Raises
    ------
    ScenarioError
        The option names a node that the file does not have.
    """
    if options.node_list is None:
        return tuple(nodes)
    all_nodes, hosts = set(nodes), tuple(dict.fromkeys(expand(options.node_list, "--node-list")))
    unknown = [name for name in hosts if name not in all_nodes]
    if unknown:
        raise ScenarioError(f"--node-list: got {few(unknown, 3)}; {one_of(list(nodes)[:1000], unknown[0])}")
    return hosts


def graph_of_tree(
    tree: SwitchTree, template: NodeTemplate, reference: Reference, options: MachineOptions, notes: Notes
) -> Graph:
    """Return the graph of the nodes to import, and of the switches above them; note the bandwidths between switches."""
    uplinks = tree.uplinks(template.rate, options)
    hosts = chosen_nodes(tree.nodes, options)
    check_size(
        len(hosts) * (len(template.vertices) + len(template.cables) // 2 + len(template.cards)) + len(tree.switches),
        "choose nodes with --node-list",
    )
    homes = tree.leaves_of()
    used = _above(tree, {leaf for node in hosts for leaf in homes[node]})
    graph = graph_of_nodes(template, hosts)
    for name in used:
        add_vertex(graph, name, "switch", forwards=True)
    latency = reference.options["nic_latency"]
    for node in hosts:
        leaves = homes[node]
        for i, (card, rate) in enumerate(template.cards.items()):
            add_cable(graph, f"{node}/{card}", leaves[i % len(leaves)], rate, latency)
    for name in used:
        for parent in tree.parents[name]:
            share = uplinks[name] / len(tree.parents[name])
            add_cable(graph, name, parent, share, reference.options["spine_latency"])
    _note_levels(tree, used, uplinks, options, notes)
    return graph


def graph_of_nodes(template: NodeTemplate, nodes: Iterable[str]) -> Graph:
    """Return a graph with the inside of nodes, and nothing between them."""
    graph = empty()
    for node in nodes:
        template.add_gpus(graph, node)
    for node in nodes:
        template.add_rest(graph, node)
    return graph


def _above(tree: SwitchTree, leaves: Iterable[str]) -> list[str]:
    """Return switches and all switches above them, in the file's order."""
    names = set(leaves)
    waiting = list(names)
    while waiting:
        new = [parent for parent in tree.parents[waiting.pop()] if parent not in names]
        names.update(new)
        waiting += new
    return [name for name in tree.switches if name in names]


def _note_levels(
    tree: SwitchTree, used: Sequence[str], uplinks: Mapping[str, float], options: MachineOptions, notes: Notes
) -> None:
    """Note the bandwidth up from the switches of each level."""
    for level in sorted({tree.levels[name] for name in used if tree.parents[name]}):
        rates = [uplinks[name] for name in used if tree.levels[name] == level and tree.parents[name]]
        low, high = format_bandwidth(min(rates)), format_bandwidth(max(rates))
        value = low if low == high else f"{low} to {high}"
        if level in options.level_bandwidth:
            why = "--level-bandwidth"
        else:
            ratio = f", {options.oversubscription:g} to 1" if level == 1 else ""
            why = f"as much as from below{ratio}; --level-bandwidth {level}=RATE changes it"
        notes.assume(f"up from each switch of level {level}", value, why)
    for level in options.level_bandwidth:
        if level not in {tree.levels[name] for name in tree.switches if tree.parents[name]}:
            raise ScenarioError(f"--level-bandwidth: got level {level}; no switch of this level has a switch above")
