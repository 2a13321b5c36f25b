"""Collectives that are alike, of the groups that are played.

Rule: a record; which groups are played is decided in `quotient`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Ints
from simulator.engine.compiled.playable import Playable
from simulator.records.operation import Collective


@dataclass(frozen=True, eq=False)
class PlayedKind:
    """The members of every family of one kind.

    Attributes
    ----------
    members : sequence of Collective
        Those of one of the families.
    groups : sequence of tuple of int
        Played ranks that take part in each, by place.
    playables : sequence of Playable or None
        None where the duration is given.
    which, place : int array, shape (ranks,)
        By played rank, in which member it takes part, and its place there.
    """

    members: Sequence[Collective]
    groups: Sequence[tuple[int, ...]]
    playables: Sequence[Playable | None]
    which: Ints
    place: Ints


def all_played(members: Sequence[Collective], playables: Sequence[Playable | None], ranks: int) -> PlayedKind:
    """Every group of so many ranks, as it is."""
    which, place = np.zeros((2, ranks), np.int64)
    for number, op in enumerate(members):
        group = list(op.group)
        which[group], place[group] = number, np.arange(len(group))
    return PlayedKind(members, [op.group for op in members], playables, which, place)


__all__ = ["PlayedKind", "all_played"]
