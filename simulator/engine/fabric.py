"""The fabric: flows on links, each at its max-min fair share.

The fabric knows flows and links, but not their purpose. Flows on a full link get equal shares; capacity left unused by
a slower flow goes to the faster flows. HBM is a link too: a reducing flow at rate x takes 3 x from its receiver's HBM
(two reads and a write).

A flow with free links takes them until its end and costs a single entry in the clock's queue. Rates are solved only if
flows meet, once per instant, for connected flows together. Example: a link with 10 B/s; flow A (100 B) enters at t = 0,
flow B (30 B) at t = 4::

    t = 0    A takes the link and is scheduled to end at 10
    t = 4    B finds the link taken: A (60 B left) and B share, 5 B/s each; B will end first, at 10
    t = 10   B ends, A has 30 B left at 10 B/s and ends at 13

References
----------
.. [1] Bertsekas & Gallager, "Data networks", 2nd ed. 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

from simulator.basics.tolerances import ENDS_TOGETHER
from simulator.engine.clock import LAST, Clock, ScheduledCallback
from simulator.engine.max_min import rates
from simulator.engine.path import Path

# From this number of flows on, arrays (max_min.py) are faster than dicts.
_MANY = 60
_FREE = float("-inf")
_SHARED = float("inf")


class FlowOwner(Protocol):
    """The collective to which flows belong: their sizes [units] and the callbacks for their ends."""

    sizes: Sequence[float]
    """Units by flow number: bytes, or bytes over the priority of the flows."""

    on_end: tuple[Callable[[Flow], None], ...]
    """Called when a flow ends, with the flow; one entry, kept as a tuple because it is the event's callbacks."""

    def path(self, number: int) -> Path:
        """Return the path that a flow takes now, by flow number."""
        ...


class Flow(ScheduledCallback):
    """A transfer's bytes in flight over links, also an event in the clock's queue.

    The clock's queue contains the flow at its end, or at its enter while its links are taken. The attributes `rate`,
    `remaining`, `updated` and `group` exist only while the flow shares links.
    """

    __slots__ = ("end", "enter", "group", "number", "owner", "path", "rate", "remaining", "updated")

    def __init__(self, number: int, path: Path, enter: float, owner: FlowOwner) -> None:
        self.number = number
        self.path = path
        self.enter = enter
        self.owner = owner

    end: float
    rate: float
    remaining: float
    updated: float
    group: _Group | None


@dataclass(slots=True)
class _Group:
    """Flows connected by shared links, with a common timer for the next end."""

    flows: list[Flow]
    timer: ScheduledCallback | None = None
    first: tuple[Flow, ...] = ()


