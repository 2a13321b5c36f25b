"""Whether two flows were ever on one link at once: the proof that nothing was shared, or what was.

Rule: looks only at links on which flows could hold each other back; one flow may begin where another ends. Where a
channel's flows are not told one by one, they count as one from the first enter to the last end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.declined import DeclinedError
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
        Which collective each is of.
    """

    link: Ints
    enter: Floats
    end: Floats
    crowd: Ints
    whose: Ints

    def later(self, zero: float) -> Use:
        """The same from another moment on."""
        return replace(self, enter=self.enter + zero, end=self.end + zero)


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
    """All together, sorted by link and time; crowds stay apart, and each use's collectives are counted on."""
    none = np.zeros(0)
    link = np.concatenate([none.astype(np.int64), *(use.link for use in uses)])
    enter, end = np.concatenate([none, *(u.enter for u in uses)]), np.concatenate([none, *(u.end for u in uses)])
    crowd, whose = _counted_on([use.crowd for use in uses]), _counted_on([use.whose for use in uses])
    order = np.lexsort((end, enter, link))
    return Use(link[order], enter[order], end[order], crowd[order], whose[order])


def _counted_on(columns: Sequence[Ints]) -> Ints:
    """All columns in one, the numbers of each moved behind those before; -1 stays."""
    found, base = [np.zeros(0, np.int64)], 0
    for column in columns:
        found.append(np.where(column >= 0, column + base, -1))
        base += int(column.max(initial=-1)) + 1
    return np.concatenate(found)


def first_meeting(use: Use) -> tuple[int, int] | None:
    """Rows of the first two flows that share a link, of sorted uses; None where all have their links to themselves."""
    solved = (use.crowd[1:] >= 0) & (use.crowd[1:] == use.crowd[:-1])
    same = (use.link[1:] == use.link[:-1]) & ~solved
    # Neighbours are enough: who reaches over several later flows reaches over the next one too.
    met = np.flatnonzero(same & (use.enter[1:] < use.end[:-1] * (1.0 - _ROUNDING)))
    if not len(met):
        return None
    first = int(met[np.argmin(use.enter[met + 1])])
    return first, first + 1


def refuse(use: Use, rows: tuple[int, int], names: Sequence[str], link_name: Callable[[int], str]) -> DeclinedError:
    """Say link, time and operations."""
    told = " and ".join(dict.fromkeys(repr(names[int(use.whose[row])]) for row in rows))
    where = int(use.link[rows[0]])
    return DeclinedError(f"flows of {told} meet on {link_name(where)} at {use.enter[rows[1]]:.6g} s", where)
