"""A Program: what every rank does, stream by stream. Pure data.

Rule: a program says what happens and in which order, never when. Like a rehearsal plan: each player's own list, with
the points where players meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import overload

from simulator.records.operation import Collective, Op, content


class Family(Sequence[Collective]):
    """One collective of a step as each process group carries it out; members are made when asked for.

    Parameters
    ----------
    key : hashable
        Equal for families whose members differ in names, in what they wait for and in their acts alone.
    size : int
        How many groups there are.
    member : callable (int) -> Collective
        That of a group.
    """

    __slots__ = ("_member", "_size", "key")

    def __init__(self, key: Hashable, size: int, member: Callable[[int], Collective]) -> None:
        self.key = key
        self._size = size
        self._member = member

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, number: int) -> Collective: ...
    @overload
    def __getitem__(self, number: slice) -> tuple[Collective, ...]: ...
    def __getitem__(self, number: int | slice) -> Collective | tuple[Collective, ...]:
        if isinstance(number, slice):
            return tuple(self._member(n) for n in range(self._size)[number])
        return self._member(range(self._size)[number])


@dataclass(frozen=True, eq=False)
class OperationLists:
    """The different lists of operations of a program, each once, and which rank plays which.

    Attributes
    ----------
    lists : tuple of tuple of Op
        As the first rank of each has it.
    list_of : tuple of int
        By rank the number of its list.
    families : tuple of Family
        Every collective of a step once, in order of first appearance; also those that several lists have.
    family_at : tuple of tuple of int
        For each operation of each list the number of its family; -1 for what is no collective.
    """

    lists: tuple[tuple[Op, ...], ...]
    list_of: tuple[int, ...]
    families: tuple[Family, ...]
    family_at: tuple[tuple[int, ...], ...]

    @cached_property
    def collectives(self) -> dict[str, Collective]:
        """Every group's collectives once, by name, in order of first appearance."""
        return {op.name: op for family in self.families for op in family}

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """By family the number of its kind: families of one kind have the same key."""
        known: dict[Hashable, int] = {}
        return tuple(known.setdefault(family.key, len(known)) for family in self.families)

    @cached_property
    def kinds(self) -> tuple[tuple[Collective, ...], ...]:
        """By kind the members of its first family."""
        first: dict[int, Family] = {}
        for family, kind in zip(self.families, self.kind_of, strict=True):
            first.setdefault(kind, family)
        return tuple(tuple(family) for family in first.values())

    @cached_property
    def times(self) -> tuple[int, ...]:
        """By kind how many families it has."""
        count = Counter(self.kind_of)
        return tuple(count[kind] for kind in range(len(count)))

    @classmethod
    def made(
        cls,
        lists: tuple[tuple[Op, ...], ...],
        list_of: tuple[int, ...],
        family: Callable[[int, Collective], tuple[Hashable, Callable[[], Family]]],
    ) -> OperationLists:
        """Gather the families.

        Parameters
        ----------
        lists, list_of
        family : callable (list, Collective) -> (hashable, callable)
            What tells the family of a collective from others, and who makes it where it is the first time.
        """
        numbers: dict[Hashable, int] = {}
        families: list[Family] = []
        family_at = []
        for number, ops in enumerate(lists):
            of_list = [-1] * len(ops)
            for place, op in enumerate(ops):
                if isinstance(op, Collective):
                    identity, make = family(number, op)
                    if identity not in numbers:
                        numbers[identity] = len(families)
                        families.append(make())
                    of_list[place] = numbers[identity]
            family_at.append(tuple(of_list))
        return cls(lists, list_of, tuple(families), tuple(family_at))

    @classmethod
    def by_identity(cls, ranks: Sequence[tuple[Op, ...]]) -> OperationLists:
        """Ranks that share a tuple share a list; a collective in it is one group's."""
        number: dict[int, int] = {}
        list_of = tuple(number.setdefault(id(ops), len(number)) for ops in ranks)
        lists = tuple({id(ops): ops for ops in ranks}.values())

        def family(_: int, op: Collective) -> tuple[Hashable, Callable[[], Family]]:
            return op.name, lambda: Family(content(op), 1, partial(_only, op))

        return cls.made(lists, list_of, family)


def _only(op: Collective, _: int) -> Collective:
    return op


class RanksByList(Sequence[tuple[Op, ...]]):
    """Every rank's operations where many ranks do the same, each among its own groups: a list for all that are alike.

    A rank's own operations are made when asked for.

    Parameters
    ----------
    lists : OperationLists
    own : callable (place, rank) -> Op
        What a rank does at a place of its list.
    name : callable (place, rank) -> str
        The name of that, for which not all of it must be made.
    """

    __slots__ = ("_made", "_own", "lists", "name")

    def __init__(self, lists: OperationLists, own: Callable[[int, int], Op], name: Callable[[int, int], str]) -> None:
        self.lists = lists
        self._own, self.name = own, name
        self._made: dict[int, tuple[Op, ...]] = {}

    def __len__(self) -> int:
        return len(self.lists.list_of)

    @overload
    def __getitem__(self, rank: int) -> tuple[Op, ...]: ...
    @overload
    def __getitem__(self, rank: slice) -> tuple[tuple[Op, ...], ...]: ...
    def __getitem__(self, rank: int | slice) -> tuple[Op, ...] | tuple[tuple[Op, ...], ...]:
        if isinstance(rank, slice):
            return tuple(self[r] for r in range(len(self))[rank])
        number = range(len(self))[rank]
        if number not in self._made:
            places = range(len(self.lists.lists[self.lists.list_of[number]]))
            self._made[number] = tuple(self._own(place, number) for place in places)
        return self._made[number]

    def one(self, rank: int, place: int) -> Op:
        """One of a rank's operations, without making the others."""
        return self._made[rank][place] if rank in self._made else self._own(place, rank)


@dataclass(frozen=True)
class Program:
    """What each rank does.

    Attributes
    ----------
    ranks : sequence of tuple of Op
        Rank r's operations. Those of one stream run one at a time in this order; those of different streams at once.
    idle : frozenset of int
        Ranks without any operation are allowed; named here for reports.
    """

    ranks: Sequence[tuple[Op, ...]]
    idle: frozenset[int] = field(default=frozenset())

    @cached_property
    def lists(self) -> OperationLists:
        """The different lists, each once."""
        return self.ranks.lists if isinstance(self.ranks, RanksByList) else OperationLists.by_identity(self.ranks)

    def name(self, rank: int, place: int) -> str:
        """The name of one of a rank's operations."""
        return self.ranks.name(place, rank) if isinstance(self.ranks, RanksByList) else self.ranks[rank][place].name

    def operation(self, rank: int, place: int) -> Op:
        """One of a rank's operations: all of them are not made for it."""
        return self.ranks.one(rank, place) if isinstance(self.ranks, RanksByList) else self.ranks[rank][place]

    def collectives(self) -> dict[str, Collective]:
        """Every collective once, by name, in order of first appearance."""
        return self.lists.collectives
