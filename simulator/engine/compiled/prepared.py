"""Prepares a program for the core: with every rank, or with one rank per class if ranks are alike.

This module decides which rank, collective and row represents another; the simulation itself happens in `core`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.progress import stage
from simulator.cluster.cluster import Cluster
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compiled.fields import Problem
from simulator.engine.compiled.operation_lists import Lists, first_instances
from simulator.engine.compiled.problem import problem_of
from simulator.engine.compiled.quotient import Quotient, reduce_by_symmetry
from simulator.engine.compiled.simulated_kinds import SimulatedKind, all_played
from simulator.engine.compiled.sized_collective import SizedCollective, SizedCollectiveMaker
from simulator.engine.jitter import Jitter
from simulator.engine.program_checks import changes_of
from simulator.records.operation import Collective
from simulator.records.program import Program

# Below this number of transfers, simulating every rank (0.1 s) is faster than searching for equal ranks.
REDUCED_FROM: Final = 200_000


@dataclass(frozen=True, eq=False)
class CoreProgram:
    """A program ready for the compiled core: routes and, if ranks behave alike, the quotient (one rank per class)."""

    program: Program  # the whole program
    cluster: Cluster  # the cluster with links and GPUs
    jitter: Jitter  # noise on kernels and latencies
    # For each kind, the routes of the members of its first family; None if the duration is given.
    routed: Sequence[tuple[RoutedCollective | None, ...]]
    # Capacity of the fabric's links [B/s]; shape (links,).
    capacity: Floats
    maker: SizedCollectiveMaker  # cache of rows, bytes and playables
    quotient: Quotient | None  # None if every rank is simulated

    @cached_property
    def lists(self) -> Lists:
        """Return the simulated ranks and their operations."""
        lists, ranks = self.program.lists, len(self.program.ranks)
        first = np.arange(ranks) if self.quotient is None else self.quotient.first_rank
        # A cluster without stragglers has no list of speeds.
        speeds = np.array(self.cluster.speeds[:ranks] or np.ones(ranks))
        list_of = np.array(lists.list_of, np.int64)[first]
        work = self.program.work[:, first] if self.program.work.size else np.ones((0, len(first)))
        return Lists(lists.lists, lists.family_at, lists.kind_of, list_of, speeds[first], work)

    @cached_property
    def kinds(self) -> Sequence[SimulatedKind]:
        """Return, for each kind of collective (equal operation and groups), the process groups that are simulated."""
        every = enumerate(zip(self.program.lists.kinds, self.routed, strict=True))
        return [self._played(number, members, routed) for number, (members, routed) in every]

    def _played(
        self, number: int, members: Sequence[Collective], routed: Sequence[RoutedCollective | None]
    ) -> SimulatedKind:
        """Return the simulated process groups of collective kind `number`, given its members and their routes."""
        if self.quotient is not None:
            return self.quotient.played(number, members)
        playables = [
            None if route_of is None else self.maker.make(op, route_of)
            for op, route_of in zip(members, routed, strict=True)
        ]
        return all_played(members, playables, len(self.program.ranks))

    def problem(self, logged: Collection[int] = (), tapped: Mapping[tuple[int, int], Ints] | None = None) -> Problem:
        """Return the core's input; `logged` collectives get transfer times, `tapped` routes get flow times."""
        changes = changes_of(self.program, self.cluster)
        return problem_of(self.lists, self.kinds, self.capacity, self.jitter, changes, logged=logged, tapped=tapped)

    @cached_property
    def first_instance(self) -> Ints:
        """Return, for each collective family, the number given to the first simulated collective; then the total."""
        return first_instances(self.lists, self.kinds)

    @property
    def instances(self) -> range:
        """Return the range of the numbers given to simulated collectives."""
        return range(int(self.first_instance[-1]))

    @property
    def transfers(self) -> int:
        """Number of transfers in the whole program."""
        return sum(
            times * sum(len(collective.traffic) for collective in routed if collective is not None)
            for times, routed in zip(self.program.lists.times, self.routed, strict=True)
        )

    @cached_property
    def played_rank(self) -> Ints:
        """Return, for each rank in the program, the representative simulated rank's index."""
        return np.arange(len(self.program.ranks)) if self.quotient is None else self.quotient.partition.rank

    def played_member(self, kind: int, member: int) -> int:
        """Return the index for the simulated process group that represents group `member` in a collective kind."""
        return member if self.quotient is None else self.quotient.played_member(kind, member)

    def played_routes(self, kind: int) -> Mapping[int, RoutedCollective]:
        """Return a collective kind's routes by process group number, without groups whose duration is given."""
        return {member: collective for member, collective in enumerate(self.routed[kind]) if collective is not None}

    def played_playable(self, kind: int, member: int) -> SizedCollective:
        """Return the simulated collective (rows, bytes, routes) for process group `member` in a collective kind.

        Raises
        ------
        ValueError
            The member has a given duration, hence no transfers.
        """
        playable = self.kinds[kind].playables[self.played_member(kind, member)]
        if playable is None:
            raise ValueError(f"{self.kinds[kind].members[0].name!r} has a given duration, and no transfers")
        return playable

    def played_rows(self, kind: int, member: int, routed: RoutedCollective) -> Ints:
        """Return, for each row in a collective's schedule, the simulated row with its times; gates are omitted."""
        rows = self.maker.rows(routed)
        if self.quotient is None:
            return np.flatnonzero(~rows.is_gate)
        return self.quotient.played_rows(kind, member)[~rows.is_gate]


def prepare(program: Program, cluster: Cluster, jitter: Jitter, reduced_from: int = REDUCED_FROM) -> CoreProgram:
    """Return a program with its collectives' routes, ready for the core.

    From `reduced_from` transfers on, and without jitter, equal ranks are searched for, of which a single rank is
    simulated.
    """
    stage("finding routes")
    capacity = np.array(capacities(cluster))
    routed = _routed(program, cluster, capacity)
    prepared = CoreProgram(program, cluster, jitter, routed, capacity, SizedCollectiveMaker(cluster.remember), None)
    # With noise every rank draws different factors, and events concern single links and ranks: no two ranks are alike.
    may_be_equal = not jitter.compute and not jitter.latency and not cluster.changes
    if prepared.transfers >= reduced_from and may_be_equal:
        stage("grouping equal ranks")
        speeds = cluster.speeds[: len(program.ranks)]
        quotient = reduce_by_symmetry(program, routed, prepared.maker.rows, speeds, capacity)
        # The quotient is None if too many ranks differ; every rank is then simulated.
        return replace(prepared, quotient=quotient)
    return prepared


def _routed(program: Program, cluster: Cluster, capacity: Floats) -> list[tuple[RoutedCollective | None, ...]]:
    """Return the routes of a program's collectives: for each kind a tuple by group, None for a given duration."""
    lists = program.lists
    each = [(op, times) for members, times in zip(lists.kinds, lists.times, strict=True) for op in members]
    simulated = [(op, times) for op, times in each if op.duration is None]
    # Closed-form collectives take no links.
    ops, times = [op for op, _ in simulated], [count for _, count in simulated]
    routed = iter(route_collectives(cluster, ops, capacity.tolist(), times=times))
    return [tuple(next(routed) if op.duration is None else None for op in members) for members in lists.kinds]
