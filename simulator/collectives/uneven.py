"""Computes when each hop of a ring has carried its K-th chunk, for chunks of different sizes.

Rule: arithmetic on hops, as in recurrence.py, for chunks that differ in size; each chunk moves on by one hop a round.
Hop r ends its k-th chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + bytes(r - k + 1) / rate(r)

where bytes(q) is what hop q carries in the first round. A path that ends there moves over m hops from hop p = r - m on
and waits K - m times; a move follows its chunk to the next hop, a wait goes on to the chunk behind it. Arrays are cut
so that chunks have one of two sizes. On hops of equal rate a large chunk takes `more` longer than a small one on every
hop. Each wait that goes on to a large chunk then adds `more`. All moves add it too if the path makes them with a large
chunk, which it can do if it meets one:

    E_K(r) = K x small + max over p of  E_0(p) + latency(p + 1 .. r)
                                        + more x (large in (r - K .. p]  +  r - p, if any is large in (r - K .. p + 1])

From some p on there is a large chunk in (r - K .. p + 1], and for earlier p there is none. So the formula takes the
largest value in each of two windows of p.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.basics.arrays import Floats
from simulator.collectives.recurrence import advance, by_rounds, largest_between


def advance_uneven(end: Floats, latency: Floats, nbytes: Floats, rate: Floats, rounds: int) -> Floats:
    """Ends of all hops after so many further rounds.

    Parameters
    ----------
    end : float array, shape (rings, hops)
        When each hop ended its last chunk [s].
    latency, rate : float array, shape (rings, hops)
        Latency and rate of each hop [s], [B/s].
    nbytes : float array, shape (rings, hops)
        What each hop carries in the first round [B]; in the next round the hop after it carries that.
    rounds : int
    """
    if bool((nbytes == nbytes[:, :1]).all()):
        return advance(end, latency, nbytes / rate, rounds)
    if bool((rate == rate[:, :1]).all()) and all(len(np.unique(sizes)) <= 2 for sizes in nbytes):
        rings = zip(end, latency, nbytes, rate[:, 0].tolist(), strict=True)
        return np.stack([_of_one_rate(*ring, rounds) for ring in rings])
    return by_rounds(end, latency, _moving(nbytes, rate, rounds))


def _moving(nbytes: Floats, rate: Floats, rounds: int) -> Iterator[Floats]:
    """Yield for each round the time that each hop needs for its chunk [s], in one array that is overwritten."""
    hops = nbytes.shape[1]
    twice = np.concatenate([nbytes, nbytes], axis=1)
    takes = np.empty_like(rate)
    for done in range(rounds):
        first = hops - done % hops
        yield np.divide(twice[:, first : first + hops], rate, out=takes)


def _of_one_rate(end: Floats, latency: Floats, nbytes: Floats, rate: float, rounds: int) -> Floats:
    """Evaluate the formula for one ring whose hops have one rate."""
    hops = len(end)
    small = float(nbytes.min())
    more = (float(nbytes.max()) - small) / rate
    laps = -(-rounds // hops)
    # Position x is hop x mod hops. Ends are computed for the last lap; paths start at these or at earlier positions.
    place = np.arange((laps + 1) * hops)
    asked = place[-hops:]
    large = np.tile(nbytes > small, laps + 2)[: len(place) + 1]
    passed, counted = np.cumsum(np.tile(latency, laps + 1)), np.cumsum(large)[:-1]
    # Position of the first large chunk at or after each place.
    nearest = np.minimum.accumulate(np.where(large, np.arange(len(large)), len(large))[::-1])[::-1]
    first = asked - rounds
    at_hand = np.clip(nearest[first + 1] - 1, first, asked + 1)
    start = np.tile(end, laps + 1) - passed
    with_large = start + more * (counted - place)
    at_large = np.full(hops, -np.inf)
    some = at_hand <= asked
    at_large[some] = largest_between(with_large, at_hand[some], asked[some])
    at_large += more * (asked - counted[first])
    none = at_hand > first
    others = np.full(hops, -np.inf)
    others[none] = largest_between(start, first[none], at_hand[none] - 1)
    longest: Floats = np.maximum(at_large, others) + passed[-hops:] + rounds * small / rate
    return longest
