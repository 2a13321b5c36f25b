"""The topology of NCCL and RCCL as XML: dumps of NCCL_TOPO_DUMP_FILE, and files that clouds ship for NCCL_TOPO_FILE.

    system > cpu (a NUMA node) > pci (bridge) > ... > pci > gpu > nvlink, c2c
                                                    > pci > nic > net

A dump has the elements gpu, nvlink and net. A shipped file is a hint for NCCL's choice of paths: it has only cpu and
pci, and the class of a pci tells GPUs and network cards. NVLinks, rates of the network and kinds of GPUs are then
assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.units import format_bandwidth
from simulator.basics.xml_elements import Element, XmlFaultError, outermost_name, read_tree
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.machines.gpu_kinds import gpu_kind
from simulator.importing.machines.links import Links, assumed_links, counted_links
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.network import graph_of
from simulator.importing.machines.node_parts import Device, NodeParts, Place, PlaceKind, nearest_text
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference, reference_of
from simulator.importing.settings import Reason, Setting

# Most GPUs, and most network cards.
_MOST_DEVICES: Final = 1024
_MOST_LINKS: Final = 1024
# Versions of the file: NCCL's and RCCL's.
_VERSIONS: Final = ("1", "2")
# Rate of a lane in NCCL's table kvDictPciGen [100 Mb/s], by GT/s; NCCL takes the third generation for other texts.
_LANE: Final = MappingProxyType({"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480})
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")
_USUAL_LANE: Final = 60
_USUAL_WIDTH: Final = 16
_MOST_WIDTH: Final = 64
# First characters of PCI classes.
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_CARD_CLASSES: Final = ("0x0207", "0x0200")
_BRIDGE_CLASS: Final = "0x0604"
_SWITCH_CLASS: Final = "0x0680"
_HOST_LINK_CLASS: Final = "0x068001"
# Part of the bus address that NCCL writes for an NVSwitch which is not visible in a virtual machine.
_ANY_SWITCH: Final = "ffff:ff"
_LINKS: Final = ("nvlink", "xgmi")
# Bandwidth between sockets that NCCL assumes [B/s]: Intel's processors by model, AMD's, others.
_INTEL: Final = MappingProxyType({"85": 10e9, "143": 22e9, "207": 40e9})
_AMD: Final = 16e9
_OTHER_SOCKET: Final = 10e9
# A faster card does not exist; HPE's cards are written in Kb/s [Mb/s].
_FASTEST: Final = 3_200_000
# NCCL's rates of PCIe are 76 % of the raw rates; below this share, the file has another generation.
_CLOSE: Final = 0.7
# Attributes with an effect, by element; then attributes without meaning for a topology.
_USED: Final = MappingProxyType(
    {
        "system": ("version",),
        "cpu": ("numaid", "vendor", "familyid", "modelid", "host_hash"),
        "pci": ("busid", "class", "link_speed", "link_width", "vendor", "device"),
        "gpu": ("dev", "sm", "gcn"),
        "nvlink": ("target", "count", "tclass"),
        "xgmi": ("target", "count", "tclass"),
        "c2c": ("bw", "count"),
        "nic": (),
        "net": ("name", "dev", "speed"),
    }
)
_IDLE: Final = (
    "affinity", "arch", "subsystem_vendor", "subsystem_device", "rank", "port", "guid", "maxconn", "keep",
    "latency", "rail", "plane", "name", "net", "gin",
)  # fmt: skip
# Attributes that are not modelled: the usual values, which change nothing, and the simulation of other values.
_NOT_MODELLED: Final = MappingProxyType(
    {
        "coll": (("", "0"), "sums in the network's switches (SHARP) are not simulated"),
        "gdr": (("", "1", "-1"), "network cards reach the memory of GPUs directly (GPUDirect)"),
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class _Leaf:
    """A GPU or a network card of the file: element gpu, net or pci; its pci, if any; and the number of its place."""

    element: Element
    pci: Element | None
    place: int


@dataclass(slots=True)
class _Found:
    """Places, GPUs and cards of a file in document order, lines of the first place of each kind, and NVSwitches."""

    places: list[Place] = field(default_factory=list)
    lines: dict[PlaceKind, int] = field(default_factory=dict)
    gpus: list[_Leaf] = field(default_factory=list)
    cards: list[_Leaf] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)  # PCI addresses


def _is_mine(file: SourceFile) -> bool:
    return outermost_name(file.text) == "system"


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    root = read_tree(file.text.encode(), file.name)
    try:
        return _Reader(file.name, options, notes).read(root)
    except XmlFaultError as fault:
        raise ScenarioError(one_line(f"{file.name}:{fault.line}: {fault}")) from fault


class _Reader:
    """Reads the elements of a file into a machine."""

    def __init__(self, source: str, options: MachineOptions, notes: Notes) -> None:
        self._source, self._options, self._notes = source, options, notes
        self._found = _Found()
        self._is_dump = False

    def read(self, root: Element) -> Machine:
        found, notes = self._found, self._notes
        version = root.attributes.get("version", "1")
        if version not in _VERSIONS:
            raise XmlFaultError(root.line, f"system: version: got {version!r}; must be 1 (NCCL) or 2 (RCCL)")
        self._is_dump = any(element.name in ("gpu", "net") for element in _all(root))
        self._note_attributes(root)
        for cpu in root.children:
            self._walk_cpu(cpu)
        if not found.gpus:
            raise XmlFaultError(root.line, "has no GPU: neither an element gpu nor a pci of class 0x0302")
        for several in (found.gpus, found.cards):
            _sort(several)
        if not self._is_dump:
            notes.assume("order of GPUs and network cards", "by PCI address", "the file has no numbers of devices")
        kind = self._gpu_kind()
        reference = reference_of(kind, self._options)
        self._note_counts()
        parts = self._parts(reference)
        socket = self._socket(root.children[0])
        return Machine(graph_of(parts, reference, socket, self._options, notes), kind)

    def _setting(self, element: Element, attribute: str, value: object = None) -> Setting:
        written = element.attributes.get(attribute, "") if value is None else value
        return Setting(f"{element.name} {attribute}".rstrip(), written, self._source, element.line)

    # The tree of the file

    def _walk_cpu(self, cpu: Element) -> None:
        if cpu.name != "cpu":
            raise XmlFaultError(cpu.line, f"got element {cpu.name!r} inside system; must be cpu")
        # A numaid of -1 is a machine without NUMA.
        number = cpu.whole("numaid", -1) if "numaid" in cpu.attributes else -1
        place = Place(PlaceKind.NUMA, f"numa {number}", host=cpu.attributes.get("host_hash", ""))
        self._walk(cpu, self._add_place(place, cpu.line))

    def _add_place(self, place: Place, line: int) -> int:
        self._found.places.append(place)
        self._found.lines.setdefault(place.kind, line)
        return len(self._found.places) - 1

    def _walk(self, above: Element, place: int, pci: Element | None = None) -> None:
        """Read the elements below a place; `pci` is the device that contains them, if any."""
        found = self._found
        for element in above.children:
            if element.name == "pci":
                self._walk_pci(element, place)
            elif element.name == "gpu":
                self._add(found.gpus, element, pci, place)
            elif element.name == "nic":
                for net in element.children:
                    if net.name == "net":
                        self._add(found.cards, net, pci, place)

    def _add(self, several: list[_Leaf], element: Element, pci: Element | None, place: int) -> None:
        several.append(_Leaf(element, pci, place))
        if len(several) > _MOST_DEVICES:
            raise XmlFaultError(element.line, f"has more than {_MOST_DEVICES} GPUs or network cards")

    def _walk_pci(self, pci: Element, place: int) -> None:
        found, kind = self._found, pci.attributes.get("class", "")
        busid = self._busid(pci)
        names = {child.name for child in pci.children}
        if kind.startswith(_BRIDGE_CLASS) or "pci" in names:
            self._walk(pci, self._add_place(Place(PlaceKind.BRIDGE, busid, place, self._rate(pci)), pci.line))
        elif names & {"gpu", "nic"}:
            self._walk(pci, place, pci)
        elif kind.startswith(_SWITCH_CLASS):
            found.switches.add(busid)
        elif self._is_dump:
            self._notes.ignore(self._setting(pci, "class"), Reason.NO_MEANING, "device without gpu and net")
        elif self._is_gpu(pci, kind, busid):
            self._add(found.gpus, pci, pci, place)
        elif kind.startswith(_CARD_CLASSES) or not kind:
            self._add(found.cards, pci, pci, place)
        else:
            self._notes.ignore(self._setting(pci, "class"), Reason.NO_MEANING, "neither a GPU nor a network card")

    def _busid(self, pci: Element) -> str:
        busid = pci.attributes.get("busid", "").lower()
        if not re.fullmatch(r"[0-9a-f:.]{4,32}", busid):
            raise XmlFaultError(pci.line, f"pci: busid: got {busid[:40]!r}; must be a PCI address such as 0000:10:1c.0")
        return busid

    def _is_gpu(self, pci: Element, kind: str, busid: str) -> bool:
        if kind:
            return kind.startswith(_GPU_CLASSES)
        # The file of Amazon's g5 has no classes.
        if self._options.cards is None:
            raise XmlFaultError(
                pci.line,
                f"pci {busid}: has no class, and may be a GPU or a network card; give --card BUSID for each network "
                "card, or --card none",
            )
        return busid not in self._options.cards

    # Figures

    def _rate(self, pci: Element) -> float:
        """Return the bandwidth of a pci's link as NCCL takes it [B/s], and note its origin."""
        given = self._options.pcie_bandwidth
        if given:
            self._notes.read(
                "PCIe bandwidth", format_bandwidth(given), Setting("--pcie-bandwidth", given, "command line")
            )
            return given
        speed = _SPEED.fullmatch(pci.attributes.get("link_speed", ""))
        lane = None if speed is None else _LANE.get(speed[1].removesuffix(".0"))
        width = pci.whole("link_width", 0, _MOST_WIDTH) if pci.attributes.get("link_width") else 0
        rate = (width or _USUAL_WIDTH) * (lane or _USUAL_LANE) / 80 * 1e9
        if lane is None or not width:
            why = "no usable link_speed and link_width; NCCL takes x16 of generation 3; --pcie-bandwidth changes it"
            self._notes.assume("PCIe bandwidth", format_bandwidth(rate), why)
        else:
            part = f"PCIe, {pci.attributes['link_speed']} x{width}"
            self._notes.read(part, f"{format_bandwidth(rate)}, as in NCCL", self._setting(pci, "link_speed"))
        return rate

    def _gpu_kind(self) -> str:
        first = self._found.gpus[0]
        element, pci = first.element, first.pci
        device = architecture = None
        if pci is not None and {"vendor", "device"} <= pci.attributes.keys():
            numbers = [pci.attributes[name].lower().removeprefix("0x") for name in ("vendor", "device")]
            device = self._setting(pci, "device", ":".join(numbers))
        for name in ("sm", "gcn"):
            # RCCL writes both, and its `sm` is the number of compute units.
            if name in element.attributes:
                architecture = self._setting(element, name, f"{name} {element.attributes[name]}")
        kind = gpu_kind(self._options, self._notes, device, architecture)
        if kind is None:
            told = architecture or device
            raise XmlFaultError(
                element.line,
                f"GPU {told.value if told else ''} is no known GPU of the catalog; give --gpu with the GPU, or the "
                "most similar one",
            )
        return kind

    def _network(self, card: Element, reference: Reference) -> float:
        """Return a network card's bandwidth to its switch [B/s], and note its origin."""
        notes = self._notes
        if card.attributes.get("speed", "0") in ("", "0", "-1") or self._options.nic_bandwidth:
            return reference.assumed("nic_bandwidth", self._options.nic_bandwidth, "network card", notes)
        speed = card.whole("speed", 1)
        if speed > _FASTEST:
            rate = speed * 1e3 / 8
            notes.assume("network card", format_bandwidth(rate), f"no card has {speed} Mb/s; read as Kb/s")
            return rate
        notes.read("network card", format_bandwidth(speed * 1e6 / 8), self._setting(card, "speed"))
        return speed * 1e6 / 8

    def _socket(self, cpu: Element) -> float:
        """Return the bandwidth between two NUMA nodes that NCCL assumes for the processor [B/s]."""
        given = self._options.socket_bandwidth
        if given:
            setting = Setting("--socket-bandwidth", given, "command line")
            self._notes.read("between NUMA nodes", format_bandwidth(given), setting)
            return given
        vendor, model = cpu.attributes.get("vendor", ""), cpu.attributes.get("modelid", "")
        rate = _AMD if vendor == "AuthenticAMD" else _INTEL.get(model) if vendor == "GenuineIntel" else None
        if self._count(PlaceKind.NUMA) > 1:
            processor = f"{vendor} model {model}" if vendor else "unknown processors"
            why = f"what NCCL assumes for {processor}; --socket-bandwidth changes it"
            self._notes.assume("between NUMA nodes", format_bandwidth(rate or _OTHER_SOCKET), why)
        return rate or _OTHER_SOCKET

    # Parts of the node

    def _parts(self, reference: Reference) -> NodeParts:
        found = self._found
        gpus = [self._device(leaf, reference) for leaf in found.gpus]
        cards = [
            replace(self._device(leaf, reference), network=self._network(leaf.element, reference))
            for leaf in found.cards
        ]
        parts = NodeParts(tuple(found.places), tuple(gpus), tuple(cards), self._links(gpus, reference))
        self._note_distances(parts)
        self._warn_of_slow_pcie(parts, reference)
        return parts

    def _device(self, leaf: _Leaf, reference: Reference) -> Device:
        """Return a GPU or a network card with its bandwidth to its place."""
        element, pci = leaf.element, leaf.pci
        name = element.attributes.get("name") or (element.name if pci is None else self._busid(pci))
        if pci is None:
            part = f"PCIe of {name}"
            rate = reference.assumed("pcie_bandwidth", self._options.pcie_bandwidth, part, self._notes)
        else:
            rate = self._rate(pci)
        for link in element.children:
            # NVLink to the processor, of Grace: the GPU reaches its host at this rate [MB/s in the file].
            if link.name == "c2c":
                rate = link.whole("bw", 1) * link.whole("count", 1, _MOST_LINKS) * 1e6
                self._notes.read("NVLink to the processor", format_bandwidth(rate), self._setting(link, "bw"))
        return Device(name, leaf.place, rate)

    def _links(self, gpus: list[Device], reference: Reference) -> Links:
        """Return direct links between GPUs and links to the NVSwitch."""
        if self._options.inside is not None or self._lacks_links(reference):
            return assumed_links(len(gpus), reference, self._options, self._notes)
        number = {gpu.name: i for i, gpu in enumerate(gpus)}
        peers, switch, setting = dict[tuple[int, int], int](), dict[int, int](), None
        for i, leaf in enumerate(self._found.gpus):
            for link in leaf.element.children:
                if link.name not in _LINKS:
                    continue
                target, count = link.attributes.get("target", "").lower(), link.whole("count", 1, _MOST_LINKS)
                there = number.get(target)
                if there is not None and there != i:
                    pair = (min(i, there), max(i, there))
                    peers[pair] = max(count, peers.get(pair, 0))
                elif there is None and self._is_switch(link, target):
                    switch[i] = switch.get(i, 0) + count
                else:
                    self._ignore_link(link, itself=there is not None)
                    continue
                setting = setting or self._setting(link, "count")
        if setting is None:
            return Links()
        if switch and len(switch) < len(gpus):
            self._notes.warn(
                f"NVLink: {len(gpus) - len(switch)} of {len(gpus)} GPUs have no link to the NVSwitch in the file"
            )
        return counted_links(peers, switch, setting, reference, self._options, self._notes)

    def _lacks_links(self, reference: Reference) -> bool:
        """Return True if the file has no links although the GPU's kind has: it is no dump, or a hint with GPUs.

        RCCL's files are dumps: without links, the GPUs have none.
        """
        if not self._is_dump:
            return True
        elements = [leaf.element for leaf in self._found.gpus]
        linked = any(link.name in _LINKS for element in elements for link in element.children)
        return bool(reference.links) and not linked and not any("gcn" in element.attributes for element in elements)

    def _is_switch(self, link: Element, target: str) -> bool:
        kind = link.attributes.get("tclass", "")
        known = kind.startswith(_SWITCH_CLASS) and kind != _HOST_LINK_CLASS
        return known or _ANY_SWITCH in target or target in self._found.switches

    def _ignore_link(self, link: Element, *, itself: bool) -> None:
        if itself:
            why = "leads to the GPU itself, as some virtual machines write it"
        elif link.attributes.get("tclass") == _HOST_LINK_CLASS:
            why = "NVLink to the processor; the GPU's PCIe rate is simulated"
        else:
            why = "the target is no GPU of the file"
        self._notes.ignore(self._setting(link, "target"), Reason.NOT_MODELLED, why)

    # Lists of the import

    def _note_attributes(self, root: Element) -> None:
        for element in _all(root):
            used = _USED.get(element.name)
            if used is None:
                self._notes.ignore(self._setting(element, ""), Reason.UNKNOWN)
                continue
            for attribute in sorted(element.attributes.keys() - set(used)):
                setting = self._setting(element, attribute)
                usual, why = _NOT_MODELLED.get(attribute, ((), ""))
                if why and element.attributes[attribute] not in usual:
                    self._notes.ignore(setting, Reason.NOT_MODELLED, why)
                else:
                    known = attribute in _IDLE or bool(why)
                    self._notes.ignore(setting, Reason.NO_MEANING if known else Reason.UNKNOWN)

    def _count(self, kind: PlaceKind) -> int:
        return sum(place.kind is kind for place in self._found.places)

    def _note_counts(self) -> None:
        found, notes = self._found, self._notes
        for part, several in (("GPUs", found.gpus), ("network cards", found.cards)):
            if several:
                element = several[0].element
                notes.read(part, len(several), self._setting(element, "class" if element.name == "pci" else "dev"))
        for kind, name in ((PlaceKind.NUMA, "cpu"), (PlaceKind.BRIDGE, "pci class")):
            if count := self._count(kind):
                notes.read(f"{kind.value}s", count, Setting(name, "", self._source, found.lines[kind]))

    def _note_distances(self, parts: NodeParts) -> None:
        """Note how near each GPU's nearest network card is."""
        if not parts.cards:
            return
        cards = range(len(parts.cards))
        rows = [[parts.distance(i, j) for j in cards] for i in range(len(parts.gpus))]
        self._notes.read("nearest network card", nearest_text(rows), self._setting(self._found.cards[0].element, ""))

    def _warn_of_slow_pcie(self, parts: NodeParts, reference: Reference) -> None:
        own, slowest = load_gpu(reference.gpu).host_bandwidth, min(gpu.bandwidth for gpu in parts.gpus)
        if self._options.pcie_bandwidth is None and slowest < _CLOSE * own:
            self._notes.warn(
                f"PCIe: the file gives a GPU {format_bandwidth(slowest)}, the catalog gives {reference.gpu} "
                f"{format_bandwidth(own)}; the file is NCCL's hint and no measurement; --pcie-bandwidth changes it"
            )


def _sort(several: list[_Leaf]) -> None:
    """Sort GPUs or cards by their number `dev`; without numbers by PCI address, as CUDA numbers equal GPUs."""
    numbers = [leaf.element.attributes.get("dev", "") for leaf in several]
    if all(re.fullmatch(r"[0-9]{1,6}", number) for number in numbers) and len(set(numbers)) == len(numbers):
        several.sort(key=lambda leaf: int(leaf.element.attributes["dev"]))
    elif all(leaf.pci is leaf.element for leaf in several):
        several.sort(key=lambda leaf: leaf.element.attributes["busid"].lower())


def _all(element: Element) -> Iterator[Element]:
    """Return an element and all elements inside, in document order."""
    waiting = [element]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(reversed(one.children))


FORMAT: Final = MachineFormat(
    name="NCCL topology",
    is_mine=_is_mine,
    read=_read,
    uses=frozenset(
        {"gpu", "nodes", "inside", "link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth",
         "oversubscription", "cards"}
    ),
)  # fmt: skip
