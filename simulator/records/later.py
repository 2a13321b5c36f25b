"""Records that are written when somebody asks for them: most of what could be told of a play is never looked at.

Rule: what is asked for twice is written once; the same records come, in the same order, as if all had been written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Later(Sequence[T]):
    """So many records, each made from its number when it is asked for."""

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
        place = range(len(self))[number]
        if place not in self._made:
            self._made[place] = self._make(place)
        return self._made[place]


class LaterValues(Mapping[int, T]):
    """A value of each rank, made when it is asked for.

    Parameters
    ----------
    makers : mapping of rank to callable
        In the order in which ranks are told.
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


class LaterByRank(LaterValues[tuple[T, ...]]):
    """Each rank's records, made when the rank is asked for; parameters are those of LaterValues, of any sequences."""

    __slots__ = ()

    def __init__(self, makers: Mapping[int, Callable[[], Sequence[T]]]) -> None:
        super().__init__({rank: partial(_as_tuple, make) for rank, make in makers.items()})


def _as_tuple(make: Callable[[], Sequence[T]]) -> tuple[T, ...]:
    return tuple(make())


class AllRanks(Sequence[T], Generic[T]):
    """The records of all ranks one behind the other.

    Attributes
    ----------
    by_rank : LaterByRank
    """

    __slots__ = ("by_rank",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, by_rank: LaterByRank[T]) -> None:
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
