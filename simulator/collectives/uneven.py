"""When each hop of a ring has carried its K-th chunk, for chunks of unlike sizes.

Rule: arithmetic on hops, as in recurrence.py, for chunks that differ in size and move on with each round. Hop r ends
its k-th chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + bytes(r - k + 1) / rate(r)

where bytes(q) is what hop q carries in the first round. A way that leads there moves over m hops from hop p = r - m on
and waits K - m times; a move stays with its chunk, a wait goes on with the chunk behind. Arrays are cut so that chunks
have one of two sizes. On hops of one rate a large one then takes `more` longer than a small one, wherever it is: each
wait counts where the chunk that it leads to is large, and all moves do if they are made while a large one is at hand:

    E_K(r) = K x small + max over p of  E_0(p) + latency(p + 1 .. r)
                                        + more x (large in (r - K .. p]  +  r - p, if any is large in (r - K .. p + 1])

From some start on, seen from r, a large one is at hand, and before it none is: that makes two windows to look for the
largest value in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.basics.arrays import Floats
from simulator.collectives.recurrence import advance, by_rounds, largest_between


def advance_uneven(end: Floats, latency: Floats, nbytes: Floats, rate: Floats, rounds: int) -> Floats:
    """Ends after so many further rounds.

    Parameters
    ----------
    end : float array, shape (rings, hops)
        When each hop ended its last chunk [s].
    latency, rate : float array, shape (rings, hops)
        Of each hop [s], [B/s].
    nbytes : float array, shape (rings, hops)
        What each hop carries in the first round; in the next one the hop after it does [B].
    rounds : int
    """
    if bool((nbytes == nbytes[:, :1]).all()):
        return advance(end, latency, nbytes / rate, rounds)
    if bool((rate == rate[:, :1]).all()) and all(len(np.unique(sizes)) <= 2 for sizes in nbytes):
        rings = zip(end, latency, nbytes, rate[:, 0].tolist(), strict=True)
        return np.stack([_of_one_rate(*ring, rounds) for ring in rings])
    return by_rounds(end, latency, _moving(nbytes, rate, rounds))


def _moving(nbytes: Floats, rate: Floats, rounds: int) -> Iterator[Floats]:
    """For each round how long the chunk takes that each hop carries in it [s]; one array, filled anew."""
    hops = nbytes.shape[1]
    twice = np.concatenate([nbytes, nbytes], axis=1)
    takes = np.empty_like(rate)
    for done in range(rounds):
        first = hops - done % hops
        yield np.divide(twice[:, first : first + hops], rate, out=takes)


def _of_one_rate(end: Floats, latency: Floats, nbytes: Floats, rate: float, rounds: int) -> Floats:
    """The formula, for one ring."""
    hops = len(end)
    small = float(nbytes.min())
    more = (float(nbytes.max()) - small) / rate
    laps = -(-rounds // hops)
    # Position x is hop x mod hops; those of the last lap are asked for, all others are starts.
    place = np.arange((laps + 1) * hops)
    asked = place[-hops:]
    large = np.tile(nbytes > small, laps + 2)[: len(place) + 1]
    passed, counted = np.cumsum(np.tile(latency, laps + 1)), np.cumsum(large)[:-1]
    # The nearest large one from each place on.
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
