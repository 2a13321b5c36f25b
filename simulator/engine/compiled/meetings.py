"""Whether two flows were ever on one link at once: the proof that nothing was shared, or what was.

Rule: looks only at links on which flows could hold each other back; one flow may begin where another ends. Flows whose
shares were solved together may meet. The flows of a lap are told as one, from the first enter to the last end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.engine.wiring import Wiring

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
# Flows that overlap by less are one behind the other, but for rounding: what they share is less than that too.
_ROUNDING: Final = 1e-13


@dataclass(frozen=True, slots=True)
class Use:
    """Who is on links that matter, and when: a row a flow and link.

    Attributes
    ----------
    link : int array
    enter, end : float array
        [s]
    crowd : int array
        Flows whose shares were solved together; -1 for those that were alone.
    whose : int array
        Which of several uses that were put together a row is of.
    """

    link: Ints
    enter: Floats
    end: Floats
    crowd: Ints
    whose: Ints

    def later(self, zero: float) -> Use:
        """The same from another moment on."""
        return replace(self, enter=self.enter + zero, end=self.end + zero)

    def as_one_crowd(self) -> Use:
        """The same, all of it solved together."""
        return replace(self, crowd=np.zeros_like(self.crowd))


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two flows on one link at once.

    Attributes
    ----------
    link : int
    time : float
        When the second one enters [s].
    first, second : int
        Whose they are.
    """

    link: int
    time: float
    first: int
    second: int


def use_of(wiring: Wiring, route: npt.NDArray[Any], enter: Floats, end: Floats, crowd: Ints) -> Use:
    """What flows that take these routes have of links that matter."""
    width = max(len(path.links) for path in wiring.paths)
    table = np.full((len(wiring.paths), width), -1, np.int64)
    for row, path in enumerate(wiring.paths):
        table[row, : len(path.links)] = path.links
    link = table[route]
    flow, column = np.nonzero(link >= 0)
    # A flow without bytes holds nothing.
    real = end[flow] > enter[flow]
    flow, column = flow[real], column[real]
    return Use(link[flow, column], enter[flow], end[flow], crowd[flow], np.zeros(len(flow), np.int64))


def joined(uses: Sequence[Use]) -> Use:
    """All together; each use's crowds stay its own, and `whose` is its place."""
    none = np.zeros(0)
    crowd, base = [np.zeros(0, np.int64)], 0
    for use in uses:
        crowd.append(np.where(use.crowd >= 0, use.crowd + base, -1))
        base += int(use.crowd.max(initial=-1)) + 1
    return Use(
        link=np.concatenate([none.astype(np.int64), *(use.link for use in uses)]),
        enter=np.concatenate([none, *(use.enter for use in uses)]),
        end=np.concatenate([none, *(use.end for use in uses)]),
        crowd=np.concatenate(crowd),
        whose=np.repeat(np.arange(len(uses)), [len(use.link) for use in uses]),
    )


def meetings(use: Use) -> list[Meeting]:
    """Every two neighbours on a link that share it and were not solved together, in order of time."""
    link, enter, end, whose = _intervals(use)
    order = np.lexsort((end, enter, link))
    link, enter, end, whose = link[order], enter[order], end[order], whose[order]
    # Neighbours are enough: who reaches over several later flows reaches over the next one too.
    met = np.flatnonzero((link[1:] == link[:-1]) & (enter[1:] < end[:-1] * (1.0 - _ROUNDING)))
    found = [
        Meeting(int(link[row]), float(enter[row + 1]), int(whose[row]), int(whose[row + 1])) for row in met.tolist()
    ]
    return sorted(found, key=lambda meeting: (meeting.time, meeting.link))


def _intervals(use: Use) -> tuple[Ints, Floats, Floats, Ints]:
    """Link, enter, end and whose; flows of one crowd that overlap on a link are one interval."""
    alone = np.flatnonzero(use.crowd < 0)
    rows = np.flatnonzero(use.crowd >= 0)
    columns = (use.link, use.enter, use.end, use.whose)
    if not len(rows):
        return columns
    rows = rows[np.lexsort((use.enter[rows], use.crowd[rows], use.link[rows]))]
    link, crowd, enter, end = use.link[rows], use.crowd[rows], use.enter[rows], use.end[rows]
    new = np.concatenate([[True], (link[1:] != link[:-1]) | (crowd[1:] != crowd[:-1])])
    until = _largest_so_far(end, np.cumsum(new))
    new[1:] |= enter[1:] >= until[:-1]
    first = np.flatnonzero(new)
    last = np.concatenate([first[1:], [len(rows)]]) - 1
    merged = (link[first], enter[first], until[last], use.whose[rows][first])
    link, enter, end, whose = (np.concatenate([c[alone], m]) for c, m in zip(columns, merged, strict=True))
    return link, enter, end, whose


def _largest_so_far(values: Floats, segment: Ints) -> Floats:
    """The largest value of the same segment up to each place, for rising segments; by rank, so nothing is rounded."""
    order = np.argsort(values, kind="stable")
    rank = np.empty(len(values), np.int64)
    rank[order] = np.arange(len(values))
    so_far = np.maximum.accumulate(segment * len(values) + rank) - segment * len(values)
    return values[order][so_far]
