"""A Program: what every rank does, stream by stream. Pure data.

Rule: a program says what happens and in which order, never when. Like a rehearsal plan: each player's own list, with
the points where players meet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from simulator.schedule import Schedule

# The stream of what the host's processors do for a rank.
HOST: Final = "host"


@dataclass(frozen=True, slots=True)
class Act:
    """What an operation of a training step does with numbers, for whoever carries them; times do not depend on it.

    Attributes
    ----------
    what : str
        "forward", "recompute", "backward", "all_reduce", "reduce_scatter", "sum copies", "all_gather", "check" and
        "flag" for overflow, "norm" and "sum norm", "update", "gather updated", "push", "serve", "pull".
    units : tuple of str
        Whose: one unit of the model, or those that travel together, in the order in which they lie in the array.
    micro : int
        Of which micro-batch; counted on where a program covers several steps.
    """

    what: str
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
    slowed : float or None
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
    slowed: float | None = None
    kind: str = "compute"
    stream: str = "compute"
    after: tuple[str, ...] = ()
    act: Act | None = None
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
    extras : tuple of str
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
        The same for flows that leave a box [B/s].
    duration : float or None
        Where its closed form is taken instead of its transfers: it ends so long after its last rank has reached it [s].
    together : bool
        Whether no rank starts before all have reached it, as where a coordinator lets them.
    takes_sms : bool
        Whether kernels beside it are slowed; not by copies to the host, for which GPUs have engines of their own.
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
    extras: tuple[str, ...] = ()
    startup: float = 0.0
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")
    duration: float | None = None
    together: bool = False
    stream: str = "communication"
    after: tuple[str, ...] = ()
    why: str = ""
    takes_sms: bool = True
    act: Act | None = None

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


@dataclass(frozen=True, slots=True)
class Program:
    """What each rank does.

    Attributes
    ----------
    ranks : tuple of tuple of Op
        Rank r's operations. Those of one stream run one at a time in this order; those of different streams at once.
    idle : frozenset of int
        Ranks without any operation are allowed; named here for reports.
    """

    ranks: tuple[tuple[Op, ...], ...]
    idle: frozenset[int] = field(default=frozenset())

    def collectives(self) -> dict[str, Collective]:
        """Every collective once, by name, in order of first appearance."""
        found: dict[str, Collective] = {}
        for ops in self.ranks:
            for op in ops:
                if isinstance(op, Collective):
                    found.setdefault(op.name, op)
        return found
