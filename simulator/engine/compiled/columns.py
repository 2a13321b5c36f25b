"""Arrays collected piece by piece, and a table that stores equal things once.

Both serve the modules that fill the core's arrays; neither knows a column's meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Ints
from simulator.engine.compiled.fields import FIELDS


@dataclass(slots=True)
class Columns:
    """Named arrays collected piece by piece and concatenated once."""

    pieces: dict[str, list[Any]] = field(default_factory=dict)  # pieces of each column

    def add(self, **pieces: Any) -> None:
        """Append a piece to each given column."""
        for name, piece in pieces.items():
            self.pieces.setdefault(name, []).append(piece)

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Return every column by name, its pieces concatenated in the type that the C core expects."""
        return {
            name: np.concatenate([np.atleast_1d(np.asarray(piece, FIELDS[name])) for piece in pieces])
            for name, pieces in self.pieces.items()
        }


def begins(counts: Iterable[int]) -> Ints:
    """Return each segment's offset and the last segment's end, given segment lengths.

    >>> begins([3, 1, 2]).tolist()
    [0, 3, 4, 6]
    """
    return np.cumsum([0, *counts])


class Known:
    """Table without duplicates: equal keys share a number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.things: list[Any] = []

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """Return the number of `key` in the table; append `make()` to the table if the key is new."""
        if key not in self.numbers:
            # The number is the thing's index in `things`.
            self.numbers[key] = len(self.things)
            self.things.append(make())
        return self.numbers[key]
