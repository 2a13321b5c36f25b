"""What one rank has of a model that several compute together: its part of matrices, of the vocabulary, of sequences.

Rule: sizes, places and the order in which parts lie; matrices that are cut by columns here, in PyTorch's layout (out,
in), lose rows, those that are cut by rows lose columns.

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
from simulator.numerics.exchange import Came, Pass, Wanted

# By the last parts of parameters' names how they are cut; all others are whole on every rank.
_BY_OUTPUTS: Final = ("fc1.weight", "fc1.bias")
_BY_INPUTS: Final = ("proj.weight", "fc2.weight")
_THREE_BY_OUTPUTS: Final = ("qkv.weight", "qkv.bias")
_BY_VOCABULARY: Final = ("tok.weight", "head.weight")


@dataclass(frozen=True)
class Share:
    """A rank's part.

    Attributes
    ----------
    tensor, place : int
        Ranks among which matrices are cut, and this one's place among them.
    rows : int
        Rows of the token table that it has; 0 for all.
    sequence : bool
        Whether what lies between matrices is cut along the sequence among these ranks.
    context, context_place : int
        Ranks among which sequences are cut everywhere, and this one's place.
    balanced : bool
        Whether each of those has an early and a late piece.
    gathers : bool
        Whether they gather keys and values, which else go round.
    experts, expert_place : int
        Ranks over which experts are spread, and this one's place.
    """

    tensor: int = 1
    place: int = 0
    rows: int = 0
    sequence: bool = False
    context: int = 1
    context_place: int = 0
    balanced: bool = True
    gathers: bool = False
    experts: int = 1
    expert_place: int = 0

    @cached_property
    def tokens_of(self) -> tuple[int, ...]:
        """Which pieces of a sequence each context-parallel rank has, one rank behind the other.

        Examples
        --------
        >>> Share(context=4).tokens_of
        (0, 7, 1, 6, 2, 5, 3, 4)
        """
        c = self.context
        if c == 1 or not self.balanced:
            return tuple(range(c))
        return tuple(piece for place in range(c) for piece in (place, 2 * c - 1 - place))

    def positions(self, seq_len: int, place: int | None = None) -> Ints:
        """Positions of the tokens of a context-parallel rank, by default this one, of sequences of so many tokens."""
        if self.context == 1:
            return np.arange(seq_len)
        pieces = np.split(np.arange(seq_len), len(self.tokens_of))
        each = len(self.tokens_of) // self.context
        first = (self.context_place if place is None else place) * each
        return np.concatenate([pieces[number] for number in self.tokens_of[first : first + each]])

    def between(self, positions: Ints) -> Ints:
        """Those of a context-parallel rank's tokens that this rank has between matrices."""
        return np.split(positions, self.tensor)[self.place] if self.sequence else positions

    def gathered(self, name: str, x: Array) -> Pass[Array]:
        """Parts of sequences put together, shape (batch, part, width) to (batch, all, width)."""
        begun = yield from self.gather(name, x)
        return (yield from self.gather_end(begun, x))

    def gather(self, name: str, x: Array) -> Pass[str]:
        """Begin to put parts together; returns what `gather_end` is to ask for, "" where nothing is cut."""
        if self.tensor == 1 or not self.sequence:
            return ""
        begun: str = yield Wanted(name, x.ravel(), later=True)
        return begun

    def gather_end(self, begun: str, x: Array) -> Pass[Array]:
        """What came of it, where each rank has brought an array like this one."""
        if not begun:
            return x
        batch, part, width = x.shape
        together = yield Came(begun)
        whole: Array = together.reshape(self.tensor, batch, part, width).swapaxes(0, 1).reshape(batch, -1, width)
        return whole

    def scattered(self, name: str, x: Array) -> Pass[Array]:
        """Sums of all ranks' arrays, of which each has its part of the sequences: (batch, all, width) to part."""
        batch, whole, width = x.shape
        parts = x.reshape(batch, self.tensor, whole // self.tensor, width).swapaxes(0, 1)
        own: Array = yield Wanted(name, np.ascontiguousarray(parts).ravel())
        return own.reshape(batch, -1, width)

    def summed(self, name: str, x: Array) -> Pass[Array]:
        """The sum of all ranks' arrays."""
        together: Array = yield Wanted(name, x.ravel())
        return together.reshape(x.shape)

    def part(self, name: str, whole: Array) -> Array:
        """This rank's part of a parameter."""
        if self.tensor == 1:
            return whole
        if name.endswith(_BY_VOCABULARY):
            padded = np.pad(whole, ((0, self.rows * self.tensor - len(whole)), (0, 0)))
            return np.split(padded, self.tensor)[self.place]
        if name.endswith(_THREE_BY_OUTPUTS):
            return np.concatenate([np.split(third, self.tensor)[self.place] for third in np.split(whole, 3)])
        if name.endswith(_BY_OUTPUTS):
            return np.split(whole, self.tensor)[self.place]
        if name.endswith(_BY_INPUTS):
            return np.split(whole, self.tensor, axis=1)[self.place]
        return whole

    def whole(self, name: str, parts: Sequence[Array], vocabulary: int) -> Array:
        """A parameter put together from all ranks' parts; of the table without the rows that pad it."""
        if self.tensor == 1 or not is_cut(name):
            return parts[0]
        if name.endswith(_BY_VOCABULARY):
            return np.concatenate(parts)[:vocabulary]
        if name.endswith(_THREE_BY_OUTPUTS):
            thirds = [np.split(part, 3) for part in parts]
            return np.concatenate([own[third] for third in range(3) for own in thirds])
        return np.concatenate(parts, axis=1 if name.endswith(_BY_INPUTS) else 0)

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of this rank's part of a parameter of a shape."""
        if self.tensor == 1 or not is_cut(name):
            return shape
        if name.endswith(_BY_VOCABULARY):
            return (self.rows, *shape[1:])
        if name.endswith(_BY_INPUTS):
            return (shape[0], shape[1] // self.tensor)
        return (shape[0] // self.tensor, *shape[1:])


WHOLE: Final = Share()


def is_cut(name: str) -> bool:
    """Whether ranks that cut matrices each have a part of a parameter; each of them has all of every other."""
    return name.endswith((*_BY_VOCABULARY, *_THREE_BY_OUTPUTS, *_BY_OUTPUTS, *_BY_INPUTS))


__all__ = ["WHOLE", "Share", "is_cut"]
