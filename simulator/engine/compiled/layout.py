"""A collective laid out for arrays: in which steps its transfers can be played, and where each one's end is kept.

Rule: decides from the rounds alone, before any clock runs. Rounds in which every channel hands on what the one behind
it has brought are ring: all repetitions are one step, and only the last one's ends are kept. All else is batches of
transfers that wait for none of each other; each transfer has a slot of its own.
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
class Batch:
    """Transfers that wait for none of each other.

    Attributes
    ----------
    first, last : int
        Their slots, the last not included.
    part : int
    rows : slice
        Their places in the round.
    after : tuple of int array, shape (transfers,) or (gates,)
        Slots of what they wait for; that of nothing where there is less.
    gate : int array, shape (transfers,), or None
        Entry of these for each transfer, where many wait for the same.
    before : int array, shape (transfers,), or None
        Slots of what is ahead of them on their channels; None where nothing is.
    takes : float array, shape (transfers,)
        Bytes at the route's own rate [s].
    flow groups : FlowGroups or None
    """

    first: int
    last: int
    part: int
    rows: slice
    after: tuple[Ints, ...]
    gate: Ints | None
    before: Ints | None
    takes: Floats
    flow_groups: FlowGroups | None


@dataclass(frozen=True, slots=True)
class PipelinedRing:
    """All repetitions of a round of rings.

    Attributes
    ----------
    first, last : int
        Slots of the last repetition; the ones before them are those of the round that it follows.
    part : int
    order : int array, shape (rings, hops)
        Rows of the round, each behind the one that hands on to it.
    """

    first: int
    last: int
    part: int
    order: Ints


@dataclass(frozen=True, slots=True)
class Layout:
    """A collective, ready to be played from any start.

    Attributes
    ----------
    traffic : Traffic
    routes : Routes
    steps : tuple of Batch or PipelinedRing
    src, dst : int array, shape (slots,)
        Participants.
    route : int array, shape (slots,)
        Row of the routes.
    latency : float array, shape (slots,)
        Of the route, jitter factors applied [s].
    """

    traffic: Traffic
    routes: Routes
    steps: tuple[Batch | PipelinedRing, ...]
    src: Ints
    dst: Ints
    route_of: Ints
    latency: Floats

    @property
    def whole(self) -> bool:
        """Whether every transfer has its slot, which is its number then."""
        return len(self.src) == len(self.traffic)


def layout_of(
    traffic: Traffic, routes: Routes, noise: Floats | None, capacity: Floats, *, whole: bool = False
) -> Layout:
    """Lay a collective out.

    Parameters
    ----------
    traffic : Traffic
    routes : Routes
    noise : float array, shape (transfers,), or None
        Factors on latencies.
    capacity : float array
        Of the fabric's links [B/s].
    whole : bool
        Whether every transfer is to have a slot of its own.
    """
    return _Desk(traffic, routes, capacity, compact=noise is None and not whole).layout(noise)


@dataclass(slots=True)
class _Desk:
    """Where parts are laid out one after the other.

    Attributes
    ----------
    bases, slots : list of int
        By part: the number of its first transfer, and its first slot.
    kept : list of int
        By part: of how many of its last repetitions the ends are kept.
    starts, shift : int array
        By part: the number of its first transfer, and by how much numbers are larger than slots.
    last_on : int array
        By channel: the slot of the last transfer on it; -1 where there is none.
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

    def layout(self, noise: Floats | None) -> Layout:
        parts = self.traffic.parts
        orders = self._orders()
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
        each = [(part.repeat.round.src, part.repeat.round.dst, part.route_of) for part in parts]
        src, dst, route_of = (
            np.concatenate([none, *(np.tile(row[column], kept) for row, kept in zip(each, self.kept, strict=True))])
            for column in range(3)
        )
        latency = self.routes.latency[route_of]
        return Layout(
            self.traffic, self.routes, tuple(steps), src, dst, route_of, latency if noise is None else latency * noise
        )

    def _orders(self) -> list[Ints | None]:
        """By part how it goes round in rings; None where it does not, or where ends within it are waited for."""
        orders = [self._order(number) for number in range(len(self.traffic.parts))]
        base, zones = 0, list[tuple[int, int, int]]()
        for number, part in enumerate(self.traffic.parts):
            length, own = len(part.route_of), part.repeat
            if zones and orders[number] is None:
                # Where waits of all repetitions reach to.
                first = own.round.after[own.round.after >= 0]
                last = first + (own.times - 1) * length
                for earlier, begin, end in zones:
                    if bool(((first < end) & (last >= begin)).any()):
                        orders[earlier] = None
            if orders[number] is not None and own.times > 1:
                zones.append((number, base, base + (own.times - 1) * length))
            base += own.times * length
        return orders

    def _order(self, number: int) -> Ints | None:
        """How a part goes round in rings; None where it does not, or where its flows share links."""
        if not self.compact or number == 0:
            return None
        part, before = self.traffic.parts[number], self.traffic.parts[number - 1]
        own, other = part.repeat.round, before.repeat.round
        behind = own.after[:, 0] if own.after.shape[1] == 1 and own.gate is None else None
        alike = ("src", "dst", "channel")
        if behind is None or not all(np.array_equal(getattr(own, c), getattr(other, c)) for c in alike):
            return None
        rows = len(own)
        base = sum(len(p.route_of) * p.repeat.times for p in self.traffic.parts[:number])
        behind = behind - (base - rows)
        if len(np.unique(own.channel)) < rows or not np.array_equal(np.sort(behind), np.arange(rows)):
            return None
        if (
            not np.array_equal(own.dst[behind], own.src)
            or self._flow_groups_of(part.route_of, np.ones(rows)) is not None
        ):
            return None
        return _rings(behind) if part.steady or part.repeat.hands_on(behind) else None

    def _steps(self, number: int, order: Ints | None) -> Iterator[Batch | PipelinedRing]:
        part, slot = self.traffic.parts[number], self.slots[number]
        own, length = part.repeat.round, len(part.route_of)
        if order is not None:
            yield PipelinedRing(slot, slot + length, number, order)
            self.last_on[own.channel] = np.arange(slot, slot + length)
            return
        base = self.bases[number]
        cuts = _batch_bounds(own, base)
        repetition = 0
        for nbytes, times in self.traffic.carried(part):
            takes = nbytes / self.routes.rate[part.route_of]
            for _ in range(times):
                waits = self._slots_of(own.after, repetition * length)
                for first, last in pairwise(cuts):
                    yield self._batch(number, slice(first, last), repetition, waits, nbytes, takes)
                repetition += 1

    def _batch(self, number: int, rows: slice, repetition: int, waits: Ints, nbytes: Floats, takes: Floats) -> Batch:
        part = self.traffic.parts[number]
        own, length = part.repeat.round, len(part.route_of)
        first = self.slots[number] + repetition * length + rows.start
        last = first + rows.stop - rows.start
        mine, gate = (waits[rows], None) if own.gate is None else (waits, own.gate[rows])
        after = tuple(mine.T[(mine >= 0).any(axis=0)])
        before = self.last_on[own.channel[rows]]
        self.last_on[own.channel[rows]] = np.arange(first, last)
        flow_groups = self._flow_groups_of(part.route_of[rows], nbytes[rows])
        follows = before if bool((before >= 0).any()) else None
        return Batch(first, last, number, rows, after, gate, follows, takes[rows], flow_groups)

    def _slots_of(self, numbers: Ints, later: int) -> Ints:
        """Where ends of transfers so much later than these are kept; -1 stays."""
        if self.shift.any():
            part = np.searchsorted(self.starts, numbers + later, "right") - 1
            return np.where(numbers >= 0, numbers + later - self.shift[part], -1)
        return np.where(numbers >= 0, numbers + later, -1) if later else numbers

    def _flow_groups_of(self, route_of: npt.NDArray[np.int32], nbytes: Floats) -> FlowGroups | None:
        """Of a batch; batches that are alike are looked at once."""
        if not self.routes.can_contend:
            return None
        key = route_of.tobytes(), nbytes.tobytes()
        if key not in self._flow_groups:
            self._flow_groups[key] = flow_groups_of(self.routes, route_of, nbytes, self.capacity)
        return self._flow_groups[key]


def _rings(behind: Ints) -> Ints | None:
    """The rings of 'hands on to me', from the one behind to the one ahead; None where they are of unlike length."""
    ahead = np.empty_like(behind)
    ahead[behind] = np.arange(len(behind))
    after, seen, rings = ahead.tolist(), bytearray(len(behind)), []
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
    """Where a round must be cut: before each transfer that waits for one that is in the same piece."""
    length = len(round_)
    inside = (round_.after >= base).any() if round_.after.size else False
    if not inside and len(np.unique(round_.channel)) == length:
        return [0, length]
    cuts, first, waits = [0], 0, round_.waits
    last_on: dict[int, int] = {}
    for number, channel in enumerate(round_.channel.tolist()):
        ahead = max((int(a) - base for a in waits[number] if a >= base), default=-1)
        if max(ahead, last_on.get(channel, -1)) >= first and number > 0:
            cuts.append(number)
            first = number
        last_on[channel] = number
    return [*cuts, length]
