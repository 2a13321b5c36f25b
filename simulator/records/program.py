"""A Program: every rank's operations, stream by stream. Pure data.

A program describes operations and their order, never times. Each rank has its own list; ranks meet at collectives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import overload

import numpy as np

from simulator.basics.arrays import Floats
from simulator.records.operation import Collective, Compute, KernelParts, Op, content


class CollectiveGroupFamily(Sequence[Collective]):
    """A collective operation of a training step, once for each process group; members are built on access.

    Parameters
    ----------
    key : hashable
        Equal for families whose members differ only in names, awaited operations and acts.
    size : int
        Number of groups.
    member : callable (int) -> Collective
        Builds the collective of a group.
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
    """A program's distinct lists of operations, and each rank's list."""

    lists: tuple[tuple[Op, ...], ...]  # distinct lists, with the groups of the first rank of each
    list_of: tuple[int, ...]  # list of each rank
    # Collectives of a step, each once, in order of first appearance, even if several lists contain them
    families: tuple[CollectiveGroupFamily, ...]
    # Family of each operation of each list; -1 for operations that are no collectives
    family_at: tuple[tuple[int, ...], ...]

    @cached_property
    def collectives(self) -> dict[str, Collective]:
        """Every group's collectives by name, in order of first appearance."""
        return {op.name: op for family in self.families for op in family}

    @cached_property
    def kind_of(self) -> tuple[int, ...]:
        """Each collective family's kind; families that differ only in names, waits and effects have an equal kind."""
        numbers: dict[Hashable, int] = {}
        # Kinds are numbered in order of first appearance.
        return tuple(numbers.setdefault(family.key, len(numbers)) for family in self.families)

    @cached_property
    def kinds(self) -> tuple[tuple[Collective, ...], ...]:
        """For each kind of collective, the first family's members, a collective per process group."""
        first: dict[int, CollectiveGroupFamily] = {}
        for family, kind in zip(self.families, self.kind_of, strict=True):
            first.setdefault(kind, family)
        return tuple(tuple(family) for family in first.values())

    @cached_property
    def times(self) -> tuple[int, ...]:
        """Number of families in each kind."""
        count = Counter(self.kind_of)
        return tuple(count[kind] for kind in range(len(count)))

    @classmethod
    def made(
        cls,
        lists: tuple[tuple[Op, ...], ...],
        list_of: tuple[int, ...],
        family: Callable[[int, Collective], tuple[Hashable, Callable[[], CollectiveGroupFamily]]],
    ) -> OperationLists:
        """Return a program's distinct operation lists, with the families for the lists' collectives.

        Parameters
        ----------
        lists : tuple of tuple of Op
            Distinct lists of operations.
        list_of : tuple of int
            List of each rank.
        family : callable (list, Collective) -> (hashable, callable)
            Returns the identity of a collective's family, and a function that builds the family when it appears first.
        """
        numbers: dict[Hashable, int] = {}
        families: list[CollectiveGroupFamily] = []
        family_at = []
        for number, ops in enumerate(lists):
            # -1 marks operations without a family.
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
        """Return a program's lists, given each rank's operations: ranks with the same tuple object share a list.

        Each collective is then a family with a single group.
        """
        # Identity, not equality: comparing lists entry by entry would be slow.
        number: dict[int, int] = {}
        list_of = tuple(number.setdefault(id(ops), len(number)) for ops in ranks)
        lists = tuple({id(ops): ops for ops in ranks}.values())

        def family(_: int, op: Collective) -> tuple[Hashable, Callable[[], CollectiveGroupFamily]]:
            return op.name, lambda: CollectiveGroupFamily(content(op), 1, partial(_only, op))

        return cls.made(lists, list_of, family)


def _only(op: Collective, _: int) -> Collective:
    """Return the collective `op`, its family's only member; the second argument is ignored."""
    return op


class RanksByList(Sequence[tuple[Op, ...]]):
    """Sequence of every rank's operations, for programs in which many ranks do the same in their own groups.

    A rank's own operations are built on access.

    Parameters
    ----------
    lists : OperationLists
        Distinct lists.
    make : callable (place, rank) -> Op
        Builds a rank's operation at a place of its list.
    name : callable (place, rank) -> str
        Returns the operation's name without building the operation.
    """

    __slots__ = ("_made", "_own", "lists", "name")

    def __init__(self, lists: OperationLists, make: Callable[[int, int], Op], name: Callable[[int, int], str]) -> None:
        self.lists = lists
        self._own, self.name = make, name
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
        """Return the operation at index `place` in a rank's list, without building the rank's other operations."""
        return self._made[rank][place] if rank in self._made else self._own(place, rank)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Memory of a training process beside PyTorch's allocator."""

    context: int = 0  # CUDA context [B]
    nccl: int = 0  # buffers of NCCL's communicators [B]; 0 on a single GPU

    @property
    def nbytes(self) -> int:
        """Context and buffers together [B]."""
        return self.context + self.nccl


@dataclass(frozen=True)
class Program:
    """A program: each rank's operations, stream by stream, without times."""

    # Operations of each rank. Operations on one stream run one at a time in this order; streams run concurrently.
    ranks: Sequence[tuple[Op, ...]]
    idle: frozenset[int] = field(default=frozenset())  # ranks without operations, named here for reports
    beside: ProcessMemory = ProcessMemory()  # memory of each rank's process that its allocations cannot take
    # Work of each rank in kernels that ranks share but for their data, relative to the kernels' durations, shape (rows,
    # ranks); `Compute.work` names a row
    work: Floats = field(default_factory=lambda: np.ones((0, 0)))

    @property
    def evenly(self) -> Program:
        """The program with the mean of the ranks' work on every rank."""
        return replace(self, work=np.repeat(self.work.mean(axis=1, keepdims=True), len(self.ranks), axis=1))

    @cached_property
    def lists(self) -> OperationLists:
        """Distinct operation lists, and each rank's list."""
        return self.ranks.lists if isinstance(self.ranks, RanksByList) else OperationLists.by_identity(self.ranks)

    def name(self, rank: int, place: int) -> str:
        """Return the name for the operation at index `place` in a rank's list."""
        return self.ranks.name(place, rank) if isinstance(self.ranks, RanksByList) else self.ranks[rank][place].name

    def operation(self, rank: int, place: int) -> Op:
        """Return the operation at index `place` in a rank's list, without building the rank's other operations."""
        return self.ranks.one(rank, place) if isinstance(self.ranks, RanksByList) else self.ranks[rank][place]

    def collectives(self) -> dict[str, Collective]:
        """Return every collective by name, in order of first appearance."""
        return self.lists.collectives

    def kernels(self, rank: int) -> dict[str, KernelParts]:
        """Return the kinds of kernels in each of a rank's operations by name, with their shares of the duration."""
        return {op.name: op.kernel_shares for op in self.ranks[rank] if isinstance(op, Compute)}
