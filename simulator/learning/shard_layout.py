"""In which order do parameters of a bucket lie in its shards? Unit after unit, or with an equal share of every matrix.

A rule for matrices (Muon) needs the second order: every shard has an equal share of each layer's matrices, as FSDP2
shards every parameter. Equal shares are what an all-gather of a layer's matrices can carry.

Example: two layers on 2 ranks, each with a matrix of 4 elements (a, A) and a bias of 2 elements (b, B)::

    unit after unit   rank 0: a a a a b b     rank 1: A A A A B B
    equal shares      rank 0: a a A A b b     rank 1: a a A A B B
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.learning.state import Units
from simulator.numerics.gpt import Gpt
from simulator.numerics.muon import in_matrix


@dataclass(frozen=True)
class ShardLayout:
    """Order of a bucket's elements in its shards.

    Attributes
    ----------
    order : int array, shape (shards x elements of a shard,), or None
        Place of each element in the packed parameters, unit after unit; -1 for padding. None: packed order.
    bounds : mapping of unit to int array, shape (shards + 1,)
        Shard r has the elements bounds[r] to bounds[r + 1] of the unit's packed matrices.
    """

    order: Ints | None = None
    bounds: Mapping[str, Ints] = field(default_factory=dict)

    def arranged(self, packed: Array) -> Array:
        """Return packed elements (unit after unit) in the order of shards, with zeros as padding."""
        if self.order is None:
            return packed
        made = np.zeros(len(self.order), packed.dtype)
        there = self.order >= 0
        made[there] = packed[self.order[there]]
        return made

    def restored(self, array: Array) -> Array:
        """Return the elements of all shards unit after unit; the reverse of `arranged`, without padding."""
        if self.order is None:
            return array
        there = self.order >= 0
        made = np.empty(int(there.sum()), array.dtype)
        made[self.order[there]] = array[: len(self.order)][there]
        return made

    def matrices(self, shard: int) -> dict[str, slice]:
        """Return the place of each unit's share of matrices in a shard."""
        places, at = dict[str, slice](), 0
        for unit, bounds in self.bounds.items():
            count = int(bounds[shard + 1] - bounds[shard])
            places[unit] = slice(at, at + count)
            at += count
        return places

    def others(self, shard: int) -> slice:
        """Return the place of the elements outside of matrices in a shard, padding included."""
        return slice(max((place.stop for place in self.matrices(shard).values()), default=0), None)

    def share(self, unit: str, shard: int) -> slice:
        """Return the place of a shard's elements in the unit's packed matrices."""
        return slice(int(self.bounds[unit][shard]), int(self.bounds[unit][shard + 1]))


def shares_of_matrices(gpt: Gpt, units: Units, shards: int) -> ShardLayout:
    """Return the layout in which each shard has an equal share of every unit's matrices, to one element.

    The remaining elements fill the shards in order.
    """
    matrices, others, at = dict[str, list[Ints]](), list[Ints](), 0
    for unit in units:
        for shape in gpt.shapes(unit).values():
            places = np.arange(at, at + prod(shape))
            (matrices.setdefault(unit, []) if in_matrix(unit, shape) else others).append(places)
            at += prod(shape)
    length = -(-at // shards)
    pieces: list[list[Ints]] = [[] for _ in range(shards)]
    bounds, next_one = dict[str, Ints](), 0
    for unit, own in matrices.items():
        whole = np.concatenate(own)
        counts = np.full(shards, len(whole) // shards)
        # Continue where the last unit's surplus ended, to keep the shards equal.
        counts[(next_one + np.arange(len(whole) % shards)) % shards] += 1
        next_one += len(whole) % shards
        bounds[unit] = np.concatenate([[0], np.cumsum(counts)])
        for shard, piece in enumerate(np.split(whole, bounds[unit][1:-1])):
            pieces[shard].append(piece)
    rest = np.concatenate([np.zeros(0, np.int64), *others])
    for own in pieces:
        free = length - sum(map(len, own))
        filled, rest = rest[:free], rest[free:]
        own += [filled, np.full(free - len(filled), -1)]
    return ShardLayout(np.concatenate([piece for own in pieces for piece in own]), bounds)
