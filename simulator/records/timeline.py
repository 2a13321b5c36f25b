"""A Timeline: what happened and when. Flat records, the return value of an engine.

Rule: a record of the past, without behaviour. Like a seismograph's paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.records.later import AllRanks
from simulator.records.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of one rank, from when its stream reached it to its end.

    Attributes
    ----------
    rank : int
    stream, name, kind : str
    start, end : float
        [s]
    nbytes : float
        Of HBM for compute, of the whole array for a collective [B].
    flops : float
        [FLOP]
    """

    rank: int
    stream: str
    name: str
    kind: str
    start: float
    end: float
    nbytes: float = 0.0
    flops: float = 0.0


class RouteLinks(Sequence[tuple[int, ...]]):
    """The links of each of some routes, by number, in the order of travel.

    Parameters
    ----------
    begin : int array, shape (routes + 1,)
        Where each route's links begin.
    link : int array, shape (n,)
    """

    __slots__ = ("begin", "link")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, begin: Ints, link: Ints) -> None:
        self.begin = begin
        self.link = link

    def __len__(self) -> int:
        return len(self.begin) - 1

    @overload
    def __getitem__(self, route: int) -> tuple[int, ...]: ...
    @overload
    def __getitem__(self, route: slice) -> tuple[tuple[int, ...], ...]: ...
    def __getitem__(self, route: int | slice) -> tuple[int, ...] | tuple[tuple[int, ...], ...]:
        if isinstance(route, slice):
            return tuple(self[r] for r in range(len(self))[route])
        number = range(len(self))[route]
        return tuple(self.link[self.begin[number] : self.begin[number + 1]].tolist())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __repr__(self) -> str:
        return repr(tuple(self))

    @staticmethod
    def of(routes: Iterable[Iterable[int]]) -> RouteLinks:
        """From each route's links written out."""
        written = [tuple(route) for route in routes]
        begin = np.cumsum([0, *map(len, written)])
        return RouteLinks(begin, np.array([link for route in written for link in route], np.int64))


@dataclass(frozen=True, slots=True)
class TransferLog:
    """The transfers of one collective as they were played: columns, one row a transfer.

    Attributes
    ----------
    collective : str
        The operation's name.
    transfers : Transfers
        Who, to whom, which chunks.
    nbytes : float array
        On the wire [B].
    enter, end : float array
        When its bytes begin to flow and when the last is through [s].
    route_of : int array
        Row of `routes`.
    routes : RouteLinks
    vertices : tuple of str
        Vertex of each participant.
    """

    collective: str
    transfers: Transfers
    nbytes: Floats
    enter: Floats
    end: Floats
    route_of: npt.NDArray[np.int32]
    routes: RouteLinks
    vertices: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.nbytes)


@dataclass(frozen=True, slots=True)
class Sent:
    """What a collective sent in all: known without its log.

    Attributes
    ----------
    collective : str
    transfers : int
    nbytes : float
        On the wire, each transfer counted once [B].
    """

    collective: str
    transfers: int
    nbytes: float


@dataclass(frozen=True, slots=True)
class MemorySample:
    """HBM in use on a rank from this moment on, by category [B]."""

    rank: int
    time: float
    nbytes: int
    by_category: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One thing that an allocator did.

    Attributes
    ----------
    time : float
        [s]
    action : str
        "alloc", "free", "oom" (an allocation that did not fit), "segment_alloc", "segment_free", or in expandable
        segments "segment_map", "segment_unmap".
    address : int
        Of the first byte; for "oom" the bytes that the device has left [B].
    size : int
        As requested for alloc, free and oom; of the segment or pages for the others [B].
    label : str
        The allocation's name; for segments "small" or "large", after their pool.
    stream : int
    category : str
        What the bytes are for: "parameters", "activations", ...
    block_size : int
        Of the block that holds the allocation, rounding included [B]; 0 where there is none.
    """

    time: float
    action: str
    address: int
    size: int
    label: str = ""
    stream: int = 0
    category: str = ""
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class LinkUse:
    """What one directed link carried.

    Attributes
    ----------
    name : str
        'src->dst'.
    bandwidth : float
        [B/s]
    nbytes : float
        [B]
    busy : float
        Time during which at least one flow was on it [s].
    """

    name: str
    bandwidth: float
    nbytes: float
    busy: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything that an engine recorded.

    Attributes
    ----------
    engine : str
        Which engine played it.
    end : float
        When the last operation ended [s].
    spans : sequence of Span
        Sorted by rank, stream, start; of all ranks, or of those that were asked for and the one that ends last.
    logs : sequence of TransferLog
        One a collective, in the program's order.
    memory : sequence of MemorySample
        Of all ranks, or of the ranks with spans and one of each kind that differs in what it holds.
    peak : MemorySample or None
        The first of the largest; None where nobody holds anything.
    at_work : mapping of rank to float
        How long a rank's GPU, its host for it, or its communication did anything, of all ranks [s].
    last_rank : int or None
        Whose operations end last, of several the lowest; None where there are none.
    links : tuple of LinkUse
        Links that carried anything, by number.
    link_names : mapping of link number to 'src->dst', for links on any route
    link_bandwidths : mapping of link number to bandwidth, for the same links [B/s]
    allocations : mapping of rank to tuple of AllocatorEvent
        What each rank's allocator did, where one was at work.
    reserved : mapping of rank to int
        Most that each rank's allocator held from the device [B].
    short_of_memory : tuple of int
        Ranks that would have run out of memory, where the step was played on all the same.
    sent : sequence of Sent
        The collectives of the logs, counted.
    transfers : int
        Of all of them together.
    """

    engine: str
    end: float
    spans: Sequence[Span]
    logs: Sequence[TransferLog] = ()
    memory: Sequence[MemorySample] = ()
    links: tuple[LinkUse, ...] = ()
    link_names: dict[int, str] = field(default_factory=dict)
    link_bandwidths: dict[int, float] = field(default_factory=dict)
    allocations: Mapping[int, tuple[AllocatorEvent, ...]] = field(default_factory=dict)
    reserved: dict[int, int] = field(default_factory=dict)
    short_of_memory: tuple[int, ...] = ()
    sent: Sequence[Sent] = ()
    transfers: int = 0
    peak: MemorySample | None = None
    last_rank: int | None = None
    at_work: Mapping[int, float] = field(default_factory=dict)


R = TypeVar("R", Span, MemorySample)


def by_rank(records: Sequence[R]) -> Mapping[int, tuple[R, ...]]:
    """Each rank's records, in the order in which they are told."""
    if isinstance(records, AllRanks):
        return records.by_rank
    found: dict[int, list[R]] = {}
    for record in records:
        found.setdefault(record.rank, []).append(record)
    return {rank: tuple(own) for rank, own in found.items()}
