"""Max-min fair rates of many flows at once, in arrays.

Rule: no clock and no state; the same answer as progressive filling one level at a time, found by fixing every link that
is the narrowest for all its flows in one pass.

References
----------
.. [1] Bertsekas & Gallager, "Data networks", 2nd ed. 1992, section 6.5.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.engine.path import Path


def rates(paths: Sequence[Path], capacity: Sequence[float] | Floats) -> Floats:
    """Fair rate of each flow [B/s].

    Parameters
    ----------
    paths : sequence of Path
        One a flow, each with at least one link; a rate cap counts as a link of its own.
    capacity : sequence of float
        By link number [B/s].
    """
    flows = len(paths)
    lengths = np.fromiter((len(path.links) for path in paths), np.int64, flows)
    flow = np.repeat(np.arange(flows), lengths)
    numbers = np.fromiter(chain.from_iterable(path.links for path in paths), np.int64, int(lengths.sum()))
    weight = np.fromiter(chain.from_iterable(path.weights for path in paths), np.float64, int(lengths.sum()))
    used, link = np.unique(numbers, return_inverse=True)
    room = np.array([capacity[number] for number in used.tolist()])
    capped = np.flatnonzero(np.fromiter((path.capped for path in paths), np.bool_, flows))
    caps = np.array([paths[i].rate for i in capped.tolist()])
    return _fill(*_with_caps(flow, link, weight, room, capped, caps), flows)


def _with_caps(
    flow: Ints, link: Ints, weight: Floats, room: Floats, capped: Ints, caps: Floats
) -> tuple[Ints, Ints, Floats, Floats]:
    """A cap is a link of its own."""
    if not len(capped):
        return flow, link, weight, room
    return (
        np.concatenate([flow, capped]),
        np.concatenate([link, len(room) + np.arange(len(capped))]),
        np.concatenate([weight, np.ones(len(capped))]),
        np.concatenate([room, caps]),
    )


def _fill(flow: Ints, link: Ints, weight: Floats, room: Floats, flows: int) -> Floats:
    """Fix, pass by pass, the flows of all links that no flow of theirs has a narrower link than."""
    rate = np.zeros(flows)
    while len(flow):
        load = np.bincount(link, weight, len(room))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(load > 0, room / load, np.inf)
        least_of_flow = np.full(flows, np.inf)
        np.minimum.at(least_of_flow, flow, share[link])
        least_of_link = np.full(len(room), np.inf)
        np.minimum.at(least_of_link, link, least_of_flow[flow])
        narrowest = least_of_link >= share
        fixed = np.zeros(flows, np.bool_)
        fixed[flow[narrowest[link]]] = True
        rate[fixed] = least_of_flow[fixed]
        gone = fixed[flow]
        room = room - np.bincount(link[gone], (weight * rate[flow])[gone], len(room))
        flow, link, weight = flow[~gone], link[~gone], weight[~gone]
    return rate
