"""What an algorithm file declares: its operations, what they send, and what they take on an idle network.

Rule: an algorithm is described here and played elsewhere. One shared test holds every algorithm to what it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from simulator.collectives.example import Example, plain
from simulator.collectives.idle import IdleNetwork
from simulator.records.schedule import Schedule

OPERATIONS: Final = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
)
ROOTED: Final = ("broadcast", "reduce", "scatter", "gather")
REDUCING: Final = ("all_reduce", "reduce_scatter", "reduce")
# Where so many answer one rank at once, switches' buffers overflow, and neither those nor congestion is modelled: TCP
# breaks down at some twenty senders, DCTCP holds out to some 35 (Alizadeh et al., SIGCOMM 2010, section 4.2.1;
# recalled). MPICH has no such exchange among its choices (Thakur, Rabenseifner & Gropp, IJHPCA 2005).
MOST_TO_ONE: Final = 64


@dataclass(frozen=True, slots=True)
class Request:
    """One collective to be planned.

    Attributes
    ----------
    operation : str
    world_size : int
        Ranks of the group.
    elements : int
        Elements of the whole array.
    root : int
        Place in the group.
    rank_order : tuple of int
        For ring and chain: the places in the group in the order of travel; empty for 0, 1, 2, ...
    chunks : int or None
        Pipeline pieces, where an algorithm has them; None for its own choice.
    servers : int
        How many parameter servers.
    servers_on : {"own", "workers"}
        As vertices of their own, or on the ranks.
    nodes : tuple of tuple of int
        Places in the group, node by node; empty where the topology knows none.
    """

    operation: str
    world_size: int
    elements: int
    root: int = 0
    rank_order: tuple[int, ...] = ()
    chunks: int | None = None
    servers: int = 1
    servers_on: Literal["own", "workers"] = "own"
    nodes: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.world_size < 2:
            raise ValueError(f"a collective needs at least 2 ranks, got {self.world_size}")
        if self.elements < 0:
            raise ValueError(f"elements must not be negative, got {self.elements}")
        if not 0 <= self.root < self.world_size:
            raise ValueError(f"root must be one of 0 .. {self.world_size - 1}, got {self.root}")
        if self.rank_order and sorted(self.rank_order) != list(range(self.world_size)):
            raise ValueError(
                f"rank_order must hold each of 0 .. {self.world_size - 1} once, got {list(self.rank_order)}"
            )
        if self.chunks is not None and self.chunks < 1:
            raise ValueError(f"chunks must be at least 1, got {self.chunks}")
        if self.servers < 1:
            raise ValueError(f"servers must be at least 1, got {self.servers}")

    @property
    def order(self) -> tuple[int, ...]:
        """The rank order written out."""
        return self.rank_order or tuple(range(self.world_size))


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many bytes an element takes.

    Attributes
    ----------
    copied, reduced : int
        On the wire, where it is only copied and where it is reduced [B].
    """

    copied: int
    reduced: int


class Auxiliary(Enum):
    """Participants of a schedule that are no ranks: what they are on the cluster."""

    NONE = "nobody"
    SERVERS = "server"
    SWITCHES = "switch"


Plan = Callable[[Request], Schedule]
Volume = Callable[[Request], int]
ClosedForm = Callable[[Request, Sizes, IdleNetwork], float | None]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to carry out some operations.

    Attributes
    ----------
    plans : mapping of operation to function (Request) -> Schedule
    volume : function (Request) -> int
        Elements that it puts on the wire in all, each transfer counted once.
    minimal : function (Request) -> bool
        Whether that is the least possible.
    closed_form : function (Request, Sizes, IdleNetwork) -> float or None
        Time on an idle network [s], where there is an exact form; else None.
    options : tuple of str
        Which of rank_order, chunks, servers, nodes it listens to.
    flows : function (Request) -> int
        How many of its flows from one rank into its node a machine's rate cap holds together: each gets that part.
    fewest_in_node : int
        A machine runs it by itself for groups with so many ranks in every node.
    most_by_choice : int or None
        Ranks of the largest group that is given to it where nobody asks for it and others can do it too.
    auxiliary : Auxiliary
        What takes part beside ranks: parameter servers with machines of their own, where the request has them there;
        the reducing switch of each node.
    whole : tuple of str
        Operations whose array is not cut into pieces, though `chunks` is an option of others.
    examples : function (ranks) -> iterable of Example
        Settings that shared tests play it in.
    """

    plans: Mapping[str, Plan]
    volume: Volume
    minimal: Callable[[Request], bool]
    closed_form: ClosedForm = field(default=lambda request, sizes, network: None)
    options: tuple[str, ...] = ()
    flows: Callable[[Request], int] = field(default=lambda request: 1)
    fewest_in_node: int = 1
    most_by_choice: int | None = None
    auxiliary: Auxiliary = Auxiliary.NONE
    whole: tuple[str, ...] = ()
    examples: Callable[[int], Iterable[Example]] = plain


def least_volume(request: Request) -> int:
    """Fewest elements on the wire that any algorithm can do with.

    Sources: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009;
    Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
    """
    n, elements = request.world_size, request.elements
    if request.operation == "all_reduce":
        return 2 * (n - 1) * elements
    if request.operation in ("scatter", "gather"):
        return elements - own_part(request, request.root)
    if request.operation == "all_to_all":
        return n * elements - elements
    return (n - 1) * elements


def own_part(request: Request, rank: int) -> int:
    """Elements of the part of the array that belongs to a rank: the first n mod N ranks have one more."""
    return request.elements // request.world_size + (rank < request.elements % request.world_size)


def always(request: Request) -> bool:
    """An algorithm that never sends more than the least."""
    return True
