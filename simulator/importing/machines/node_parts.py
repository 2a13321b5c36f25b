"""Which parts has a node: NUMA nodes, PCIe bridges, GPUs, network cards, and links between GPUs?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from simulator.importing.machines.links import Links

# Bridges between two devices up to which their distance is PIX.
_NEAR: Final = 1
# Words for distances, nearest first.
_DISTANCES: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")


class PlaceKind(Enum):
    """Kind of a place in the tree of PCIe."""

    NUMA = "NUMA node"
    BRIDGE = "PCIe bridge"


@dataclass(frozen=True, slots=True)
class Place:
    """A NUMA node, or a PCIe bridge below another place.

    Attributes
    ----------
    kind : PlaceKind
        Kind of the place.
    name : str
        Name in the file.
    parent : int or None
        Number of the place above; None for a NUMA node.
    bandwidth : float
        Bandwidth to the place above, one direction [B/s].
    host : str
        Name of the computer, in files that describe several.
    """

    kind: PlaceKind
    name: str
    parent: int | None = None
    bandwidth: float = 0.0
    host: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU or a network card: its name in the file, the number of its place, its bandwidth there [B/s].

    `network` is a network card's bandwidth to its switch [B/s]; 0 for a GPU.
    """

    name: str
    place: int
    bandwidth: float
    network: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeParts:
    """The parts of a node."""

    # NUMA nodes and bridges; a place stands behind the place above.
    places: tuple[Place, ...]
    # `gpus`, `cards`: GPUs and network cards, in their order.
    gpus: tuple[Device, ...]
    cards: tuple[Device, ...]
    links: Links = field(default_factory=Links)  # fast links between GPUs

    def above(self, place: int) -> list[int]:
        """Return a place and the places above it, up to its NUMA node."""
        chain = [place]
        while (parent := self.places[chain[-1]].parent) is not None:
            chain.append(parent)
        return chain

    def distance(self, gpu: int, card: int) -> str:
        """Return the distance of a GPU and a network card in the words of nvidia-smi.

        PIX: at most one bridge. PXB: several bridges. PHB: over the processor of one NUMA node. SYS: over two NUMA
        nodes.
        """
        first, second = self.above(self.gpus[gpu].place), self.above(self.cards[card].place)
        common = next((place for place in first if place in second), None)
        if common is None:
            return "SYS"
        if self.places[common].kind is PlaceKind.NUMA:
            return "PHB"
        bridges = first.index(common) + second.index(common) + 1
        return "PIX" if bridges <= _NEAR else "PXB"


def nearest_text(rows: Sequence[Sequence[str]]) -> str:
    """Return how near the nearest network card of each GPU is, in words.

    Parameters
    ----------
    rows : sequence of sequence of str
        Distances to the network cards, a row for each GPU.

    Examples
    --------
    >>> nearest_text([["PIX", "SYS"], ["SYS", "PIX"], ["SYS", "NODE"]])
    'PIX for 2 GPUs, NODE for 1 GPU'
    """
    nearest = [min(row, key=_DISTANCES.index) for row in rows]
    counts = {name: nearest.count(name) for name in _DISTANCES if name in nearest}
    return ", ".join(f"{name} for {count} GPU{'s' * (count > 1)}" for name, count in counts.items())
