"""One collective as arrays: round by round, every transfer of a round at once.

Rule: the rule of transfers (docs/design.md) as if nothing were shared; who could meet whom is checked afterwards. A
round is cut where one of its transfers waits for another of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.crowds import Crowds, crowds_of
from simulator.engine.wiring import Wiring
from simulator.schedule import Repeat, Round, Schedule, Transfers

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Batch:
    """Transfers that wait for none of each other.

    Attributes
    ----------
    first, last : int
        Their numbers, the last not included.
    after : int array, shape (transfers, w), or None
        What they wait for; -1 where there is less.
    follows : bool
        Whether any has another ahead of it on its channel.
    """

    first: int
    last: int
    after: Ints | None
    follows: bool


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a collective.

    Attributes
    ----------
    enter, end : float array, shape (t,)
        [s]
    done : float array, shape (ranks of the group,)
        When each rank is through [s].
    crowd : int array, shape (t,)
        With whom a flow shares its links as it was solved; -1 for nobody.
    """

    enter: Floats
    end: Floats
    done: Floats
    crowd: Ints


@dataclass(frozen=True, slots=True)
class Shape:
    """A collective on its links, ready to be played from any start.

    Attributes
    ----------
    wiring : Wiring
    batches : tuple of Batch
    crowds : tuple of Crowds or None
        By batch.
    latency, takes : float array, shape (t,)
        Of each transfer: of its route, and its bytes at its own rate [s].
    ranks : int
        Of the group.
    """

    wiring: Wiring
    batches: tuple[Batch, ...]
    crowds: tuple[Crowds | None, ...]
    latency: Floats
    takes: Floats
    ranks: int


def shape_of(schedule: Schedule, wiring: Wiring, ranks: int, noise: Floats | None, capacity: Sequence[float]) -> Shape:
    """Look everything up that does not depend on when ranks start."""
    latency = np.array([path.latency for path in wiring.paths], np.float64)[wiring.route]
    rate = np.array([path.rate for path in wiring.paths], np.float64)[wiring.route]
    if noise is not None:
        latency = latency * noise
    batches = tuple(_batches(schedule, wiring.transfers))
    crowds = tuple(_crowds(wiring, batches, capacity))
    return Shape(wiring, batches, crowds, latency, wiring.nbytes / rate, ranks)


def play(shape: Shape, start: Floats) -> Played:
    """Play from when each rank has reached the operation and paid its start-up, shape (ranks,)."""
    transfers = shape.wiring.transfers
    total = len(transfers)
    # Servers and switches are always there, but nothing happens before the first rank has come.
    extras = len(shape.wiring.vertices) - shape.ranks
    began = np.concatenate([start, np.full(extras, start.min())])
    ready = np.maximum(began[transfers.src], began[transfers.dst])
    # What -1 stands for has ended long ago.
    end = np.empty(total + 1)
    end[-1] = -np.inf
    enter = ready
    before = transfers.before_on_channel
    together, number = np.full(total, -1), 0
    for batch, crowds in zip(shape.batches, shape.crowds, strict=True):
        part = slice(batch.first, batch.last)
        own = enter[part]
        if batch.after is not None:
            for column in batch.after.T:
                np.maximum(own, end[column], out=own)
        own += shape.latency[part]
        if batch.follows:
            np.maximum(own, end[before[part]], out=own)
        np.add(own, shape.takes[part], out=end[part])
        if crowds is not None:
            entering = crowds.entering(own)
            flow = crowds.flow[entering]
            end[batch.first + flow] = own[flow] + crowds.takes[entering]
            together[batch.first + flow] = number + crowds.crowd[entering]
            number += len(crowds.flow)
    done = np.concatenate([start, np.full(extras, -np.inf)])
    np.maximum.at(done, transfers.src, end[:total])
    np.maximum.at(done, transfers.dst, end[:total])
    return Played(enter, end[:total], done[: shape.ranks], together)


def _crowds(wiring: Wiring, batches: tuple[Batch, ...], capacity: Sequence[float]) -> Iterator[Crowds | None]:
    """Of each batch; batches that are alike are looked at once."""
    if not any(path.links for path in wiring.paths):
        yield from [None] * len(batches)
        return
    known: dict[tuple[bytes, bytes], Crowds | None] = {}
    for batch in batches:
        route, nbytes = wiring.route[batch.first : batch.last], wiring.nbytes[batch.first : batch.last]
        key = route.tobytes(), nbytes.tobytes()
        if key not in known:
            known[key] = crowds_of([wiring.paths[row] for row in route.tolist()], nbytes, capacity)
        yield known[key]


def _batches(schedule: Schedule, transfers: Transfers) -> Iterator[Batch]:
    base = 0
    for part in schedule.parts():
        repeat = part if isinstance(part, Repeat) else Repeat(part, 1, 0, part.first)
        length = len(repeat.round)
        if not length:
            continue
        cuts = _cuts(repeat.round, base)
        after = _trimmed(repeat.round.after)
        for i in range(repeat.times):
            moved = None if after is None else np.where(after >= 0, after + i * length, -1)
            for first, last in pairwise(cuts):
                at = base + i * length
                own = None if moved is None else moved[first:last]
                follows = bool((transfers.before_on_channel[at + first : at + last] >= 0).any())
                yield Batch(at + first, at + last, own, follows)
        base += length * repeat.times


def _trimmed(after: Ints) -> Ints | None:
    """Without columns in which nobody waits."""
    kept = after[:, (after >= 0).any(axis=0)]
    return kept if kept.shape[1] else None


def _cuts(round_: Round, base: int) -> list[int]:
    """Where a round must be cut: before each transfer that waits for one that is in the same piece."""
    length = len(round_)
    inside = (round_.after >= base).any() if round_.after.size else False
    if not inside and len(np.unique(round_.channel)) == length:
        return [0, length]
    cuts, first = [0], 0
    last_on: dict[int, int] = {}
    for number, channel in enumerate(round_.channel.tolist()):
        ahead = max((int(a) - base for a in round_.after[number] if a >= base), default=-1)
        if max(ahead, last_on.get(channel, -1)) >= first and number > 0:
            cuts.append(number)
            first = number
        last_on[channel] = number
    return [*cuts, length]
