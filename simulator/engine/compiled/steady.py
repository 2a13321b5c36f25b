"""Collectives that are rings, whatever their name: the same transfers in every round, each after the one behind it.

Rule: decides from the rounds alone, and plays without writing a transfer out, by the recurrence where all chunks are
alike and round by round where they are not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.recurrence import advance
from simulator.engine.wiring import Part, Wiring

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Phase:
    """Rounds that are alike but for the chunks that they carry.

    Attributes
    ----------
    part : Part
    latency : float array, shape (rings, hops)
        [s]
    pace : float array, shape (rings, hops)
        Of a byte [s/B].
    """

    part: Part
    latency: Floats
    pace: Floats


@dataclass(frozen=True, slots=True)
class Steady:
    """Rings side by side, ready to be played from any start.

    Attributes
    ----------
    wiring : Wiring
    order : int array, shape (rings, hops)
        Transfers of a round (channels), each behind the one that it waits for.
    src, dst : int array, shape (rings, hops)
        Participants.
    phases : tuple of Phase
    """

    wiring: Wiring
    order: Ints
    src: Ints
    dst: Ints
    phases: tuple[Phase, ...]


@dataclass(frozen=True, slots=True)
class Passage:
    """What became of it.

    Attributes
    ----------
    enter, end : float array, shape (rings, hops)
        When the first chunk of each channel entered and when its last one ended [s].
    done : float array, shape (ranks,)
        [s]
    """

    enter: Floats
    end: Floats
    done: Floats


def steady_of(wiring: Wiring) -> Steady | None:
    """Look whether a collective is rings of equal length; None where it is something else."""
    parts = wiring.parts
    if len(parts) < 2 or len(wiring.vertices) != wiring.schedule.world_size:
        return None
    order = _rings(parts)
    if order is None:
        return None
    first = parts[0].repeat.round
    phases = tuple(_phase(wiring, part, order) for part in parts)
    return Steady(wiring, order, first.src[order], first.dst[order], phases)


def _rings(parts: tuple[Part, ...]) -> Ints | None:
    """Rows of a round, ring by ring."""
    first = parts[0].repeat.round
    rows, base = len(first), 0
    behind = None
    if len(np.unique(first.channel)) != rows:
        return None
    for number, part in enumerate(parts):
        own = part.repeat.round
        same = len(own) == rows and all(
            np.array_equal(a, b) for a, b in ((own.src, first.src), (own.dst, first.dst), (own.channel, first.channel))
        )
        waits = own.after
        if not same or (number == 0 and (part.repeat.times != 1 or bool((waits >= 0).any()))):
            return None
        if number:
            if waits.shape[1] != 1:
                return None
            found = waits[:, 0] - (base - rows)
            if behind is not None and not np.array_equal(found, behind):
                return None
            behind = found
        base += rows * part.repeat.times
    if behind is None or not np.array_equal(np.sort(behind), np.arange(rows)):
        return None
    return _cycles(behind) if np.array_equal(first.dst[behind], first.src) else None


def _cycles(behind: Ints) -> Ints | None:
    """The rings of 'waits for', each from the one behind to the one ahead; None where they are of unlike length."""
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


def _phase(wiring: Wiring, part: Part, order: Ints) -> Phase:
    route = part.route[order]
    return Phase(part, wiring.latency[route], 1.0 / wiring.rate[route])


def play(steady: Steady, start: Floats) -> Passage:
    """Play from when each rank has reached the operation and paid its start-up, shape (ranks,)."""
    begun = np.maximum(start[steady.src], start[steady.dst])
    enter: Floats | None = None
    end = begun
    for latency, takes, rounds in _stretches(steady):
        if enter is None:
            # Nobody waits for another chunk before the first.
            enter = begun + latency
            end, rounds = enter + takes, rounds - 1
        end = advance(end, latency, takes, rounds)
    done = start.copy()
    np.maximum.at(done, steady.src, end)
    np.maximum.at(done, steady.dst, end)
    return Passage(begun if enter is None else enter, end, done)


def times_on(steady: Steady, start: Floats, routes: npt.NDArray[np.int64]) -> tuple[Floats, Floats]:
    """Enter and end of all transfers that take these routes, shape (k,) each, from following every round [s]."""
    begun = np.maximum(start[steady.src], start[steady.dst])
    end, enters, ends, first = begun, [np.zeros(0)], [np.zeros(0)], True
    for phase in steady.phases:
        mine = np.isin(phase.part.route[steady.order], routes)
        for nbytes, times in steady.wiring.carried(phase.part):
            takes = nbytes[steady.order] * phase.pace
            for _ in range(times):
                enter = begun if first else np.maximum(np.roll(end, 1, axis=1) + phase.latency, end)
                enter = enter + phase.latency if first else enter
                end, first = enter + takes, False
                enters.append(enter[mine])
                ends.append(end[mine])
    return np.concatenate(enters), np.concatenate(ends)


def _stretches(steady: Steady) -> Iterator[tuple[Floats, Floats, int]]:
    """Latency, time of a chunk, and how many rounds in a row have just these."""
    last: tuple[Floats, Floats] | None = None
    count = 0
    for phase in steady.phases:
        for nbytes, times in steady.wiring.carried(phase.part):
            takes = nbytes[steady.order] * phase.pace
            if last is not None and np.array_equal(last[1], takes) and np.array_equal(last[0], phase.latency):
                count += times
                continue
            if last is not None:
                yield *last, count
            last, count = (phase.latency, takes), times
    if last is not None:
        yield *last, count
