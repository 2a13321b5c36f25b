"""Nodes in a three-dimensional torus: which nodes are neighbours?

Each node has a switch with a cable to the next node along x, y and z; the last node of a row is a neighbour of the
first. A row of two nodes has one cable, and a row of one node none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

Coordinates = tuple[int, int, int]


def in_order(nodes: tuple[str, ...], dims: Coordinates, anchor: Coordinates = (0, 0, 0)) -> dict[Coordinates, str]:
    """Return the nodes of a box by their coordinates: x counts fastest, then y, then z, from the corner `anchor`.

    >>> in_order(("a", "b", "c", "d"), (2, 1, 2))
    {(0, 0, 0): 'a', (1, 0, 0): 'b', (0, 0, 1): 'c', (1, 0, 1): 'd'}
    """
    x, y, _ = dims
    places = ((i % x, i // x % y, i // (x * y)) for i in range(len(nodes)))
    return {
        (anchor[0] + place[0], anchor[1] + place[1], anchor[2] + place[2]): node
        for place, node in zip(places, nodes, strict=True)
    }


@dataclass(frozen=True, slots=True)
class Torus:
    """A torus of a cluster."""

    # `name`, `place`: Name, and place in the file.
    name: str
    place: str
    dims: Coordinates  # number of nodes along x, y and z
    # Nodes by their coordinates; a place may have no node.
    nodes: Mapping[Coordinates, str]

    def neighbours(self) -> Iterator[tuple[str, str]]:
        """Yield each pair of neighbours once."""
        for place, node in self.nodes.items():
            for axis, size in enumerate(self.dims):
                step = list(place)
                step[axis] = (place[axis] + 1) % size
                other = self.nodes.get((step[0], step[1], step[2]))
                # In a row of two, each node is the next one of the other.
                if other is not None and other != node and (size > 2 or place[axis] == 0):
                    yield node, other
