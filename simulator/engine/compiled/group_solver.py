"""What all groups do at one place of their programs, side by side.

Rule: groups that are alike and are reached alike are played once. Those that share links among themselves are played
together, and so are several lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.cluster import Cluster
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compiled.co_scheduled import CoScheduledOp, play_co_scheduled
from simulator.engine.compiled.collective_solver import (
    CollectiveSolver,
    CollectiveTimes,
    SpmdOpTimes,
    times_by_flow,
    with_own_link_numbers,
)
from simulator.engine.compiled.contention import Contention, LinkLoad, LinkOccupancy, concatenated, contentions, load_of
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.symmetry_reduction import Quotient, reduce_by_symmetry
from simulator.engine.jitter import Jitter, latency_factors
from simulator.engine.routes import Routes
from simulator.engine.traffic import Traffic
from simulator.records.program import Collective, Program

# Flows that share links are followed one by one; more than this take minutes.
_MAX_FOLLOWED = 2**22
# So many are followed in no time, however often.
_FREE_TO_FOLLOW = 20_000
# Beyond so many, flows that could meet are not looked at one by one: that would take GiB.
_MAX_COMPARED = 2**22
# A difference of two late moments has lost its last digits: times that differ by less than so many of the smallest
# steps between such moments are the same. What comes of it is no farther off.
_SAME_TIME_STEPS = 64.0


@dataclass(frozen=True, slots=True)
class _PlacedGroup:
    """A group's place: its ranks, its solver, and which links the solver's numbers stand for there."""

    ranks: Ints
    solver: CollectiveSolver
    links: Ints


@dataclass(slots=True)
class GroupSolver:
    """Plays the collectives of a program's lines."""

    cluster: Cluster
    jitter: Jitter
    capacity: Floats
    placements: Mapping[str, tuple[int, RoutedCollective]]
    _groups: dict[tuple[int, str], _PlacedGroup] = field(default_factory=dict)
    _solvers: dict[tuple[object, ...], CollectiveSolver] = field(default_factory=dict)
    _link_disjoint: dict[tuple[int, ...], bool] = field(default_factory=dict)
    _solved: dict[tuple[object, ...], list[tuple[Floats, list[SpmdOpTimes]]]] = field(default_factory=dict)
    _quotients: dict[tuple[object, ...], dict[bytes, Quotient | None]] = field(default_factory=dict)
    _total_transfers: int = 0
    _followed_transfers: int = 0
    _known_contentions: dict[tuple[object, ...], list[tuple[Floats, list[Contention]]]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, cluster: Cluster, jitter: Jitter) -> GroupSolver:
        """Lay all collectives of a program on the fabric."""
        capacity = capacities(cluster)
        ops = [op for op in program.collectives().values() if op.duration is None]
        routed_collectives = route_collectives(cluster, ops, capacity)
        placements = {
            op.name: (number, routed) for number, (op, routed) in enumerate(zip(ops, routed_collectives, strict=True))
        }
        every = sum(len(routed.traffic) for routed in routed_collectives)
        return cls(cluster, jitter, np.array(capacity), placements, _total_transfers=every)

    def routed(self, op: Collective) -> RoutedCollective:
        """How it lies on the fabric."""
        return self.placements[op.name][1]

    def play(self, members: Sequence[CoScheduledOp]) -> list[SpmdOpTimes]:
        """Play one line's collectives, or those of several lines that share links.

        Raises
        ------
        DeclinedError
            Flows share links, and there are too many of them to be followed one by one.
        """
        return [self._solve_alone(members[0])] if len(members) == 1 else self._solve_co_scheduled(members)

    def occupancy(self, collectives: tuple[Collective, ...], known: SpmdOpTimes, *, by_flow: bool) -> LinkOccupancy:
        """The uses of a line; of those that were told by laps, every flow for itself if that is asked for."""
        if known.occupancy is not None:
            return known.occupancy
        occupancies = []
        for op, found in zip(collectives, known.played, strict=True):
            if found is None:
                continue
            (zero, played), group = found, self._group(op)
            if by_flow and not played.by_flow:
                played = group.solver.by_flow(_may_send(op, known.start[group.ranks]) - zero)
            if played.occupancy is not None:
                occupancies.append(replace(played.occupancy, link=group.links[played.occupancy.link]).later(zero))
        return concatenated(occupancies)

    def load(self, collectives: tuple[Collective, ...], known: SpmdOpTimes) -> LinkLoad | None:
        """What a line asks of links that matter; None where it takes none."""
        if known.occupancy is not None or not self._are_link_disjoint(collectives):
            return load_of(self.occupancy(collectives, known, by_flow=False))
        found = [
            (self._group(op).links, *one) for op, one in zip(collectives, known.played, strict=True) if one is not None
        ]
        loads = [(links, zero, played.load) for links, zero, played in found if played.load is not None]
        if not loads:
            return None
        return LinkLoad(
            np.concatenate([links[load.link] for links, _, load in loads]),
            np.concatenate([load.first + zero for _, zero, load in loads]),
            np.concatenate([load.last + zero for _, zero, load in loads]),
            np.concatenate([load.peak_demand for _, _, load in loads]),
        )

    def contentions_among(self, lines: Sequence[tuple[tuple[Collective, ...], SpmdOpTimes]]) -> list[Contention]:
        """Where flows of several lines were on one link at once that could not give all what they take alone.

        Who meets is told by places in `lines`. Lines of a program repeat themselves, so what came of those that are
        alike and are apart by the same times is known.
        """
        zero = min(float(known.start.min()) for _, known in lines)
        starts = np.stack([known.start - zero for _, known in lines])
        solved = any(known.occupancy is not None for _, known in lines)
        seen = self._known_contentions.setdefault(
            tuple(kind for collectives, _ in lines for kind in self._collective_keys(collectives)), []
        )
        for other, found in [] if solved else seen:
            if bool((np.abs(other - starts) <= _SAME_TIME_STEPS * np.spacing(zero)).all()):
                return [replace(contention, time=contention.time + zero) for contention in found]
        found = self._contentions_of(lines)
        if not solved:
            seen.append((starts, [replace(contention, time=contention.time - zero) for contention in found]))
        return found

    def _contentions_of(self, lines: Sequence[tuple[tuple[Collective, ...], SpmdOpTimes]]) -> list[Contention]:
        """By laps first, and where these could meet by flows; by laps alone where flows are too many for that."""
        for by_flow in (False, True):
            found = contentions(concatenated([self.occupancy(*line, by_flow=by_flow) for line in lines]), self.capacity)
            if not found:
                return []
            if self._transfers(op for collectives, _ in lines for op in collectives) > _MAX_COMPARED:
                return [replace(contention, certain=False) for contention in found]
        return found

    def _transfers(self, ops: Iterable[Collective]) -> int:
        return sum(len(self.routed(op).traffic) for op in ops if op.duration is None)

    def link_name(self, link: int) -> str:
        """Ranks' HBM is numbered behind the links."""
        links = len(self.cluster.router.bandwidth)
        return self.cluster.router.link_name(link) if link < links else f"HBM of rank {link - links}"

    def refused(self, contention: Contention, names: Sequence[str]) -> DeclinedError:
        """Say link, time and operations."""
        told = " and ".join(dict.fromkeys(map(repr, names)))
        where = self.link_name(contention.link)
        if contention.certain:
            return DeclinedError(f"flows of {told} meet on {where} at {contention.time:.6g} s", contention.link)
        return DeclinedError(f"flows of {told} may meet on {where} from {contention.time:.6g} s on, too many to tell")

    def _group(self, op: Collective) -> _PlacedGroup:
        number, routed = self.placements[op.name]
        key = id(routed), op.name if self.jitter.latency else ""
        if key not in self._groups:
            stray = bool(self.jitter.latency)
            noise = latency_factors(self.jitter, number, op, routed.transfers.src) if stray else None
            routes, links = with_own_link_numbers(routed.routes)
            columns = (routes.latency, routes.rate, *routes.watched, self.capacity[links])
            pattern = (id(routed.traffic), key[1], *(column.tobytes() for column in columns))
            if pattern not in self._solvers:
                self._solvers[pattern] = CollectiveSolver(routed.traffic, routes, noise, self.capacity[links])
            self._groups[key] = _PlacedGroup(np.array(op.group), self._solvers[pattern], links)
        return self._groups[key]

    def _solve_alone(self, member: CoScheduledOp) -> SpmdOpTimes:
        done = member.ready.copy()
        played = list[tuple[float, CollectiveTimes] | None]()
        for op in member.collectives:
            if op.duration is not None:
                group = np.array(op.group)
                done[group] = member.ready[group].max() + op.duration
                played.append(None)
                continue
            at = self._group(op)
            begun = _may_send(op, member.ready[at.ranks])
            zero = float(begun.min())
            found = at.solver.played(begun - zero, _SAME_TIME_STEPS * float(np.spacing(zero)))
            if found.met is not None:
                first = replace(found.met, link=int(at.links[found.met.link]), time=found.met.time + zero)
                return self._solve_co_scheduled([member], self.refused(first, [op.name]))[0]
            done[at.ranks] = found.done + zero
            played.append((zero, found))
        together = SpmdOpTimes(member.ready, done, tuple(played))
        if self._are_link_disjoint(member.collectives):
            return together
        met = self._contentions_of([(member.collectives, together)])
        if not met:
            return together
        # Groups of a line are told apart by their names.
        names = [op.name for op in member.collectives if op.duration is None]
        return self._solve_co_scheduled([member], self.refused(met[0], names[:1]))[0]

    def _are_link_disjoint(self, collectives: Sequence[Collective]) -> bool:
        """Whether no two groups of a line have a link that matters in common."""
        played = [op for op in collectives if op.duration is None]
        key = tuple(id(self.routed(op)) for op in played)
        if key not in self._link_disjoint:
            links = np.concatenate([np.zeros(0, np.int64), *(self._group(op).links for op in played)])
            self._link_disjoint[key] = len(np.unique(links)) == len(links)
        return self._link_disjoint[key]

    def _solve_co_scheduled(
        self, members: Sequence[CoScheduledOp], why: DeclinedError | None = None
    ) -> list[SpmdOpTimes]:
        """Follow all flows and solve what they do to each other; `why` is raised where they are too many."""
        zero = min(float(member.ready.min()) for member in members)
        ready_times = np.stack([member.ready - zero for member in members])
        key = tuple(part for member in members for part in self._co_scheduled_key(member))
        known = self._solved.setdefault(key, [])
        for other, found in known:
            if bool((np.abs(other - ready_times) <= _SAME_TIME_STEPS * np.spacing(zero)).all()):
                return [together.later(zero) for together in found]
        own = [replace(m, ready=ready) for m, ready in zip(members, ready_times, strict=True)]
        # Latencies that jitter are all unlike.
        reduced = None
        if not self.jitter.latency:
            alike, quotient = _SAME_TIME_STEPS * float(np.spacing(zero)), self._quotients.setdefault(key, {})
            reduced = reduce_by_symmetry(own, self._placement, self.capacity, alike, quotient)
        flows = len(reduced) if reduced else self._transfers(op for member in members for op in member.collectives)
        if flows > _MAX_FOLLOWED:
            raise why or DeclinedError(f"{flows} transfers share links and are too many to be followed one by one")
        self._charge(flows)
        found = reduced.play(self.cluster) if reduced else self._follow_every_flow(own)
        known.append((ready_times, found))
        return [together.later(zero) for together in found]

    def _charge(self, flows: int) -> None:
        """Give up where more would be followed than if all were: then the events engine is the shorter route."""
        self._followed_transfers += flows
        if self._followed_transfers > max(_FREE_TO_FOLLOW, self._total_transfers):
            raise DeclinedError(
                f"flows share links so often that more than all {self._total_transfers} would have to be followed"
            )

    def _placement(self, op: Collective) -> tuple[Traffic, Routes]:
        routed = self.routed(op)
        return routed.traffic, routed.routes

    def _follow_every_flow(self, members: Sequence[CoScheduledOp]) -> list[SpmdOpTimes]:
        found, occupancies = [], list[LinkOccupancy]()
        for member, outcome in zip(
            members, play_co_scheduled(members, self.cluster, self.jitter, self.placements), strict=True
        ):
            played = [self._followed_collective(op, outcome.done, outcome.times) for op in member.collectives]
            for op, one in zip(member.collectives, played, strict=True):
                if one is not None and one[1].occupancy is not None:
                    occupancies.append(replace(one[1].occupancy, link=self._group(op).links[one[1].occupancy.link]))
            found.append(SpmdOpTimes(outcome.start, outcome.done, tuple(played), concatenated([])))
        whole = concatenated(occupancies).as_one_flow_group()
        return [replace(found[0], occupancy=whole), *found[1:]]

    def _followed_collective(
        self, op: Collective, done: Floats, times: Mapping[str, tuple[Floats, Floats]]
    ) -> tuple[float, CollectiveTimes] | None:
        if op.duration is not None:
            return None
        at = self._group(op)
        flow_group = np.zeros(len(at.solver.traffic), np.int64)
        return 0.0, times_by_flow(at.solver.traffic, at.solver.routes, done[at.ranks], times[op.name], flow_group)

    def _co_scheduled_key(self, member: CoScheduledOp) -> tuple[object, ...]:
        """Equal for members that give the same if they are reached at the same times."""
        return (*self._collective_keys(member.collectives), member.predecessors)

    def _collective_keys(self, collectives: Sequence[Collective]) -> list[tuple[object, ...]]:
        return [(op.group, op.duration) if op.duration is not None else self._collective_key(op) for op in collectives]

    def _collective_key(self, op: Collective) -> tuple[object, ...]:
        return id(self.routed(op)), op.name if self.jitter.latency else "", op.startup, op.together


def _may_send(op: Collective, start: Floats) -> Floats:
    """When each rank may send."""
    return (np.full(len(start), start.max()) if op.together else start) + op.startup
