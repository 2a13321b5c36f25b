"""Which ranks form a group of each kind of parallelism: the ranks as a grid with one axis a kind.

Rule: numbers only. Where the ranks lie on a machine is not known here: an order that keeps a group inside a node does
so because neighbours have neighbouring numbers.

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/core/parallel_state.py: RankGenerator. The first kind of the order varies fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Final, Literal

import numpy as np

from simulator.basics.arrays import Ints

Kind = Literal["tp", "cp", "ep", "dp", "pp"]
ORDER: Final[tuple[Kind, ...]] = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True)
class RankGrid:
    """Ranks 0 .. N - 1 as a grid.

    Attributes
    ----------
    sizes : mapping of kind to int
        Ranks of a group of each kind; 1 for a kind that is left out.
    order : tuple of kind
        Which kind varies fastest with the rank's number, and which next.
    """

    sizes: Mapping[Kind, int]
    order: tuple[Kind, ...] = ORDER

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(ORDER):
            raise ValueError(f"order: got {list(self.order)}; must have each of {', '.join(ORDER)} once")

    def size(self, *kinds: Kind) -> int:
        """Ranks of a group of these kinds together."""
        return prod(self.sizes.get(kind, 1) for kind in kinds)

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.size(*self.order)

    @cached_property
    def _ranks(self) -> Ints:
        """Ranks by coordinate, the slowest axis first."""
        shape = [self.size(kind) for kind in reversed(self.order)]
        return np.arange(self.world_size, dtype=np.int64).reshape(shape)

    def coordinate(self, kind: Kind) -> Ints:
        """By rank its place along a kind."""
        axis = len(self.order) - 1 - self.order.index(kind)
        return np.asarray(np.indices(self._ranks.shape)[axis].ravel())

    def groups(self, *kinds: Kind) -> Ints:
        """The groups in which ranks differ in these kinds alone, shape (groups, ranks of a group).

        Groups come in the order of their first ranks, and a group's ranks rise.

        Examples
        --------
        >>> grid = RankGrid({"tp": 2, "cp": 2, "dp": 2, "pp": 2})
        >>> grid.groups("dp", "cp")[0].tolist(), grid.groups("tp", "pp")[0].tolist()
        ([0, 2, 4, 6], [0, 1, 8, 9])
        """
        inside = [axis for axis, kind in enumerate(reversed(self.order)) if kind in kinds]
        outside = [axis for axis in range(len(self.order)) if axis not in inside]
        return self._ranks.transpose(*outside, *inside).reshape(-1, self.size(*kinds))


def refusal(world_size: int, sizes: Iterable[tuple[Kind, int]]) -> str:
    """Why ranks cannot be spread so; empty where they can."""
    given = dict(sizes)
    spread = prod(given.values())
    if world_size % spread:
        text = " x ".join(f"{kind} {size}" for kind, size in given.items() if size > 1)
        return f"got {text} = {spread}; must divide the {world_size} ranks of the cluster"
    return ""
