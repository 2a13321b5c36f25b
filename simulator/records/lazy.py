"""Lazy sequences and mappings: records are built on first access, because most records are never read.

Each record is built once and cached. Contents and order equal those in an eager sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class LazySequence(Sequence[T]):
    """Lazy sequence of `total` records: record n is built by make(n) on first access."""

    __slots__ = ("_made", "_make", "_total")

    def __init__(self, total: int, make: Callable[[int], T]) -> None:
        self._total = total
        self._make = make
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return self._total

    @overload
    def __getitem__(self, number: int) -> T: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[T, ...]: ...
    def __getitem__(self, number: int | slice) -> T | tuple[T, ...]:
        if isinstance(number, slice):
            return tuple(self[n] for n in range(len(self))[number])
        # range handles negative numbers, and raises IndexError outside.
        place = range(len(self))[number]
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]


class LazyValues(Mapping[int, T]):
    """Lazy mapping from rank to a value, built on first access.

    Parameters
    ----------
    makers : mapping of rank to callable
        Builds the value of each rank; its order is the order of iteration.
    """

    __slots__ = ("_made", "_makers")

    def __init__(self, makers: Mapping[int, Callable[[], T]]) -> None:
        self._makers = makers
        self._made: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._makers)

    def __contains__(self, rank: object) -> bool:
        return rank in self._makers

    def __getitem__(self, rank: int) -> T:
        if rank not in self._made:
            self._made[rank] = self._makers[rank]()
        return self._made[rank]


class LazyByRank(LazyValues[tuple[T, ...]]):
    """Lazy mapping from rank to a tuple of records, built on first access; makers may return any sequence."""

    __slots__ = ()

    def __init__(self, makers: Mapping[int, Callable[[], Sequence[T]]]) -> None:
        super().__init__({rank: partial(_as_tuple, make) for rank, make in makers.items()})


def _as_tuple(make: Callable[[], Sequence[T]]) -> tuple[T, ...]:
    return tuple(make())


class AllRanks(Sequence[T], Generic[T]):
    """Lazy sequence with every rank's records, concatenated rank by rank.

    Attributes
    ----------
    by_rank : LazyByRank
        Records of each rank.
    """

    __slots__ = ("by_rank",)
    # Unhashable, because it equals any sequence with equal records.
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, by_rank: LazyByRank[T]) -> None:
        self.by_rank = by_rank

    def __iter__(self) -> Iterator[T]:
        return (record for rank in self.by_rank for record in self.by_rank[rank])

    def __len__(self) -> int:
        return sum(len(self.by_rank[rank]) for rank in self.by_rank)

    def __bool__(self) -> bool:
        return any(self.by_rank[rank] for rank in self.by_rank)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __getitem__(self, number: Any) -> Any:
        return tuple(self)[number]
