"""In which order do parameters of a bucket lie in its shards? Unit after unit, or with an equal share of every matrix.

A rule for matrices (Muon) needs the second order: every shard has an equal share of each matrix, as FSDP2 shards every
parameter. Equal shares are what an all-gather of a layer's matrices can carry.

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
from simulator.numerics.muon import Muon, in_matrix


@dataclass(frozen=True)
class ShardLayout:
    """Order of a bucket's elements in its shards."""

    # Place of each element in the packed parameters, unit after unit; -1 for padding. None: packed order; shape (shards
    # x elements of a shard,).
    order: Ints | None = None
    # Places of each shard's elements in the unit's packed matrices, shape (elements of the share,) each.
    shares: Mapping[str, tuple[Ints, ...]] = field(default_factory=dict)

    def arranged(self, packed: Array) -> Array:
        """Return packed elements (unit after unit) in the order of shards, with zeros as padding."""
        if self.order is None:
            return packed
        shards = np.zeros(len(self.order), packed.dtype)
        mask = self.order >= 0
        shards[mask] = packed[self.order[mask]]
        return shards

    def restored(self, array: Array) -> Array:
        """Return the elements of all shards unit after unit; the reverse of `arranged`, without padding."""
        if self.order is None:
            return array
        mask = self.order >= 0
        elements = np.empty(int(mask.sum()), array.dtype)
        elements[self.order[mask]] = array[: len(self.order)][mask]
        return elements

    def matrices(self, shard: int) -> dict[str, slice]:
        """Return the place of each unit's share of matrices in a shard."""
        places, at = dict[str, slice](), 0
        for unit, shares in self.shares.items():
            places[unit] = slice(at, at + len(shares[shard]))
            at += len(shares[shard])
        return places

    def others(self, shard: int) -> slice:
        """Return the place of the elements outside of matrices in a shard, padding included."""
        return slice(max((place.stop for place in self.matrices(shard).values()), default=0), None)


def shares_of_matrices(muon: Muon, gpt: Gpt, units: Units, shards: int) -> ShardLayout:
    """Return the layout in which each shard has an equal share of every matrix, to one element.

    The remaining elements fill the shards in order.
    """
    matrices, others, at = dict[str, list[Ints]](), list[Ints](), 0
    for unit in units:
        for shape in gpt.shapes(unit).values():
            places = np.arange(at, at + prod(shape))
            (matrices.setdefault(unit, []) if in_matrix(unit, shape) else others).append(places)
            at += prod(shape)
    length, surplus = -(-at // shards), 0
    pieces: list[list[Ints]] = [[] for _ in range(shards)]
    shares = dict[str, tuple[Ints, ...]]()
    for unit, packed in matrices.items():
        by_shard: list[list[Ints]] = [[] for _ in range(shards)]
        begin = 0
        for shape in muon.shapes(gpt, unit):
            counts = np.full(shards, prod(shape) // shards)
            # Deal the surplus on from where the last one ended: shards of a unit differ by one element at most.
            counts[(surplus + np.arange(prod(shape) % shards)) % shards] += 1
            surplus += prod(shape) % shards
            for shard, count in enumerate(counts.tolist()):
                by_shard[shard].append(np.arange(begin, begin + count))
                begin += count
        shares[unit] = tuple(np.concatenate(parts) for parts in by_shard)
        for shard, share in enumerate(shares[unit]):
            pieces[shard].append(np.concatenate(packed)[share])
    rest = np.concatenate([np.zeros(0, np.int64), *others])
    for filled in pieces:
        free = length - sum(map(len, filled))
        filled += [rest[:free], np.full(max(0, free - len(rest)), -1)]
        rest = rest[free:]
    return ShardLayout(np.concatenate([piece for filled in pieces for piece in filled]), shares)
