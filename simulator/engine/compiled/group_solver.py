"""How long a collective takes that several process groups do side by side, and whether they contend with each other.

Groups that look alike and start alike are solved once. If groups share links among themselves, or several operations
do, they are solved together by the events engine, reduced by symmetry where that helps. Answers are kept with times
relative to an origin, because programs repeat themselves: layer by layer the same operations come again, only later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.basics.tolerances import LATE_STEPS
from simulator.cluster.cluster import Cluster
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compiled.co_scheduled import CoScheduledOp, play_co_scheduled
from simulator.engine.compiled.collective_solver import (
    CollectiveSolver,
    CollectiveTimes,
    SpmdOpTimes,
    Times,
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

# Transfers that the events engine follows for one set of co-scheduled operations; more take minutes.
_MAX_FOLLOWED = 2**22
# So many transfers are followed in no time, however often.
_FREE_TO_FOLLOW = 20_000
# Beyond so many transfers, flows are not compared one by one: that would take GiB.
_MAX_COMPARED = 2**22

# The collectives of an SPMD operation, and their times.
PlayedOp = tuple[tuple[Collective, ...], SpmdOpTimes]


@dataclass(frozen=True, slots=True)
class _PlacedGroup:
    """A process group's ranks, its solver, and which links the solver's own link numbers stand for."""

    ranks: Ints
    solver: CollectiveSolver
    links: Ints


@dataclass(slots=True)
class GroupSolver:
    """Solves the collectives of a program's SPMD operations.

    Attributes
    ----------
    cluster : Cluster
    jitter : Jitter
    capacity : float array
        Of every link, then of every rank's HBM [B/s].
    placements : mapping of a collective's name to (number, RoutedCollective)
        How collectives lie on the fabric, in the program's order.
    """

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
        total = sum(len(routed.traffic) for routed in routed_collectives)
        return cls(cluster, jitter, np.array(capacity), placements, _total_transfers=total)

    def routed(self, op: Collective) -> RoutedCollective:
        """How a collective lies on the fabric."""
        return self.placements[op.name][1]

    def solve(self, ops: Sequence[CoScheduledOp]) -> list[SpmdOpTimes]:
        """Times of one SPMD operation, or of several that are co-scheduled.

        Raises
        ------
        DeclinedError
            Flows share links, and there are too many of them to be followed one by one.
        """
        return [self._solve_alone(ops[0])] if len(ops) == 1 else self._solve_by_events(ops)

    def occupancy(self, collectives: tuple[Collective, ...], times: SpmdOpTimes, *, by_flow: bool) -> LinkOccupancy:
        """Occupancy of links by an operation; `by_flow` asks for every flow of its pipelined rings."""
        if times.occupancy is not None:
            return times.occupancy
        occupancies = []
        for op, group in zip(collectives, times.groups, strict=True):
            if group is None:
                continue
            (origin, of_group), placed = group, self._placed(op)
            if by_flow and not of_group.by_flow:
                of_group = placed.solver.solve_by_flow(_may_send(op, times.start[placed.ranks]) - origin)
            if of_group.occupancy is not None:
                on_fabric = replace(of_group.occupancy, link=placed.links[of_group.occupancy.link])
                occupancies.append(on_fabric.shifted(origin))
        return concatenated(occupancies)

    def load(self, collectives: tuple[Collective, ...], times: SpmdOpTimes) -> LinkLoad | None:
        """What an operation demands of links that matter; None if it occupies none.

        If no two groups have a link in common, loads of groups are put side by side: each is summed up once for all
        groups that share a solver.
        """
        if times.occupancy is not None or not self._are_link_disjoint(collectives):
            return load_of(self.occupancy(collectives, times, by_flow=False))
        groups = [
            (self._placed(op).links, *group)
            for op, group in zip(collectives, times.groups, strict=True)
            if group is not None
        ]
        loads = [(links, origin, of_group.load) for links, origin, of_group in groups if of_group.load is not None]
        if not loads:
            return None
        return LinkLoad(
            np.concatenate([links[load.link] for links, _, load in loads]),
            np.concatenate([load.first + origin for _, origin, load in loads]),
            np.concatenate([load.last + origin for _, origin, load in loads]),
            np.concatenate([load.peak_demand for _, _, load in loads]),
        )

    def contentions_among(self, played: Sequence[PlayedOp]) -> list[Contention]:
        """Where flows of operations contend; owners are places in `played`.

        Operations repeat in a program: the answer is known if operations of the same kinds stood to each other at the
        same times before. It is not kept where the events engine solved one of them, for its flows' times then depend
        on the operations that it was solved with.
        """
        origin = min(float(times.start.min()) for _, times in played)
        starts = np.stack([times.start - origin for _, times in played])
        by_events = any(times.occupancy is not None for _, times in played)
        known = self._known_contentions.setdefault(
            tuple(key for collectives, _ in played for key in self._collective_keys(collectives)), []
        )
        for known_starts, contending in [] if by_events else known:
            if bool((np.abs(known_starts - starts) <= LATE_STEPS * np.spacing(origin)).all()):
                return [replace(contention, time=contention.time + origin) for contention in contending]
        contending = self._contentions_of(played)
        if not by_events:
            known.append((starts, [replace(contention, time=contention.time - origin) for contention in contending]))
        return contending

    def _contentions_of(self, played: Sequence[PlayedOp]) -> list[Contention]:
        """First with pipelined rings as one flow each, and if these could contend with every flow of theirs.

        If there are too many flows for that, contention that is only possible is reported as such.
        """
        contending: list[Contention] = []
        for by_flow in (False, True):
            occupancy = concatenated([self.occupancy(*op, by_flow=by_flow) for op in played])
            contending = contentions(occupancy, self.capacity)
            if not contending:
                return []
            if self._transfers(op for collectives, _ in played for op in collectives) > _MAX_COMPARED:
                return [replace(contention, certain=False) for contention in contending]
        return contending

    def _transfers(self, ops: Iterable[Collective]) -> int:
        return sum(len(self.routed(op).traffic) for op in ops if op.duration is None)

    def link_name(self, link: int) -> str:
        """Name of a link by the fabric's number; ranks' HBM is numbered behind the cluster's links."""
        links = len(self.cluster.router.bandwidth)
        return self.cluster.router.link_name(link) if link < links else f"HBM of rank {link - links}"

    def declined(self, contention: Contention, names: Sequence[str]) -> DeclinedError:
        """The error that says on which link, when and which operations contend."""
        operations = " and ".join(dict.fromkeys(map(repr, names)))
        where, time = self.link_name(contention.link), f"{contention.time:.6g} s"
        if contention.certain:
            return DeclinedError(f"flows of {operations} meet on {where} at {time}", contention.link)
        return DeclinedError(f"flows of {operations} may meet on {where} from {time} on, too many to tell")

    def _placed(self, op: Collective) -> _PlacedGroup:
        number, routed = self.placements[op.name]
        # Jitter of latencies is drawn by the collective's number, so with it no two collectives share a solver.
        jittered = bool(self.jitter.latency)
        key = id(routed), op.name if jittered else ""
        if key not in self._groups:
            factors = latency_factors(self.jitter, number, op, routed.transfers.src) if jittered else None
            routes, links = with_own_link_numbers(routed.routes)
            columns = (routes.latency, routes.rate, *routes.watched, self.capacity[links])
            pattern = (id(routed.traffic), key[1], *(column.tobytes() for column in columns))
            if pattern not in self._solvers:
                self._solvers[pattern] = CollectiveSolver(routed.traffic, routes, factors, self.capacity[links])
            self._groups[key] = _PlacedGroup(np.array(op.group), self._solvers[pattern], links)
        return self._groups[key]

    def _solve_alone(self, spmd_op: CoScheduledOp) -> SpmdOpTimes:
        """Solve each process group for itself; by the events engine if flows of a group or of several contend."""
        done = spmd_op.ready.copy()
        groups = list[tuple[float, CollectiveTimes] | None]()
        for op in spmd_op.collectives:
            if op.duration is not None:
                ranks = np.array(op.group)
                done[ranks] = spmd_op.ready[ranks].max() + op.duration
                groups.append(None)
                continue
            placed = self._placed(op)
            start = _may_send(op, spmd_op.ready[placed.ranks])
            origin = float(start.min())
            times = placed.solver.solve(start - origin, LATE_STEPS * float(np.spacing(origin)))
            if times.contention is not None:
                link, time = int(placed.links[times.contention.link]), times.contention.time + origin
                why = self.declined(replace(times.contention, link=link, time=time), [op.name])
                return self._solve_by_events([spmd_op], why)[0]
            done[placed.ranks] = times.done + origin
            groups.append((origin, times))
        solved = SpmdOpTimes(spmd_op.ready, done, tuple(groups))
        if self._are_link_disjoint(spmd_op.collectives):
            return solved
        contending = self._contentions_of([(spmd_op.collectives, solved)])
        if not contending:
            return solved
        # The groups' collectives differ in their names alone, so the first one's is enough to say which operation it
        # is.
        names = [op.name for op in spmd_op.collectives if op.duration is None]
        return self._solve_by_events([spmd_op], self.declined(contending[0], names[:1]))[0]

    def _are_link_disjoint(self, collectives: Sequence[Collective]) -> bool:
        """Whether no two groups of an operation have a link that matters in common."""
        played = [op for op in collectives if op.duration is None]
        key = tuple(id(self.routed(op)) for op in played)
        if key not in self._link_disjoint:
            links = np.concatenate([np.zeros(0, np.int64), *(self._placed(op).links for op in played)])
            self._link_disjoint[key] = len(np.unique(links)) == len(links)
        return self._link_disjoint[key]

    def _solve_by_events(self, ops: Sequence[CoScheduledOp], why: DeclinedError | None = None) -> list[SpmdOpTimes]:
        """Let the events engine follow all flows; `why` is raised if there are too many of them."""
        origin = min(float(op.ready.min()) for op in ops)
        ready_times = np.stack([op.ready - origin for op in ops])
        tolerance = LATE_STEPS * float(np.spacing(origin))
        key = tuple(part for op in ops for part in self._co_scheduled_key(op))
        known = self._solved.setdefault(key, [])
        for known_ready_times, solved in known:
            if bool((np.abs(known_ready_times - ready_times) <= tolerance).all()):
                return [times.shifted(origin) for times in solved]
        from_origin = [replace(op, ready=ready) for op, ready in zip(ops, ready_times, strict=True)]
        # With jitter no two latencies are alike, so there is no symmetry to look for.
        reduced = None
        if not self.jitter.latency:
            quotients = self._quotients.setdefault(key, {})
            reduced = reduce_by_symmetry(from_origin, self._placement, self.capacity, tolerance, quotients)
        flows = len(reduced) if reduced else self._transfers(op for spmd_op in ops for op in spmd_op.collectives)
        if flows > _MAX_FOLLOWED:
            raise why or DeclinedError(f"{flows} transfers share links and are too many to be followed one by one")
        self._charge(flows)
        solved = reduced.solve(self.cluster) if reduced else self._follow_every_flow(from_origin)
        known.append((ready_times, solved))
        return [times.shifted(origin) for times in solved]

    def _charge(self, flows: int) -> None:
        """Decline if more transfers would be followed, over and over, than there are in all.

        The events engine, which follows each once, is then the shorter route.
        """
        self._followed_transfers += flows
        if self._followed_transfers > max(_FREE_TO_FOLLOW, self._total_transfers):
            raise DeclinedError(
                f"flows share links so often that more than all {self._total_transfers} would have to be followed"
            )

    def _placement(self, op: Collective) -> tuple[Traffic, Routes]:
        routed = self.routed(op)
        return routed.traffic, routed.routes

    def _follow_every_flow(self, ops: Sequence[CoScheduledOp]) -> list[SpmdOpTimes]:
        """Without symmetry reduction."""
        solved, occupancies = [], list[LinkOccupancy]()
        outcomes = play_co_scheduled(ops, self.cluster, self.jitter, self.placements)
        for spmd_op, outcome in zip(ops, outcomes, strict=True):
            groups = [self._followed(op, outcome.done, outcome.times) for op in spmd_op.collectives]
            for op, group in zip(spmd_op.collectives, groups, strict=True):
                occupancy = group[1].occupancy if group is not None else None
                if occupancy is not None:
                    occupancies.append(replace(occupancy, link=self._placed(op).links[occupancy.link]))
            solved.append(SpmdOpTimes(outcome.start, outcome.done, tuple(groups), concatenated([])))
        whole = concatenated(occupancies).as_one_flow_group()
        return [replace(solved[0], occupancy=whole), *solved[1:]]

    def _followed(
        self, op: Collective, done: Floats, times: Mapping[str, Times]
    ) -> tuple[float, CollectiveTimes] | None:
        if op.duration is not None:
            return None
        placed = self._placed(op)
        flow_group = np.zeros(len(placed.solver.traffic), np.int64)
        return 0.0, times_by_flow(
            placed.solver.traffic, placed.solver.routes, done[placed.ranks], times[op.name], flow_group
        )

    def _co_scheduled_key(self, op: CoScheduledOp) -> tuple[object, ...]:
        """Equal for operations that take as long if they are ready at the same times."""
        return (*self._collective_keys(op.collectives), op.predecessors)

    def _collective_keys(self, collectives: Sequence[Collective]) -> list[tuple[object, ...]]:
        return [(op.group, op.duration) if op.duration is not None else self._collective_key(op) for op in collectives]

    def _collective_key(self, op: Collective) -> tuple[object, ...]:
        return id(self.routed(op)), op.name if self.jitter.latency else "", op.startup, op.together


def _may_send(op: Collective, ready: Floats) -> Floats:
    """When each rank may send: after the start-up, and for collectives that start together not before the last rank."""
    return (np.full(len(ready), ready.max()) if op.together else ready) + op.startup
