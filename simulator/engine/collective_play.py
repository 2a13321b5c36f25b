"""When does each transfer start and end in the events engine, and when is each rank done? A few counters decide.

The only rule is the rule for transfers (docs/design.md). A transfer is *ready* when each awaited transfer has ended and
both its ends have started; it *enters* at max(ready + latency, end of the transfer before it on its channel).

Example: a chain over ranks 0, 1, 2 with two pieces. `pending` counts the ends awaited by each transfer::

    number 0: 0 -> 1, piece 0    pending 0    starts when ranks 0 and 1 have started
    number 1: 0 -> 1, piece 1    pending 1    waits for 0 (channel)
    number 2: 1 -> 2, piece 0    pending 1    waits for 0 (arrival)
    number 3: 1 -> 2, piece 1    pending 2    waits for 1 (arrival) and 2 (channel)

A transfer costs a single entry in the clock's queue. Short columns are lists; long columns are memory views on numpy
arrays, slower but with a tenth of the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappush
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from simulator.basics.arrays import Floats, Ints
from simulator.engine.clock import NORMAL, Clock
from simulator.engine.collective_routing import RoutedCollective
from simulator.engine.fabric import Fabric, Flow
from simulator.engine.path import Path
from simulator.records.operation import Collective
from simulator.records.timeline import TransferLog
from simulator.records.transfer_rule import enters
from simulator.records.transfers import Transfers

# Longest column stored in a list, and the block length for array operations.
_SHORT = 400_000
# Marks in `_Waiters.only`: nobody waits, or several transfers wait.
_NONE = -1
_SEVERAL = -2
_NEVER = float("inf")


class CollectivePlay:
    """A collective during its simulation, from the first rank's arrival to the last transfer's end.

    Attributes
    ----------
    op : Collective
        The operation.
    routed : RoutedCollective
        Its transfers and routes.
    sizes : sequence of float
        Bytes of each transfer [B].
    done : list of simpy.Event
        For each participant rank, triggered when all its transfers have ended.
    on_end : tuple of callable
        Called by the clock when a flow ends.
    """

    def __init__(
        self, clock: Clock, fabric: Fabric, op: Collective, routed: RoutedCollective, jitter: Floats | None
    ) -> None:
        self.op = op
        self.routed = routed
        self.done = [simpy.Event(clock) for _ in op.group]
        self._clock = clock
        ranks, total = len(op.group), len(routed.transfers)
        self._started = [_NEVER] * ranks + [float("-inf")] * len(op.auxiliaries)
        self._blocked: list[list[int]] = [[] for _ in self._started]
        # While ranks are missing, or if they start at different times, each transfer must check both its ends. A list,
        # because the closures below share the flag.
        self._late = [True]
        self._missing = ranks
        self._first_reach = _NEVER
        self._all_here = simpy.Event(clock)
        # Only used if ranks start together.
        self._absent = set(range(ranks))
        # NaN until a transfer ends.
        self._ends = np.full(total, np.nan)
        self._ready = _writable(np.zeros(total))
        self._jitter = jitter
        waiters = _waiters(routed.transfers)
        self._tails: dict[int, list[int]] = {}
        tails = _tails(routed.transfers, waiters.only)
        # Tails that must end before a participant is done.
        self._left = np.bincount(tails[:, 1], minlength=len(self._started)).tolist()
        for number, participant in tails.tolist():
            self._tails.setdefault(number, []).append(participant)
        self._pending = _pending(routed.transfers)
        self._initial = _initial(routed.transfers, ranks)
        self.sizes: Sequence[float] = _column(routed.units)
        self._paths: Sequence[Path]
        # Paths at present; replaced in place if links are avoided, because the closures below read the list.
        self._paths = list(routed.paths) if routed.detours else routed.paths
        # With detours, the log notes the route that each transfer took, and when it entered the links.
        self._took: dict[int, tuple[int, float]] = {}
        self._start, on_end = self._closures(clock, fabric, waiters)
        self.on_end: tuple[Callable[[Flow], None], ...] = (on_end,)

    def path(self, number: int) -> Path:
        """Return the path that a transfer takes at present."""
        return self._paths[int(self.routed.route_of[number])]

    def reroute(self, detour: int) -> None:
        """Let transfers take the routes around a set of avoided links from now on; 0 for the usual routes."""
        if isinstance(self._paths, list):
            self._paths[:] = self.routed.detour_paths[detour]

    def missing(self) -> list[int]:
        """Return the ranks that have not reached the collective."""
        return [rank for p, rank in enumerate(self.op.group) if self._started[p] == _NEVER and p in self._absent]

    def gather(self, place: int) -> simpy.Event:
        """Note the arrival of the participant at index `place`; return the event triggered by the last arrival."""
        self._absent.discard(place)
        if not self._absent:
            self._all_here.succeed()
        return self._all_here

    def reach(self, place: int) -> None:
        """Start the participant at index `place`, after the start-up time, and the transfers waiting only for this."""
        now = self._clock._now
        if self._first_reach == _NEVER:
            self._first_reach = now
            self._ready[:] = _filled(self._ready, now)
        self._started[place] = now
        self._missing -= 1
        self._late[0] = self._missing > 0 or any(at != now for at in self._started[: len(self.done)])
        waiting, self._blocked[place] = self._blocked[place], []
        for number in [*waiting, *self._initial.pop(place, ())]:
            self._start(number, self._ready[number], now)
        if self._left[place] == 0:
            self.done[place].succeed()

    @property
    def has_ended(self) -> bool:
        """True if every transfer has ended."""
        return not np.isnan(self._ends).any()

    def log(self) -> TransferLog:
        """Return the log of the collective's transfers, with the times when each begins to flow and ends [s].

        The begin follows from the recorded ends, by the rule for transfers.
        """
        transfers, routed = self.routed.transfers, self.routed
        if routed.detours:
            noted = [self._took.get(number, (0, np.nan)) for number in range(len(transfers))]
            route_of, enter = np.array([route for route, _ in noted], np.int32), np.array([time for _, time in noted])
            return self._logged(enter, route_of)
        started = np.array(self._started)
        latency = np.array([path.latency for path in routed.paths])
        # First the latest awaited end for each transfer, block by block to bound memory.
        enter = np.full(len(transfers), -np.inf)
        for rows in _blocks(len(transfers.awaited)):
            np.maximum.at(enter, transfers.waiter[rows], self._ends[transfers.awaited[rows]])
        for rows in _blocks(len(transfers)):
            ready = np.maximum(started[transfers.src[rows]], started[transfers.dst[rows]])
            np.maximum(ready, enter[rows], out=ready)
            factor = 1.0 if self._jitter is None else self._jitter[rows]
            before = transfers.before_on_channel[rows]
            previous = np.where(before >= 0, self._ends[before], -np.inf)
            enter[rows] = enters(ready, latency[routed.route_of[rows]] * factor, previous)
        return self._logged(enter, routed.route_of)

    def _logged(self, enter: Floats, route_of: npt.NDArray[np.int32]) -> TransferLog:
        """Return the log of the transfers, which entered at `enter` [s] and took the routes `route_of`."""
        routed = self.routed
        return TransferLog(
            self.op.name, routed.transfers, routed.nbytes, enter, self._ends, route_of, routed.links, routed.vertices
        )

    def _tail_ended(self, number: int) -> None:
        """Count a transfer's end for the participants; trigger `done` for ranks without a further transfer."""
        for participant in self._tails[number]:
            self._left[participant] -= 1
            if self._left[participant] == 0 and participant < len(self.done):
                self.done[participant].succeed()

    def _closures(
        self, clock: Clock, fabric: Fabric, waiters: _Waiters
    ) -> tuple[Callable[[int, float, float], None], Callable[[Flow], None]]:
        """Return two functions called once per transfer: `start` sends it, `ended` handles its end.

        They are closures with local variables, because attribute look-ups and further calls would cost more than the
        work itself: a ring over 1,024 ranks calls each function two million times. Invariants:

        - `pending[n]` counts the ends awaited by transfer n, including its predecessor on the channel. The end that
          lowers it from 1 to 0 starts n. Each transfer therefore starts exactly once, at the last of these ends.
        - `ready[n]` is the latest end among the transfers awaited by n. The predecessor on the channel is excluded,
          because latency passes while the predecessor still sends.
        - An end happens at `now`, and ends arrive in temporal order, therefore the latest end so far is always `now`.
        """
        routed, transfers = self.routed, self.routed.transfers
        paths, route_of, sizes = self._paths, _column(routed.route_of), self.sizes
        jitter = None if self._jitter is None else _column(self._jitter)
        successor = _column(_successors(transfers))
        next_waiter = _column(waiters.only)
        first_waiter, several = _column(waiters.start), waiters.several
        tail = bytearray(len(transfers))
        for number in self._tails:
            tail[number] = 1
        src, dst = _column(transfers.src), _column(transfers.dst)
        ends: Any = _view(self._ends)
        ready, pending, started, late, blocked = self._ready, self._pending, self._started, self._late, self._blocked
        until, holder, launch = fabric.until, fabric.holder, fabric.launch
        queue: list[Any] = clock._queue
        eid, tail_ended = clock._eid.__next__, self._tail_ended
        owner = self

        def start(number: int, since: float, now: float) -> None:
            if late[0]:
                # A participant that has not started holds the transfer back; `reach` calls `start` again.
                a, b = src[number], dst[number]
                latest = max(started[a], started[b])
                if latest == _NEVER:
                    blocked[a if started[a] == _NEVER else b].append(number)
                    return
                if latest > since:
                    since = latest
            path = paths[route_of[number]]
            # `transfer_rule.enter`, inlined. If the predecessor ended last, `now` is its end. If it ended earlier,
            # `since` is `now` or a rank's start, and the predecessor has no influence.
            enter = since + (path.latency if jitter is None else path.latency * jitter[number])
            if enter < now:
                enter = now
            flow = Flow(number, path, enter, owner)
            # `Fabric.launch` and `Fabric._take`, inlined for free links. The links are taken from now to the end,
            # latency included; a flow that arrives meanwhile makes the fabric look again.
            if path.links:
                for link in path.links:
                    if until[link] > now:
                        launch(flow)
                        return
                end = enter + sizes[number] / path.rate
                for link in path.links:
                    until[link] = end
                    holder[link] = flow
            else:
                end = enter + sizes[number] / path.rate
            flow.end = end
            flow.callbacks = on_end
            heappush(queue, (end, NORMAL, eid(), flow))

        def ended(flow: Flow) -> None:
            number = flow.number
            now = flow.end
            ends[number] = now
            # The channel comes first: if two transfers can start now, the queued transfer also comes first in the
            # clock's queue. The channel's end leaves `ready` unchanged.
            other = successor[number]
            if other >= 0:
                if pending[other] == 1:
                    start(other, ready[other], now)
                else:
                    pending[other] -= 1
            other = next_waiter[number]
            if other >= 0:
                if pending[other] == 1:
                    start(other, now, now)
                else:
                    pending[other] -= 1
                    ready[other] = now
            elif other == _SEVERAL:
                for other in several[first_waiter[number] : first_waiter[number + 1]].tolist():
                    if pending[other] == 1:
                        start(other, now, now)
                    else:
                        pending[other] -= 1
                        ready[other] = now
            if tail[number]:
                tail_ended(number)

        took, paths_of_all = self._took, chain(*routed.detour_paths) if routed.detours else ()
        number_of = {id(path): number for number, path in enumerate(paths_of_all)}

        def noted(flow: Flow) -> None:
            took[flow.number] = number_of[id(flow.path)], flow.enter
            ended(flow)

        last = noted if routed.detours else ended
        on_end = (last,)
        return start, last


