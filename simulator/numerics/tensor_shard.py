"""Which part of a model does a rank compute? A part of the matrices, the vocabulary and the sequences.

This module holds sizes, places and the order of parts. In PyTorch's layout (out, in) a matrix "cut by columns" loses
rows here, and a matrix "cut by rows" loses columns.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3; Korthikanti et al., MLSys 2023, section 4.2.2 (sequences).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.numerics.exchange import ExchangeRequest, ExchangeResult, Pass

# Cut of a parameter by the end of its name; parameters not listed are whole on every rank. For 2 ranks, qkv (3 x 4
# rows: q0-q3, k0-k3, v0-v3) is cut within each third, so that a rank gets whole heads:
#    rank 0: q0 q1 k0 k1 v0 v1      rank 1: q2 q3 k2 k3 v2 v3
_BY_OUTPUTS: Final = ("fc1.weight", "fc1.bias")
_BY_INPUTS: Final = ("proj.weight", "fc2.weight")
_THREE_BY_OUTPUTS: Final = ("qkv.weight", "qkv.bias")
_BY_VOCABULARY: Final = ("tok.weight", "head.weight")


@dataclass(frozen=True)
class TensorShard:
    """A rank's part of the model and of the sequences."""

    # `tensor`, `place`: Tensor-parallel ranks, and this rank's place among them.
    tensor: int = 1
    place: int = 0
    rows: int = 0  # rows of the token table on this rank; 0 for all
    # If True (sequence parallelism), activations between matrices are cut along the sequence over the tensor-parallel
    # ranks
    sequence: bool = False
    # `context`, `context_place`: Context-parallel ranks, and this rank's place among them.
    context: int = 1
    context_place: int = 0
    balanced: bool = True  # if True, each context-parallel rank has an early and a late piece of each sequence
    # If True, context-parallel ranks gather keys and values; else keys and values travel round a ring
    gathers: bool = False
    # `experts`, `expert_place`: Expert-parallel ranks, and this rank's place among them.
    experts: int = 1
    expert_place: int = 0

    @cached_property
    def tokens_of(self) -> tuple[int, ...]:
        """Numbers of the pieces of a sequence on each context-parallel rank, rank after rank.

        >>> TensorShard(context=4).tokens_of
        (0, 7, 1, 6, 2, 5, 3, 4)
        """
        c = self.context
        if c == 1 or not self.balanced:
            return tuple(range(c))
        # A causal query at position p attends to p + 1 keys, so late pieces cost more. Piece r and its mirror image 2c
        # - 1 - r cost the same in total on every rank.
        return tuple(piece for place in range(c) for piece in (place, 2 * c - 1 - place))

    def positions(self, seq_len: int, place: int | None = None) -> Ints:
        """Return the positions of a context-parallel rank's tokens in a sequence; without `place`, for this rank.

        >>> [TensorShard(context=2, context_place=place).positions(8).tolist() for place in range(2)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
        """
        if self.context == 1:
            return np.arange(seq_len)
        pieces = np.split(np.arange(seq_len), len(self.tokens_of))
        each = len(self.tokens_of) // self.context
        first = (self.context_place if place is None else place) * each
        return np.concatenate([pieces[number] for number in self.tokens_of[first : first + each]])

    def between(self, positions: Ints) -> Ints:
        """Return the positions for this rank's tokens between matrices, among the positions in the context-parallel
        part.
        """
        return np.split(positions, self.tensor)[self.place] if self.sequence else positions

    def gathered(self, name: str, x: Array) -> Pass[Array]:
        """Return the tensor-parallel ranks' parts of sequences, gathered from (batch, part, width) to (batch, all,
        width).
        """
        begun = yield from self.gather(name, x)
        return (yield from self.gather_end(begun, x))

    def gather(self, name: str, x: Array) -> Pass[str]:
        """Start an all-gather of parts of sequences; return the handle for `gather_end`, or "" if no sequence
        is cut.
        """
        if self.tensor == 1 or not self.sequence:
            return ""
        begun: str = yield ExchangeRequest(name, x.ravel(), later=True)
        return begun

    def gather_end(self, begun: str, x: Array) -> Pass[Array]:
        """Wait for the gather with this handle and return its result; `x` is this rank's contribution."""
        if not begun:
            return x
        batch, part, width = x.shape
        together = yield ExchangeResult(begun)
        # Received: rank after rank, each (batch, part, width). A sequence's parts must be adjacent, so ranks move
        # behind batch.
        sequences: Array = together.reshape(self.tensor, batch, part, width).swapaxes(0, 1).reshape(batch, -1, width)
        return sequences

    def scattered(self, name: str, x: Array) -> Pass[Array]:
        """Return this rank's part of the sequences, summed over the tensor-parallel ranks' arrays `x` of shape (batch,
        all, width).
        """
        batch, seq_len, width = x.shape
        # A reduce-scatter deals out contiguous blocks, so put the part for rank 0 first, then the part for rank 1, ...
        parts = x.reshape(batch, self.tensor, seq_len // self.tensor, width).swapaxes(0, 1)
        part: Array = yield ExchangeRequest(name, np.ascontiguousarray(parts).ravel())
        return part.reshape(batch, -1, width)

    def summed(self, name: str, x: Array) -> Pass[Array]:
        """Return the sum of the array `x` over the tensor-parallel ranks."""
        together: Array = yield ExchangeRequest(name, x.ravel())
        return together.reshape(x.shape)

    def part(self, name: str, parameter: Array) -> Array:
        """Return this rank's part of the whole parameter with this name."""
        if self.tensor == 1:
            return parameter
        if name.endswith(_BY_VOCABULARY):
            # Padding makes the parts of the vocabulary equal; padded words get probability 0 (vocabulary_loss.py).
            padded = np.pad(parameter, ((0, self.rows * self.tensor - len(parameter)), (0, 0)))
            return np.split(padded, self.tensor)[self.place]
        if name.endswith(_THREE_BY_OUTPUTS):
            return np.concatenate([np.split(third, self.tensor)[self.place] for third in np.split(parameter, 3)])
        if name.endswith(_BY_OUTPUTS):
            return np.split(parameter, self.tensor)[self.place]
        if name.endswith(_BY_INPUTS):
            return np.split(parameter, self.tensor, axis=1)[self.place]
        return parameter

    def whole(self, name: str, parts: Sequence[Array], vocabulary: int) -> Array:
        """Return the whole parameter with this name from all ranks' parts; rows that pad the token table are
        dropped.
        """
        if self.tensor == 1 or not is_cut(name):
            return parts[0]
        if name.endswith(_BY_VOCABULARY):
            return np.concatenate(parts)[:vocabulary]
        if name.endswith(_THREE_BY_OUTPUTS):
            # Undo the cut within thirds: all ranks' queries first, then their keys, then their values.
            thirds = [np.split(part, 3) for part in parts]
            return np.concatenate([part[third] for third in range(3) for part in thirds])
        return np.concatenate(parts, axis=1 if name.endswith(_BY_INPUTS) else 0)

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of this rank's part of the parameter with this name and whole shape."""
        if self.tensor == 1 or not is_cut(name):
            return shape
        if name.endswith(_BY_VOCABULARY):
            return (self.rows, *shape[1:])
        if name.endswith(_BY_INPUTS):
            return (shape[0], shape[1] // self.tensor)
        return (shape[0] // self.tensor, *shape[1:])


WHOLE: Final = TensorShard()


def is_cut(name: str) -> bool:
    """Return True if tensor-parallel ranks hold different parts of the parameter with this name, False if each rank
    holds it whole.

    >>> is_cut("qkv.weight"), is_cut("norm_1.weight")
    (True, False)
    """
    return name.endswith((*_BY_VOCABULARY, *_THREE_BY_OUTPUTS, *_BY_OUTPUTS, *_BY_INPUTS))


__all__ = ["WHOLE", "TensorShard", "is_cut"]
