"""Flows that begin at one moment and share links: their exact shares, where all of a flow group end together.

Rule: a flow group is what hangs together by shared links within one batch; it is solved once, as if all its flows
entered at once. If they do, and all end at once too, nothing changes in between, and the shares are exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.engine.max_min import rates_of
from simulator.engine.routes import Routes

# Rounding of bytes over a share.
_TOGETHER: Final = 1e-12


@dataclass(frozen=True, slots=True)
class FlowGroups:
    """Flows of a batch that share links with others of it.

    Attributes
    ----------
    flow : int array
        Their places in the batch.
    flow_group : int array
        Which flow group each is of, from 0.
    takes : float array
        How long each takes when its whole flow group enters at once [s].
    """

    flow: Ints
    flow_group: Ints
    takes: Floats

    def entering_together(self, enter: Floats) -> Bools:
        """Which of them enter with their whole flow group, for enters of the whole batch [s]."""
        own, count = enter[self.flow], int(self.flow_group.max()) + 1
        least, most = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(least, self.flow_group, own)
        np.maximum.at(most, self.flow_group, own)
        found: Bools = (least == most)[self.flow_group]
        return found


def flow_groups_of(
    routes: Routes, route_of: npt.NDArray[np.int32], nbytes: Floats, capacity: Floats
) -> FlowGroups | None:
    """Groups of flows on these routes; None where nobody holds another back, or where no group ends together."""
    flow, link, weight = routes.taken(route_of)
    real = nbytes[flow] > 0
    flow, link, weight = flow[real], link[real], weight[real]
    _, place = np.unique(link, return_inverse=True)
    if not len(link) or int(np.bincount(place).max()) < 2:
        return None
    label = _connected_components(flow, place, len(route_of))
    size = np.bincount(label, minlength=len(route_of))
    member = np.flatnonzero((nbytes > 0) & (size[label] > 1))
    rows = size[label[flow]] > 1
    alone = routes.rate[route_of[member]]
    shares = rates_of((np.searchsorted(member, flow[rows]), link[rows], weight[rows]), alone, capacity)
    alone, takes = nbytes[member] / alone, nbytes[member] / shares
    if bool((takes <= alone * (1.0 + _TOGETHER)).all()):
        return None
    _, flow_group = np.unique(label[member], return_inverse=True)
    count = int(flow_group.max()) + 1
    least, most = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(least, flow_group, takes)
    np.maximum.at(most, flow_group, takes)
    kept = ((most - least) <= _TOGETHER * most)[flow_group]
    if not kept.any():
        return None
    # One end for all, to the last bit.
    _, renumbered = np.unique(flow_group[kept], return_inverse=True)
    return FlowGroups(member[kept], renumbered, most[flow_group][kept])


def _connected_components(flow: Ints, link: Ints, flows: int) -> Ints:
    """A number for each flow, the same for all that shared links connect."""
    label = np.arange(flows)
    while True:
        least = np.full(int(link.max()) + 1, flows)
        np.minimum.at(least, link, label[flow])
        after = label.copy()
        np.minimum.at(after, flow, least[link])
        if bool((after == label).all()):
            return label
        label = after
