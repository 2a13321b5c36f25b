"""HBM of one rank: what is held, under which label, and how much is left.

Rule: counts bytes and remembers when; whether a rank may go beyond its capacity is said by whoever builds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.errors import OutOfMemoryError
from simulator.program import Allocate
from simulator.timeline import MemorySample


@dataclass(slots=True)
class Hbm:
    """A rank's HBM.

    Attributes
    ----------
    rank : int
    capacity : float
        [B]; infinite to play on without a limit.
    """

    rank: int
    capacity: float
    samples: list[MemorySample] = field(default_factory=list)
    _held: dict[str, Allocate] = field(default_factory=dict)
    _used: int = 0

    def allocate(self, op: Allocate, now: float) -> None:
        """Take bytes; OutOfMemoryError where they are not there, ValueError where the label is taken."""
        if op.name in self._held:
            raise ValueError(f"rank {self.rank} holds {op.name!r} already; every allocation needs a name of its own")
        if self._used + op.nbytes > self.capacity:
            largest = sorted(self._held.values(), key=lambda held: (-held.nbytes, held.name))[:3]
            holders = tuple((held.name, held.nbytes) for held in largest)
            raise OutOfMemoryError(self.rank, now, self._used + op.nbytes, int(self.capacity), holders)
        self._held[op.name] = op
        self._used += op.nbytes
        self._sample(now)

    def free(self, name: str, now: float) -> None:
        """Give bytes back."""
        if name not in self._held:
            raise ValueError(f"rank {self.rank} frees {name!r}, which it does not hold")
        self._used -= self._held.pop(name).nbytes
        self._sample(now)

    def _sample(self, now: float) -> None:
        by_category: dict[str, int] = {}
        for held in self._held.values():
            by_category[held.category] = by_category.get(held.category, 0) + held.nbytes
        self.samples.append(MemorySample(self.rank, now, self._used, tuple(sorted(by_category.items()))))
