"""Computes when each hop in a ring has carried its K-th chunk, for chunks with different sizes.

The module extends recurrence.py to chunks with different sizes. Each chunk moves on by one
hop in each round. Hop r ends its k-th chunk at

    E_k(r) = max(E_{k-1}(r - 1) + latency(r), E_{k-1}(r)) + bytes(r - k + 1) / rate(r)

and bytes(q) means the chunk size on hop q in the first round. A path to hop r makes m moves, from hop
p = r - m on, and K - m waits. A move follows a chunk to the next hop; a wait stays at the hop and goes on to the next
chunk. Arrays are cut so that chunks have one of two sizes. With hops of equal rate, a large chunk takes `more` longer
than a small chunk on every hop. Each wait that goes on to a large chunk then adds `more`. The moves also add `more`
each if the path makes them with a large chunk, which needs a large chunk on the path:

    E_K(r) = K x small + max over p of  E_0(p) + latency(p + 1 .. r)
                                        + more x (large in (r - K .. p]  +  r - p, if any is large in (r - K .. p + 1])

From a certain hop p on, (r - K .. p + 1] contains a large chunk; for earlier p, none. The formula therefore
takes the largest value in each window of p.

Example: 2 hops with rate 1 and latency 0, E_0 = 0; hop 0 first carries 3 bytes, hop 1 carries 2.

    round        1    2
    hop 0        3    5     carries the 2 bytes from hop 1; they arrived at 2, but the hop is busy until 3
    hop 1        2    6     carries the 3 bytes from hop 0, which arrived at 3
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.basics.arrays import Floats
from simulator.collectives.recurrence import advance, by_rounds, largest_between


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
