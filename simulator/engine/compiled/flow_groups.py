"""Which flows of a batch share links with each other, and how long they then take: exact shares of flow groups.

A flow group is a connected component of the flows of a batch, connected by shared links. Its max-min fair shares are
solved once, before any time is known, as if all its flows entered at one time. If they do, and all end at one time as
well, no share changes in between, and these are the exact durations. Whether they enter together is checked when times
are known; groups whose flows would end at different times are not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Bools, Floats, Ints
from simulator.basics.tolerances import SHARED_ENDS
from simulator.engine.max_min import rates_of
from simulator.engine.routes import Routes


@dataclass(frozen=True, slots=True)
class FlowGroups:
    """Flows of a batch that share links with others of it.

    Attributes
    ----------
    flow : int array
        Their places in the batch.
    flow_group : int array
        Which flow group each is of, from 0.
    duration : float array
        How long each takes if its whole flow group enters at one time [s].
    """

    flow: Ints
    flow_group: Ints
    duration: Floats

    def entering_together(self, enter: Floats) -> Bools:
        """Which of them enter with their whole flow group, to the bit, for enters of the whole batch [s]."""
        own, count = enter[self.flow], int(self.flow_group.max()) + 1
        earliest, latest = np.full(count, np.inf), np.full(count, -np.inf)
        np.minimum.at(earliest, self.flow_group, own)
        np.maximum.at(latest, self.flow_group, own)
        together: Bools = (earliest == latest)[self.flow_group]
        return together


def flow_groups_of(
    routes: Routes, route_of: npt.NDArray[np.int32], nbytes: Floats, capacity: Floats
) -> FlowGroups | None:
    """Flow groups among flows that take these routes; None if no flow slows another, or no group ends at one time."""
    flow, link, weight = routes.taken(route_of)
    real = nbytes[flow] > 0
    flow, link, weight = flow[real], link[real], weight[real]
    _, place = np.unique(link, return_inverse=True)
    if not len(link) or int(np.bincount(place).max()) < 2:
        return None
    component = _connected_components(flow, place, len(route_of))
    size = np.bincount(component, minlength=len(route_of))
    member = np.flatnonzero((nbytes > 0) & (size[component] > 1))
    rows = size[component[flow]] > 1
    rate_alone = routes.rate[route_of[member]]
    shares = rates_of((np.searchsorted(member, flow[rows]), link[rows], weight[rows]), rate_alone, capacity)
    alone, duration = nbytes[member] / rate_alone, nbytes[member] / shares
    # Links are shared but wide enough for all.
    if bool((duration <= alone * (1.0 + SHARED_ENDS)).all()):
        return None
    _, flow_group = np.unique(component[member], return_inverse=True)
    count = int(flow_group.max()) + 1
    shortest, longest = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(shortest, flow_group, duration)
    np.maximum.at(longest, flow_group, duration)
    kept = ((longest - shortest) <= SHARED_ENDS * longest)[flow_group]
    if not kept.any():
        return None
    # All flows of a group get the longest duration: ends that differ by rounding would make later flows of theirs enter
    # apart, and `entering_together` compares to the bit.
    _, renumbered = np.unique(flow_group[kept], return_inverse=True)
    return FlowGroups(member[kept], renumbered, longest[flow_group][kept])


def _connected_components(flow: Ints, link: Ints, flows: int) -> Ints:
    """For each flow the lowest flow that it is connected with by shared links."""
    label = np.arange(flows)
    while True:
        lowest = np.full(int(link.max()) + 1, flows)
        np.minimum.at(lowest, link, label[flow])
        after = label.copy()
        np.minimum.at(after, flow, lowest[link])
        if bool((after == label).all()):
            return label
        label = after
