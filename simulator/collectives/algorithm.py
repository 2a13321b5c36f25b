"""The record that an algorithm's module declares: its operations, their schedules, volume and time on an idle network.

The record only describes an algorithm; engines simulate the schedules. A shared test checks every algorithm against
its record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil, log2
from typing import Final, Literal, NamedTuple

from simulator.basics.catalog import Catalog
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.foreign_code import Origin
from simulator.cluster.cluster import Steps
from simulator.collectives.example import Example, plain
from simulator.collectives.idle import IdleNetwork
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS
from simulator.records.operation import ElementSizes as ElementSizes
from simulator.records.schedule import Repeat, Round, Schedule

OPERATIONS: Final = tuple(COLLECTIVE_OPERATIONS)
ROOTED: Final = tuple(name for name, operation in COLLECTIVE_OPERATIONS.items() if operation.rooted)
REDUCING: Final = tuple(name for name, operation in COLLECTIVE_OPERATIONS.items() if operation.reduces)
# GPU collective libraries carry out these operations by separate sends and receives between every pair of ranks, in
# any group (NCCL user guide, point-to-point communication: one-to-all, all-to-one, all-to-all).
_SENT_BY_EACH: Final = ("scatter", "gather", "all_to_all")


@dataclass(frozen=True, slots=True)
class CollectiveRequest:
    """A collective to be planned: operation, ranks, array and the algorithm's options.

    Attributes
    ----------
    world_size : int
        Ranks in the group.
    elements : int
        Elements in the whole array.
    root : int
        The root's place in the group.
    rank_order : tuple of int
        For ring and chain: places in the group in the order in which data travels; empty for 0, 1, 2, ...
    chunks : int or None
        Number of pipeline pieces, for algorithms with pieces; None for the algorithm's own choice.
    servers : int
        Number of parameter servers.
    servers_on : {"own", "workers"}
        Whether servers have separate vertices ("own") or run on the ranks.
    nodes : tuple of tuple of int
        Places in the group, node by node; empty where the topology has no nodes.
    mesh : bool
        Whether each rank has a link to every other rank of its node (of the group, without nodes).
    rings : tuple of tuples
        Rings over a node's links that run at once, each as places in the node from where data enters to where it leaves
        it (channels.py); empty without links of this kind.
    sides : tuple of int
        Number of ranks along each dimension of a torus that the group goes round (torus.py); empty without one.
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
    mesh: bool = False
    rings: tuple[tuple[int, ...], ...] = ()
    sides: tuple[int, ...] = ()

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
        """Return `rank_order`; by default 0, 1, 2, ... up to N - 1."""
        return self.rank_order or tuple(range(self.world_size))


class Auxiliary(Enum):
    """Kinds of participants besides ranks in a collective: parameter servers or reducing switches."""

    NONE = "nobody"
    SERVERS = "server"
    SWITCHES = "switch"


class Flows(NamedTuple):
    """Maximum number of flows that a rank sends at the same time in a collective."""

    # `inside`, `across`: Flows to ranks in the same node, and to other ranks.
    inside: int = 1
    across: int = 1


Plan = Callable[[CollectiveRequest], Schedule]
CountSteps = Callable[[CollectiveRequest], Steps]
Volume = Callable[[CollectiveRequest], int]
ClosedForm = Callable[[CollectiveRequest, ElementSizes, IdleNetwork], float | None]


