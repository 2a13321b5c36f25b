"""A Program: what every rank does, stream by stream. Pure data.

Rule: a program says what happens and in which order, never when. Like a rehearsal plan: each player's own list, with
the points where players meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, partial
from typing import Final, Generic, TypeVar, overload

from simulator.records.schedule import Schedule

# The stream of what the host's processors do for a rank.
HOST: Final = "host"


class Computation(Enum):
    """What a rank's own work, or a server's, does with numbers."""

    FORWARD = "forward"  # runs a unit forward
    RECOMPUTE = "recompute"  # runs a layer, or a segment of layers, forward again
    BACKWARD = "backward"  # makes a unit's gradients
    INPUT_GRADIENT = "input gradient"  # makes its input's gradient alone
    WEIGHT_GRADIENT = "weight gradient"  # makes its parameters' gradients, after that
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
    WITHIN = "within a pass"  # what ranks that compute a unit together exchange on the way
    SEND = "send"  # hands a unit's output, or its gradient, to another stage of a pipeline
    SUM_PARTIAL = "sum partial"  # sums gradients of what all have, each from its part of the sequences
    SUM_SHARED = "sum shared"  # sums gradients of the table that the first and the last stage have


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
    within : Computation or None
        The pass during which ranks exchange something; None outside of passes.
    what : str
        What that is.
    """

    effect: Effect
    units: tuple[str, ...] = ()
    micro: int = 0
    within: Computation | None = None
    what: str = ""


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

    def named(
        self, name: str, after: tuple[str, ...], group: tuple[int, ...], act: Act[Exchange] | None = None
    ) -> Collective:
        """The same under another name, behind other operations, of another group, and with an act of its own.

        Written out, for there may be a million: `dataclasses.replace` takes three times as long.
        """
        return Collective(
            name, group, self.schedule, self.elements, self.itemsize, self.reduce_itemsize, self.dtype, self.reduction,
            self.accumulate, self.auxiliaries, self.startup, self.rate_cap, self.cross_rate_cap, self.duration,
            self.together, self.stream, after, self.why, self.takes_sms, self.rendezvous, act or self.act,
        )  # fmt: skip


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


def content(op: Collective) -> Hashable:
    """All of a collective but its name, what it waits for and what it does with numbers."""
    return (
        id(op.schedule), op.group, op.auxiliaries, op.elements, op.itemsize, op.reduce_itemsize, op.dtype, op.stream,
        op.startup, op.rate_cap, op.cross_rate_cap, op.duration, op.together,
    )  # fmt: skip


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

    def collectives(self) -> dict[str, Collective]:
        """Every collective once, by name, in order of first appearance."""
        return self.lists.collectives
