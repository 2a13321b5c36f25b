"""A rank's HBM: bytes held by label, and bytes left.

Bytes are counted, and each change is recorded. With an allocator, memory lost in fragments counts too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from simulator.basics.errors import OutOfMemoryError
from simulator.engine.allocator import NoRoomError
from simulator.engine.allocator_log import LoggedAllocator
from simulator.records.operation import Allocate
from simulator.records.timeline import MemorySample


@dataclass(slots=True)
class Hbm:
    """A GPU's memory (HBM) during a simulation: allocations by label, and the bytes held after each change."""

    rank: int  # the rank, for messages
    capacity: float  # HBM of the GPU [B]
    # HBM of the rank's process that allocations cannot take: CUDA context, NCCL buffers [B].
    beside: int = 0
    # True: exceeding the capacity is an error. False: it sets `short`, and the simulation continues.
    limited: bool = True
    # Places bytes in segments; None if bytes are only counted.
    allocator: LoggedAllocator | None = None
    used: list[int] = field(default_factory=list)  # bytes held after each change [B]
    short: bool = False  # True if the capacity was exceeded
    _held: dict[str, Allocate] = field(default_factory=dict)
    _changes: list[tuple[str, int]] = field(default_factory=list)
    _used: int = 0

    def allocate(self, op: Allocate, now: float) -> None:
        """Allocate the bytes of a memory operation at time `now` [s].

        Raises
        ------
        OutOfMemoryError
            The bytes do not fit and the memory is limited.
        ValueError
            The label is in use.
        """
        if op.name in self._held:
            raise ValueError(f"rank {self.rank} holds {op.name!r} already; every allocation needs a name of its own")
        # Checked with an allocator too: its fragments come on top of the bytes counted here.
        if self._used + op.nbytes > self.capacity - self.beside:
            self._lack(op, now, self._used + op.nbytes + self.beside)
        self._place(op, now)
        self._held[op.name] = op
        self._count(op.category, op.nbytes)

    def free(self, name: str, now: float) -> None:
        """Free the allocation `name` at time `now` [s]; ValueError if the name is unknown."""
        if name not in self._held:
            raise ValueError(f"rank {self.rank} frees {name!r}, which it does not hold")
        op = self._held.pop(name)
        if self.allocator is not None:
            self.allocator.free(name, now=now)
        self._count(op.category, -op.nbytes)

    def _place(self, op: Allocate, now: float) -> None:
        """Place an allocation in the simulated allocator's segments, if there is an allocator."""
        if self.allocator is None:
            return
        try:
            self.allocator.allocate(op.name, op.nbytes, now=now, category=op.category)
        except NoRoomError as error:
            # The capacity that would have sufficed: the present one plus the shortage of the largest free piece.
            self._lack(op, now, int(self.capacity) + op.nbytes - int(error.largest_free))
            # Only reached without a limit: lift the capacity and continue.
            self.allocator.allocator.capacity = float("inf")
            self.allocator.allocate(op.name, op.nbytes, now=now, category=op.category)

    def _lack(self, op: Allocate, now: float, needed: int) -> None:
        """Record that an allocation would need `needed` bytes in total, more than the capacity.

        If the memory is limited, raises OutOfMemoryError with the three largest allocations.
        """
        self.short = True
        if not self.limited:
            return
        # Ties go by name, so that messages are reproducible.
        largest = sorted(self._held.values(), key=lambda allocation: (-allocation.nbytes, allocation.name))[:3]
        holders = tuple((allocation.name, allocation.nbytes) for allocation in largest)
        raise OutOfMemoryError(self.rank, now, needed, int(self.capacity), holders, self.beside)

    def _count(self, category: str, change: int) -> None:
        """Record a change by `change` bytes in the bytes held for `category`."""
        self._used += change
        self.used.append(self._used)
        self._changes.append((category, change))

    def samples(self, rank: int, times: Sequence[float]) -> Iterator[MemorySample]:
        """Yield a sample of the bytes held, in total and by category, after each change, at the given times [s]."""
        # In alphabetical order, in which samples list categories.
        by_category = dict.fromkeys(sorted({category for category, _ in self._changes}), 0)
        # Not strict: up to the peak, only the first changes are needed.
        for (category, change), used, time in zip(self._changes, self.used, times, strict=False):
            by_category[category] += change
            yield MemorySample(rank, time, used, tuple([entry for entry in by_category.items() if entry[1]]))
