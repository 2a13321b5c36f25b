"""Arrays that are put together piece by piece, and things that are alike kept once.

Rule: of use to whoever writes a problem down; knows nothing of what is in it.
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
    """Columns that grow piece by piece; each is put together once."""

    pieces: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, **pieces: Any) -> None:
        """Go on with these columns."""
        for name, piece in pieces.items():
            self.pieces.setdefault(name, []).append(piece)

    def values(self) -> dict[str, npt.NDArray[Any]]:
        """Every column in the type of its field."""
        return {
            name: np.concatenate([np.atleast_1d(np.asarray(piece, FIELDS[name])) for piece in own])
            for name, own in self.pieces.items()
        }


def begins(counts: Iterable[int]) -> Ints:
    """Where each of some stretches of such lengths begins, and the last one ends."""
    return np.cumsum([0, *counts])


class Known:
    """Things that are alike are kept once: what was made for a key has a number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.things: list[Any] = []

    def number(self, key: Any, make: Callable[[], Any]) -> int:
        """Number of what was made for a key, or is made now."""
        if key not in self.numbers:
            self.numbers[key] = len(self.things)
            self.things.append(make())
        return self.numbers[key]
