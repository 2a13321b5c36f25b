"""Computes when each hop in a ring has carried its K-th chunk, without computing every round.

The module does arithmetic on the hops of a single ring. By the rule of transfers, hop r ends its k-th
chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + takes(r)

because the chunk must have arrived and the hop must be free. Unrolled, E_K(r) is the length of the longest path that
ends at hop r. A path starts at a hop s. In each round the path either moves to the next hop or waits at its hop, and
both add the `takes` of the hop at which the round ends. A path over the hops s + 1 to r waits in K - (r - s) rounds,
and is longest if every wait is at its slowest hop:

    E_K(r) = max over s of  E_0(s) + sum over i = s + 1 .. r of (latency(i) + takes(i))
                            + (K - (r - s)) x the largest of takes(s .. r)

Example: 2 hops with latency 1, takes(0) = 2, takes(1) = 5, E_0 = 0 for both.

    round        1    2    3
    hop 0        3    9   14
    hop 1        6   11   16      the longest path starts at hop 0, moves (1 + 5), and waits twice at hop 1 (5 + 5)

Going backwards from r, the largest of takes(s .. r) grows only at record hops: hops slower than every hop between them
and r. Behind the slowest hop of the ring the value stays constant, so for starts s behind that hop only the maximum
over a window remains. For each record hop nearer to r, one start s is best, and this s does not depend on r. With links
in random order the work is N log N steps.

**Chunks of two sizes.** Each chunk moves on by one hop in each round. Hop r ends its k-th chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + bytes(r - k + 1) / rate(r)

and bytes(q) means the chunk size on hop q in the first round. Arrays are cut so that chunks have one of two sizes. With
hops of equal rate, a large chunk takes `more` longer than a small chunk on every hop. A path to hop r makes m moves,
from hop p = r - m on, and K - m waits: a move follows a chunk to the next hop, a wait goes on to the next chunk. Each
wait that goes on to a large chunk adds `more`. The moves also add `more` each if the path makes them with a large
chunk, which needs a large chunk on the path:

    E_K(r) = K x small + max over p of  E_0(p) + latency(p + 1 .. r)
                                        + more x (large in (r - K .. p]  +  r - p, if any is large in (r - K .. p + 1])

From a certain hop p on, (r - K .. p + 1] contains a large chunk; for earlier p, none. The formula therefore takes the
largest value in each window of p.

Example: 2 hops with rate 1 and latency 0, E_0 = 0; hop 0 first carries 3 bytes, hop 1 carries 2.

    round        1    2
    hop 0        3    5     carries the 2 bytes from hop 1; they arrived at 2, but the hop is busy until 3
    hop 1        2    6     carries the 3 bytes from hop 0, which arrived at 3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints

# Costs that decide between the formula and computing every round; both give the same numbers. _CALL: cost of a numpy
# call (0.4 us), in elements that numpy adds in this time (measured on one core). _SOLVING: numpy calls of the formula
# for each ring. _HOP: the formula's work on each hop, in elements.
_CALL: Final = 1500
_SOLVING: Final = 200
_HOP: Final = 2000
# N hops sorted by time have about N^2 pairs; above this number per hop, each round is computed instead.
_MOST_PAIRS: Final = 400


def advance(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """Return when each hop of ring schedules ends its last chunk after `rounds` more rounds, shape (rings, hops) [s].

    Parameters
    ----------
    end : float array, shape (rings, hops)
        End of the last chunk on each hop; the next chunk begins no earlier [s].
    latency, takes : float array, shape (rings, hops)
        Latency of each hop, and transfer time of a chunk [s]. In the next round, hop r carries the chunk of hop r - 1,
        and hop 0 the chunk of the last hop.

    Examples
    --------
    >>> advance(np.zeros((1, 2)), np.ones((1, 2)), np.array([[2.0, 5.0]]), rounds=3).tolist()
    [[14.0, 16.0]]
    """
    rings, hops = end.shape
    # The formula needs rounds >= hops - 2: a path that avoids hop 0, the slowest, makes up to hops - 2 moves, and
    # `_on_the_way` assumes that the rounds suffice for them. A round costs 4 numpy calls.
    slow = rounds * 4 * (_CALL + rings * hops)
    if rounds < hops - 2 or slow <= rings * (_SOLVING * _CALL + _HOP * hops):
        return by_rounds(end, latency, repeat(takes, rounds))
    return np.stack([_solved(*ring, rounds) for ring in zip(end, latency, takes, strict=True)])


def _solved(end: Floats, latency: Floats, takes: Floats, rounds: int) -> Floats:
    """Return when each hop of a single ring ends its chunk after `rounds` more rounds, shape (hops,) [s].

    The closed formula is used, or a loop over rounds if the order of hops makes the formula slower.
    """
    # Rotate the slowest hop to the front: then no sequence of ever slower hops wraps round the end.
    turn = int(np.argmax(takes))
    slower = _slower(np.roll(takes, -turn))
    if slower.pairs > _MOST_PAIRS * len(end):
        return by_rounds(end, latency, repeat(takes, rounds))
    end, latency, takes = (np.roll(column, -turn) for column in (end, latency, takes))
    return np.roll(_longest(end, latency, takes, rounds, slower), turn)


def by_rounds(end: Floats, latency: Floats, takes: Iterable[Floats]) -> Floats:
    """Return when each hop in a ring ends the last chunk after further rounds, computed round by round [s].

    Parameters
    ----------
    end, latency : float array, shape (hops,) or (rings, hops)
        As in `advance`.
    takes : iterable of float array
        For each round, the transfer time of the chunk on each hop [s]. An array may be overwritten in the next round.
    """
    now = np.concatenate([end[..., -1:], end], axis=-1)
    # `behind` and `ends` view the same array, shifted by a hop: now = [E(last), E(0), E(1), ..., E(last)].
    behind, ends = now[..., :-1], now[..., 1:]
    come = np.empty_like(end)
    # `transfer_rule.enters`, written in place: a round costs only three numpy calls.
    for of_round in takes:
        np.add(behind, latency, out=come)
        np.maximum(come, ends, out=come)
        np.add(come, of_round, out=ends)
        now[..., 0] = now[..., -1]
    return ends.copy()


@dataclass(frozen=True, slots=True)
class _Slower:
    """For each hop in a ring, the nearest slower hops on both sides; the ring's slowest hops do not count."""

    behind: Ints  # nearest slower hop with a lower number, shape (hops,)
    ahead: Ints  # nearest slower hop with a higher number, shape (hops,)
    # Successive equally slow hops (earlier, later), without a slower hop between them, in order
    equal: list[tuple[int, int]]
    pairs: int  # pairs of a hop and a hop on its chain of `behind`s, itself included: the work of the formula


