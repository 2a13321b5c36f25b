"""Computes when each hop of a ring has carried its K-th chunk, for chunks of one size, without playing all rounds.

Rule: arithmetic on the hops of one ring; this module knows no schedule. By the rule of transfers hop r ends its k-th
chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + takes(r)

because the chunk must have arrived and the hop must be free. Unrolled, E_K(r) is the length of the longest path that
ends there. A path starts at a hop s; in each round it either moves to the next hop or waits at its hop, which adds that
hop's `takes`. A path over the hops s + 1 to r waits in K - (r - s) rounds, and it is longest if it does so at its
slowest hop:

    E_K(r) = max over s of  E_0(s) + sum over i = s + 1 .. r of (latency(i) + takes(i))
                            + (K - (r - s)) x the largest of takes(s .. r)

As s goes backwards from r, the largest of takes(s .. r) changes only at hops that are slower than all between them and
r. Once s has passed the slowest hop of the ring it changes no more, so for these s a maximum over a window remains. For
each of the slower hops nearer to r one start s is best, and it does not depend on r. Links in random order take N log N
steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints

# Costs that decide between the formula and computing all rounds, which give the same numbers. _CALL: a numpy call
# (0.4 us), in elements that numpy adds in that time (measured on one core). _SOLVING: calls that the formula makes for
# a ring. _HOP: the formula's work on a hop, in elements.
_CALL: Final = 1500
_SOLVING: Final = 200
_HOP: Final = 2000
# N hops sorted by time have some N^2 pairs; with more than this per hop, rounds are computed one by one instead.
_MOST_PAIRS: Final = 400


def advance(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """Ends of all hops after so many further rounds.

    Parameters
    ----------
    end : float array, shape (rings, hops)
        When each hop ended its last chunk; it begins the next no earlier [s].
    latency, takes : float array, shape (rings, hops)
        Latency of each hop, and how long a chunk takes on it [s]. Hop r next carries what hop r - 1 has brought, hop 0
        what the last hop has.
    rounds : int
    """
    rings, hops = end.shape
    slow = rounds * 4 * (_CALL + rings * hops)
    if rounds < hops - 2 or slow <= rings * (_SOLVING * _CALL + _HOP * hops):
        return by_rounds(end, latency, repeat(takes, rounds))
    return np.stack([_solved(*ring, rounds) for ring in zip(end, latency, takes, strict=True)])


def _solved(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """Advance one ring by the formula, or by rounds where its hops are in an order in which that costs less."""
    # Rotate the slowest hop to the front: then no sequence of ever slower hops wraps round the end.
    turn = int(np.argmax(takes))
    slower = _slower(np.roll(takes, -turn))
    if slower.pairs > _MOST_PAIRS * len(end):
        return by_rounds(end, latency, repeat(takes, rounds))
    end, latency, takes = (np.roll(column, -turn) for column in (end, latency, takes))
    return np.roll(_longest(end, latency, takes, rounds, slower), turn)


def by_rounds(end: Floats, latency: Floats, takes: Iterable[Floats]) -> Floats:
    """Ends after further rounds, one round at a time.

    Parameters
    ----------
    end, latency : float array, shape (hops,) or (rings, hops)
        As in `advance`.
    takes : iterable of float array
        For each round the time that each hop needs for its chunk [s]; read before the next array is requested.
    """
    now = np.concatenate([end[..., -1:], end], axis=-1)
    behind, own = now[..., :-1], now[..., 1:]
    come = np.empty_like(end)
    # `transfer_rule.enters`, in place, so that a round costs only three calls of numpy.
    for of_round in takes:
        np.add(behind, latency, out=come)
        np.maximum(come, own, out=come)
        np.add(come, of_round, out=own)
        now[..., 0] = now[..., -1]
    return own.copy()


@dataclass(frozen=True, slots=True)
class _Slower:
    """For each hop the nearest slower hops, except the slowest of the ring; -1 where there is none.

    Attributes
    ----------
    behind, ahead : int array
        Nearest slower hop with a lower number, and with a higher one.
    equal : list of (int, int)
        Successive hops that are equally slow, with none slower between them; the earlier one first, in order.
    pairs : int
        Number of pairs of a hop and a hop that `behind` leads to from it: a measure of the formula's work.
    """

    behind: Ints
    ahead: Ints
    equal: list[tuple[int, int]]
    pairs: int


def _slower(takes: Floats) -> _Slower:
    """Find the nearest slower hops on both sides; hop 0 is the slowest."""
    own, slowest = takes.tolist(), float(takes[0])
    behind, ahead = [-1] * len(own), [-1] * len(own)
    equal, waiting, pairs = [], list[int](), 0
    for hop, time in enumerate(own):
        if time == slowest:
            waiting.clear()
            continue
        last = -1
        while waiting and own[waiting[-1]] <= time:
            last = waiting.pop()
            if own[last] < time:
                ahead[last] = hop
        if last >= 0 and own[last] == time:
            equal.append((last, hop))
        if waiting:
            behind[hop] = waiting[-1]
        waiting.append(hop)
        pairs += len(waiting)
    # A hop that left the stack for an equally slow one has the same slower hop ahead as that one.
    for first, second in reversed(equal):
        ahead[first] = ahead[second]
    return _Slower(np.array(behind), np.array(ahead), equal, pairs)


def _longest(end: Floats, latency: Floats, takes: Floats, rounds: int, slower: _Slower) -> Floats:
    """Evaluate the formula for one ring; hop 0 is the slowest."""
    hops, slowest = len(end), float(takes[0])
    laps = -(-rounds // hops)
    # Position x is hop x mod hops. Ends are computed for the last lap; paths start at these or at earlier positions.
    passed = np.cumsum(np.tile(latency + takes, laps + 1))
    start = np.tile(end, laps + 1) - passed
    asked = np.arange(laps * hops, (laps + 1) * hops)
    longest = np.full(hops, -np.inf)
    # Paths that start at the last of the slowest hops or before it: their slowest hop is known.
    at_slowest = takes == slowest
    last = np.maximum.accumulate(np.where(at_slowest, np.arange(hops), 0)) + laps * hops
    first = asked - rounds
    there = last >= first
    value = start + np.arange(len(start)) * slowest
    longest[there] = largest_between(value, first[there], last[there]) + (rounds - asked[there]) * slowest
    np.maximum(longest, _on_the_way(start[-hops:], takes, rounds, slower, laps * hops), out=longest)
    return longest + passed[-hops:]


def _on_the_way(start: Floats, takes: Floats, rounds: int, slower: _Slower, offset: int) -> Floats:
    """Longest path to each hop that does not pass the slowest hop; -inf where there is none."""
    hops = len(start)
    place = np.arange(hops)
    fast = np.flatnonzero(takes < takes[0])
    # For each hop the best start of paths on which it is the slowest hop.
    best = np.full(hops, -np.inf)
    begin, at = fast, fast
    while len(at):
        np.maximum.at(best, at, start[begin] + (begin + offset) * takes[at])
        going = slower.ahead[at] >= 0
        begin, at = begin[going], slower.ahead[at[going]]
    for first, second in slower.equal:
        best[second] = max(best[second], best[first])
    longest = np.full(hops, -np.inf)
    asked, at = fast, fast
    while len(at):
        longest[asked] = np.maximum(longest[asked], best[at] + (rounds - (place[asked] + offset)) * takes[at])
        going = slower.behind[at] >= 0
        asked, at = asked[going], slower.behind[at[going]]
    return longest


def largest_between(values: Floats, first: Ints, last: Ints) -> Floats:
    """Largest of values[first .. last] for many windows at once; two windows of a power of two cover each window."""
    longest = np.empty(len(first))
    level = np.frexp(last - first + 1)[1] - 1
    table, width = values, 1
    for power in range(int(level.max(initial=0)) + 1):
        mine = level == power
        longest[mine] = np.maximum(table[first[mine]], table[last[mine] - width + 1])
        table = np.maximum(table[:-width], table[width:])
        width *= 2
    return longest
