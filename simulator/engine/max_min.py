"""Max-min fair rates for many flows at once, in arrays.

No clock and no state. The result equals progressive filling level by level [1]_: each pass fixes every link that is the
narrowest for each flow on it. Example: links with 10, 20 and 6 B/s; flows A on link 0, B on links 0 and 1, C on link 1,
D and E on link 2::

    pass 1    shares 5, 10, 3    links 0 and 2 are the narrowest for their flows: A = B = 5, D = E = 3
    pass 2    link 1 has 15 left for C alone: C = 15

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
    """Return the max-min fair rate of each flow over shared links [B/s].

    Parameters
    ----------
    paths : sequence of Path
        Path of each flow, with at least one link.
    capacity : sequence of float
        Capacity of each link, by number [B/s].

    Examples
    --------
    >>> paths = [Path((0,), (1.0,), 0.0, 10.0), Path((0, 1), (1.0, 1.0), 0.0, 10.0), Path((1,), (1.0,), 0.0, 20.0)]
    >>> rates(paths, [10.0, 20.0]).tolist()
    [5.0, 5.0, 15.0]
    """
    flows = len(paths)
    lengths = np.fromiter((len(path.links) for path in paths), np.int64, flows)
    flow = np.repeat(np.arange(flows), lengths)
    numbers = np.fromiter(chain.from_iterable(path.links for path in paths), np.int64, int(lengths.sum()))
    weight = np.fromiter(chain.from_iterable(path.weights for path in paths), np.float64, int(lengths.sum()))
    # Renumber the used links: a cluster may have far more.
    used, link = np.unique(numbers, return_inverse=True)
    room = np.array([capacity[number] for number in used.tolist()])
    capped = np.flatnonzero(np.fromiter((path.capped for path in paths), np.bool_, flows))
    caps = np.array([paths[i].rate for i in capped.tolist()])
    return _fill(*_with_caps(flow, link, weight, room, capped, caps), flows)


def _with_caps(
    flow: Ints, link: Ints, weight: Floats, room: Floats, capped: Ints, caps: Floats
) -> tuple[Ints, Ints, Floats, Floats]:
    """Return the pairs of flow and link, their weights and the link capacities, extended by rate caps.

    Each cap [B/s] of a flow in `capped` is modelled by an additional link with this flow alone.
    """
    if not len(capped):
        return flow, link, weight, room
    return (
        np.concatenate([flow, capped]),
        np.concatenate([link, len(room) + np.arange(len(capped))]),
        np.concatenate([weight, np.ones(len(capped))]),
        np.concatenate([room, caps]),
    )


def _fill(flow: Ints, link: Ints, weight: Floats, room: Floats, flows: int) -> Floats:
    """Return the max-min fair rate of each flow [B/s], given pairs of flow and link, weights and link capacities.

    A pass fixes the flows on each link whose share is the smallest for every flow on the link.
    """
    rate = np.zeros(flows)
    while len(flow):
        load = np.bincount(link, weight, len(room))
        # Links without remaining flows divide by zero.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(load > 0, room / load, np.inf)
        least_of_flow = np.full(flows, np.inf)
        np.minimum.at(least_of_flow, flow, share[link])
        least_of_link = np.full(len(room), np.inf)
        np.minimum.at(least_of_link, link, least_of_flow[flow])
        # A link is narrowest if none of its flows has a smaller share elsewhere.
        narrowest = least_of_link >= share
        fixed = np.zeros(flows, np.bool_)
        fixed[flow[narrowest[link]]] = True
        rate[fixed] = least_of_flow[fixed]
        gone = fixed[flow]
        # Fixed flows keep their rates; the rest of each link belongs to the remaining flows.
        room = room - np.bincount(link[gone], (weight * rate[flow])[gone], len(room))
        flow, link, weight = flow[~gone], link[~gone], weight[~gone]
    return rate
