"""Which GPUs, network cards, bridges and NUMA nodes has a topology of NCCL, and which is below which?

The elements are sorted by their kind; figures are not read here. The elements gpu and net are the devices of a dump. In
a file with cpu and pci alone, the class of a pci tells GPUs and network cards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from simulator.basics.xml_elements import Element, XmlFaultError
from simulator.importing.machines.node_parts import PlaceKind

# First characters of the classes of NVSwitches.
SWITCH_CLASS: Final = "0x0680"
# Most GPUs, and most network cards.
_MOST_DEVICES: Final = 1024
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
_CARD_CLASSES: Final = ("0x0207", "0x0200")
_BRIDGE_CLASS: Final = "0x0604"


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A NUMA node (element cpu) or a bridge (element pci), and the number of the branch above a bridge."""

    kind: PlaceKind
    element: Element
    above: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class NcclLeaf:
    """A GPU or a network card: element gpu, net or pci; its pci, if any; and the number of its branch."""

    element: Element
    pci: Element | None
    branch: int


@dataclass(slots=True)
class NcclTree:
    """The parts of a file: branches in document order; GPUs and network cards in the order of their numbers."""

    is_dump: bool  # whether the file has elements gpu or net
    branches: list[Branch] = field(default_factory=list)
    gpus: list[NcclLeaf] = field(default_factory=list)
    cards: list[NcclLeaf] = field(default_factory=list)
    switches: set[str] = field(default_factory=set)  # PCI addresses of NVSwitches
    others: list[Element] = field(default_factory=list)  # devices that are neither a GPU nor a network card

    def of_kind(self, kind: PlaceKind) -> list[Branch]:
        """Return the branches of a kind."""
        return [branch for branch in self.branches if branch.kind is kind]


def nccl_tree(root: Element, cards: tuple[str, ...] | None) -> NcclTree:
    """Return the parts below the element `system`.

    Parameters
    ----------
    root : Element
        The outermost element.
    cards : tuple of str or None
        PCI addresses of network cards in a file without classes; None if they are unknown.

    Raises
    ------
    XmlFaultError
        A file without GPU, or with a wrong or unknown device.
    """
    tree = NcclTree(any(element.name in ("gpu", "net") for element in elements(root)))
    walker = _Walker(tree, cards)
    for cpu in root.children:
        walker.walk_cpu(cpu)
    if not tree.gpus:
        raise XmlFaultError(root.line, "has no GPU: neither an element gpu nor a pci of class 0x0302")
    for several in (tree.gpus, tree.cards):
        _sort(several)
    return tree


def elements(element: Element) -> Iterator[Element]:
    """Return an element and all elements inside, in document order."""
    waiting = [element]
    while waiting:
        current = waiting.pop()
        yield current
        waiting.extend(reversed(current.children))


def bus_address(pci: Element) -> str:
    """Return the PCI address (`busid`) of an element pci, in lower case; XmlFaultError if missing or faulty."""
    address = pci.attributes.get("busid", "").lower()
    if not re.fullmatch(r"[0-9a-f:.]{4,32}", address):
        raise XmlFaultError(pci.line, f"pci: busid: got {address[:40]!r}; must be a PCI address such as 0000:10:1c.0")
    return address


class _Walker:
    def __init__(self, tree: NcclTree, cards: tuple[str, ...] | None) -> None:
        self._tree, self._cards = tree, cards

    def walk_cpu(self, cpu: Element) -> None:
        if cpu.name != "cpu":
            raise XmlFaultError(cpu.line, f"got element {cpu.name!r} inside system; must be cpu")
        self._walk(cpu, self._branch(Branch(PlaceKind.NUMA, cpu)))

    def _branch(self, branch: Branch) -> int:
        self._tree.branches.append(branch)
        return len(self._tree.branches) - 1

    def _walk(self, above: Element, branch: int, pci: Element | None = None) -> None:
        """Read the elements below a branch; `pci` is the device that contains them, if any."""
        for element in above.children:
            if element.name == "pci":
                self._walk_pci(element, branch)
            elif element.name == "gpu":
                self._add(self._tree.gpus, NcclLeaf(element, pci, branch))
            elif element.name == "nic":
                for net in element.children:
                    # NCCL marks by net="0" the ports of a fused card, which has an element of its own.
                    if net.name == "net" and net.attributes.get("net") != "0":
                        self._add(self._tree.cards, NcclLeaf(net, pci, branch))

    def _add(self, several: list[NcclLeaf], leaf: NcclLeaf) -> None:
        several.append(leaf)
        if len(several) > _MOST_DEVICES:
            raise XmlFaultError(leaf.element.line, f"has more than {_MOST_DEVICES} GPUs or network cards")

    def _walk_pci(self, pci: Element, branch: int) -> None:
        tree, kind, address = self._tree, pci.attributes.get("class", ""), bus_address(pci)
        names = {child.name for child in pci.children}
        if kind.startswith(_BRIDGE_CLASS) or "pci" in names:
            self._walk(pci, self._branch(Branch(PlaceKind.BRIDGE, pci, branch)))
        elif names & {"gpu", "nic"}:
            self._walk(pci, branch, pci)
        elif kind.startswith(SWITCH_CLASS):
            tree.switches.add(address)
        elif tree.is_dump:
            tree.others.append(pci)
        elif self._is_gpu(pci, kind, address):
            self._add(tree.gpus, NcclLeaf(pci, pci, branch))
        elif kind.startswith(_CARD_CLASSES) or not kind:
            self._add(tree.cards, NcclLeaf(pci, pci, branch))
        else:
            tree.others.append(pci)

    def _is_gpu(self, pci: Element, kind: str, address: str) -> bool:
        if kind:
            return kind.startswith(_GPU_CLASSES)
        # The file of Amazon's g5 has no classes.
        if self._cards is None:
            raise XmlFaultError(
                pci.line,
                f"pci {address}: has no class, and may be a GPU or a network card; give --card BUSID for each network "
                "card, or --card none",
            )
        return address not in self._cards


def _sort(several: list[NcclLeaf]) -> None:
    """Sort GPUs or cards by their number `dev`; without numbers by PCI address, as CUDA numbers equal GPUs."""
    numbers = [leaf.element.attributes.get("dev", "") for leaf in several]
    if all(re.fullmatch(r"[0-9]{1,6}", number) for number in numbers) and len(set(numbers)) == len(numbers):
        several.sort(key=lambda leaf: int(leaf.element.attributes["dev"]))
    elif all(leaf.pci is leaf.element for leaf in several):
        several.sort(key=lambda leaf: bus_address(leaf.element))
