"""A kind's collectives, restricted to the simulated process groups; `quotient` chooses these groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulator.basics.arrays import Ints
from simulator.engine.compiled.sized_collective import SizedCollective
from simulator.records.operation import Collective


@dataclass(frozen=True, eq=False)
class SimulatedKind:
    """The process groups simulated for a kind of collective, the same for every operation of this kind."""

    members: Sequence[Collective]  # simulated members of the kind's first family
    groups: Sequence[tuple[int, ...]]  # simulated ranks of each member, in participant order
    playables: Sequence[SizedCollective | None]  # None if the duration is given
    # `which`, `place`: For each simulated rank, the member in which it takes part, and its participant number there;
    # shape (ranks,).
    which: Ints
    place: Ints


def all_played(members: Sequence[Collective], playables: Sequence[SizedCollective | None], ranks: int) -> SimulatedKind:
    """Return a kind of collective with every process group simulated, none represented by another."""
    which, place = np.zeros((2, ranks), np.int64)
    for number, op in enumerate(members):
        group = list(op.group)
        # Groups in a family have no common rank, so each entry is set at most once.
        which[group], place[group] = number, np.arange(len(group))
    return SimulatedKind(members, [op.group for op in members], playables, which, place)


__all__ = ["SimulatedKind", "all_played"]
