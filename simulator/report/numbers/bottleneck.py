"""Which link is a run's bottleneck, and how much do its cable's two directions carry?

The bottleneck is the link whose bytes take longest at its bandwidth. If the cable's other direction sends at other
times (a parameter server first receives, then sends), both directions belong to the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.records.measures import arrays_text, percent_text
from simulator.records.timeline import Timeline
from simulator.report.numbers.link_use import cable_time, reverse_of

# Directions take turns if the other direction adds at least this share to the bottleneck's time, and if at least this
# share of the other direction's time lies outside the bottleneck's time.
_TURN: Final = 0.05
_APART: Final = 0.5


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """The bottleneck link with the longest bandwidth time, and the opposite link.

    Attributes
    ----------
    link : str
        'src->dst'.
    bytes : float
        Bytes carried [B].
    busy_fraction : float
        Share of the time with at least one flow on the link.
    bandwidth_time_s : float
        Time of its bytes at its bandwidth [s].
    reverse_bytes : float
        Bytes carried in the other direction [B]; 0 also in runs so large that only a single link is recorded.
    reverse_time_s : float
        Time of these bytes at the other direction's bandwidth [s].
    cable_time_s : float
        Time in which either direction sends at its bandwidth [s]: more than bandwidth_time_s if the directions take
        turns. The rest of the time is latency and waiting.
    end : str
        The rank's or server's vertex at the cable, which sends and receives over it; else the link's source.
    """

    link: str
    bytes: float
    busy_fraction: float
    bandwidth_time_s: float
    reverse_bytes: float
    reverse_time_s: float
    cable_time_s: float
    end: str

    @property
    def takes_turns(self) -> bool:
        """Return True if the cable's opposite direction sends while the bottleneck direction does not."""
        added = self.cable_time_s - self.bandwidth_time_s
        return added > max(_TURN * self.bandwidth_time_s, _APART * self.reverse_time_s)

    @property
    def limiting_time_s(self) -> float:
        """Time of the bottleneck at its bandwidth [s]: the whole cable's if the directions take turns, else the link's
        own.
        """
        return self.cable_time_s if self.takes_turns else self.bandwidth_time_s

    @property
    def outgoing(self) -> bool:
        """Return True if the bottleneck link leads away from the cable's participating end (the rank or server)."""
        return self.link.startswith(f"{self.end}->")

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of the cable's end as {"sending": s, "receiving": s} if the two directions take turns.

        If the directions do not take turns, a single entry holds the time of the bottleneck's direction.
        """
        direction, other = ("sending", "receiving") if self.outgoing else ("receiving", "sending")
        if not self.takes_turns:
            return {direction: self.bandwidth_time_s}
        # Overlapping time counts for the bottleneck's own direction.
        return {direction: self.bandwidth_time_s, other: self.cable_time_s - self.bandwidth_time_s}

    @staticmethod
    def of(entry: Mapping[str, Any]) -> Bottleneck:
        """Build the record from the plain dictionary under a report's key "bottleneck"."""
        return Bottleneck(**entry)


def bottleneck(timeline: Timeline) -> Bottleneck | None:
    """Return the timeline's link whose bytes take longest at its bandwidth (ties: the first); None without links."""
    if not timeline.links or timeline.end <= 0:
        return None
    # Busy time alone would mislead: a slow flow keeps a wide link busy all the time.
    busiest = max(timeline.links, key=lambda use: use.nbytes / use.bandwidth)
    at_bandwidth = busiest.nbytes / busiest.bandwidth
    back = next((use for use in timeline.links if use.name == reverse_of(busiest.name)), None)
    return Bottleneck(
        link=busiest.name,
        bytes=busiest.nbytes,
        # Rounding may bring a link that is always busy slightly above 1.
        busy_fraction=min(busiest.busy / timeline.end, 1.0),
        bandwidth_time_s=at_bandwidth,
        reverse_bytes=0.0 if back is None else back.nbytes,
        reverse_time_s=0.0 if back is None else back.nbytes / back.bandwidth,
        # Without logs the cable's time is unknown (0); the time of the bottleneck's own bytes is a lower bound.
        cable_time_s=at_bandwidth if back is None else max(at_bandwidth, cable_time(timeline, busiest.name)),
        end=_participant(timeline, busiest.name),
    )


def _participant(timeline: Timeline, link: str) -> str:
    """Return the end of the link "src->dst" that is a rank or server; the source if both ends or neither are."""
    source, _, destination = link.partition("->")
    # Very large runs record a single link; reading their logs would simulate every transfer again.
    logs = timeline.logs if len(timeline.links) > 1 else ()
    participants = {vertex for log in logs for vertex in log.vertices}
    return destination if destination in participants and source not in participants else source


def turns_text(busiest: Bottleneck, end: float, period: str = "the time", nbytes: int = 0) -> str:
    """Return a text on how much the cable's end receives and sends, and for which shares of the run until `end` [s].

    >>> turns_text(Bottleneck("b->a", 4.0, 0.5, 1.0, 4.0, 1.0, 2.0, "b"), 2.0, nbytes=1)
    'receives 4x the array for 50 % of the time and sends 4x the array for 50 %'
    """
    limiting = (busiest.bytes, busiest.bandwidth_time_s)
    back = (busiest.reverse_bytes, busiest.reverse_time_s)
    # Which direction is the bottleneck does not matter for the reader, so start with receiving.
    received, sent = (back, limiting) if busiest.outgoing else (limiting, back)
    shares = [percent_text(seconds / end) for _, seconds in (received, sent)]
    arrays = [f"{arrays_text(carried / nbytes)} " if nbytes else "" for carried, _ in (received, sent)]
    return f"receives {arrays[0]}for {shares[0]} of {period} and sends {arrays[1]}for {shares[1]}"
