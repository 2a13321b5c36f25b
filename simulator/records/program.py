"""A Program: what every rank does, stream by stream. Pure data.

Rule: a program says what happens and in which order, never when. Like a rehearsal plan: each player's own list, with
the points where players meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Generic, TypeVar, overload

from simulator.records.schedule import Schedule

# The stream of what the host's processors do for a rank.
HOST: Final = "host"


class Computation(Enum):
    """What a rank's own work, or a server's, does with numbers."""

    FORWARD = "forward"  # runs a unit forward
    RECOMPUTE = "recompute"  # runs a layer, or a segment of layers, forward again
    BACKWARD = "backward"  # makes a unit's gradients
    CHECK = "check"  # unscales gradients and looks for an overflow
    NORM = "norm"  # sums the squares of the rank's part of the gradient
    UPDATE = "update"  # takes the optimizer's step on the rank's part
    SERVE = "serve"  # applies one worker's gradient at a server that waits for nobody


class Exchange(Enum):
    """What a collective does with numbers."""

    ALL_REDUCE = "all_reduce"  # sums gradients, and gives every rank the whole sum
    REDUCE_SCATTER = "reduce_scatter"  # sums gradients, and gives every rank its part
    SUM_COPIES = "sum copies"  # sums the same part of the gradient over all copies of the states
    ALL_GATHER = "all_gather"  # brings the parameters of units together before they are used
    GATHER_UPDATED = "gather updated"  # brings all parameters together after the update
    FLAG = "flag"  # tells every rank whether any of them has overflowed
    SUM_NORM = "sum norm"  # sums the squares of all parts of the gradient
    GATHER_NORMS = "gather norms"  # the same in float64: brings all sums, which every rank then adds exactly
    PUSH = "push"  # brings workers' gradients to the parameter servers
    PULL = "pull"  # brings the servers' parameters to workers


Effect = TypeVar("Effect", Computation, Exchange)


@dataclass(frozen=True, slots=True)
class Act(Generic[Effect]):
    """What an operation of a training step does with numbers, for whoever carries them; times do not depend on it.

    Attributes
    ----------
    effect : Computation or Exchange
    units : tuple of str
        Whose: one unit of the model, or those that travel together, in the order in which they lie in the array.
    micro : int
        Of which micro-batch; counted on where a program covers several steps.
    """

    effect: Effect
    units: tuple[str, ...] = ()
    micro: int = 0


@dataclass(frozen=True, slots=True)
class Compute:
    """Kernels on the compute stream.

    Attributes
    ----------
    name : str
    duration : float
        On this rank's GPU at its nominal speed [s]; stragglers and jitter stretch it.
    flops, nbytes : float
        What it computes [FLOP] and moves through HBM [B]; kept on the span.
    contended : float or None
        Its duration if a collective of this rank were in flight all the time, taking SMs and HBM bandwidth [s]; None
        where that makes no difference.
    kind : str
        For colours and sums: "forward", "backward", "recompute", "optimizer", ...
    stream : str
    after : tuple of str
        Names of operations of the same rank, on other streams, that must have ended.
    act : Act or None
    on_gpu : bool
        Whether a slow GPU makes it slow; not what processors, servers or copies over PCIe do meanwhile.
    """

    name: str
    duration: float
    flops: float = 0.0
    nbytes: float = 0.0
    contended: float | None = None
    kind: str = "compute"
    stream: str = "compute"
    after: tuple[str, ...] = ()
    act: Act[Computation] | None = None
    on_gpu: bool = True


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of a group: every rank of the group has this same operation in its list.

    Attributes
    ----------
    name : str
        Unique in the program; how the ranks find each other.
    group : tuple of int
        Ranks; the place in the group is the participant's number in the schedule.
    auxiliaries : tuple of str
        Vertices of the schedule's further participants (servers, reducing switches).
    schedule : Schedule
    elements : int
        Elements of the whole array.
    itemsize : int
        Bytes of one element in memory, and on the wire where it is only copied [B].
    reduce_itemsize : int
        Bytes of one element on the wire where it is reduced: partial sums may travel wider [B].
    dtype, reduction : str
    accumulate : str
        Dtype of partial sums.
    startup : float
        Paid by every rank once, before its first transfer [s].
    rate_cap : float
        Bound on the rate of each flow [B/s]; infinite where there is none.
    cross_rate_cap : float
        The same for flows that leave a node [B/s].
    duration : float or None
        Where its closed form is taken instead of its transfers: it ends so long after its last rank has reached it [s].
    together : bool
        Whether no rank starts before all have reached it, as where a coordinator lets them.
    rendezvous : bool
        Whether a rank that comes early is idle until the others come, as who waits for what he is to be sent: its span
        begins when the last has come.
    takes_sms : bool
        Whether kernels take longer while it is in flight; they do not beside copies to the host, for which GPUs have
        engines of their own.
    stream : str
    after : tuple of str
        Names of operations of the same rank that must have ended.
    why : str
        Why this algorithm.
    act : Act or None
    """

    name: str
    group: tuple[int, ...]
    schedule: Schedule
    elements: int
    itemsize: int
    reduce_itemsize: int
    dtype: str = "float32"
    reduction: str = "sum"
    accumulate: str = "float32"
    auxiliaries: tuple[str, ...] = ()
    startup: float = 0.0
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")
    duration: float | None = None
    together: bool = False
    stream: str = "communication"
    after: tuple[str, ...] = ()
    why: str = ""
    takes_sms: bool = True
    rendezvous: bool = False
    act: Act[Exchange] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array [B]."""
        return self.elements * self.itemsize


@dataclass(frozen=True, slots=True)
class Allocate:
    """Take HBM, under a label, until it is freed.

    Attributes
    ----------
    name : str
        Unique in the rank's program; Free names it.
    nbytes : int
        [B]
    category : str
        For the sums: "parameters", "gradients", "activations", ...
    """

    name: str
    nbytes: int
    category: str = "other"
    stream: str = "compute"
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Free:
    """Give back what an Allocate of the same rank took."""

    allocation: str
    stream: str = "compute"
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name of its own, so that others can wait for it."""
        return f"free {self.allocation}"