def _blocks(length: int) -> list[slice]:
    """Return consecutive slices covering 0 .. `length`, short enough to bound memory for intermediate results."""
    return [slice(start, start + _SHORT) for start in range(0, length, _SHORT)]


def _column(values: npt.NDArray[Any]) -> Any:
    """Return an array as a list if short, otherwise as a memory view with plain Python numbers."""
    return values.tolist() if len(values) <= _SHORT else _view(np.ascontiguousarray(values))


def _view(values: npt.NDArray[Any]) -> Any:
    """Return an array's memory view, whose entries are plain Python numbers."""
    buffer: Any = values
    return memoryview(buffer)


def _pending(transfers: Transfers) -> Any:
    """Return, for each transfer, how many transfers must end first, including the previous one on the channel."""
    waits = np.bincount(transfers.waiter, minlength=len(transfers)) + (transfers.before_on_channel >= 0)
    # A byte per transfer, unless a count needs more.
    if len(waits) and waits.max() > 255:
        return waits.tolist()
    return bytearray(waits.astype(np.uint8).tobytes())


def _successors(transfers: Transfers) -> npt.NDArray[np.int32]:
    """Return, for each transfer, the number of the next transfer on its channel (a FIFO); -1 for the last."""
    after = np.full(len(transfers), _NONE, np.int32)
    follows = np.flatnonzero(transfers.before_on_channel >= 0)
    after[transfers.before_on_channel[follows]] = follows
    return after


