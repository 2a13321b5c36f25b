"""How do transfers change real arrays? Every reduction is a numpy add at the receiver, in the simulated order.

This module works in place on the ranks' own buffers. It knows the order in which transfers ended, but no times. Chunks
are processed one after another: transfers with different chunks never touch the same numbers, and a chunk stays in the
processor's cache.

Example: an all-reduce over 2 ranks with a single chunk. Transfer 0 sends rank 0's chunk to rank 1, which adds it;
transfer 1 copies the sum back::

              rank 0   rank 1
    start        5        7
    after 0      5       12
    after 1     12       12
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array, Floats, Ints
from simulator.basics.dtypes import Dtype
from simulator.collectives.payload.reduction import accumulate_into, finished
from simulator.collectives.verify import chunks_of, holders
from simulator.records.chunks import chunk_starts
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.timeline import Timeline
from simulator.records.transfers import Transfers

Tamper = Mapping[int, Callable[[Array], Array | None]]


@dataclass(frozen=True, slots=True)
class Payload:
    """The ranks' arrays for a collective, with the dtypes and the reduction.

    Attributes
    ----------
    buffers : sequence of array
        One buffer per rank of the group, with all chunks in order; changed in place, and containing the results at the
        end.
    dtype : Dtype
        Dtype of the buffers.
    reduction : str
        "sum", "average", "max", "min" or "product".
    accumulate : numpy dtype
        Dtype of partial sums.
    tamper : mapping of transfer number to function
        Injected faults: the function maps the array sent to the array delivered; None for a transfer that is lost
        unnoticed.
    """

    buffers: Sequence[Array]
    dtype: Dtype
    reduction: str
    accumulate: npt.DTypeLike
    tamper: Tamper = field(default_factory=dict)


def ended_order(transfers: Transfers, end: Floats) -> Ints:
    """Return transfer numbers in the order of the transfers' ends [s]; ties go to the lower number.

    A transfer's number is higher than its awaited transfers' numbers, therefore even transfers without duration stay in
    order. If adds may arrive in any order, schedules number transfers by sending rank.
    """
    return np.lexsort((np.arange(len(end)), end))


def carry_all(program: Program, timeline: Timeline, payloads: Mapping[str, Payload]) -> None:
    """Apply each collective's simulated transfers to the payload's arrays, in the order in which transfers ended."""
    ops = program.collectives()
    for log in timeline.logs:
        if log.collective in payloads:
            order = ended_order(log.transfers, log.end)
            carry(ops[log.collective].schedule, log.transfers, order, payloads[log.collective])


def carry(schedule: Schedule, transfers: Transfers, order: Ints, payload: Payload) -> None:
    """Apply a collective's transfers to the payload's buffers in place, in the given order of transfer numbers."""
    elements = len(payload.buffers[0])
    if schedule.operation == "all_to_all":
        # A buffer in all_to_all has world_size rows; chunks are counted for a single row.
        elements //= schedule.world_size
    starts = chunk_starts(schedule, elements).tolist()
    wide = np.dtype(payload.accumulate) != payload.dtype.numpy
    # Without a wider accumulator, buffering or faults, a reduction is a plain numpy add.
    plain = (
        not wide
        and schedule.reduction_order == ReductionOrder.IN_SEQUENCE
        and payload.dtype.bits >= 32
        and not payload.tamper
    )
    if plain and payload.reduction == "sum" and bool((transfers.count == 1).all()):
        _carry_plain(transfers, order, payload.buffers, starts)
        return
    # Transfers of each chunk, in the given order.
    carried: list[list[int]] = [[] for _ in range(schedule.chunks)]
    for number in order.tolist():
        for chunk in chunks_of(schedule, transfers, number):
            carried[chunk].append(number)
    src, dst, reduce = transfers.src.tolist(), transfers.dst.tolist(), transfers.reduce.tolist()
    for chunk, numbers in enumerate(carried):
        start, stop = starts[chunk], starts[chunk + 1]
        origins = [0] * (schedule.world_size + schedule.auxiliaries)
        for rank in holders(schedule, chunk):
            # Bit r in `origins` marks rank r's input in a participant's value.
            origins[rank] = 1 << rank
        reduction = _ChunkReduction(schedule, payload, wide, start, stop, origins)
        for number in numbers:
            reduction.apply(number, src[number], dst[number], reduce=reduce[number])
        reduction.close()


def _carry_plain(transfers: Transfers, order: Ints, buffers: Sequence[Array], starts: list[int]) -> None:
    """Apply transfers that sum in the payload's own dtype, each a single chunk, to the buffers in place.

    This is the common case, without bookkeeping. `starts` has each chunk's offset in the buffers.
    """
    # Stable: the given order is kept within each chunk.
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
    """Carries out a collective's transfers of a single chunk: rank values, server sums, buffered values, wider sums."""

    def __init__(
        self, schedule: Schedule, payload: Payload, wide: bool, start: int, stop: int, origins: list[int]
    ) -> None:
        self._schedule = schedule
        self._payload = payload
        self._wide = wide
        self._part = slice(start, stop)
        self._origins = origins
        # A value with these origins is complete: it contains every rank's input.
        self._everybody = (1 << schedule.world_size) - 1
        # Chunks at servers and switches, and partial sums in the accumulation dtype, by participant.
        self._sums: dict[int, Array] = {}
        # Values waiting to be added in rank order, by participant: (sender, origins, value).
        self._buffered: dict[int, list[tuple[int, int, Array]]] = {}

    def apply(self, number: int, src: int, dst: int, *, reduce: bool) -> None:
        """Apply transfer `number` of the chunk: `dst` adds the value at `src` (`reduce`), or replaces its own."""
        # The sender's value includes everything that has arrived before.
        self._settle(src)
        # A copy of a partial sum is rounded, a copy of a complete sum is divided and final.
        complete = self._origins[src] == self._everybody
        value = self._value(src)
        if not reduce:
            value = self._travelling(src, value, complete=complete)
        if number in self._payload.tamper:
            # A copy, because a fault must not change the sender's own array.
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
        """Apply a lost transfer: the receiver keeps its value, or gets zeros; its origins count the data as arrived."""
        self._settle(dst)
        if self._origins[dst] == 0 and dst not in self._sums:
            self._put(dst, np.zeros_like(value))
        self._origins[dst] = self._origins[dst] | self._origins[src] if reduce else self._origins[src]

    def close(self) -> None:
        """Finish the chunk: add buffered values, divide averages, and convert ranks' values to the payload's dtype."""
        for participant in list(self._buffered):
            self._settle(participant)
        averaging = self._payload.reduction == "average"
        world_size = self._schedule.world_size
        # Without averaging, only ranks with a sum in the accumulation dtype need work.
        for rank in range(world_size) if averaging else [p for p in self._sums if p < world_size]:
            complete = self._origins[rank] == self._everybody
            if rank in self._sums:
                self._travelling(rank, self._sums[rank], complete=complete)
            elif averaging and complete and not self._wide:
                buffer = self._payload.buffers[rank]
                buffer[self._part] = finished(buffer[self._part], "average", world_size, self._payload.dtype.numpy)

    def _value(self, participant: int) -> Array:
        """Return the chunk's present value at a participant: zeros at a server or switch that holds no data."""
        if participant in self._sums:
            return self._sums[participant]
        if participant >= self._schedule.world_size:
            return np.zeros_like(self._payload.buffers[0][self._part])
        return self._payload.buffers[participant][self._part]

    def _travelling(self, src: int, value: Array, *, complete: bool) -> Array:
        """Return a participant's `value` in the form in which copies travel: rounded to the payload's dtype.

        A complete sum is divided first (average), and the result also replaces the sum at its owner.
        """
        if value.dtype == self._payload.dtype.numpy:
            return value
        reduction = self._payload.reduction if complete else "sum"
        final = finished(value, reduction, self._schedule.world_size, self._payload.dtype.numpy)
        if complete:
            self._put(src, final)
        return final

    def _put(self, participant: int, value: Array) -> None:
        """Replace the chunk's value at a participant."""
        if participant < self._schedule.world_size:
            # A value in the payload's dtype replaces any partial sum.
            self._sums.pop(participant, None)
            self._payload.buffers[participant][self._part] = value
        else:
            # Servers and switches have no buffer in the payload.
            self._sums[participant] = value.copy()

    def _add(self, participant: int, value: Array) -> None:
        """Add `value` to the chunk's value at a participant; a participant without a value takes it over."""
        if self._origins[participant] == 0:
            self._put(participant, value)
            return
        into = self._value(participant)
        # The first addition widens the value to the accumulation dtype.
        if into.dtype != np.dtype(self._payload.accumulate):
            into = self._sums[participant] = into.astype(self._payload.accumulate)
        accumulate_into(into, value.astype(into.dtype, copy=False), self._payload.reduction)

    def _settle(self, participant: int) -> None:
        """Add the values buffered at a participant in rank order, with its own value at its rank's place."""
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
        # A wide sum does not fit into the payload's buffer before it is rounded.
        if self._wide or participant >= self._schedule.world_size:
            self._sums[participant] = total
        else:
            self._payload.buffers[participant][self._part] = total
