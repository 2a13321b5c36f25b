"""The topology of NCCL and RCCL as XML: dumps of NCCL_TOPO_DUMP_FILE, and files that clouds ship for NCCL_TOPO_FILE.

    system > cpu (a NUMA node) > pci (bridge) > ... > pci > gpu > nvlink, c2c
                                                    > pci > nic > net

A dump has the elements gpu, nvlink and net. A shipped file is a hint for NCCL's choice of paths: it has only cpu and
pci, and the class of a pci tells GPUs and network cards. NVLinks, rates of the network and kinds of GPUs are then
assumed.
"""

from __future__ import annotations

import re
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.units import format_bandwidth
from simulator.basics.xml_elements import Element, XmlFaultError, outermost_name, read_tree
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.machines.gpu_kinds import gpu_kind
from simulator.importing.machines.links import Links, assumed_links, counted_links
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.nccl_tree import SWITCH_CLASS, Branch, NcclLeaf, bus_address, elements, nccl_tree
from simulator.importing.machines.network import graph_of
from simulator.importing.machines.node_graph import merged_ports
from simulator.importing.machines.node_parts import Device, NodeParts, Place, PlaceKind, nearest_text
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference, reference_of
from simulator.importing.settings import Reason, Setting

_MOST_LINKS: Final = 1024
# Versions of the file: NCCL's and RCCL's.
_VERSIONS: Final = ("1", "2")
# Rate of a lane in NCCL's table kvDictPciGen [100 Mb/s], by GT/s; NCCL takes the third generation for other texts.
_LANE: Final = MappingProxyType({"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480})
_SPEED: Final = re.compile(r"(\d{1,3}(?:\.\d)?) GT/s(?: PCIe)?")
_USUAL_LANE: Final = 60
_USUAL_WIDTH: Final = 16
_MOST_WIDTH: Final = 64
# Class of a link between a GPU and its processor.
_HOST_LINK_CLASS: Final = "0x068001"
# Part of the bus address that NCCL writes for an NVSwitch which is not visible in a virtual machine.
_ANY_SWITCH: Final = "ffff:ff"
_LINKS: Final = ("nvlink", "xgmi")
# Bandwidth between sockets that NCCL assumes [B/s], as in src/graph/topo.h and topo.cc of 2.31: Intel's family 6 from a
# model on (0xAD to 0xAF are newer than 0xCF: Granite Rapids), AMD from a family on, Zhaoxin, and architectures.
_INTEL: Final = ((0xCF, 40e9), (0xB0, 22e9), (0xAD, 40e9), (0x8F, 22e9), (0x55, 10e9), (0, 6e9))
_AMD: Final = ((26, 32e9), (25, 24e9), (0, 16e9))
_ZHAOXIN: Final = ("CentaurHauls", "  Shanghai  ")
_ARCHITECTURES: Final = MappingProxyType({"ppc64": 32e9, "arm64": 6e9})
# For processors that the file does not name.
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


def _is_mine(file: SourceFile) -> bool:
    return outermost_name(file.text) == "system"


def _read(file: SourceFile, options: MachineOptions, notes: Notes, _: Machine | None) -> Machine:
    root = read_tree(file.text.encode(), file.name)
    try:
        return _Reader(root, file.name, options, notes).machine()
    except XmlFaultError as fault:
        raise ScenarioError(one_line(f"{file.name}:{fault.line}: {fault}")) from fault


class _Reader:
    def __init__(self, root: Element, source: str, options: MachineOptions, notes: Notes) -> None:
        self._root, self._source, self._options, self._notes = root, source, options, notes
        version = root.attributes.get("version", "1")
        if version not in _VERSIONS:
            raise XmlFaultError(root.line, f"system: version: got {version!r}; must be 1 (NCCL) or 2 (RCCL)")
        self._tree = nccl_tree(root, options.cards)

    def machine(self) -> Machine:
        self._note_attributes()
        if not self._tree.is_dump:
            why = "the file has no numbers of devices"
            self._notes.assume("order of GPUs and network cards", "by PCI address", why)
        kind = self._gpu_kind()
        reference = reference_of(kind, self._options)
        self._note_counts()
        parts = self._parts(reference)
        return Machine(graph_of(parts, reference, self._socket(), self._options, self._notes), kind)

    def _setting(self, element: Element, attribute: str, value: object = None) -> Setting:
        written = element.attributes.get(attribute, "") if value is None else value
        return Setting(f"{element.name} {attribute}".rstrip(), written, self._source, element.line)

    # Figures

    def _rate(self, pci: Element) -> float:
        """Return the bandwidth of a pci's link as NCCL takes it [B/s], and note its origin."""
        bandwidth = self._options.pcie_bandwidth
        if bandwidth:
            self._notes.read(
                "PCIe bandwidth", format_bandwidth(bandwidth), Setting("--pcie-bandwidth", bandwidth, "command line")
            )
            return bandwidth
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
        first = self._tree.gpus[0]
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
            chip = architecture or device
            raise XmlFaultError(
                element.line,
                f"GPU {chip.value if chip else ''} is no known GPU of the catalog; give --gpu with the GPU, or the "
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

    def _socket(self) -> float:
        """Return the bandwidth between two NUMA nodes that NCCL assumes for the processor [B/s]."""
        bandwidth = self._options.socket_bandwidth
        if bandwidth:
            setting = Setting("--socket-bandwidth", bandwidth, "command line")
            self._notes.read("between NUMA nodes", format_bandwidth(bandwidth), setting)
            return bandwidth
        cpu = self._root.children[0]
        rate = _socket_of(cpu)
        if len(self._tree.of_kind(PlaceKind.NUMA)) > 1:
            labels = [cpu.attributes.get(name, "").strip() for name in ("vendor", "arch")]
            words = [next(filter(None, labels), "")]
            words += [f"{name} {cpu.attributes[f'{name}id']}" for name in ("family", "model")
                      if f"{name}id" in cpu.attributes]  # fmt: skip
            processor = " ".join(words) if words[0] else "unknown processors"
            why = f"what NCCL assumes for {processor}; --socket-bandwidth changes it"
            self._notes.assume("between NUMA nodes", format_bandwidth(rate), why)
        return rate

    # Parts of the node

    def _parts(self, reference: Reference) -> NodeParts:
        tree = self._tree
        places = tuple(self._place(branch) for branch in tree.branches)
        gpus = [self._device(leaf, reference) for leaf in tree.gpus]
        ports = [
            (
                # Functions of a device have one slot: 0000:03:00.0 and 0000:03:00.1.
                f"port {i}" if leaf.pci is None else bus_address(leaf.pci).partition(".")[0],
                replace(self._device(leaf, reference), network=self._network(leaf.element, reference)),
            )
            for i, leaf in enumerate(tree.cards)
        ]
        cards = merged_ports(ports)
        if len(cards) < len(ports):
            value = f"{len(ports)} of {len(cards)} card{'s' * (len(cards) > 1)}, which share its PCIe slot"
            self._notes.read("network ports", value, self._setting(tree.cards[0].element, "dev"))
        parts = NodeParts(places, tuple(gpus), cards, self._links(gpus, reference))
        self._note_distances(parts)
        self._warn_of_slow_pcie(parts, reference)
        return parts

    def _place(self, branch: Branch) -> Place:
        element = branch.element
        if branch.kind is PlaceKind.BRIDGE:
            return Place(branch.kind, bus_address(element), branch.above, self._rate(element))
        # A numaid of -1 is a machine without NUMA.
        number = element.whole("numaid", -1) if "numaid" in element.attributes else -1
        return Place(branch.kind, f"numa {number}", host=element.attributes.get("host_hash", ""))

    def _device(self, leaf: NcclLeaf, reference: Reference) -> Device:
        """Return a GPU or a network card with its bandwidth to its place."""
        element, pci = leaf.element, leaf.pci
        name = element.attributes.get("name") or (element.name if pci is None else bus_address(pci))
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
        return Device(name, leaf.branch, rate)

    def _links(self, gpus: list[Device], reference: Reference) -> Links:
        """Return direct links between GPUs and links to the NVSwitch."""
        if self._options.inside is not None or self._lacks_links(reference):
            return assumed_links(len(gpus), reference, self._options, self._notes)
        number = {gpu.name: i for i, gpu in enumerate(gpus)}
        peers, switch, setting = dict[tuple[int, int], int](), dict[int, int](), None
        # GPUs of each NVSwitch by its address; several chips of the same GPUs are one.
        chips = dict[str, set[int]]()
        for i, leaf in enumerate(self._tree.gpus):
            for link in leaf.element.children:
                if link.name not in _LINKS:
                    continue
                target, count = link.attributes.get("target", "").lower(), link.whole("count", 1, _MOST_LINKS)
                peer = number.get(target)
                if peer is not None and peer != i:
                    pair = (min(i, peer), max(i, peer))
                    peers[pair] = max(count, peers.get(pair, 0))
                elif peer is None and self._is_switch(link, target):
                    switch[i] = switch.get(i, 0) + count
                    chips.setdefault(_ANY_SWITCH if _ANY_SWITCH in target else target, set()).add(i)
                else:
                    self._ignore_link(link, itself=peer is not None)
                    continue
                setting = setting or self._setting(link, "count")
        if setting is None:
            return Links()
        if switch and len(switch) < len(gpus):
            self._notes.warn(
                f"NVLink: {len(gpus) - len(switch)} of {len(gpus)} GPUs have no link to the NVSwitch in the file"
            )
        islands: list[set[int]] = []
        for members in chips.values():
            joined = [island for island in islands if island & members]
            islands = [island for island in islands if island not in joined] + [members.union(*joined)]
        switches = [{i: switch[i] for i in sorted(island)} for island in sorted(islands, key=min)]
        return counted_links(peers, switches, len(gpus), setting, reference, self._options, self._notes)

    def _lacks_links(self, reference: Reference) -> bool:
        """Return True if the file has no links although the GPU's kind has: it is no dump, or a hint with GPUs.

        RCCL's files are dumps: without links, the GPUs have none.
        """
        if not self._tree.is_dump:
            return True
        elements = [leaf.element for leaf in self._tree.gpus]
        linked = any(link.name in _LINKS for element in elements for link in element.children)
        return bool(reference.links) and not linked and not any("gcn" in element.attributes for element in elements)

    def _is_switch(self, link: Element, target: str) -> bool:
        kind = link.attributes.get("tclass", "")
        has_class = kind.startswith(SWITCH_CLASS) and kind != _HOST_LINK_CLASS
        return has_class or _ANY_SWITCH in target or target in self._tree.switches

    def _ignore_link(self, link: Element, *, itself: bool) -> None:
        if itself:
            why = "leads to the GPU itself, as some virtual machines write it"
        elif link.attributes.get("tclass") == _HOST_LINK_CLASS:
            why = "NVLink to the processor; the GPU's PCIe rate is simulated"
        else:
            why = "the target is no GPU of the file"
        self._notes.ignore(self._setting(link, "target"), Reason.NOT_MODELLED, why)

    # Lists of the import

    def _note_attributes(self) -> None:
        for element in elements(self._root):
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
                    harmless = attribute in _IDLE or bool(why)
                    self._notes.ignore(setting, Reason.NO_MEANING if harmless else Reason.UNKNOWN)

    def _note_counts(self) -> None:
        tree, notes = self._tree, self._notes
        for pci in tree.others:
            notes.ignore(self._setting(pci, "class"), Reason.NO_MEANING, "neither a GPU nor a network card")
        for part, several in (("GPUs", tree.gpus), ("network cards", tree.cards)):
            if several:
                element = several[0].element
                notes.read(part, len(several), self._setting(element, "class" if element.name == "pci" else "dev"))
        for kind, attribute in ((PlaceKind.NUMA, ""), (PlaceKind.BRIDGE, "class")):
            if branches := tree.of_kind(kind):
                notes.read(f"{kind.value}s", len(branches), self._setting(branches[0].element, attribute))

    def _note_distances(self, parts: NodeParts) -> None:
        """Note how near each GPU's nearest network card is."""
        if not parts.cards:
            return
        cards = range(len(parts.cards))
        rows = [[parts.distance(i, j) for j in cards] for i in range(len(parts.gpus))]
        self._notes.read("nearest network card", nearest_text(rows), self._setting(self._tree.cards[0].element, ""))

    def _warn_of_slow_pcie(self, parts: NodeParts, reference: Reference) -> None:
        nominal, slowest = load_gpu(reference.gpu).host_bandwidth, min(gpu.bandwidth for gpu in parts.gpus)
        if self._options.pcie_bandwidth is None and slowest < _CLOSE * nominal:
            self._notes.warn(
                f"PCIe: the file gives a GPU {format_bandwidth(slowest)}, the catalog gives {reference.gpu} "
                f"{format_bandwidth(nominal)}; the file is NCCL's hint and no measurement; --pcie-bandwidth changes it"
            )


def _socket_of(cpu: Element) -> float:
    """Return the bandwidth between two NUMA nodes that NCCL assumes for a processor [B/s]."""
    vendor = cpu.attributes.get("vendor", "")
    family, model = (cpu.whole(name, 0) if name in cpu.attributes else 0 for name in ("familyid", "modelid"))
    if vendor == "GenuineIntel":
        return next(rate for least, rate in _INTEL if model * (family == 6) >= least)
    if vendor == "AuthenticAMD":
        # Versions before the rule by family wrote the extended family in the higher four bits, and did not add it.
        family_number = 15 + (family >> 4) if family > 15 and family % 16 == 15 else family
        return next(rate for least, rate in _AMD if family_number >= least)
    if vendor in _ZHAOXIN:
        return 9e9 if (family, model) == (7, 0x5B) else 6e9
    return _ARCHITECTURES.get(cpu.attributes.get("arch", ""), _OTHER_SOCKET)


FORMAT: Final = MachineFormat(
    name="NCCL topology",
    is_mine=_is_mine,
    read=_read,
    uses=frozenset(
        {"gpu", "nodes", "inside", "link_bandwidth", "pcie_bandwidth", "socket_bandwidth", "nic_bandwidth",
         "oversubscription", "cards"}
    ),
)  # fmt: skip
