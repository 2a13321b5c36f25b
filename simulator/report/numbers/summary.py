"""How fast is a collective, and which part limits it: time, bus bandwidth, bytes and the bottleneck?

Reads the timeline and the plan, never a model or an engine. Only report keys carry units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from simulator.basics.units import format_bandwidth, format_time
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import REDUCING
from simulator.collectives.collective_plan import Plan
from simulator.collectives.payload.judge import Verdict
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS, Holding
from simulator.records.measures import arrays_text
from simulator.records.operation import Collective
from simulator.records.reduction_order import ReductionOrder
from simulator.records.timeline import Timeline, TransferLog
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck, turns_text
from simulator.report.numbers.headline import HasHeadline
from simulator.report.numbers.idle_cards import IdleCards, idle_cards
from simulator.report.numbers.link_use import HOLDS_UP, link_uses
from simulator.report.numbers.slow_memory import SlowMemory, slow_memory

# Separator between several sources of constants.
BETWEEN: Final = " | "


@dataclass(frozen=True, slots=True, repr=False)
class CollectiveReport(HasHeadline):
    """Report of a collective.

    Attributes
    ----------
    time_s : float
        From the start to the end of the last rank [s].
    algbw, busbw : float or None
        Array size over time, and this times the operation's factor, as defined by nccl-tests [B/s]; None if the time is
        0.
    transfers : int
        Number of transfers.
    wire_bytes : int
        Each transfer counted once, however many links it crosses [B].
    input_bytes_per_rank, result_bytes_per_rank : int
        On the rank with most [B].
    peak_buffer_bytes : int
        Most bytes on a rank that wait to be added [B].
    wrong : int or None
        Elements that differ from the operation's definition (the sum, the copies); None without payload.
    max_abs_error : float or None
        Largest difference from the exact result.
    overflowed : int or None
        Elements whose exact result the dtype cannot hold.
    predicted_s : float or None
        Closed form, if it is exact [s].
    algorithm, why : str
        Algorithm, and the reason for choosing it.
    constants : str or None
        Sources of the machine's constants, separated by " | "; "library model: ..." on nodes without measurements. None
        on other networks: links then carry their full rating, and start-up is free.
    bottleneck : Bottleneck or None
        The most used link, if any link is recorded.
    because : str
        A sentence about the limiting part.
    slow_memory : SlowMemory or None
        The slow rank (`cluster.stragglers`) that adds arriving data more slowly than its links deliver, if this takes
        at least 5 % of the time.
    idle_cards : IdleCards or None
        The network cards that send nothing while the node's other cards limit the collective.
    """

    time_s: float
    algbw: float | None
    busbw: float | None
    transfers: int
    wire_bytes: int
    input_bytes_per_rank: int
    result_bytes_per_rank: int
    peak_buffer_bytes: int
    wrong: int | None
    max_abs_error: float | None
    overflowed: int | None
    predicted_s: float | None
    algorithm: str
    why: str
    bottleneck: Bottleneck | None
    because: str
    constants: str | None = None
    slow_memory: SlowMemory | None = None
    idle_cards: IdleCards | None = None

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """(name, text) pairs of the most important figures: time, bus bandwidth, algorithm, and the limiting part."""
        return (
            ("time", format_time(self.time_s)),
            ("bus bandwidth", "-" if self.busbw is None else format_bandwidth(self.busbw)),
            ("algorithm", self.algorithm),
            ("because", self.because),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report in plain data for JSON."""
        return asdict(self)


def busbw_factor(operation: str, world_size: int) -> float:
    """Return the factor bus bandwidth / algorithm bandwidth of a collective operation over `world_size` ranks.

    Source: nccl-tests, doc/PERFORMANCE.md.

    >>> busbw_factor("all_reduce", 8)
    1.75
    """
    return COLLECTIVE_OPERATIONS[operation].bus_factor(world_size)


def with_link_use(timeline: Timeline) -> Timeline:
    """Return a copy of the timeline with the bytes and busy time of each link filled in."""
    return replace(timeline, links=link_uses(timeline))


