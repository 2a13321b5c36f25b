"""A Timeline: what happened and when. Flat records, returned by an engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.records.lazy import AllRanks
from simulator.records.program import ProcessMemory
from simulator.records.transfers import Transfers


@dataclass(frozen=True, slots=True)
class Span:
    """A rank's operation with times: from the start on the stream to the end."""

    rank: int  # the rank
    # `stream`, `name`, `kind`: As in the operation; the kind of a collective is its operation.
    stream: str
    name: str
    kind: str
    # `start`, `end`: Times [s].
    start: float
    end: float
    nbytes: float = 0.0  # HBM traffic of a kernel, or bytes of the whole array of a collective [B]
    flops: float = 0.0  # operations of a kernel [FLOP]
    closed_form: bool = False  # True for a collective that took no link, because a closed form gave its duration


class RouteLinks(Sequence[tuple[int, ...]]):
    """Each route's link numbers, in travel order; a sequence with a tuple per route.

    Parameters
    ----------
    begin : int array, shape (routes + 1,)
        First entry of each route in `link`.
    link : int array, shape (n,)
        Links of all routes.

    Examples
    --------
    >>> RouteLinks.of([(4, 7), (7,)])[0]
    (4, 7)
    """

    __slots__ = ("begin", "link")
    # Unhashable, because it equals any sequence with equal entries.
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
        """Return the routes in columns, given each route's link numbers."""
        paths = [tuple(route) for route in routes]
        begin = np.cumsum([0, *map(len, paths)])
        return RouteLinks(begin, np.array([link for route in paths for link in route], np.int64))


@dataclass(frozen=True, slots=True)
class TransferLog:
    """A collective's transfers with times: columns with a row per transfer."""

    collective: str  # name of the operation
    transfers: Transfers  # sender, receiver and chunks
    nbytes: Floats  # bytes on the wire [B]
    # `enter`, `end`: When the bytes begin to flow, and when the last has arrived [s].
    enter: Floats
    end: Floats
    route_of: npt.NDArray[np.int32]  # row of `routes`
    routes: RouteLinks  # links of each route
    vertices: tuple[str, ...]  # vertex of each participant

    def __len__(self) -> int:
        return len(self.nbytes)


@dataclass(frozen=True, slots=True)
class CollectiveTotals:
    """A collective's transfer count and bytes, known without a log."""

    collective: str  # name of the operation
    transfers: int  # number of transfers
    nbytes: float  # bytes on the wire, each transfer counted once [B]


@dataclass(frozen=True, slots=True)
class MemorySample:
    """GPU memory (HBM) in use on a rank from a moment on, in total and by category [B]."""

    rank: int
    time: float
    nbytes: int
    by_category: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """A GPU memory allocator's logged action."""

    time: float  # time [s]
    # "alloc", "free", "oom" (an allocation that did not fit), "segment_alloc", "segment_free"; with expandable segments
    # also "segment_map", "segment_unmap".
    action: str
    # Address of the first byte; for "oom", bytes left on the device [B].
    address: int
    # Size as requested for alloc, free and oom; otherwise the size of the segment or pages [B].
    size: int
    # Name of the allocation; for segments their pool, "small" or "large".
    label: str = ""
    stream: int = 0  # stream of the pool
    # Purpose of the bytes: "parameters", "activations", ...
    category: str = ""
    # Size of the allocated block, rounding included [B]; 0 if there is none.
    block_size: int = 0


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Traffic on a directed link of the cluster during a simulation."""

    name: str  # 'src->dst'
    bandwidth: float  # bandwidth [B/s]
    nbytes: float  # bytes carried [B]
    busy: float  # time with at least one flow on the link [s]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything recorded by an engine during a simulation: operations, transfers, memory and links."""

    engine: str  # name of the engine
    end: float  # end of the last operation [s]
    # Sorted by rank, stream, start; of all ranks, or of the requested ranks and the rank that ends last.
    spans: Sequence[Span]
    logs: Sequence[TransferLog] = ()  # one log per collective, in the program's order
    # Of all ranks; or of the ranks with spans and of one rank of each kind with different memory use.
    memory: Sequence[MemorySample] = ()
    links: tuple[LinkUse, ...] = ()  # links that carried anything, by number
    link_names: dict[int, str] = field(default_factory=dict)  # links on any route
    link_bandwidths: dict[int, float] = field(default_factory=dict)  # bandwidths of the same links [B/s]
    # Log of each rank's allocator, if there is one.
    allocations: Mapping[int, tuple[AllocatorEvent, ...]] = field(default_factory=dict)
    # Maximum that each rank's allocator took from the device [B].
    reserved: dict[int, int] = field(default_factory=dict)
    short_of_memory: tuple[int, ...] = ()  # ranks that exceeded their memory in a simulation without memory limit
    sent: Sequence[CollectiveTotals] = ()  # totals of each collective in `logs`
    transfers: int = 0  # number of transfers of all collectives
    # The first of the largest samples; None if no rank holds anything.
    peak: MemorySample | None = None
    # Largest number of bytes that each rank in `memory` holds [B].
    peak_bytes: Mapping[int, int] = field(default_factory=dict)
    # Rank whose operations end last, the lowest of several; None if there are no operations.
    last_rank: int | None = None
    # How long the rank's GPU, its host or its communication did any work, for all ranks [s].
    at_work: Mapping[int, float] = field(default_factory=dict)
    beside: ProcessMemory = field(default_factory=ProcessMemory)  # memory of each rank's process beside its allocations


R = TypeVar("R", Span, MemorySample)


def by_rank(records: Sequence[R]) -> Mapping[int, tuple[R, ...]]:
    """Return a mapping from rank to the rank's records, in the order given.

    >>> spans = [Span(rank, "compute", "step", "forward", 0.0, 1.0) for rank in (1, 0, 1)]
    >>> {rank: len(group) for rank, group in by_rank(spans).items()}
    {1: 2, 0: 1}
    """
    # Lazy records stay lazy.
    if isinstance(records, AllRanks):
        return records.by_rank
    of_rank: dict[int, list[R]] = {}
    for record in records:
        of_rank.setdefault(record.rank, []).append(record)
    return {rank: tuple(group) for rank, group in of_rank.items()}
