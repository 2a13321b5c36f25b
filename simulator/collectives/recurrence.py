"""When each hop of a ring has carried its K-th chunk, for chunks of one size, without playing all rounds.

Rule: arithmetic on the hops of one ring, which knows no schedule. Under the rule of transfers hop r ends its k-th chunk
at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + takes(r)

that is when the chunk has come and the hop is free. Unrolled, E_K(r) is the longest of all ways that lead there: start
at a hop s, wait there and on the way for whichever hop is slowest, and move on. A way that moves over the hops s + 1 to
r has K - (r - s) rounds left to wait in, each best spent at the slowest hop that it passes:

    E_K(r) = max over s of  E_0(s) + sum over i = s + 1 .. r of (latency(i) + takes(i))
                            + (K - (r - s)) x the largest of takes(s .. r)

Seen from r backwards the largest so far changes only at the hops that are slower than all between them and r. Behind
the slowest hop of the ring it changes no more: there a maximum over a window is left. Before it each of the slower hops
has a best start of its own, which does not depend on r. On links in random order that makes N log N steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints

# What decides between two ways to the same numbers, in elements that numpy adds meanwhile (measured on one core; the
# choice changes no result): one call of numpy (0.4 us), calls that the formula makes for a ring, and its work on a hop.
_CALL: Final = 1500
_SOLVING: Final = 200
_HOP: Final = 2000
# Hops in sorted order have N^2 pairs; where there are more than this for a hop, rounds are tried instead.
_MOST_PAIRS: Final = 400


def advance(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """Ends after so many further rounds.

    Parameters
    ----------
    end : float array, shape (rings, hops)
        When each hop ended its last chunk; it begins the next no earlier [s].
    latency, takes : float array, shape (rings, hops)
        Of each hop, and how long a chunk takes on it [s]. Hop r goes on with what hop r - 1 has brought, hop 0 with
        what the last one has.
    rounds : int
    """
    rings, hops = end.shape
    slow = rounds * 4 * (_CALL + rings * hops)
    if rounds < hops - 2 or slow <= rings * (_SOLVING * _CALL + _HOP * hops):
        return by_rounds(end, latency, repeat(takes, rounds))
    return np.stack([_solved(*ring, rounds) for ring in zip(end, latency, takes, strict=True)])


def _solved(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """One ring by the formula, or by rounds where its hops are in such an order that these are fewer."""
    # The slowest hop first: then no way over slower and slower hops goes round the corner.
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
        For each round how long the chunk takes that each hop carries in it [s]; read before the next is asked for.
    """
    now = np.concatenate([end[..., -1:], end], axis=-1)
    behind, own = now[..., :-1], now[..., 1:]
    come = np.empty_like(end)
    # `transfer_rule.enters`, in place: three calls of numpy are all that a round costs.
    for of_round in takes:
        np.add(behind, latency, out=come)
        np.maximum(come, own, out=come)
        np.add(come, of_round, out=own)
        now[..., 0] = now[..., -1]
    return own.copy()


@dataclass(frozen=True, slots=True)
class _Slower:
    """For each hop the nearest ones that are slower; -1 behind the slowest.

    Attributes
    ----------
    behind, ahead : int array
        Nearest slower hop on either side.
    equal : list of (int, int)
        Neighbours among equally slow hops with none slower between them, the earlier one first, in order.
    pairs : int
        How many hops and slower ones there are on the way to the slowest, both ways.
    """

    behind: Ints
    ahead: Ints
    equal: list[tuple[int, int]]
    pairs: int


def _slower(takes: Floats) -> _Slower:
    """Look both ways; hop 0 is the slowest."""
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
    # A hop that an equal one has put aside goes on to whatever is slower than that.
    for first, second in reversed(equal):
        ahead[first] = ahead[second]
    return _Slower(np.array(behind), np.array(ahead), equal, pairs)


def _longest(end: Floats, latency: Floats, takes: Floats, rounds: int, slower: _Slower) -> Floats:
    """The formula; hop 0 is the slowest."""
    hops, slowest = len(end), float(takes[0])
    laps = -(-rounds // hops)
    # Position x is hop x mod hops; those of the last lap are asked for, all others are starts.
    passed = np.cumsum(np.tile(latency + takes, laps + 1))
    start = np.tile(end, laps + 1) - passed
    asked = np.arange(laps * hops, (laps + 1) * hops)
    longest = np.full(hops, -np.inf)
    # Starts behind the last of the slowest hops: there the slowest hop passed is known.
    at_slowest = takes == slowest
    last = np.maximum.accumulate(np.where(at_slowest, np.arange(hops), 0)) + laps * hops
    first = asked - rounds
    there = last >= first
    value = start + np.arange(len(start)) * slowest
    longest[there] = largest_between(value, first[there], last[there]) + (rounds - asked[there]) * slowest
    np.maximum(longest, _on_the_way(start[-hops:], takes, rounds, slower, laps * hops), out=longest)
    return longest + passed[-hops:]


def _on_the_way(start: Floats, takes: Floats, rounds: int, slower: _Slower, offset: int) -> Floats:
    """Ways that do not pass the slowest hop; -inf where there is none."""
    hops = len(start)
    place = np.arange(hops)
    fast = np.flatnonzero(takes < takes[0])
    # The best start of each hop as the slowest of its way.
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
    """The largest of values[first .. last], for many windows at once: two windows of a power of two cover each."""
    longest = np.empty(len(first))
    level = np.frexp(last - first + 1)[1] - 1
    table, width = values, 1
    for power in range(int(level.max(initial=0)) + 1):
        mine = level == power
        longest[mine] = np.maximum(table[first[mine]], table[last[mine] - width + 1])
        table = np.maximum(table[:-width], table[width:])
        width *= 2
    return longest