def summarize(
    plan: Plan, cluster: Cluster, timeline: Timeline, verdict: Verdict | None, *, exact_form: bool = True
) -> CollectiveReport:
    """Return the report of a simulated collective.

    Parameters
    ----------
    timeline : Timeline
        Timeline with link use.
    verdict : Verdict or None
        None without payload.
    exact_form : bool
        True if the plan's prediction holds for this run; False with jitter.
    """
    ops = list(plan.program.collectives().values())
    operation, world_size = ops[0].schedule.operation, len(ops[0].group)
    # Fusion may give several collectives, one per buffer; sizes add.
    nbytes, time = sum(op.nbytes for op in ops), timeline.end
    # A collective of a single rank takes no time.
    algbw = nbytes / time if time > 0 else None
    busiest, slow = bottleneck(timeline), slow_memory(timeline, cluster)
    idle = idle_cards(timeline, cluster, ops[0].group)
    return CollectiveReport(
        time_s=time,
        algbw=algbw,
        busbw=algbw * busbw_factor(operation, world_size) if algbw is not None else None,
        transfers=timeline.transfers,
        wire_bytes=int(sum(sent.nbytes for sent in timeline.sent)),
        input_bytes_per_rank=sum(_share(op, COLLECTIVE_OPERATIONS[operation].before) for op in ops),
        result_bytes_per_rank=sum(_share(op, COLLECTIVE_OPERATIONS[operation].after) for op in ops),
        # Only sums in rank order buffer parts; other orders add on arrival.
        peak_buffer_bytes=max(
            (
                _peak_buffer(op, timeline.logs[n])
                for n, op in enumerate(ops)
                if op.schedule.reduction_order == ReductionOrder.BUFFERED and op.schedule.operation in REDUCING
            ),
            default=0,
        ),
        wrong=verdict.wrong if verdict else None,
        max_abs_error=verdict.max_abs_error if verdict else None,
        overflowed=verdict.overflowed if verdict else None,
        predicted_s=plan.predicted if exact_form else None,
        algorithm=plan.algorithm,
        why=plan.why,
        bottleneck=busiest,
        because=_because(timeline, busiest, nbytes, idle, capped=_capped(ops))
        if slow is None
        else f"Bottleneck: {slow.text}",
        constants=BETWEEN.join(sorted({op.caps.source for op in ops if op.caps.source})) or None,
        slow_memory=slow,
        idle_cards=idle,
    )


def _share(op: Collective, holding: Holding) -> int:
    """Return the bytes in a collective's array, or in the largest shard if each rank holds its part."""
    if holding is not Holding.PART:
        return op.nbytes
    return -(-op.elements // len(op.group)) * op.sizes.copied


def _capped(ops: Sequence[Collective]) -> bool:
    """Return True if the machine's measured rates bound the flows of a collective."""
    return any(min(op.caps.inside, op.caps.across) < math.inf for op in ops)


def _because(
    timeline: Timeline, busiest: Bottleneck | None, nbytes: int, idle: IdleCards | None, *, capped: bool
) -> str:
    """Return a sentence on the part that limits the collective: a link's bandwidth, the rate of the machine's
    collectives (`capped`), or latency and waiting.

    With idle network cards, the sentence begins with their number.
    """
    if busiest is None:
        return "Bottleneck: latency; no link carries any bytes"
    carries = f", carries {arrays_text(busiest.bytes / nbytes)}" if nbytes else ""
    busy = f"{100 * busiest.busy_fraction:.0f} % busy"
    # The bottleneck's time at its bandwidth, as a share of the run.
    full = busiest.limiting_time_s / timeline.end
    holds = full >= HOLDS_UP
    # The machine's cap on a flow may keep a busy link below its bandwidth.
    slowed = capped and not holds and busiest.busy_fraction >= HOLDS_UP
    if idle is not None or slowed:
        limit = f"{idle.text}; link" if idle is not None else "the rate of the machine's collectives; the busiest link"
        use = f"uses {100 * busiest.bandwidth_time_s / timeline.end:.0f} % of its bandwidth"
        if idle is not None and slowed:
            use += " (the rate of the machine's collectives)"
        return f"Bottleneck: {limit} {busiest.link}, {busy}, {use}{carries}"
    bottleneck_text = "Bottleneck: " if holds else "Bottleneck: latency and waiting; "
    if busiest.takes_turns:
        return f"{bottleneck_text}{busiest.end} {turns_text(busiest, timeline.end, nbytes=nbytes)}"
    if holds:
        return f"{bottleneck_text}link {busiest.link}, {busy}{carries}"
    return f"{bottleneck_text}the busiest link, {busiest.link}, uses {100 * full:.0f} % of its bandwidth{carries}"


def _peak_buffer(op: Collective, log: TransferLog) -> int:
    """Return the most bytes of received, not yet added data on any rank, if each chunk is summed in rank order.

    Adding must wait for the chunk's last part. Each part therefore counts from the start of its transfer until this
    arrival.

        part from rank 1   [arrives]------ waits ------|
        part from rank 2            [arrives]-- waits -|
        part from rank 3                      [arrives]|  last: all are added, the buffer is free
    """
    if not log.transfers.reduce.any():
        return 0
    transfers = log.transfers
    rows = np.flatnonzero(transfers.reduce)
    # A group is a chunk at a receiver; `last` is the last part's arrival.
    key = transfers.dst[rows].astype(np.int64) * op.schedule.chunks + transfers.first[rows]
    _, group = np.unique(key, return_inverse=True)
    last = np.full(int(group.max()) + 1, -np.inf)
    np.maximum.at(last, group, log.end[rows])
    peak = 0.0
    for rank in np.unique(transfers.dst[rows]).tolist():
        mine = transfers.dst[rows] == rank
        begins, ends, size = log.enter[rows][mine], last[group[mine]], log.nbytes[rows][mine]
        moments = np.concatenate([begins, ends])
        # Running sum of buffered bytes: plus at a transfer's start, minus when its chunk is complete.
        change = np.concatenate([size, -size])
        # At equal times, count frees before arrivals.
        order = np.lexsort((change, moments))
        peak = max(peak, float(np.cumsum(change[order]).max()))
    return int(peak)
