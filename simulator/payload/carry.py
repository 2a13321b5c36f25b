"""Real arrays carried by a collective's transfers: every add is a numpy add at the receiver, in the order of the clock.

Rule: works in place on the ranks' own buffers, knows the order in which transfers ended and no times. Like clerks who
do the day's bookings in the order of the receipts: chunk by chunk, because bookings of different chunks do not meet and
a chunk stays in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array, Floats, Ints
from simulator.basics.dtypes import Dtype
from simulator.collectives.verify import chunks_of, holders
from simulator.payload.reduction import accumulate_into, finished
from simulator.records.chunks import chunk_starts
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.timeline import Timeline
from simulator.records.transfers import Transfers

Tamper = Mapping[int, Callable[[Array], Array | None]]


@dataclass(frozen=True, slots=True)
class Payload:
    """What a collective works on.

    Attributes
    ----------
    buffers : sequence of array
        One a rank of the group, all chunks in order; they are changed in place and hold the results.
    dtype : Dtype
    reduction : str
    accumulate : numpy dtype
        Of partial sums.
    tamper : mapping of transfer number to function
        Faults: what these transfers deliver instead of what was sent; None: nothing, and nobody notices.
    """

    buffers: Sequence[Array]
    dtype: Dtype
    reduction: str
    accumulate: npt.DTypeLike
    tamper: Tamper = field(default_factory=dict)


def ended_order(transfers: Transfers, end: Floats) -> Ints:
    """Transfer numbers in the order in which they ended; ties by number.

    A transfer's number is above those that it waits for, so that even what takes no time at all keeps its order. Where
    adds may arrive in any order, schedules number them by sending rank.
    """
    return np.lexsort((np.arange(len(end)), end))


def carry_all(program: Program, timeline: Timeline, payloads: Mapping[str, Payload]) -> None:
    """Apply all transfers of the collectives that have a payload, in the order in which they ended."""
    ops = program.collectives()
    for log in timeline.logs:
        if log.collective in payloads:
            order = ended_order(log.transfers, log.end)
            carry(ops[log.collective].schedule, log.transfers, order, payloads[log.collective])


def carry(schedule: Schedule, transfers: Transfers, order: Ints, payload: Payload) -> None:
    """Apply all transfers to the buffers, in this order."""
    elements = len(payload.buffers[0])
    if schedule.operation == "all_to_all":
        elements //= schedule.world_size
    starts = chunk_starts(schedule, elements).tolist()
    wide = np.dtype(payload.accumulate) != payload.dtype.numpy
    plain = (
        not wide
        and schedule.reduction_order == ReductionOrder.IN_SEQUENCE
        and payload.dtype.bits >= 32
        and not payload.tamper
    )
    if plain and payload.reduction == "sum" and bool((transfers.count == 1).all()):
        _carry_plain(transfers, order, payload.buffers, starts)
        return
    carried: list[list[int]] = [[] for _ in range(schedule.chunks)]
    for number in order.tolist():
        for chunk in chunks_of(schedule, transfers, number):
            carried[chunk].append(number)
    src, dst, reduce = transfers.src.tolist(), transfers.dst.tolist(), transfers.reduce.tolist()
    for chunk, numbers in enumerate(carried):
        start, stop = starts[chunk], starts[chunk + 1]
        origins = [0] * (schedule.world_size + schedule.auxiliaries)
        for rank in holders(schedule, chunk):
            origins[rank] = 1 << rank
        reduction = _ChunkReduction(schedule, payload, wide, start, stop, origins)
        for number in numbers:
            reduction.apply(number, src[number], dst[number], reduce=reduce[number])
        reduction.close()


def _carry_plain(transfers: Transfers, order: Ints, buffers: Sequence[Array], starts: list[int]) -> None:
    """The common case without any bookkeeping: sums in the payload's own wide dtype, one chunk a transfer."""
    by_chunk = order[np.argsort(transfers.first[order], kind="stable")]
    add = np.add
    for src, dst, chunk, reduce in zip(
        transfers.src[by_chunk].tolist(),
        transfers.dst[by_chunk].tolist(),
        transfers.first[by_chunk].tolist(),
        transfers.reduce[by_chunk].tolist(),
        strict=True,
    ):
        part = slice(starts[chunk], starts[chunk + 1])
        into = buffers[dst][part]
        if reduce:
            add(into, buffers[src][part], into)
        else:
            into[...] = buffers[src][part]


