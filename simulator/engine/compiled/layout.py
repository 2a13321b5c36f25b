"""In which steps the transfers of a collective can be computed as arrays, and in which slot the times of each are kept.

Decided from the rounds alone, before any time is known. A round in which each transfer forwards what its predecessor on
a ring delivered is a pipelined ring: all its repetitions are one step, solved by a recurrence, and only the ends of the
last repetition are kept. Everything else is batches of transfers that do not wait for each other; each of these
transfers has a slot of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.engine.compiled.flow_groups import FlowGroups, flow_groups_of
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.schedule import Round


@dataclass(frozen=True, slots=True)
class TransferBatch:
    """Transfers of one round that do not wait for each other.

    Attributes
    ----------
    first, last : int
        Their slots, the last not included.
    part : int
        Which of the traffic's parts they are of.
    rows : slice
        Their places in the part's round.
    after : tuple of int array, shape (transfers,) or (gates,)
        Slots of the transfers that they wait for, one array for each of as many as any of them waits for; -1 where one
        waits for fewer.
    gate : int array, shape (transfers,), or None
        Entry of `after` for each transfer, where many wait for the same; None where each has its own.
    previous : int array, shape (transfers,), or None
        Slots of the transfers before them on their channels, -1 for a first one; None if all are first ones.
    duration : float array, shape (transfers,)
        Bytes at the rate that the route gives to a flow alone [s].
    flow_groups : FlowGroups or None
        Those that share links.
    """

    first: int
    last: int
    part: int
    rows: slice
    after: tuple[Ints, ...]
    gate: Ints | None
    previous: Ints | None
    duration: Floats
    flow_groups: FlowGroups | None


@dataclass(frozen=True, slots=True)
class PipelinedRing:
    """All repetitions of a round that goes round one ring, or several of one length.

    Attributes
    ----------
    first, last : int
        Slots of the last repetition; the slots just before them are those of the round that the first one follows.
    part : int
        Which of the traffic's parts it is.
    order : int array, shape (rings, hops)
        Rows of the round, each behind the one that hands on to it.
    """

    first: int
    last: int
    part: int
    order: Ints


@dataclass(frozen=True, slots=True)
class Layout:
    """A collective, ready to be computed from any start.

    Attributes
    ----------
    traffic : Traffic
    routes : Routes
    steps : tuple of TransferBatch or PipelinedRing
        Each after all that it waits for.
    src, dst : int array, shape (slots,)
        Participants.
    route_of : int array, shape (slots,)
        Row of the routes.
    latency : float array, shape (slots,)
        Of the route, with jitter [s].
    """

    traffic: Traffic
    routes: Routes
    steps: tuple[TransferBatch | PipelinedRing, ...]
    src: Ints
    dst: Ints
    route_of: Ints
    latency: Floats

    @property
    def whole(self) -> bool:
        """Whether every transfer has a slot; its slot is then its number."""
        return len(self.src) == len(self.traffic)


def layout_of(
    traffic: Traffic, routes: Routes, jitter: Floats | None, capacity: Floats, *, whole: bool = False
) -> Layout:
    """Lay a collective out.

    Parameters
    ----------
    traffic : Traffic
    routes : Routes
    jitter : float array, shape (transfers,), or None
        Factors on latencies. With them no two repetitions are alike, so nothing is a pipelined ring.
    capacity : float array
        Of the fabric's links [B/s].
    whole : bool
        Whether every transfer is to have a slot of its own.
    """
    return _LayoutBuilder(traffic, routes, capacity, compact=jitter is None and not whole).layout(jitter)


@dataclass(slots=True)
class _LayoutBuilder:
    """Lays out the parts of a traffic one after the other.

    A transfer's number counts all transfers; a slot counts those whose times are kept. Of a pipelined ring only the
    last repetition is kept, so behind it numbers are larger than slots.

    Attributes
    ----------
    bases, slots : list of int
        By part: the number of its first transfer, and its first slot.
    kept : list of int
        By part: of how many of its last repetitions the times are kept.
    starts, shift : int array
        By part: the number of its first transfer, and by how much numbers are larger than slots.
    last_on : int array
        By channel: the slot of the last transfer on it so far; -1 where there is none.
    """

    traffic: Traffic
    routes: Routes
    capacity: Floats
    compact: bool
    bases: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    starts: Ints = field(init=False)
    shift: Ints = field(init=False)
    last_on: Ints = field(init=False)
    _flow_groups: dict[tuple[bytes, bytes], FlowGroups | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        channels = max((int(part.repeat.round.channel.max()) for part in self.traffic.parts), default=-1) + 1
        self.last_on = np.full(channels, -1)

    def layout(self, jitter: Floats | None) -> Layout:
        parts = self.traffic.parts
        orders = self._ring_orders()
        base = slot = 0
        for part, order in zip(parts, orders, strict=True):
            self.bases.append(base)
            self.slots.append(slot)
            self.kept.append(part.repeat.times if order is None else 1)
            base += len(part.route_of) * part.repeat.times
            slot += len(part.route_of) * self.kept[-1]
        dropped = [(part.repeat.times - kept) * len(part.route_of) for part, kept in zip(parts, self.kept, strict=True)]
        self.starts = np.array(self.bases)
        self.shift = self.starts + np.array(dropped) - np.array(self.slots)
        steps = [step for number, order in enumerate(orders) for step in self._steps(number, order)]
        none = np.zeros(0, np.int64)
        columns = [(part.repeat.round.src, part.repeat.round.dst, part.route_of) for part in parts]
        src, dst, route_of = (
            np.concatenate([none, *(np.tile(of[number], kept) for of, kept in zip(columns, self.kept, strict=True))])
            for number in range(3)
        )
        latency = self.routes.latency[route_of]
        return Layout(
            self.traffic, self.routes, tuple(steps), src, dst, route_of, latency if jitter is None else latency * jitter
        )

    def _ring_orders(self) -> list[Ints | None]:
        """By part the order of its rings; None for a part that is laid out in batches.

        A pipelined ring keeps the ends of its last repetition only. So a part that waits for an earlier repetition
        makes that ring batches, too. Pipelined rings themselves wait for the round just before them and no other.
        """
        orders = [self._ring_order(number) for number in range(len(self.traffic.parts))]
        base, dropped = 0, list[tuple[int, int, int]]()
        for number, part in enumerate(self.traffic.parts):
            length, own = len(part.route_of), part.repeat
            if dropped and orders[number] is None:
                # From the first number that each entry waits for to that in the last repetition.
                first = own.round.after[own.round.after >= 0]
                last = first + (own.times - 1) * length
                for ring, begin, end in dropped:
                    if bool(((first < end) & (last >= begin)).any()):
                        orders[ring] = None
            if orders[number] is not None and own.times > 1:
                dropped.append((number, base, base + (own.times - 1) * length))
            base += own.times * length
        return orders

    def _ring_order(self, number: int) -> Ints | None:
        """Order of a part's rings; None if it is no pipelined ring, or if its flows share links."""
        if not self.compact or number == 0:
            return None
        part, before = self.traffic.parts[number], self.traffic.parts[number - 1]
        own, other = part.repeat.round, before.repeat.round
        # The recurrence starts from the ends of the part before, hop by hop: that must have the same hops, and each
        # transfer must wait for one of its last repetition and for nothing else.
        predecessor = own.after[:, 0] if own.after.shape[1] == 1 and own.gate is None else None
        hops = ("src", "dst", "channel")
        if predecessor is None or not all(np.array_equal(getattr(own, c), getattr(other, c)) for c in hops):
            return None
        rows = len(own)
        base = sum(len(p.route_of) * p.repeat.times for p in self.traffic.parts[:number])
        predecessor = predecessor - (base - rows)
        # One transfer a channel and round, and each one's predecessor the predecessor of no other: closed rings.
        if len(np.unique(own.channel)) < rows or not np.array_equal(np.sort(predecessor), np.arange(rows)):
            return None
        # What a transfer waits for arrives at its sender; and no flows share links, as far as flows of a round go.
        if not np.array_equal(own.dst[predecessor], own.src):
            return None
        if self._flow_groups_of(part.route_of, np.ones(rows)) is not None:
            return None
        # A transfer carries as many bytes in each repetition, or in the next what its predecessor carries in this one.
        return _rings(predecessor) if part.steady or part.repeat.hands_on(predecessor) else None

    def _steps(self, number: int, order: Ints | None) -> Iterator[TransferBatch | PipelinedRing]:
        part, slot = self.traffic.parts[number], self.slots[number]
        own, length = part.repeat.round, len(part.route_of)
        if order is not None:
            yield PipelinedRing(slot, slot + length, number, order)
            self.last_on[own.channel] = np.arange(slot, slot + length)
            return
        bounds = _batch_bounds(own, self.bases[number])
        repetition = 0
        for nbytes, times in self.traffic.carried(part):
            duration = nbytes / self.routes.rate[part.route_of]
            for _ in range(times):
                waits = self._slots_of(own.after, repetition * length)
                for first, last in pairwise(bounds):
                    yield self._batch(number, slice(first, last), repetition, waits, nbytes, duration)
                repetition += 1

    def _batch(
        self, number: int, rows: slice, repetition: int, waits: Ints, nbytes: Floats, duration: Floats
    ) -> TransferBatch:
        part = self.traffic.parts[number]
        own, length = part.repeat.round, len(part.route_of)
        first = self.slots[number] + repetition * length + rows.start
        last = first + rows.stop - rows.start
        mine, gate = (waits[rows], None) if own.gate is None else (waits, own.gate[rows])
        after = tuple(mine.T[(mine >= 0).any(axis=0)])
        previous = self.last_on[own.channel[rows]]
        self.last_on[own.channel[rows]] = np.arange(first, last)
        flow_groups = self._flow_groups_of(part.route_of[rows], nbytes[rows])
        follows = previous if bool((previous >= 0).any()) else None
        return TransferBatch(first, last, number, rows, after, gate, follows, duration[rows], flow_groups)

    def _slots_of(self, numbers: Ints, later: int) -> Ints:
        """Slots of the transfers whose numbers are larger than these by `later`; -1 stays -1."""
        if self.shift.any():
            part = np.searchsorted(self.starts, numbers + later, "right") - 1
            return np.where(numbers >= 0, numbers + later - self.shift[part], -1)
        return np.where(numbers >= 0, numbers + later, -1) if later else numbers

    def _flow_groups_of(self, route_of: npt.NDArray[np.int32], nbytes: Floats) -> FlowGroups | None:
        """Flow groups of a batch; they depend on routes and bytes alone, so repetitions are looked at once."""
        if not self.routes.can_contend:
            return None
        key = route_of.tobytes(), nbytes.tobytes()
        if key not in self._flow_groups:
            self._flow_groups[key] = flow_groups_of(self.routes, route_of, nbytes, self.capacity)
        return self._flow_groups[key]


