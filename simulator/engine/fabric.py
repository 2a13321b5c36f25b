"""The fabric: flows on links, each at its max-min fair share.

Rule: knows flows and links, not what they are for. Like water in pipes: whoever shares a narrow pipe gets an equal
part, and what one cannot use is left to the others.

HBM is a link too: a reducing flow at rate x takes 3 x of its receiver's HBM (two reads and a write). A flow that has
its links to itself costs one entry in the clock's queue. Only when flows meet are they solved, the connected ones
together, once an instant.

References
----------
.. [1] Bertsekas & Gallager, "Data networks", 2nd ed. 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulator.basics.tolerances import ENDS_TOGETHER
from simulator.engine.clock import LAST, Clock, Occurrence
from simulator.engine.max_min import rates
from simulator.engine.path import Path

# From so many flows on, arrays are faster than dicts.
_MANY = 60
_FREE = float("-inf")
_SHARED = float("inf")


class Owner(Protocol):
    """Whose flow it is: knows its size, and is told of its end."""

    sizes: Sequence[float]
    """Bytes by flow number [B]."""

    on_end: tuple[Callable[[Flow], None], ...]
    """Called when a flow ends, with the flow; one entry, kept as a tuple because it is the event's callbacks."""


class Flow(Occurrence):
    """Bytes on their way. In the clock's queue it stands at its end, or at its enter while others are on its links.

    The last four attributes exist only while it shares links.
    """

    __slots__ = ("end", "enter", "group", "number", "owner", "path", "rate", "remaining", "updated")

    def __init__(self, number: int, path: Path, enter: float, owner: Owner) -> None:
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
    """Flows that are connected by shared links, and the one timer that they have."""

    flows: list[Flow]
    timer: Occurrence | None = None
    first: tuple[Flow, ...] = ()


class Fabric:
    """Links with flows on them.

    Attributes
    ----------
    until : list of float
        By link: the end of the flow that has it alone (no matter if it has passed); +inf while it is shared.
    holder : list of Flow or None
        By link: that flow.
    """

    __slots__ = ("_clock", "_dirty", "_members", "_solving", "capacity", "holder", "until")

    def __init__(self, clock: Clock, capacity: Sequence[float]) -> None:
        self._clock = clock
        self.capacity = list(capacity)
        self.until: list[float] = [_FREE] * len(capacity)
        self.holder: list[Any] = [None] * len(capacity)
        self._members: list[dict[Flow, float] | None] = [None] * len(capacity)
        self._dirty: set[int] = set()
        self._solving = False

    def launch(self, flow: Flow) -> None:
        """Send a flow that enters at flow.enter, now or later: at once if its links are free, else look again then."""
        now = self._clock._now
        if all(self.until[link] <= now for link in flow.path.links):
            self._take(flow)
        elif flow.enter > now:
            self._await(flow)
        else:
            self._enter(flow)

    def _take(self, flow: Flow) -> None:
        """Have the links alone, until the end that follows."""
        path = flow.path
        flow.end = flow.enter + flow.owner.sizes[flow.number] / path.rate
        flow.callbacks = flow.owner.on_end
        for link in path.links:
            self.until[link] = flow.end
            self.holder[link] = flow
        self._clock.at(flow.end, flow)

    def _await(self, flow: Flow) -> None:
        """Wait out the latency and look again then."""
        flow.callbacks = (self._enter,)
        self._clock.at(flow.enter, flow)

    def _enter(self, flow: Flow) -> None:
        now = self._clock._now
        flow.enter = now
        alone = True
        for link in flow.path.links:
            if self.until[link] <= now:
                continue
            if self._members[link] is not None:
                alone = False
                continue
            holder = self.holder[link]
            if holder.enter > now:
                self._postpone(holder)
            else:
                self._demote(holder)
                alone = False
        if alone:
            self._take(flow)
        else:
            self._join(flow, flow.owner.sizes[flow.number])

    def _postpone(self, holder: Flow) -> None:
        """Take a flow that has not entered yet off its links; it will look again when it enters."""
        self._withdraw(holder)
        again = _again(holder)
        again.callbacks = (self._enter,)
        self._clock.at(again.enter, again)

    def _demote(self, holder: Flow) -> None:
        """Make a flow that was alone one that shares."""
        self._withdraw(holder)
        now = self._clock._now
        # One that has only just entered has all its bytes left, to the bit: who took the links first must not show.
        whole = holder.enter == now
        left = holder.owner.sizes[holder.number] if whole else (holder.end - now) * holder.path.rate
        self._join(_again(holder), left)

    def _withdraw(self, holder: Flow) -> None:
        holder.callbacks = ()
        for link in holder.path.links:
            if self.holder[link] is holder:
                self.until[link] = _FREE
                self.holder[link] = None

    def _join(self, flow: Flow, remaining: float) -> None:
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
        for link in flow.path.links:
            members = self._members[link]
            if members is None:
                continue
            del members[flow]
            if members:
                self._dirty.add(link)
            else:
                self._members[link] = None
                self.until[link] = _FREE
                self._dirty.discard(link)

    def _solve_soon(self) -> None:
        """One solve an instant, after everything else that happens in it."""
        if not self._solving:
            self._solving = True
            self._clock.when(self._clock._now, self._solve, LAST)

    def _solve(self) -> None:
        self._solving = False
        seen: set[Flow] = set()
        dirty, self._dirty = self._dirty, set()
        for link in sorted(dirty):
            members = self._members[link]
            if members is None:
                continue
            for flow in members:
                if flow not in seen:
                    self._solve_group(self._connected(flow, seen))

    def _connected(self, start: Flow, seen: set[Flow]) -> list[Flow]:
        seen.add(start)
        flows, links = [start], set()
        for flow in flows:
            for link in flow.path.links:
                if link in links:
                    continue
                links.add(link)
                for other in self._members[link] or ():
                    if other not in seen:
                        seen.add(other)
                        flows.append(other)
        return flows

    def _solve_group(self, flows: list[Flow]) -> None:
        now = self._clock._now
        group = _Group(flows)
        for flow in flows:
            if flow.group is not None and flow.group.timer is not None:
                flow.group.timer.callbacks = ()
                flow.group.timer = None
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
        delays = [flow.remaining / flow.rate for flow in group.flows]
        least = max(min(delays), 0.0)
        bound = least + ENDS_TOGETHER * (now + least)
        group.first = tuple(flow for flow, delay in zip(group.flows, delays, strict=True) if delay <= bound)
        group.timer = self._clock.when(now + least, lambda: self._end(group))

    def _end(self, group: _Group) -> None:
        group.timer = None
        now = self._clock._now
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
        """Progressive filling [1]_: raise all rates together; whoever meets a full link or its own cap stays there."""
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
        unfixed = dict.fromkeys(flows)
        capped = [flow for flow in flows if flow.path.capped]
        while unfixed:
            share = min([room[link] / left for link, left in load.items()])
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
                    left = load[link] - weight
                    if left > 0.0:
                        load[link] = left
                        room[link] -= share * weight
                    else:
                        del load[link]


def _again(flow: Flow) -> Flow:
    """A fresh object for a flow whose old one still stands, emptied, in the clock's queue."""
    return Flow(flow.number, flow.path, flow.enter, flow.owner)
