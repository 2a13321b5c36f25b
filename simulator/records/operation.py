"""What one rank does, as records: kernels, collectives, memory taken and given back.

Rule: says what happens, never when.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

from simulator.records.schedule import Schedule

# The stream of what the host's processors do for a rank.
HOST: Final = "host"
# The stream on which a host issues what its rank does.
ISSUE: Final = "issue"


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
    constants : str
        Where the machine's constants that hold for it are from; empty where it has none.
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
    constants: str = ""
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
            self.together, self.stream, after, self.why, self.constants, self.takes_sms, self.rendezvous,
            act or self.act,
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
