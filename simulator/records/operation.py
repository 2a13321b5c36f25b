"""A rank's operations as records: kernels, collectives, allocations and frees.

They say what happens, never when.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from typing import Final, Generic, TypeVar

from simulator.records.schedule import Schedule

# Stream for work by the host's processors.
HOST: Final = "host"
# Stream on which the host issues kernels.
ISSUE: Final = "issue"


class Computation(Enum):
    """Kinds of computation: the effect of a rank's own work, or a server's, on real numbers in a training."""

    FORWARD = "forward"  # run a unit forward
    RECOMPUTE = "recompute"  # run a layer, or a segment of layers, forward again
    BACKWARD = "backward"  # compute a unit's gradients
    INPUT_GRADIENT = "input gradient"  # compute only the gradient of the unit's input
    WEIGHT_GRADIENT = "weight gradient"  # compute the gradients of the unit's parameters, afterwards
    CHECK = "check"  # unscale gradients and check for overflow
    NORM = "norm"  # sum the squares of the rank's gradient shard
    AVERAGE = "average"  # average the gradients of matrices, for an optimizer with a rule for matrices
    ORTHOGONALISE = "orthogonalise"  # make averages of matrices orthogonal
    UPDATE = "update"  # take the optimizer's step on the rank's shard
    SERVE = "serve"  # apply one worker's gradient on an asynchronous server


class Exchange(Enum):
    """Kinds of data exchange: a collective's effect on real numbers in a training."""

    ALL_REDUCE = "all_reduce"  # sum gradients; every rank gets the whole sum
    REDUCE_SCATTER = "reduce_scatter"  # sum gradients; every rank gets its shard
    SUM_COPIES = "sum copies"  # sum a gradient shard over all copies of the states
    ALL_GATHER = "all_gather"  # gather the parameters of units before they are used
    GATHER_UPDATED = "gather updated"  # gather all parameters after the update
    FLAG = "flag"  # tell every rank whether any rank has overflowed
    SUM_NORM = "sum norm"  # sum the squares of all gradient shards
    GATHER_NORMS = "gather norms"  # the same in float64: gather all sums; every rank adds them exactly
    GATHER_AVERAGES = "gather averages"  # gather the averages of a unit's matrices
    TO_OWNERS = "to owners"  # send averages of matrices from shards to the owners of whole matrices
    FROM_OWNERS = "from owners"  # send orthogonal updates of matrices from owners to shards
    PUSH = "push"  # send workers' gradients to the parameter servers
    PULL = "pull"  # send the servers' parameters to workers
    WITHIN = "within a pass"  # exchange data within a pass between ranks that share a unit
    SEND = "send"  # send a unit's output, or its gradient, to another pipeline stage
    SUM_PARTIAL = "sum partial"  # sum gradients of replicated parameters, each from a part of the sequences
    SUM_SHARED = "sum shared"  # sum gradients of the embedding shared by the first and last stage


Effect = TypeVar("Effect", Computation, Exchange)

# Kind of kernel (matmul, attention, elementwise) and seconds, in the order of execution; neighbours of a kind are a
# single part.
KernelParts = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class NumericAction(Generic[Effect]):
    """The effect of an operation on numbers, for real training; times do not depend on the effect."""

    effect: Effect  # kind of effect
    units: tuple[str, ...] = ()  # units of the model concerned, in the order in which they lie in the array
    micro: int = 0  # micro-batch; numbered on if a program covers several steps
    within: Computation | None = None  # pass during which ranks exchange data; None outside of passes
    what: str = ""  # name of the data exchanged within a pass


@dataclass(frozen=True, slots=True)
class Compute:
    """A kernel, or several kernels in sequence, on a stream."""

    name: str  # unique in the rank's program
    duration: float  # time on a GPU at nominal speed [s]; stragglers, jitter and a rank's own work stretch it
    flops: float = 0.0  # floating-point operations [FLOP]; copied to the span
    nbytes: float = 0.0  # HBM traffic [B]; copied to the span
    # Duration if a collective of this rank were in flight all the time, taking SMs and HBM bandwidth [s]; None if this
    # makes no difference
    contended: float | None = None
    kind: str = "compute"  # for colours and sums: "forward", "backward", "recompute", "optimizer", ...
    stream: str = "compute"  # stream of the rank
    after: tuple[str, ...] = ()  # operations of the same rank, on other streams, that must end first
    act: NumericAction[Computation] | None = None  # effect on numbers
    # True if a slow GPU stretches the duration; False for work by processors and servers and for copies over PCIe
    on_gpu: bool = True
    parts: KernelParts = ()  # its kernels' kinds and parts of the duration; empty if the kernels are not known
    work: int = -1  # row of the program's `work`, factors on its durations by rank; -1: none

    @property
    def kernel_shares(self) -> KernelParts:
        """Kinds of its kernels, each with its share of the duration (0 to 1); empty if the kernels are not known.

        >>> Compute("layer 0", 4.0, parts=(("matmul", 3.0), ("elementwise", 1.0))).kernel_shares
        (('matmul', 0.75), ('elementwise', 0.25))
        """
        total = sum(seconds for _, seconds in self.parts)
        return tuple((kind, seconds / total) for kind, seconds in self.parts)