def _rings(predecessor: Ints) -> Ints | None:
    """The cycles of a permutation, each row after its predecessor; None if they are of unlike length."""
    successor = np.empty_like(predecessor)
    successor[predecessor] = np.arange(len(predecessor))
    after, seen, rings = successor.tolist(), bytearray(len(predecessor)), []
    for row in range(len(after)):
        ring, at = [], row
        while not seen[at]:
            seen[at] = 1
            ring.append(at)
            at = after[at]
        if ring:
            rings.append(ring)
    return np.array(rings) if len({len(ring) for ring in rings}) == 1 else None


def _batch_bounds(round_: Round, base: int) -> list[int]:
    """Where a round must be cut into batches: before each transfer that waits for another one of the same batch.

    A transfer waits for those that it names and for the one before it on its channel.
    """
    length = len(round_)
    inside = (round_.after >= base).any() if round_.after.size else False
    if not inside and len(np.unique(round_.channel)) == length:
        return [0, length]
    bounds, first, waits = [0], 0, round_.waits
    last_on: dict[int, int] = {}
    for number, channel in enumerate(round_.channel.tolist()):
        awaited = max((int(a) - base for a in waits[number] if a >= base), default=-1)
        if max(awaited, last_on.get(channel, -1)) >= first and number > 0:
            bounds.append(number)
            first = number
        last_on[channel] = number
    return [*bounds, length]