def _slower(takes: Floats) -> _Slower:
    """Return, for each hop in a ring, the nearest slower hops; `takes` are the hops' times, hop 0 the slowest [s].

    >>> slower = _slower(np.array([9.0, 1.0, 3.0, 2.0, 3.0]))
    >>> slower.behind.tolist(), slower.ahead.tolist(), slower.equal
    ([-1, -1, -1, 2, -1], [-1, 2, -1, 4, -1], [(2, 4)])
    """
    times, slowest = takes.tolist(), float(takes[0])
    behind, ahead = [-1] * len(times), [-1] * len(times)
    # `waiting` is a stack of hops with decreasing times; the search for their next slower hop goes on.
    equal, waiting, pairs = [], list[int](), 0
    for hop, time in enumerate(times):
        if time == slowest:
            # Paths across a slowest hop are handled in `_longest`, so chains end here.
            waiting.clear()
            continue
        last = -1
        while waiting and times[waiting[-1]] <= time:
            last = waiting.pop()
            if times[last] < time:
                ahead[last] = hop
        if last >= 0 and times[last] == time:
            equal.append((last, hop))
        if waiting:
            behind[hop] = waiting[-1]
        waiting.append(hop)
        pairs += len(waiting)
    # A hop popped by an equally slow hop has the same slower hop ahead. In reverse order, chains of equal hops resolve.
    for first, second in reversed(equal):
        ahead[first] = ahead[second]
    return _Slower(np.array(behind), np.array(ahead), equal, pairs)


