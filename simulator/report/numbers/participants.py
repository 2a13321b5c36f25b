"""Which transfers does each participant of the collectives send and receive: ranks, servers, reducing switches?

Read from a timeline's logs. A rank is a number, any other participant a vertex name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats, Ints
from simulator.basics.intervals import outside
from simulator.records.timeline import Timeline, TransferLog

Participant = int | str
# Receiving gets its own lane if a participant receives without sending for at least this share of the time.
_APART: Final = 0.01


@dataclass(frozen=True, slots=True)
class ParticipantTraffic:
    """All transfers of a participant (rank, server or switch) in a single direction, sorted by start."""

    direction: str  # one of {"sends", "receives"}
    # `start`, `end`: Start of the flow, and arrival of the last byte [s]; shape (transfers,).
    start: Floats
    end: Floats
    # Collective and peer of each transfer: 'all_reduce: to gpu1'.
    names: tuple[str, ...]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """(start, end) of each transfer [s]."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))


def traffic(timeline: Timeline, groups: Mapping[str, Sequence[int]]) -> dict[Participant, list[ParticipantTraffic]]:
    """Return each participant's sends, plus the receives if some happen while the participant sends nothing.

    A ring rank receives while it sends: a single lane shows both. A parameter server first receives, then sends.

    Parameters
    ----------
    groups : mapping of collective's name to ranks
        Collectives to consider.

    Returns
    -------
    dict
        Ranks in rising order, then servers and switches by name; only participants with at least one transfer.
    """
    parts: dict[Participant, dict[str, list[tuple[Floats, Floats, list[str]]]]] = {}
    for log in timeline.logs:
        group = groups.get(log.collective)
        if group is None:
            continue
        for direction, side, peer, way in (
            ("sends", log.transfers.src, log.transfers.dst, "to"),
            ("receives", log.transfers.dst, log.transfers.src, "from"),
        ):
            for place, rows in _rows_of(side):
                # Schedules number the group's ranks first, then servers and switches.
                who = group[place] if place < len(group) else log.vertices[place]
                parts.setdefault(who, {}).setdefault(direction, []).append(_columns(log, rows, peer, way))
    # Ranks (numbers) before vertices (names); Python cannot compare numbers with names.
    order = sorted(parts, key=lambda who: (isinstance(who, str), who))
    return {who: _lanes({way: _joined(way, logs) for way, logs in parts[who].items()}, timeline.end) for who in order}


def _rows_of(places: npt.NDArray[np.int32]) -> list[tuple[int, Ints]]:
    """Return (participant number, row indices) pairs, given the participant number in each row of a log."""
    # A stable sort keeps each participant's transfers in their original order.
    order = np.argsort(places, kind="stable")
    numbers, begins = np.unique(places[order], return_index=True)
    return list(zip(numbers.tolist(), np.split(order, begins[1:]), strict=True))


def _columns(log: TransferLog, rows: Ints, peer: npt.NDArray[np.int32], way: str) -> tuple[Floats, Floats, list[str]]:
    """Return starts [s], ends [s] and labels ("all_reduce: to gpu1") for the given rows of a transfer log."""
    names = [f"{log.collective}: {way} {log.vertices[other]}" for other in peer[rows].tolist()]
    return log.enter[rows], log.end[rows], names


def _joined(direction: str, parts: Sequence[tuple[Floats, Floats, list[str]]]) -> ParticipantTraffic:
    """Return the transfers of several collectives, given as (starts, ends, names), joined and sorted by start."""
    start, end = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    names = [name for part in parts for name in part[2]]
    order = np.lexsort((end, start))
    return ParticipantTraffic(direction, start[order], end[order], tuple(names[i] for i in order.tolist()))


def _lanes(both: Mapping[str, ParticipantTraffic], end: float) -> list[ParticipantTraffic]:
    """Return a participant's sends, plus its receives if more than a tiny share of `end` has receives but no send."""
    sends, receives = both.get("sends"), both.get("receives")
    # A participant that only sends, or only receives, has a single lane.
    if sends is None or receives is None:
        return [flow for flow in (sends, receives) if flow is not None]
    takes_turns = outside(receives.intervals, sends.intervals) > _APART * end
    return [sends, receives] if takes_turns else [sends]
