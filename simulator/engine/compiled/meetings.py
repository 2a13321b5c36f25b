"""Whether two flows were ever on one link at once: the proof that nothing was shared, or what was.

Rule: looks only at links on which flows could hold each other back; one flow may begin where another ends. What a
single collective does to its links is found out once, and whole collectives are compared before their flows are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.rounds import Played, Shape

Floats = npt.NDArray[np.float64]
# Flows that overlap by less are one behind the other, but for rounding: what they share is less than that too.
_ROUNDING: Final = 1e-13


@dataclass(frozen=True, slots=True)
class Use:
    """One collective on links that matter: a row a flow and link, sorted by link and enter.

    Attributes
    ----------
    name : str
    link : int array
    enter, end : float array
        [s]
    crowd : int array
        Flows whose shares were solved together; -1 for those that were alone.
    """

    name: str
    link: npt.NDArray[np.int64]
    enter: Floats
    end: Floats
    crowd: npt.NDArray[np.int64]


def use_of(name: str, shape: Shape, played: Played) -> Use | None:
    """What a collective takes of links that matter; None where it takes none."""
    paths = shape.wiring.paths
    if not any(path.links for path in paths):
        return None
    flows, links = [], []
    width = max(len(path.links) for path in paths)
    table = np.full((len(paths), width), -1, np.int64)
    for row, path in enumerate(paths):
        table[row, : len(path.links)] = path.links
    for column in range(width):
        link = table[shape.wiring.route, column]
        there = np.flatnonzero(link >= 0)
        flows.append(there)
        links.append(link[there])
    flow, link = np.concatenate(flows), np.concatenate(links)
    enter, end = played.enter[flow], played.end[flow]
    order = np.lexsort((end, enter, link))
    return Use(name, link[order], enter[order], end[order], played.crowd[flow][order])


def refuse_shared(uses: Sequence[Use], link_name: Callable[[int], str]) -> None:
    """DeclinedError with link, time and operations where two flows were on one link at once."""
    if not uses:
        return
    link = np.concatenate([use.link for use in uses])
    enter = np.concatenate([use.enter for use in uses])
    end = np.concatenate([use.end for use in uses])
    whose = np.repeat(np.arange(len(uses)), [len(use.link) for use in uses])
    crowd = np.concatenate([use.crowd for use in uses])
    # A flow without bytes holds nothing.
    real = np.flatnonzero(end > enter)
    order = real[np.lexsort((end[real], enter[real], link[real]))]
    link, enter, end, whose, crowd = link[order], enter[order], end[order], whose[order], crowd[order]
    solved = (crowd[1:] >= 0) & (crowd[1:] == crowd[:-1]) & (whose[1:] == whose[:-1])
    same = (link[1:] == link[:-1]) & ~solved
    met = np.flatnonzero(same & (enter[1:] < end[:-1] * (1.0 - _ROUNDING)))
    if len(met):
        first = int(met[np.argmin(enter[met + 1])])
        ops = " and ".join(dict.fromkeys(repr(uses[int(n)].name) for n in (whose[first], whose[first + 1])))
        where = int(link[first])
        raise DeclinedError(f"flows of {ops} meet on {link_name(where)} at {enter[first + 1]:.6g} s", where)