# Compared by identity: plans are functions, and caches of schedules have the algorithm as key.
@dataclass(frozen=True, slots=True, eq=False)
class Algorithm:
    """A collective algorithm's record: operations, volume, closed-form time, options and use in libraries.

    Attributes
    ----------
    plans : mapping of operation to function (CollectiveRequest) -> Schedule
        Operations of the algorithm, and the planner of each.
    volume : function (CollectiveRequest) -> int
        Elements on the wire, summed over every transfer.
    minimal : function (CollectiveRequest) -> bool
        Whether this volume is the least possible.
    closed_form : function (CollectiveRequest, ElementSizes, IdleNetwork) -> float or None
        Time on an idle network [s] if an exact formula is known; else None.
    about : function (CollectiveRequest, ElementSizes, IdleNetwork) -> float or None
        An estimate of this time [s], for requests without a formula; None: from the schedule (estimate.py).
    options : tuple of str
        Names among rank_order, chunks, servers and nodes that the algorithm reads from a request.
    flows : function (CollectiveRequest) -> Flows
        Flows from a rank that share a machine's caps; each flow gets an equal part.
    share_of_ring : float
        Bandwidth that libraries reach with this algorithm inside a node, relative to rings over the same links.
    fewest_in_node : int
        Minimum ranks in every node for which a machine uses this algorithm unless told otherwise.
    in_libraries : function (CollectiveRequest) -> bool
        Whether collective libraries run such a request with this algorithm, or with as many steps and bytes. `auto`
        picks among these algorithms, unless the machine's own is known.
    stands_in : bool
        Whether libraries run such requests with another algorithm, of as many steps and bytes.
    steps : function (CollectiveRequest) -> Steps
        Transfers on the longest way, for machines with a cost per step.
    auxiliary : Auxiliary
        Participants besides ranks: parameter servers, if the request gives them separate vertices; or the reducing
        switch of each node.
    whole : tuple of str
        Operations that do not cut their array into pieces, although `chunks` is an option for other operations.
    chooses_chunks : bool
        Whether the algorithm itself chooses a number of pieces if `chunks` is an option and not requested.
    examples : function (ranks) -> iterable of Example
        Settings in which shared tests simulate the algorithm.
    summary : str
        What the ranks do, in a few words, for answers and lists that name the algorithm.
    ranks : int or None
        The only number of ranks that the algorithm supports; None for any number.
    """

    plans: Mapping[str, Plan]
    volume: Volume
    minimal: Callable[[CollectiveRequest], bool]
    closed_form: ClosedForm = field(default=lambda request, sizes, network: None)
    about: ClosedForm = field(default=lambda request, sizes, network: None)
    options: tuple[str, ...] = ()
    flows: Callable[[CollectiveRequest], Flows] = field(default=lambda request: Flows())
    share_of_ring: float = 1.0
    fewest_in_node: int = 1
    in_libraries: Callable[[CollectiveRequest], bool] = field(default=lambda request: False)
    stands_in: bool = False
    steps: CountSteps = field(default=lambda request: Steps())
    auxiliary: Auxiliary = Auxiliary.NONE
    whole: tuple[str, ...] = ()
    chooses_chunks: bool = False
    examples: Callable[[int], Iterable[Example]] = plain
    summary: str = ""
    ranks: int | None = None

    @property
    def operations(self) -> tuple[str, ...]:
        """Return the operations that the algorithm can carry out, in a fixed order."""
        return tuple(operation for operation in OPERATIONS if operation in self.plans)


def least_volume(request: CollectiveRequest) -> int:
    """Return the fewest elements that any algorithm must put on the wire for the requested collective.

    Sources: Patarasuk & Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009;
    Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
    """
    n, elements = request.world_size, request.elements
    if request.operation == "all_reduce":
        return 2 * (n - 1) * elements
    if request.operation in ("scatter", "gather"):
        # The root's own part stays in place.
        return elements - own_part(request, request.root)
    if request.operation == "all_to_all":
        return n * elements - elements
    return (n - 1) * elements


def own_part(request: CollectiveRequest, rank: int) -> int:
    """Return the elements in a rank's part of the array: the first n mod N ranks have an additional element."""
    return request.elements // request.world_size + (rank < request.elements % request.world_size)


def ring_steps(request: CollectiveRequest) -> Steps:
    """Return a ring's step counts inside and between nodes: N - 1 steps, and M - 1 steps leave a node; M nodes.

    An all_reduce takes twice this number.

    >>> ring_steps(CollectiveRequest("all_reduce", 16, 1, nodes=(tuple(range(8)), tuple(range(8, 16)))))
    Steps(inside=28, across=2)
    """
    times, across = _times(request), max(1, len(request.nodes)) - 1
    return Steps(times * (request.world_size - 1 - across), times * across)


