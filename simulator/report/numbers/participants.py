"""Which transfers does each participant of the collectives send and receive: ranks, servers, switches that add?

Rule: reads the logs of a timeline; a rank is a number, any other participant its vertex's name.
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
# Share of the time in which a participant must receive without sending, so that receiving has a lane of its own.
_APART: Final = 0.01


@dataclass(frozen=True, slots=True)
class Traffic:
    """The transfers of one participant in one direction, by their start.

    Attributes
    ----------
    direction : {"sends", "receives"}
    start, end : float array, shape (transfers,)
        When bytes begin to flow, and when the last is through [s].
    names : tuple of str
        Collective and peer of each: 'all_reduce: to gpu1'.
    """

    direction: str
    start: Floats
    end: Floats
    names: tuple[str, ...]

    @property
    def intervals(self) -> list[tuple[float, float]]:
        """(start, end) of each transfer."""
        return list(zip(self.start.tolist(), self.end.tolist(), strict=True))


def traffic(timeline: Timeline, groups: Mapping[str, Sequence[int]]) -> dict[Participant, list[Traffic]]:
    """What each participant sends, and what it receives where it does so while it sends nothing.

    A rank of a ring receives while it sends, so that one lane tells of both. A parameter server first receives, and
    then sends.

    Parameters
    ----------
    timeline : Timeline
    groups : mapping of collective's name to ranks
        Collectives that are looked at; others are left out.

    Returns
    -------
    dict
        Ranks in rising order, then servers and switches by name; only participants that take part in a transfer.
    """
    parts: dict[Participant, dict[str, list[tuple[Floats, Floats, list[str]]]]] = {}
    for log in timeline.logs:
        group = groups.get(log.collective)
        if group is None:
            continue
        for direction, own, peer, way in (
            ("sends", log.transfers.src, log.transfers.dst, "to"),
            ("receives", log.transfers.dst, log.transfers.src, "from"),
        ):
            for place, rows in _rows_of(own):
                who = group[place] if place < len(group) else log.vertices[place]
                parts.setdefault(who, {}).setdefault(direction, []).append(_columns(log, rows, peer, way))
    order = sorted(parts, key=lambda who: (isinstance(who, str), who))
    return {who: _shown({way: _joined(way, own) for way, own in parts[who].items()}, timeline.end) for who in order}


def _rows_of(places: npt.NDArray[np.int32]) -> list[tuple[int, Ints]]:
    """The rows of each place, by place."""
    order = np.argsort(places, kind="stable")
    found, begins = np.unique(places[order], return_index=True)
    return list(zip(found.tolist(), np.split(order, begins[1:]), strict=True))


def _columns(log: TransferLog, rows: Ints, peer: npt.NDArray[np.int32], way: str) -> tuple[Floats, Floats, list[str]]:
    names = [f"{log.collective}: {way} {log.vertices[other]}" for other in peer[rows].tolist()]
    return log.enter[rows], log.end[rows], names


def _joined(direction: str, parts: Sequence[tuple[Floats, Floats, list[str]]]) -> Traffic:
    start, end = (np.concatenate([part[column] for part in parts]) for column in (0, 1))
    names = [name for part in parts for name in part[2]]
    order = np.lexsort((end, start))
    return Traffic(direction, start[order], end[order], tuple(names[i] for i in order.tolist()))


def _shown(both: Mapping[str, Traffic], end: float) -> list[Traffic]:
    sends, receives = both.get("sends"), both.get("receives")
    if sends is None or receives is None:
        return [one for one in (sends, receives) if one is not None]
    apart = outside(receives.intervals, sends.intervals) > _APART * end
    return [sends, receives] if apart else [sends]
