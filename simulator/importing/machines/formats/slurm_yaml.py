"""Slurm's topology.yaml: a list of topologies, each a tree of switches, blocks of nodes, a ring, a torus, or flat.

- topology: fabric
  cluster_default: true
  tree:
    switches:
      - {switch: leaf1, nodes: "gpu[001-008]"}
      - {switch: core, children: "leaf[1-2]"}
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any, Final, cast

from simulator.basics.document import Document, Key, parse
from simulator.basics.errors import ScenarioError, UnknownNameError, one_of
from simulator.importing.machines.hostlist import expand
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.slurm import USES, SlurmLayout, machine
from simulator.importing.machines.switch_tree import NamedSwitch
from simulator.importing.machines.torus import Coordinates, Torus, in_order
from simulator.importing.settings import Reason, Setting

_KINDS: Final = ("tree", "block", "ring", "torus3d", "flat")
# Largest number of nodes along an axis: Slurm's own limit.
_MOST_DIM: Final = 2**16 - 1
_KIND_KEY: Final = re.compile(rf"(?m)^[ \t]*(?:-[ \t]+)?(?:{'|'.join(_KINDS)})[ \t]*:")
_TOPOLOGY_KEY: Final = re.compile(r"(?m)^[ \t]*(?:-[ \t]+)?topology[ \t]*:")
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}")


def _is_mine(file: SourceFile) -> bool:
    return bool(_KIND_KEY.search(file.text) and _TOPOLOGY_KEY.search(file.text))


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    document = parse(file.text, file.name)
    if not isinstance(document.data, list) or not document.data:
        raise ScenarioError(f"{file.name}: must be a list of topologies")
    reader = _Reader(document)
    number = reader.chosen(options, notes)
    return machine(reader.layout(number, options, notes), file.name, options, notes)


class _Reader:
    """Reads the entries of a document, with their places in faults."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def _fault(self, key: Key, message: str) -> ScenarioError:
        return ScenarioError(self._document.fault(key, message).as_line(self._document.source))

    def _setting(self, key: Key, name: str) -> Setting:
        return Setting(name, "", self._document.source, self._document.place(key, of_key=True)[0])

    def _mapping(self, key: Key, data: Any, allowed: tuple[str, ...]) -> dict[str, Any]:
        """Return a mapping with known keys, or raise a fault."""
        if not isinstance(data, dict):
            raise self._fault(key, "must be a mapping (key: value)")
        for name in data:
            if name not in allowed:
                raise self._fault((*key, name), f"unknown key; {one_of(allowed, str(name))}")
        return data

    def _list(self, key: Key, data: Any) -> Iterator[tuple[Key, Any]]:
        if not isinstance(data, list):
            raise self._fault(key, "must be a list")
        for i, item in enumerate(data):
            yield (*key, i), item

    def _name(self, key: Key, data: Any) -> str:
        name = str(data)
        if isinstance(data, dict | list | bool | None) or not _NAME.fullmatch(name):
            raise self._fault(key, "must be a name of letters, digits, '_', '.' and '-'")
        return name

    def _hosts(self, key: Key, data: Any) -> tuple[str, ...]:
        if not isinstance(data, str | int) or isinstance(data, bool):
            raise self._fault(key, "must be a hostlist such as gpu[001-008]")
        return expand(str(data), self._place(key))

    def _place(self, key: Key) -> str:
        return f"{self._document.source}:{self._document.place(key)[0] or 1}"

    def chosen(self, options: MachineOptions, notes: Notes) -> int:
        """Return the number of the topology to import: that of the option, the default one, or the first."""
        names: list[str] = []
        default = 0
        for key, entry in self._list((), self._document.data):
            data = self._mapping(key, entry, ("topology", "cluster_default", *_KINDS))
            names.append(self._name((*key, "topology"), data.get("topology")))
            if data.get("cluster_default") is True:
                default = len(names) - 1
        if options.section is not None and options.section not in names:
            raise UnknownNameError("--section", options.section, names)
        number = default if options.section is None else names.index(options.section)
        notes.read("topology", names[number], self._setting((number, "topology"), "topology"))
        for other, name in enumerate(names):
            if other != number:
                why = f"another topology of the cluster; --section {name} imports it"
                notes.ignore(self._setting((other, "topology"), f"topology {name}"), Reason.NOT_MODELLED, why)
        return number

    def layout(self, number: int, options: MachineOptions, notes: Notes) -> SlurmLayout:
        """Return the layout of a topology; the nodes of a flat one are those of --node-list."""
        entry = self._document.data[number]
        kinds = [kind for kind in _KINDS if kind in entry]
        if len(kinds) != 1:
            raise self._fault((number,), f"must have one of {', '.join(_KINDS)}")
        key: Key = (number, kinds[0])
        if kinds[0] == "tree":
            data = self._mapping(key, entry["tree"], ("switches",))
            return SlurmLayout(switches=tuple(self._switches((*key, "switches"), data.get("switches"))))
        if kinds[0] == "block":
            data = self._mapping(key, entry["block"], ("block_sizes", "blocks"))
            if "block_sizes" in data:
                setting = self._setting((*key, "block_sizes"), "block_sizes")
                notes.ignore(setting, Reason.NO_MEANING, "nodes of a block that jobs are planned for")
            return SlurmLayout(blocks=tuple(self._nodes((*key, "blocks"), data.get("blocks"), "block")))
        if kinds[0] == "ring":
            data = self._mapping(key, entry["ring"], ("rings",))
            return SlurmLayout(rings=tuple(self._nodes((*key, "rings"), data.get("rings"), "ring")))
        if kinds[0] == "torus3d":
            data = self._mapping(key, entry["torus3d"], ("toruses",))
            return SlurmLayout(toruses=tuple(self._toruses((*key, "toruses"), data.get("toruses"), notes)))
        if entry["flat"] is not True:
            raise self._fault(key, "must be true")
        if options.node_list is None:
            raise self._fault(key, "names no nodes; give them with --node-list, such as gpu[001-008]")
        notes.assume("network of a flat topology", "one switch", "Slurm treats all nodes alike, and names no switch")
        return SlurmLayout(
            switches=(NamedSwitch("switch", self._place(key), (), expand(options.node_list, "--node-list")),)
        )

    def _toruses(self, key: Key, data: Any, notes: Notes) -> Iterator[Torus]:
        for at, entry in self._list(key, data):
            torus = self._mapping(at, entry, ("torus", "name", "dims", "nodes", "regions", "placements"))
            name_key = "torus" if "torus" in torus else "name"
            name = self._name((*at, name_key), torus.get(name_key))
            dims = self._coordinates((*at, "dims"), torus.get("dims"), least=1)
            if ("nodes" in torus) == ("regions" in torus):
                raise self._fault(at, "must have either nodes or regions")
            if "placements" in torus:
                why = "boxes of nodes that jobs are planned for"
                notes.ignore(self._setting((*at, "placements"), "placements"), Reason.NO_MEANING, why)
            nodes: dict[Coordinates, str] = {}
            boxes = [(at, torus)] if "nodes" in torus else list(self._list((*at, "regions"), torus["regions"]))
            for place, box in boxes:
                for coordinates, node in self._box(place, box, entire="nodes" in torus).items():
                    if coordinates in nodes:
                        raise self._fault(place, f"has a node at {coordinates}, where {nodes[coordinates]} is")
                    if any(position >= size for position, size in zip(coordinates, dims, strict=True)):
                        raise self._fault(place, f"has a node at {coordinates}, outside the torus of {dims}")
                    nodes[coordinates] = node
            yield Torus(name, self._place(at), dims, nodes)

    def _box(self, key: Key, entry: Any, *, entire: bool) -> dict[Coordinates, str]:
        """Return the nodes of a whole torus, or of a region at an anchor, by their coordinates."""
        box = entry if entire else self._mapping(key, entry, ("anchor", "dims", "nodes"))
        dims = self._coordinates((*key, "dims"), box.get("dims"), least=1)
        anchor = (0, 0, 0) if entire else self._coordinates((*key, "anchor"), box.get("anchor"), least=0)
        nodes = self._hosts((*key, "nodes"), box.get("nodes"))
        if len(nodes) != prod(dims):
            raise self._fault((*key, "nodes"), f"has {len(nodes)} nodes; must have {prod(dims)}, as dims say")
        return in_order(nodes, dims, anchor)

    def _coordinates(self, key: Key, data: Any, *, least: int) -> Coordinates:
        """Return three whole numbers {x, y, z}."""
        axes = self._mapping(key, data, ("x", "y", "z"))
        numbers = [axes.get(axis) for axis in "xyz"]
        if any(type(number) is not int or not least <= number <= _MOST_DIM for number in numbers):
            raise self._fault(key, f"must have x, y and z, each a whole number of {least} .. {_MOST_DIM:,}")
        return cast("Coordinates", tuple(numbers))

    def _switches(self, key: Key, data: Any) -> Iterator[NamedSwitch]:
        for at, entry in self._list(key, data):
            switch = self._mapping(at, entry, ("switch", "children", "nodes"))
            below = {name: self._hosts((*at, name), switch[name]) for name in ("children", "nodes") if name in switch}
            if not below:
                raise self._fault(at, "must have children or nodes")
            name = self._name((*at, "switch"), switch.get("switch"))
            yield NamedSwitch(name, self._place(at), below.get("children", ()), below.get("nodes", ()))

    def _nodes(self, key: Key, data: Any, kind: str) -> Iterator[NamedSwitch]:
        for at, entry in self._list(key, data):
            fields = self._mapping(at, entry, (kind, "nodes"))
            name = self._name((*at, kind), fields.get(kind))
            yield NamedSwitch(name, self._place(at), (), self._hosts((*at, "nodes"), fields.get("nodes")))


FORMAT: Final = MachineFormat(name="Slurm topology.yaml", is_mine=_is_mine, read=_read, uses=USES | {"section"})