def _longest(end: Floats, latency: Floats, takes: Floats, rounds: int, slower: _Slower) -> Floats:
    """Return, by the closed formula, when each hop in a ring ends its chunk after `rounds` rounds, shape (hops,) [s].

    Hop 0 must be the slowest.
    """
    hops, slowest = len(end), float(takes[0])
    laps = -(-rounds // hops)
    # Position x is hop x mod hops. Ends are computed for the last lap; paths start there or at earlier positions.
    # With P = `passed` (cumulative latency + takes), the path from s to r costs E_0(s) - P(s) + P(r) plus its waits.
    passed = np.cumsum(np.tile(latency + takes, laps + 1))
    start = np.tile(end, laps + 1) - passed
    targets = np.arange(laps * hops, (laps + 1) * hops)
    longest = np.full(hops, -np.inf)
    # Paths that start at or before the last of the slowest hops: their slowest hop is known, and the waits cost
    # (K - r + s) x slowest. The part that depends on s is `value`; the best s is a maximum over a window.
    at_slowest = takes == slowest
    last = np.maximum.accumulate(np.where(at_slowest, np.arange(hops), 0)) + laps * hops
    first = targets - rounds
    crosses = last >= first
    value = start + np.arange(len(start)) * slowest
    longest[crosses] = largest_between(value, first[crosses], last[crosses]) + (rounds - targets[crosses]) * slowest
    np.maximum(longest, _on_the_way(start[-hops:], takes, rounds, slower, laps * hops), out=longest)
    return longest + passed[-hops:]


def _on_the_way(start: Floats, takes: Floats, rounds: int, slower: _Slower, offset: int) -> Floats:
    """Return the longest path [s] to each hop in a ring without the slowest hops, shape (hops,); -inf if none."""
    hops = len(start)
    place = np.arange(hops)
    fast = np.flatnonzero(takes < takes[0])
    # best[m]: best start for paths with hop m as their slowest hop. Candidates for m are the starts s with m in
    # their chain of `ahead`s.
    best = np.full(hops, -np.inf)
    begin, at = fast, fast
    while len(at):
        np.maximum.at(best, at, start[begin] + (begin + offset) * takes[at])
        going = slower.ahead[at] >= 0
        begin, at = begin[going], slower.ahead[at[going]]
    for first, second in slower.equal:
        # A path may continue from `first` to the equally slow `second`.
        best[second] = max(best[second], best[first])
    # The chain of `behind`s from hop r contains each hop m with paths to r on which m is the slowest.
    longest = np.full(hops, -np.inf)
    targets, at = fast, fast
    while len(at):
        longest[targets] = np.maximum(longest[targets], best[at] + (rounds - (place[targets] + offset)) * takes[at])
        going = slower.behind[at] >= 0
        targets, at = targets[going], slower.behind[at[going]]
    return longest


def largest_between(values: Floats, first: Ints, last: Ints) -> Floats:
    """Return the largest value in values[first[i] .. last[i]] for each window i.

    Two overlapping windows, with a power of two for their length, cover each window (sparse table).

    >>> largest_between(np.array([3.0, 1.0, 4.0, 1.0]), np.array([0, 1]), np.array([1, 3])).tolist()
    [3.0, 4.0]
    """
    longest = np.empty(len(first))
    # frexp's exponent minus 1 is floor(log2(window length)).
    level = np.frexp(last - first + 1)[1] - 1
    table, width = values, 1
    for power in range(int(level.max(initial=0)) + 1):
        mine = level == power
        longest[mine] = np.maximum(table[first[mine]], table[last[mine] - width + 1])
        table = np.maximum(table[:-width], table[width:])
        width *= 2
    return longest


def advance_uneven(end: Floats, latency: Floats, nbytes: Floats, rate: Floats, rounds: int) -> Floats:
    """Return when each hop of ring schedules ends its last chunk after `rounds` more rounds, shape (rings, hops) [s].

    Parameters
    ----------
    end : float array, shape (rings, hops)
        End of the last chunk on each hop [s].
    latency, rate : float array, shape (rings, hops)
        Latency [s] and rate [B/s] of each hop.
    nbytes : float array, shape (rings, hops)
        Chunk of each hop in the first round [B]; in the next round the next hop carries this chunk.

    Examples
    --------
    >>> ends, ones = np.zeros((1, 2)), np.ones((1, 2))
    >>> advance_uneven(ends, 0 * ones, np.array([[3.0, 2.0]]), ones, rounds=2).tolist()
    [[5.0, 6.0]]
    """
    if bool((nbytes == nbytes[:, :1]).all()):
        return advance(end, latency, nbytes / rate, rounds)
    if bool((rate == rate[:, :1]).all()) and all(len(np.unique(sizes)) <= 2 for sizes in nbytes):
        rings = zip(end, latency, nbytes, rate[:, 0].tolist(), strict=True)
        return np.stack([_of_one_rate(*ring, rounds) for ring in rings])
    return by_rounds(end, latency, _moving(nbytes, rate, rounds))


def _moving(nbytes: Floats, rate: Floats, rounds: int) -> Iterator[Floats]:
    """Yield, for each round, the time that each hop needs for the present chunk [s]; chunks move on by a hop.

    Every round overwrites the same array.
    """
    hops = nbytes.shape[1]
    twice = np.concatenate([nbytes, nbytes], axis=1)
    takes = np.empty_like(rate)
    for turn in range(rounds):
        # In round k hop r carries bytes(r - k + 1): a view of the doubled array, shifted by one hop a round.
        first = hops - turn % hops
        yield np.divide(twice[:, first : first + hops], rate, out=takes)


def _of_one_rate(end: Floats, latency: Floats, nbytes: Floats, rate: float, rounds: int) -> Floats:
    """Return, by a formula, when each hop in a ring with equal rates ends its last chunk, shape (hops,) [s].

    `end` has the ends so far, `nbytes` chunks of at most two sizes; `rounds` more rounds are carried out.
    """
    hops = len(end)
    small = float(nbytes.min())
    more = (float(nbytes.max()) - small) / rate
    laps = -(-rounds // hops)
    # Position x is hop x mod hops. Ends are computed for the last lap; paths start there or at earlier positions.
    place = np.arange((laps + 1) * hops)
    targets = place[-hops:]
    large = np.tile(nbytes > small, laps + 2)[: len(place) + 1]
    passed, counted = np.cumsum(np.tile(latency, laps + 1)), np.cumsum(large)[:-1]
    # Position of the first large chunk at or after each place. For p >= at_hand there is a large chunk in
    # (r - K .. p + 1], for smaller p there is none.
    nearest = np.minimum.accumulate(np.where(large, np.arange(len(large)), len(large))[::-1])[::-1]
    first = targets - rounds
    at_hand = np.clip(nearest[first + 1] - 1, first, targets + 1)
    start = np.tile(end, laps + 1) - passed
    # First window, p in [at_hand .. r]: waits on large chunks and all r - p moves add `more`.
    with_large = start + more * (counted - place)
    at_large = np.full(hops, -np.inf)
    some = at_hand <= targets
    at_large[some] = largest_between(with_large, at_hand[some], targets[some])
    at_large += more * (targets - counted[first])
    # Second window, p in [r - K .. at_hand - 1]: every chunk of the path is small.
    none = at_hand > first
    others = np.full(hops, -np.inf)
    others[none] = largest_between(start, first[none], at_hand[none] - 1)
    longest: Floats = np.maximum(at_large, others) + passed[-hops:] + rounds * small / rate
    return longest