Op = Compute | Collective | Allocate | Free


class OperationLists:
    """The different lists of operations of a program, each once, and which rank plays which.

    Attributes
    ----------
    lists : tuple of tuple of Op
        As the first rank of each has it.
    list_of : tuple of int
        By rank the number of its list.
    groups : callable (list, place) -> sequence of Collective
        The operation of each group that carries out the collective at a place of a list.
    """

    __slots__ = ("_by_name", "groups", "list_of", "lists")

    def __init__(
        self,
        lists: tuple[tuple[Op, ...], ...],
        list_of: tuple[int, ...],
        groups: Callable[[int, int], Sequence[Collective]],
    ) -> None:
        self.lists = lists
        self.list_of = list_of
        self.groups = groups
        self._by_name: dict[str, Collective] = {}

    def collectives(self) -> dict[str, Collective]:
        """Every collective once, by name, in order of first appearance."""
        if not self._by_name:
            for number, ops in enumerate(self.lists):
                for place, op in enumerate(ops):
                    if isinstance(op, Collective):
                        for of_group in self.groups(number, place):
                            self._by_name.setdefault(of_group.name, of_group)
        return self._by_name

    @classmethod
    def by_identity(cls, ranks: Sequence[tuple[Op, ...]]) -> OperationLists:
        """Ranks that share a tuple share a list; a collective in it is one group's."""
        number: dict[int, int] = {}
        list_of = tuple(number.setdefault(id(ops), len(number)) for ops in ranks)
        lists = tuple({id(ops): ops for ops in ranks}.values())

        def groups(listed: int, place: int) -> tuple[Collective, ...]:
            op = lists[listed][place]
            return (op,) if isinstance(op, Collective) else ()

        return cls(lists, list_of, groups)


class RanksByList(Sequence[tuple[Op, ...]]):
    """Every rank's operations where many ranks do the same, each among its own groups: a list for all that are alike.

    A rank's own operations are made when asked for.

    Parameters
    ----------
    lists : OperationLists
    own : callable (place, rank) -> Op
        What a rank does at a place of its list.
    """

    __slots__ = ("_made", "_own", "lists")

    def __init__(self, lists: OperationLists, own: Callable[[int, int], Op]) -> None:
        self.lists = lists
        self._own = own
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


@dataclass(frozen=True, slots=True)
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

    def lists(self) -> OperationLists:
        """The different lists, each once."""
        return self.ranks.lists if isinstance(self.ranks, RanksByList) else OperationLists.by_identity(self.ranks)

    def collectives(self) -> dict[str, Collective]:
        """Every collective once, by name, in order of first appearance."""
        return self.lists().collectives()