def tree_steps(request: CollectiveRequest) -> Steps:
    """Return the step counts for a binary tree over nodes with a binary tree inside each; twice for an all_reduce."""
    nodes = max(1, len(request.nodes))
    inside, across = ceil(log2(-(-request.world_size // nodes))), ceil(log2(nodes))
    return Steps(_times(request) * inside, _times(request) * across)


def steps_in_stages(request: CollectiveRequest, across: int) -> Steps:
    """Return the step counts for rings inside nodes plus `across` steps between nodes; twice for an all_reduce."""
    times, nodes = _times(request), max(1, len(request.nodes))
    return Steps(times * (-(-request.world_size // nodes) - 1), times * across)


def direct_steps(request: CollectiveRequest) -> Steps:
    """Return the step counts for a direct exchange between every pair of ranks: 1, or 2 for an all_reduce."""
    return Steps(0, _times(request)) if len(request.nodes) > 1 else Steps(_times(request), 0)


def _times(request: CollectiveRequest) -> int:
    return 2 if request.operation == "all_reduce" else 1


def sent_by_each(request: CollectiveRequest) -> bool:
    """Return True if libraries carry out the requested operation by separate transfers between pairs of ranks."""
    return request.operation in _SENT_BY_EACH


def one_a_node(request: CollectiveRequest) -> bool:
    """Return True if each of the request's ranks is a node of its own, as on a network without nodes."""
    return not request.nodes or 1 < len(request.nodes) == request.world_size


def goes_round(request: CollectiveRequest) -> bool:
    """Return True if the request's ranks go round dimensions of a torus."""
    return bool(request.sides)


def always(request: CollectiveRequest) -> bool:
    """Return True, for every request."""
    return True


class _Algorithms(Catalog[Algorithm]):
    """The collective algorithms of this package by name."""

    def _guarded(self, declared: Algorithm, origin: Origin) -> Algorithm:
        """Return a foreign algorithm whose plans, and the lazy rounds of their schedules, raise ScenarioErrors."""
        name = origin.name
        if not declared.plans:
            raise ScenarioError(f"{name}: ALGORITHM.plans is empty; must have a function for at least one operation")
        unknown = next((operation for operation in declared.plans if operation not in OPERATIONS), None)
        if unknown is not None:
            raise ScenarioError(f"{name}: ALGORITHM.plans: got {unknown!r}; {one_of(OPERATIONS, unknown)}")
        plans = {operation: _guarded_plan(plan, origin) for operation, plan in declared.plans.items()}
        return replace(super()._guarded(declared, origin), plans=plans)

    def operations(self, name: str) -> tuple[str, ...]:
        """Return the operations that the algorithm `name` can carry out, in a fixed order."""
        return self.find(name).operations

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return every pair (algorithm, operation) for which the algorithm can carry out the operation."""
        return tuple((name, operation) for name in self.names() for operation in self.operations(name))


def _guarded_plan(plan: Plan, origin: Origin) -> Plan:
    """Return a plan of foreign code that raises ScenarioError for every error, also of its schedule's lazy rounds."""

    def guarded(request: CollectiveRequest) -> Schedule:
        with origin.telling(_REFUSALS):
            schedule = plan(request)
        if not isinstance(schedule, Schedule):
            kind = type(schedule).__name__
            raise ScenarioError(
                f"{origin.name}: the plan of {request.operation} returns a {kind}; must return a Schedule"
            )

        def parts() -> Iterator[Round | Repeat]:
            with origin.telling():
                yield from schedule.parts()

        return replace(schedule, parts=parts)

    return guarded


# A ValueError says that a request is impossible, such as a number of ranks; the planner names the key.
_REFUSALS: Final = (ValueError,)
ALGORITHMS: Final = _Algorithms("simulator.collectives", "ALGORITHM", Algorithm, "algorithm", _REFUSALS)
