"""Which ranks form a group of each kind of parallelism? Ranks form a grid with an axis for each kind.

The grid knows rank numbers only, not the machine: an order keeps a group inside a node because neighbours have
consecutive numbers.

Example: 8 ranks, tp 2, dp 2, pp 2, default order (tp varies fastest)::

    rank  0  1  2  3  4  5  6  7
    tp    0  1  0  1  0  1  0  1
    dp    0  0  1  1  0  0  1  1
    pp    0  0  0  0  1  1  1  1

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/core/parallel_state.py: RankGenerator. The first kind in the order varies fastest.
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
    """Ranks 0 to N - 1 as a grid with an axis for each kind of parallelism (tp, cp, dp, pp)."""

    # Group size of each kind; 1 if omitted.
    sizes: Mapping[Kind, int]
    order: tuple[Kind, ...] = ORDER  # kinds, from the fastest varying with the rank's number to the slowest
    # Whether ranks at pipeline places r and p - 1 - r hold equal parts of the model, as under DualPipe
    mirrored: bool = False

    def __post_init__(self) -> None:
        if sorted(self.order) != sorted(ORDER):
            raise ValueError(f"order: got {list(self.order)}; must have each of {', '.join(ORDER)} once")

    def size(self, *kinds: Kind) -> int:
        """Return the number of ranks in a group spanning these kinds of parallelism: the sizes' product."""
        return prod(self.sizes.get(kind, 1) for kind in kinds)

    @property
    def world_size(self) -> int:
        """Number of ranks in the grid."""
        return self.size(*self.order)

    @cached_property
    def _ranks(self) -> Ints:
        """Ranks as an array with an axis for each kind of parallelism; the first axis varies slowest."""
        shape = [self.size(kind) for kind in reversed(self.order)]
        return np.arange(self.world_size, dtype=np.int64).reshape(shape)

    def coordinate(self, kind: Kind) -> Ints:
        """Return each rank's coordinate along a kind of parallelism, shape (ranks,)."""
        # The array's first axis varies slowest, `order` starts with the fastest.
        axis = len(self.order) - 1 - self.order.index(kind)
        return np.asarray(np.indices(self._ranks.shape)[axis].ravel())

    def groups(self, *kinds: Kind) -> Ints:
        """Return the groups with ranks differing only in these kinds of parallelism, shape (groups, ranks per group).

        Groups are sorted by their first rank, and ranks within a group ascend.

        >>> grid = RankGrid({"tp": 2, "cp": 2, "dp": 2, "pp": 2})
        >>> grid.groups("dp", "cp")[0].tolist(), grid.groups("tp", "pp")[0].tolist()
        ([0, 2, 4, 6], [0, 1, 8, 9])
        """
        inside = [axis for axis, kind in enumerate(reversed(self.order)) if kind in kinds]
        outside = [axis for axis in range(len(self.order)) if axis not in inside]
        return self._ranks.transpose(*outside, *inside).reshape(-1, self.size(*kinds))

    @property
    def holders(self) -> int:
        """Number of ranks holding the same model part."""
        return self.size("dp", "cp") * (2 if self.mirrored else 1)

    def same_part(self) -> Ints:
        """Return the groups of ranks holding the same part of the model, shape (groups, holders).

        >>> RankGrid({"dp": 2, "pp": 4}, mirrored=True).same_part().tolist()
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        """
        rows = self.groups("dp", "cp")
        if not self.mirrored:
            return rows
        # Sorted by first rank, as in `groups`.
        joined = self._by_stage().reshape(-1, self.holders)
        return joined[np.argsort(joined.min(axis=1))]

    def stages(self) -> Ints:
        """Return the ranks of each pipeline stage, shape (pipeline stages, ranks); tensor-parallel ranks are
        neighbours.

        >>> RankGrid({"tp": 2, "dp": 2, "pp": 2}, ("dp", "tp", "cp", "ep", "pp")).stages().tolist()
        [[0, 2, 1, 3], [4, 6, 5, 7]]
        """
        by_stage = self._by_stage()
        return by_stage.transpose(0, 2, 1).reshape(len(by_stage), -1)

    def _by_stage(self) -> Ints:
        """Return the ranks by stage, tensor coordinate and holder of the same part, shape (stages, tp, holders)."""
        rows = self.groups("dp", "cp")
        place, tensor = self.coordinate("pp")[rows[:, 0]], self.coordinate("tp")[rows[:, 0]]
        by_place = rows[np.lexsort((tensor, place))].reshape(self.size("pp"), self.size("tp"), -1)
        if not self.mirrored:
            return by_place
        # Mirrored: the place p - 1 - r joins place r.
        half = self.size("pp") // 2
        return np.concatenate([by_place[:half], by_place[: half - 1 : -1]], axis=2)

    def one_model(self) -> Ints:
        """Return the groups of ranks that together hold a copy of the model, shape (groups, ranks per group).

        >>> RankGrid({"dp": 2, "pp": 4}, mirrored=True).one_model().tolist()
        [[0, 2], [4, 6], [1, 3], [5, 7]]
        """
        rows = self.groups("tp", "pp")
        if not self.mirrored:
            return rows
        # Mirrored: each half of the pipeline holds a whole copy.
        second = self.coordinate("pp")[rows] >= self.size("pp") // 2
        ordered = np.take_along_axis(rows, np.argsort(second, axis=1, kind="stable"), axis=1)
        return ordered.reshape(-1, rows.shape[1] // 2)


def refusal(world_size: int, sizes: Iterable[tuple[Kind, int]]) -> str:
    """Return a sentence telling why `world_size` ranks cannot be partitioned into groups of these sizes; empty if
    possible.
    """
    by_kind = dict(sizes)
    spread = prod(by_kind.values())
    if world_size % spread:
        text = " x ".join(f"{kind} {size}" for kind, size in by_kind.items() if size > 1)
        return f"got {text} = {spread}; must divide the {world_size} ranks of the cluster"
    return ""


def parts_on_nodes(groups: Ints, used: int) -> list[int]:
    """Return the different numbers of ranks that a group has on a node, if node n has `used` ranks from n x `used` on.

    `groups` has shape (groups, ranks per group).

    >>> groups = np.arange(24).reshape(3, 8)
    >>> parts_on_nodes(groups, used=10), parts_on_nodes(groups, used=12), parts_on_nodes(groups, used=4)
    ([2, 4, 6, 8], [4, 8], [4])
    """
    # A number for each group and node.
    nodes = int(groups.max()) // used + 1
    _, counts = np.unique(np.arange(len(groups))[:, None] * nodes + groups // used, return_counts=True)
    return [int(count) for count in np.unique(counts)]
