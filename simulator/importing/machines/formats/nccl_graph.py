"""NCCL's graphs as XML, as NCCL_GRAPH_DUMP_FILE writes them: the order of its rings, and their rates.

    graphs > graph id (0: rings) nchannels speedintra (GB/s of a channel) > channel > net dev, gpu dev, ..., net dev

The file is read beside the topology. The GPUs take the order of the first ring. All channels together are the largest
rate of a rank inside its node. Trees and graphs of switches are chosen by the scenario's algorithm.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.xml_elements import Element, XmlFaultError, outermost_name, read_tree
from simulator.cluster.graph import Graph, empty, of_kind
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Reason, Setting

_RINGS: Final = "0"
# Operations that NCCL carries out on its rings.
_OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter")
_MOST_CHANNELS: Final = 64
_MOST_SPEED: Final = 100_000
_SPEED: Final = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})?")
_USED: Final = ("id", "nchannels", "speedintra")


def _is_mine(file: SourceFile) -> bool:
    return outermost_name(file.text) == "graphs"


def _read(file: SourceFile, _: MachineOptions, notes: Notes, machine: Machine | None) -> Machine:
    if machine is None:
        raise TypeError("a companion gets the machine of another file")
    root = read_tree(file.text.encode(), file.name)
    try:
        return _with_rings(root, machine, file.name, notes)
    except XmlFaultError as fault:
        raise ScenarioError(one_line(f"{file.name}:{fault.line}: {fault}")) from fault


def _with_rings(root: Element, machine: Machine, source: str, notes: Notes) -> Machine:
    """Return the machine with the order and the rate of the rings; unchanged if the file has no rings."""
    rings = None
    for graph in root.children:
        name = graph.attributes.get("id", "")
        setting = Setting(f"{graph.name} {name[:20]}", "", source, graph.line)
        if graph.name != "graph":
            notes.ignore(setting, Reason.UNKNOWN)
        elif name == _RINGS and rings is None:
            rings = graph
        else:
            notes.ignore(setting, Reason.NOT_MODELLED, "trees and switches are those of the scenario's algorithm")
    channels = [] if rings is None else [element for element in rings.children if element.name == "channel"]
    if rings is None or not channels:
        return machine
    for attribute in sorted(rings.attributes.keys() - set(_USED)):
        notes.ignore(Setting(f"graph {attribute}", "", source, rings.line), Reason.NO_MEANING)
    orders = [_order(channel, machine.graph) for channel in channels]
    _note_orders(orders, Setting("channel", "", source, channels[0].line), notes)
    count, speed = rings.whole("nchannels", 1, _MOST_CHANNELS), _speed(rings)
    setting = Setting("nchannels, speedintra", "", source, rings.line)
    notes.read("rate of a rank on the rings", f"{count} x {speed:g} GB/s", setting)
    constants = {
        "algorithm": "ring",
        "rate_cap": f"{count * speed:g} GB/s",
        "source": "NCCL's graph file: channels x speedintra; what NCCL plans with, not measured",
    }
    collectives = dict(machine.collectives) | {name: {"one_node": constants} for name in _OPERATIONS}
    return replace(machine, graph=_reordered(machine.graph, orders[0]), collectives=collectives)


def _speed(rings: Element) -> float:
    """Return the rate of a channel inside a node [GB/s]."""
    raw = rings.attributes.get("speedintra", "")
    if not _SPEED.fullmatch(raw) or not 0 < float(raw) <= _MOST_SPEED:
        raise XmlFaultError(rings.line, f"graph: speedintra: got {raw[:40]!r}; must be a number of GB/s, more than 0")
    return float(raw)


def _order(channel: Element, graph: Graph) -> list[int]:
    """Return the numbers of a channel's GPUs, in its order; XmlFaultError unless they are the GPUs of a node."""
    gpus = [element for element in channel.children if element.name == "gpu"]
    order = [gpu.whole("dev" if "dev" in gpu.attributes else "rank", 0) for gpu in gpus]
    have = _node_size(graph)
    if sorted(order) != list(range(have)):
        message = f"has {len(order)} GPUs; must name each of 0 .. {have - 1} once, the GPUs of the topology"
        raise XmlFaultError(channel.line, f"channel: {message}")
    return order


def _node_size(graph: Graph) -> int:
    gpus = of_kind(graph, "gpu")
    nodes = {graph.nodes[name].get("node") for name in gpus}
    return len(gpus) // len(nodes)


def _note_orders(orders: Sequence[Sequence[int]], setting: Setting, notes: Notes) -> None:
    notes.read("order of the ranks", " ".join(str(number) for number in orders[0]), setting)
    if any(_from_zero(order) not in (_from_zero(orders[0]), _from_zero(orders[0][::-1])) for order in orders):
        why = "channels with several orders; all ranks follow the first"
        notes.ignore(setting, Reason.NOT_MODELLED, why)


def _from_zero(order: Sequence[int]) -> list[int]:
    """Return a ring's order from GPU 0 on."""
    start = order.index(0)
    return [*order[start:], *order[:start]]


def _reordered(graph: Graph, order: Sequence[int]) -> Graph:
    """Return a graph in which the GPUs of each node stand in an order; GPUs become ranks in the graph's order."""
    gpus, size = of_kind(graph, "gpu"), len(order)
    first = [gpus[node + number] for node in range(0, len(gpus), size) for number in order]
    changed = empty()
    for name in [*first, *(name for name in graph if name not in set(gpus))]:
        changed.add_node(name, **graph.nodes[name])
    changed.add_edges_from(graph.edges(data=True))
    return changed


FORMAT: Final = MachineFormat(
    name="NCCL graph", is_mine=_is_mine, read=_read, uses=frozenset(), companion=True
)  # fmt: skip
