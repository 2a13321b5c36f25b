"""Records of the GPUs and servers that a topology has room for, and of the size of its graph, before it is built.

Rule: computed from the options alone, so that a check of a scenario never builds a graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Memory of a vertex or a directed link, with its attributes and the router's tables (docs/speed.md) [B]; time to build
# a vertex or link on one core [s].
_BYTES_A_PART: Final = 900
_SECONDS_A_PART: Final = 6.5e-6


@dataclass(frozen=True, slots=True)
class TopologyLimits:
    """What a topology can give.

    Attributes
    ----------
    max_ranks : int or None
        GPUs that it has; None where it grows with the world size.
    own_servers : bool
        Whether parameter servers can have a port of their own.
    node_size : int or None
        GPUs of a node; None where there are no nodes.
    in_switch_reduction : bool
        Whether the switch of a node can add.
    one_route : bool
        Whether there is one shortest route at most between any two, however many ranks there are.
    """

    max_ranks: int | None = None
    own_servers: bool = False
    node_size: int | None = None
    in_switch_reduction: bool = False
    one_route: bool = False


@dataclass(frozen=True, slots=True)
class GraphSize:
    """Size of a topology's graph.

    Attributes
    ----------
    vertices : int
    cables : int
        Each is two directed links.
    """

    vertices: int
    cables: int

    @property
    def parts(self) -> int:
        """Number of vertices and directed links."""
        return self.vertices + 2 * self.cables

    @property
    def nbytes(self) -> int:
        """Approximate memory of the graph [B]."""
        return self.parts * _BYTES_A_PART

    @property
    def seconds(self) -> float:
        """Approximate time to build the graph [s]."""
        return self.parts * _SECONDS_A_PART
