"""A program made ready for the core: ranks and collectives as they are, or one of each class where they are alike.

Rule: decides what is played in place of what; plays nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compiled.fields import Problem
from simulator.engine.compiled.operation_lists import Lists
from simulator.engine.compiled.playable import Playable, PlayableMaker
from simulator.engine.compiled.problem import problem_of
from simulator.engine.compiled.quotient import Quotient, reduce_by_symmetry, reduced_rows
from simulator.engine.jitter import Jitter
from simulator.engine.progress import stage
from simulator.records.program import Collective, Program

# From so many transfers on it pays to look for what is alike: fewer are played in less time (0.1 s).
REDUCED_FROM: Final = 200_000


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program, where its collectives lie, and what is played in its place.

    Attributes
    ----------
    program : Program
    cluster : Cluster
    jitter : Jitter
    collectives : mapping of str to Collective
        All, in the program's order.
    routed : mapping of str to RoutedCollective
        Those whose transfers are played.
    capacity : float array
        Of the fabric's links [B/s].
    maker : PlayableMaker
    quotient : Quotient or None
        None where every rank is played.
    """

    program: Program
    cluster: Cluster
    jitter: Jitter
    collectives: Mapping[str, Collective]
    routed: Mapping[str, RoutedCollective]
    capacity: Floats
    maker: PlayableMaker
    quotient: Quotient | None

    def lists(self) -> Lists:
        """The ranks that are played, and their operations."""
        own, ranks = self.program.lists(), len(self.program.ranks)
        list_of = np.array(own.list_of, np.int64)
        groups = [
            [own.groups(number, place) if isinstance(op, Collective) else () for place, op in enumerate(ops)]
            for number, ops in enumerate(own.lists)
        ]
        speeds = np.array(self.cluster.speeds[:ranks] or np.ones(ranks))
        if self.quotient is None:
            return Lists(own.lists, groups, list_of, partial(_members, ranks), lambda op: op.group, speeds)
        first = self.quotient.first_rank
        return Lists(own.lists, groups, list_of[first], self.quotient.members, self.quotient.group_of, speeds[first])

    @cached_property
    def playables(self) -> Mapping[str, Playable]:
        """What is played, by name of the collective."""
        if self.quotient is None:
            return {name: self.maker.make(self.collectives[name], own) for name, own in self.routed.items()}
        return {
            name: self.quotient.reduced[self.quotient.number_of[name]].playable
            for name in self.routed
            if self.quotient.stand_in[name] == name
        }

    def problem(self, logged: Collection[str] = (), tapped: Mapping[str, Ints] | None = None) -> Problem:
        """For the core; parameters are those of `problem_of`, by names of playables."""
        return problem_of(
            self.lists(), self.collectives, self.playables, self.capacity, self.jitter, logged=logged, tapped=tapped
        )

    @cached_property
    def played_rank(self) -> Ints:
        """By rank the played rank that has its times."""
        return np.arange(len(self.program.ranks)) if self.quotient is None else self.quotient.partition.rank

    def played_name(self, name: str) -> str:
        """The playable that has a collective's times."""
        return name if self.quotient is None else self.quotient.stand_in[name]

    def played_rows(self, name: str) -> Ints:
        """By row of a collective's schedule, gates left out, the row of the playable that has its times."""
        rows = self.maker.rows(self.routed[name])
        if self.quotient is None:
            return np.flatnonzero(~rows.is_gate)
        number = self.quotient.number_of[name]
        reduced = self.quotient.reduced[int(self.quotient.representative[number])]
        return reduced_rows(reduced.of_class, self.quotient.partition.row[number])[~rows.is_gate]


def prepare(program: Program, cluster: Cluster, jitter: Jitter, reduced_from: int = REDUCED_FROM) -> Prepared:
    """Route a program's collectives and, from so many transfers on, look for what is alike."""
    stage("finding routes")
    capacity = np.array(capacities(cluster))
    collectives = program.collectives()
    played = {name: op for name, op in collectives.items() if op.duration is None}
    routed = dict(zip(played, route_collectives(cluster, list(played.values()), capacity.tolist()), strict=True))
    maker, quotient = PlayableMaker(cluster.remember), None
    transfers = sum(len(own.traffic) for own in routed.values())
    # Every rank draws noise of its own.
    if transfers >= reduced_from and not jitter.compute and not jitter.latency:
        stage("looking for what is alike")
        speeds = cluster.speeds[: len(program.ranks)]
        quotient = reduce_by_symmetry(program, routed, maker.rows, speeds, capacity)
    return Prepared(program, cluster, jitter, collectives, routed, capacity, maker, quotient)


def _members(ranks: int, own: Sequence[Collective]) -> tuple[Ints, Ints]:
    """By rank which of the groups' collectives it takes part in, and its place there."""
    which, place = np.zeros((2, ranks), np.int64)
    for number, op in enumerate(own):
        group = list(op.group)
        which[group], place[group] = number, np.arange(len(group))
    return which, place