class Fabric:
    """The cluster's links and the flows on them, each flow at its max-min fair rate.

    Attributes
    ----------
    until : list of float
        For each link, the end of the flow that has it alone, possibly in the past; +inf while it is shared [s].
    holder : list of Flow or None
        For each link, the flow that has it alone.
    """

    __slots__ = ("_avoided", "_changing", "_clock", "_dirty", "_members", "_solving", "capacity", "holder", "until")

    def __init__(self, clock: Clock, capacity: Sequence[float], changing: Collection[int] = ()) -> None:
        self._clock = clock
        # Links whose capacity changes: their flows always count as sharing, hence a change finds them.
        self._changing = frozenset(changing)
        # Links that routes avoid at present.
        self._avoided: frozenset[int] = frozenset()
        self.capacity = list(capacity)
        self.until: list[float] = [_FREE] * len(capacity)
        self.holder: list[Any] = [None] * len(capacity)
        # For each link, the flows sharing it with their weights; None while no flow shares.
        self._members: list[dict[Flow, float] | None] = [None] * len(capacity)
        # Links whose members changed since the last solution.
        self._dirty: set[int] = set()
        self._solving = False
        for link in self._changing:
            self.until[link] = _SHARED

    def change(self, capacity: Mapping[int, float]) -> None:
        """Give links a new capacity from now on [B/s]; flows on them get new rates at the end of the instant."""
        for link, rate in capacity.items():
            self.capacity[link] = rate
            if self._members[link] is not None:
                self._dirty.add(link)
        if self._dirty:
            self._solve_soon()

    def reroute(self, avoided: frozenset[int]) -> None:
        """Avoid links from now on: flows on these links are sent again from their beginning, on their present paths.

        A flow whose present path takes such a link, too, has no other path and stays. All avoided links change their
        rate, hence their flows always count as sharing.
        """
        self._avoided = avoided
        moved = dict.fromkeys(flow for link in sorted(avoided) for flow in self._members[link] or ())
        for flow in moved:
            path = flow.owner.path(flow.number)
            if not avoided.isdisjoint(path.links):
                continue
            # The flow may be alone in its group, which nothing else would solve anew.
            if flow.group is not None and flow.group.timer is not None:
                flow.group.timer.callbacks = ()
                flow.group.timer = None
            self._leave(flow)
            self._enter(Flow(flow.number, path, self._clock._now, flow.owner))
        if self._dirty:
            self._solve_soon()

    def launch(self, flow: Flow) -> None:
        """Send a flow over the links of its path, to enter (begin to flow) now or later.

        Free links are taken at once. Otherwise the flow checks its links again at its enter time.
        """
        now = self._clock._now
        if all(self.until[link] <= now for link in flow.path.links):
            self._take(flow)
        elif flow.enter > now:
            self._await(flow)
        else:
            self._enter(flow)

    def _take(self, flow: Flow) -> None:
        """Give a flow exclusive links until the flow's end, and schedule the end."""
        path = flow.path
        flow.end = flow.enter + flow.owner.sizes[flow.number] / path.rate
        flow.callbacks = flow.owner.on_end
        for link in path.links:
            self.until[link] = flow.end
            self.holder[link] = flow
        self._clock.at(flow.end, flow)

    def _await(self, flow: Flow) -> None:
        """Schedule a flow to check the links again after the latency, at the flow's enter time."""
        flow.callbacks = (self._enter,)
        self._clock.at(flow.enter, flow)

    def _enter(self, flow: Flow) -> None:
        """Let a flow enter now: it takes its links if they are free, otherwise it shares them."""
        now = self._clock._now
        flow.enter = now
        # The path may have been chosen before its links were avoided.
        if not self._avoided.isdisjoint(flow.path.links):
            flow.path = flow.owner.path(flow.number)
        has_links_alone = True
        for link in flow.path.links:
            # The holder's end has passed: the link is free.
            if self.until[link] <= now:
                continue
            if self._members[link] is not None or link in self._changing:
                has_links_alone = False
                continue
            holder = self.holder[link]
            if holder.enter > now:
                self._postpone(holder)
            else:
                self._demote(holder)
                has_links_alone = False
        if has_links_alone:
            self._take(flow)
        else:
            self._join(flow, flow.owner.sizes[flow.number])

    def _postpone(self, holder: Flow) -> None:
        """Take a flow off the links before the flow enters; the flow checks the links again at the enter time."""
        self._withdraw(holder)
        # The queue still contains the old object at its former end; without callbacks it does nothing.
        again = _again(holder)
        again.callbacks = (self._enter,)
        self._clock.at(again.enter, again)

    def _demote(self, holder: Flow) -> None:
        """Convert a flow with exclusive links into a flow that shares links, with the bytes left."""
        self._withdraw(holder)
        now = self._clock._now
        # A holder that entered at this instant keeps its exact size; computing the rest would change the last bit, and
        # the result would depend on which flow came first.
        starts_now = holder.enter == now
        left = holder.owner.sizes[holder.number] if starts_now else (holder.end - now) * holder.path.rate
        self._join(_again(holder), left)

    def _withdraw(self, holder: Flow) -> None:
        """Cancel the scheduled end for a flow with exclusive links, and free the links."""
        holder.callbacks = ()
        for link in holder.path.links:
            if self.holder[link] is holder:
                self.until[link] = _FREE
                self.holder[link] = None

    def _join(self, flow: Flow, remaining: float) -> None:
        """Add a flow with `remaining` bytes to the sharing flows of its links; its rate is set later in the instant."""
        flow.remaining, flow.updated, flow.rate, flow.group = remaining, self._clock._now, 0.0, None
        for link, weight in zip(flow.path.links, flow.path.weights, strict=True):
            members = self._members[link]
            if members is None:
                members = self._members[link] = {}
                self.until[link] = _SHARED
                self.holder[link] = None
            members[flow] = weight
            self._dirty.add(link)
        self._solve_soon()

    def _leave(self, flow: Flow) -> None:
        """Remove a flow from the sharing flows of its links; a link without flows becomes free."""
        for link in flow.path.links:
            members = self._members[link]
            if members is None:
                continue
            del members[flow]
            if members:
                self._dirty.add(link)
            else:
                self._members[link] = None
                self.until[link] = _SHARED if link in self._changing else _FREE
                # No flow is left, so there is nothing to solve here.
                self._dirty.discard(link)

    def _solve_soon(self) -> None:
        """Schedule a computation of fair rates at the end of the present instant, unless already scheduled."""
        if not self._solving:
            self._solving = True
            self._clock.when(self._clock._now, self._solve, LAST)

    def _solve(self) -> None:
        """Compute the fair rates of every group of connected flows with a changed link."""
        self._solving = False
        visited: set[Flow] = set()
        dirty, self._dirty = self._dirty, set()
        # Sorted, so that the set's internal order has no influence on the last bits.
        for link in sorted(dirty):
            members = self._members[link]
            if members is None:
                continue
            # Connected flows are solved together, each group once.
            for flow in members:
                if flow not in visited:
                    self._solve_group(self._connected(flow, visited))

    def _connected(self, start: Flow, visited: set[Flow]) -> list[Flow]:
        """Return the flows connected with `start` by shared links, also through other flows; add them to `visited`."""
        visited.add(start)
        flows, links = [start], set()
        # Breadth-first search: `flows` grows during the loop.
        for flow in flows:
            for link in flow.path.links:
                if link in links:
                    continue
                links.add(link)
                for other in self._members[link] or ():
                    if other not in visited:
                        visited.add(other)
                        flows.append(other)
        return flows

    def _solve_group(self, flows: list[Flow]) -> None:
        """Update the bytes left of connected flows, set their max-min fair rates, and schedule the next end."""
        now = self._clock._now
        group = _Group(flows)
        for flow in flows:
            # A former group's timer is cancelled: rates change now.
            if flow.group is not None and flow.group.timer is not None:
                flow.group.timer.callbacks = ()
                flow.group.timer = None
            # Subtract the bytes sent since the rate was set.
            flow.remaining -= flow.rate * (now - flow.updated)
            flow.updated = now
            flow.group = group
        if len(flows) < _MANY:
            self._share(flows)
        else:
            for flow, rate in zip(flows, rates([flow.path for flow in flows], self.capacity).tolist(), strict=True):
                flow.rate = rate
        self._set_timer(group, now)

    def _set_timer(self, group: _Group, now: float) -> None:
        """Schedule the next end of a flow in a group, and note the flows that end then."""
        # A flow on a link that is down waits for the link's return, unless it has no byte left to send.
        delays = [
            flow.remaining / flow.rate if flow.rate else inf if flow.remaining > 0.0 else 0.0 for flow in group.flows
        ]
        least = max(min(delays), 0.0)
        if least == inf:
            return
        # Flows whose ends differ only by rounding end together; otherwise each would cause a solution.
        bound = least + ENDS_TOGETHER * (now + least)
        group.first = tuple(flow for flow, delay in zip(group.flows, delays, strict=True) if delay <= bound)
        group.timer = self._clock.when(now + least, lambda: self._end(group))

    def _end(self, group: _Group) -> None:
        """End the flows of a group that are due now, and call their callbacks."""
        group.timer = None
        now = self._clock._now
        # Remove the flows first: the owners' callbacks below may launch flows on the same links.
        for flow in group.first:
            flow.end = now
            self._leave(flow)
            flow.group = None
        if self._dirty:
            self._solve_soon()
        for flow in group.first:
            for callback in flow.owner.on_end:
                callback(flow)

    def _share(self, flows: list[Flow]) -> None:
        """Set the max-min fair rate of each given flow by progressive filling [1]_.

        Raise the rates together until a link is full or a flow reaches its own cap; fix the rates concerned and go on
        with the rest. Example: flows A on link 1, B on links 1 and 2, C on link 2; link 1 has 10 B/s, link 2 has 20
        B/s. At 5 B/s link 1 is full: A = B = 5. Link 2 has 15 left: C = 15.
        """
        room: dict[int, float] = {}
        load: dict[int, float] = {}
        capacity = self.capacity
        for flow in flows:
            for link, weight in zip(flow.path.links, flow.path.weights, strict=True):
                if link in load:
                    load[link] += weight
                else:
                    room[link] = capacity[link]
                    load[link] = weight
        # A dict instead of a set: its order is deterministic.
        unfixed = dict.fromkeys(flows)
        capped = [flow for flow in flows if flow.path.capped]
        while unfixed:
            share = min([room[link] / left for link, left in load.items()])
            # Caps below the next full link's share come first.
            stopped = [flow for flow in capped if flow.path.rate <= share and flow in unfixed]
            if stopped:
                share = min([flow.path.rate for flow in stopped])
                fixed = [flow for flow in stopped if flow.path.rate == share]
            else:
                fixed = [
                    flow for link in load if room[link] / load[link] <= share for flow in self._members[link] or ()
                ]
            stays = dict.fromkeys([flow for flow in fixed if flow in unfixed], share)
            for flow in stays:
                flow.rate = share
            if len(stays) == len(unfixed):
                return
            for flow in stays:
                del unfixed[flow]
                for link, weight in zip(flow.path.links, flow.path.weights, strict=True):
                    # Fixed flows keep their rates; the link's remaining capacity belongs to the rest.
                    left = load[link] - weight
                    if left > 0.0:
                        load[link] = left
                        room[link] -= share * weight
                    else:
                        del load[link]


def _again(flow: Flow) -> Flow:
    """Return a fresh object for a flow whose old object remains in the clock's queue without callbacks."""
    return Flow(flow.number, flow.path, flow.enter, flow.owner)
