"""How does a cluster change during a step: links that slow down or fail, GPUs that throttle or die?

An event lowers the rate of links or GPUs from a time on, for a while or for good, once or repeatedly. Events that
overlap multiply. The engines need no events but the moments of change, each with the new factors and the links that
routes avoid from then on.

Example: a link at 0.5 from 1 s to 4 s, and at 0.2 from 3 s on, has the factors 0.5 at 1 s, 0.1 at 3 s, 0.2 at 4 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

from pydantic import Field

from simulator.basics import reading
from simulator.basics.spec import Count, Rank, Spec

# A shell pattern may leave out the arrow: `*gpu0*` matches the links of both directions.
LinkName = Annotated[
    str,
    reading.text(
        r"\S(?:.*\S)?->\S(?:.*\S)?|.*[*?\[].*",
        "the name of a link, such as 'gpu0->switch0', or a shell pattern, such as 'gpu0->*'",
    ),
]


class EventSpec(Spec):
    """A link, GPU or node that slows down or fails during the step (an entry of `events`)."""

    at: Annotated[float, reading.duration()] = Field(description="When it begins.")
    lasts: Annotated[float, reading.duration()] | None = Field(
        default=None, description="How long it lasts; for good if omitted."
    )
    factor: Annotated[float, reading.number(positive=False, most=1.0)] = Field(
        default=0.0, description="Factor on the rate meanwhile; 0 is down or dead."
    )
    link: LinkName | None = Field(default=None, description="Link ('src->dst') or shell pattern of links.")
    rank: Rank | None = Field(default=None, description="Rank whose GPU slows down.")
    node: Rank | None = Field(default=None, description="Node whose GPUs slow down.")
    every: Annotated[float, reading.duration()] | None = Field(
        default=None, description="Time from one beginning to the next, for a link that flaps."
    )
    times: Count = Field(default=1, description="Number of times that it happens.")
    reroute_after: Annotated[float, reading.duration()] | None = Field(
        default=None,
        description="Time until transfers take other routes around a link that is down; they wait for it if omitted.",
    )

    @property
    def spans(self) -> Iterator[tuple[float, float]]:
        """Beginning and end of each time that it happens [s]; the end may be infinite."""
        for number in range(self.times):
            start = self.at + number * (self.every or 0.0)
            yield start, inf if self.lasts is None else start + self.lasts


@dataclass(frozen=True, slots=True)
class Event:
    """Something that lowers the rate of links and GPUs for a while."""

    # `start`, `end`: When it begins and ends [s]; the end may be infinite.
    start: float
    end: float
    factor: float  # factor on the rates, 0 to 1; 0 for what is down or dead
    links: tuple[int, ...] = ()  # numbers of the fabric's links: the cluster's links, then the HBM of each rank
    ranks: tuple[int, ...] = ()  # ranks whose kernels slow down
    reroute_after: float = inf  # time from the start until routes avoid the links [s]; infinite if they never do

    @property
    def avoided(self) -> tuple[float, float]:
        """When routes begin and cease to avoid the links [s]; an empty interval if they never do."""
        return min(self.start + self.reroute_after, self.end), self.end


@dataclass(frozen=True, slots=True)
class RateChange:
    """The moment at which rates change."""

    time: float  # when [s]
    links: Mapping[int, float]  # new factor on the bandwidth of each link that changes
    ranks: Mapping[int, float]  # new factor on the speed of the kernels of each rank that changes
    avoided: frozenset[int] = frozenset()  # links that routes avoid from now on, where they can

    def part(self, place: Mapping[int, int], hbm: int) -> RateChange:
        """Return the change as seen by a job with some of the ranks; `place` is the new number of each of them, and
        links from number `hbm` on are the HBM of ranks.
        """
        links = {link: factor for link, factor in self.links.items() if link < hbm}
        links |= {hbm + place[link - hbm]: f for link, f in self.links.items() if link >= hbm and link - hbm in place}
        return replace(self, links=links, ranks={place[rank]: f for rank, f in self.ranks.items() if rank in place})


def changes(events: Sequence[Event]) -> tuple[RateChange, ...]:
    """Return the moments at which events change rates, in order.

    >>> [(one.time, dict(one.links)) for one in changes([Event(1.0, 4.0, 0.5, (7,)), Event(3.0, inf, 0.2, (7,))])]
    [(1.0, {7: 0.5}), (3.0, {7: 0.1}), (4.0, {7: 0.2})]
    """
    of_link: dict[int, list[Event]] = {}
    of_rank: dict[int, list[Event]] = {}
    for event in events:
        for link in event.links:
            of_link.setdefault(link, []).append(event)
        for rank in event.ranks:
            of_rank.setdefault(rank, []).append(event)
    moments = sorted({time for event in events for time in (event.start, *event.avoided) if time < inf})
    steps = []
    for time in moments:
        links = {link: _factor(some, time) for link, some in of_link.items() if _is_moment(some, time)}
        ranks = {rank: _factor(some, time) for rank, some in of_rank.items() if _is_moment(some, time)}
        avoided = [event.links for event in events if event.avoided[0] <= time < event.avoided[1]]
        steps.append(RateChange(time, links, ranks, frozenset().union(*avoided)))
    return tuple(steps)


def avoided_sets(changes: Sequence[RateChange]) -> tuple[frozenset[int], ...]:
    """Return the sets of links that routes avoid at some time, each once; the first is empty: the usual routes."""
    return tuple(dict.fromkeys([frozenset[int](), *(change.avoided for change in changes)]))


def _is_moment(events: Sequence[Event], time: float) -> bool:
    return any(time in (event.start, event.end) for event in events)


def _factor(events: Sequence[Event], time: float) -> float:
    """Return the product of the factors of the events in effect at a time; at its end an event is over."""
    product = 1.0
    for event in events:
        if event.start <= time < event.end:
            product *= event.factor
    return product