@dataclass(frozen=True, slots=True)
class _Waiters:
    """For each transfer in a collective, the transfers waiting for this transfer's end."""

    only: npt.NDArray[np.int32]  # the single waiting transfer, -1 if there is none, -2 if there are several, shape (t,)
    start: npt.NDArray[np.int32]  # several transfers that wait for transfer i are several[start[i]:start[i + 1]]
    several: npt.NDArray[np.int32]


def _waiters(transfers: Transfers) -> _Waiters:
    """Return, for each given transfer, the transfers waiting for this transfer's end."""
    only = np.full(len(transfers), _NONE, np.int32)
    only[transfers.awaited] = transfers.waiter
    count = np.bincount(transfers.awaited, minlength=len(transfers))
    crowd = count > 1
    only[crowd] = _SEVERAL
    start = np.zeros(len(transfers) + 1, np.int32)
    np.cumsum(np.where(crowd, count, 0), out=start[1:])
    rows = np.flatnonzero(crowd[transfers.awaited])
    rows = rows[np.argsort(transfers.awaited[rows], kind="stable")]
    return _Waiters(only, start, transfers.waiter[rows])


def _initial(transfers: Transfers, ranks: int) -> dict[int, list[int]]:
    """Return the transfers without awaited transfers, by the participant whose arrival starts the transfer.

    The sender starts its transfer, or the receiver if a server sends.
    """
    waits = np.bincount(transfers.waiter, minlength=len(transfers)) + (transfers.before_on_channel >= 0)
    by, initial = np.where(transfers.src < ranks, transfers.src, transfers.dst), dict[int, list[int]]()
    for number in np.flatnonzero(waits == 0).tolist():
        initial.setdefault(int(by[number]), []).append(number)
    return initial


def _tails(transfers: Transfers, waiter: npt.NDArray[np.int32]) -> Ints:
    """Return pairs (transfer, participant), shape (k, 2): the participant may be done when the transfer has ended.

    A pair is omitted if a later transfer surely involves the participant too: the next transfer on the channel, or the
    transfer that waits for this one. Example: in a ring, only the last round has tails.
    """
    src, dst, after = transfers.src, transfers.dst, _successors(transfers)
    rows = []
    for participant in (src, dst):
        covered = np.zeros(len(transfers), np.bool_)
        for later in (after, waiter):
            covered |= (later >= 0) & ((src[later] == participant) | (dst[later] == participant))
        number = np.flatnonzero(~covered)
        rows.append(np.stack([number, participant[number].astype(np.int64)], axis=1))
    return np.concatenate(rows)


def _writable(values: Floats) -> Any:
    """Return an array in a writable form: a list if the array is short, otherwise a memory view."""
    return values.tolist() if len(values) <= _SHORT else _view(values)


def _filled(like: Any, value: float) -> Any:
    """Return a list or memory view, of the same form and length as `like`, with `value` in each entry."""
    return [value] * len(like) if isinstance(like, list) else _view(np.full(len(like), value, np.float64))