@dataclass(frozen=True, slots=True)
class ElementSizes:
    """Bytes that an array element takes on the wire."""

    copied: int  # for an element that the receiver copies; as many as in memory [B]
    reduced: int  # for an element that the receiver adds; partial sums may be wider [B]


@dataclass(frozen=True, slots=True)
class RateCaps:
    """Bounds on the rate of each flow of a collective [B/s]; infinite if there are none."""

    inside: float = inf  # of flows in a node
    across: float = inf  # of flows that leave a node
    source: str = field(default="", compare=False)  # source of the machine's constants; empty if there are none


@dataclass(frozen=True, slots=True)
class Collective:
    """A process group's collective: every rank in the group has this same operation in its list."""

    name: str  # unique in the program; ranks find each other by it
    group: tuple[int, ...]  # ranks; the index in the group is the participant number in the schedule
    schedule: Schedule  # transfers
    elements: int  # elements of the whole array
    sizes: ElementSizes  # bytes of an element on the wire
    dtype: str = "float32"  # dtype of the array
    reduction: str = "sum"  # "sum", "average", ...
    accumulate: str = "float32"  # dtype of partial sums
    auxiliaries: tuple[str, ...] = ()  # vertices of the schedule's additional participants (servers, reducing switches)
    startup: float = 0.0  # time that every rank pays once, before its first transfer [s]
    caps: RateCaps = RateCaps()
    # Weight of its flows on a full link: a flow of priority 2 gets twice the rate of a flow of priority 1
    priority: float = 1.0
    # Duration in closed form, from the last rank's arrival [s]; None if transfers are simulated
    duration: float | None = None
    # True if no rank transfers before all ranks have come, as with a coordinator; a rank's span begins when it comes
    together: bool = False
    stream: str = "communication"  # stream of the rank
    after: tuple[str, ...] = ()  # operations of the same rank that must end first
    why: str = ""  # why this algorithm was chosen
    # True if kernels run slower while it is in flight; False for copies to the host, which use the GPU's copy engines
    takes_sms: bool = True
    # True if the span of a rank that comes early begins only when the last rank comes, and the rank is idle until then
    # (a receive); without, the wait is part of the span
    rendezvous: bool = False
    act: NumericAction[Exchange] | None = None  # effect on numbers

    @property
    def nbytes(self) -> int:
        """Bytes in the whole array [B]."""
        return self.elements * self.sizes.copied

    def named(
        self, name: str, after: tuple[str, ...], group: tuple[int, ...], act: NumericAction[Exchange] | None = None
    ) -> Collective:
        """Return a copy of the collective with another name, awaited operations, group and optionally another effect.

        Written out, because a program may have a million: `dataclasses.replace` takes three times longer.
        """
        return Collective(
            name, group, self.schedule, self.elements, self.sizes, self.dtype, self.reduction, self.accumulate,
            self.auxiliaries, self.startup, self.caps, self.priority, self.duration, self.together, self.stream, after,
            self.why, self.takes_sms, self.rendezvous, act or self.act,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Allocate:
    """An operation that takes GPU memory (HBM) under a label, until a Free operation gives it back."""

    name: str  # label, unique in the rank's program; Free refers to it
    nbytes: int  # size [B]
    category: str = "other"  # for sums: "parameters", "gradients", "activations", ...
    stream: str = "compute"  # stream of the rank
    after: tuple[str, ...] = ()  # operations of the same rank that must end first


@dataclass(frozen=True, slots=True)
class Free:
    """An operation that frees GPU memory allocated by the same rank."""

    allocation: str  # name of the Allocate operation
    stream: str = "compute"  # stream of the rank
    after: tuple[str, ...] = ()  # operations of the same rank that must end first

    @property
    def name(self) -> str:
        """Name by which further operations wait for this operation."""
        return f"free {self.allocation}"


Op = Compute | Collective | Allocate | Free


def content(op: Collective) -> Hashable:
    """Return a key of a collective's contents: equal for collectives that differ only in name, waits and effect."""
    return (
        id(op.schedule), op.group, op.auxiliaries, op.elements, op.sizes, op.dtype, op.stream, op.startup, op.caps,
        op.priority, op.duration, op.together,
    )  # fmt: skip