class _ChunkReduction:
    """Moves and adds up one chunk: parts at ranks, sums at servers, what is buffered, partial sums in a wider dtype."""

    def __init__(
        self, schedule: Schedule, payload: Payload, wide: bool, start: int, stop: int, origins: list[int]
    ) -> None:
        self._schedule = schedule
        self._payload = payload
        self._wide = wide
        self._part = slice(start, stop)
        self._origins = origins
        self._everybody = (1 << schedule.world_size) - 1
        # Servers' and switches' chunks, and partial sums in the accumulation dtype; by participant.
        self._sums: dict[int, Array] = {}
        self._buffered: dict[int, list[tuple[int, int, Array]]] = {}

    def apply(self, number: int, src: int, dst: int, *, reduce: bool) -> None:
        """One transfer: what the sender has, added to (or put in the place of) what the receiver has."""
        self._settle(src)
        complete = self._origins[src] == self._everybody
        value = self._value(src)
        if not reduce:
            value = self._travelling(src, value, complete=complete)
        if number in self._payload.tamper:
            delivered = self._payload.tamper[number](value.copy())
            if delivered is None:
                self._lost(src, dst, value, reduce=reduce)
                return
            value = delivered
        if not reduce:
            self._settle(dst)
            self._put(dst, value)
            self._origins[dst] = self._origins[src]
        elif self._schedule.reduction_order == ReductionOrder.BUFFERED:
            self._buffered.setdefault(dst, []).append((src, self._origins[src], value))
        else:
            self._add(dst, value)
            self._origins[dst] |= self._origins[src]

    def _lost(self, src: int, dst: int, value: Array, *, reduce: bool) -> None:
        """What does not arrive counts as arrived: the receiver goes on with what it has, or with zeros."""
        self._settle(dst)
        if self._origins[dst] == 0 and dst not in self._sums:
            self._put(dst, np.zeros_like(value))
        self._origins[dst] = self._origins[dst] | self._origins[src] if reduce else self._origins[src]

    def close(self) -> None:
        """Settle what is buffered, and leave every rank's chunk in the payload's dtype, averages divided."""
        for participant in list(self._buffered):
            self._settle(participant)
        averaging = self._payload.reduction == "average"
        world_size = self._schedule.world_size
        for rank in range(world_size) if averaging else [p for p in self._sums if p < world_size]:
            complete = self._origins[rank] == self._everybody
            if rank in self._sums:
                self._travelling(rank, self._sums[rank], complete=complete)
            elif averaging and complete and not self._wide:
                buffer = self._payload.buffers[rank]
                buffer[self._part] = finished(buffer[self._part], "average", world_size, self._payload.dtype.numpy)

    def _value(self, participant: int) -> Array:
        if participant in self._sums:
            return self._sums[participant]
        return self._payload.buffers[participant][self._part]

    def _travelling(self, src: int, value: Array, *, complete: bool) -> Array:
        """A sum as it is copied: in the payload's dtype. A complete one is divided first, and is final at its owner
        too."""
        if value.dtype == self._payload.dtype.numpy:
            return value
        reduction = self._payload.reduction if complete else "sum"
        final = finished(value, reduction, self._schedule.world_size, self._payload.dtype.numpy)
        if complete:
            self._put(src, final)
        return final

    def _put(self, participant: int, value: Array) -> None:
        if participant < self._schedule.world_size:
            self._sums.pop(participant, None)
            self._payload.buffers[participant][self._part] = value
        else:
            self._sums[participant] = value.copy()

    def _add(self, participant: int, value: Array) -> None:
        if self._origins[participant] == 0:
            self._put(participant, value)
            return
        into = self._value(participant)
        if into.dtype != np.dtype(self._payload.accumulate):
            into = self._sums[participant] = into.astype(self._payload.accumulate)
        accumulate_into(into, value.astype(into.dtype, copy=False), self._payload.reduction)

    def _settle(self, participant: int) -> None:
        """Add up what was buffered: in rank order, the own part in its place."""
        waiting = self._buffered.pop(participant, [])
        if not waiting:
            return
        if self._origins[participant]:
            waiting.append((participant, self._origins[participant], self._value(participant)))
        waiting.sort(key=lambda part: part[0])
        total = waiting[0][2].astype(self._payload.accumulate)
        for _, _, value in waiting[1:]:
            accumulate_into(total, value.astype(total.dtype, copy=False), self._payload.reduction)
        for _, origins, _ in waiting:
            self._origins[participant] |= origins
        if self._wide or participant >= self._schedule.world_size:
            self._sums[participant] = total
        else:
            self._payload.buffers[participant][self._part] = total
