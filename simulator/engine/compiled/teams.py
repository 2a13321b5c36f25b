"""What all groups do at one place of their programs, side by side: played once for all lines that are alike.

Rule: lines are alike if their collectives lie on the same links with the same sizes and their ranks come at the same
times relative to each other. Groups that share links among themselves are played together, and so are several lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.joint import Member, play_together
from simulator.engine.compiled.meetings import Use, joined, meetings
from simulator.engine.compiled.played import Played, Shape, told_by_flow
from simulator.engine.events import Laid
from simulator.engine.jitter import Jitter, latency_factors
from simulator.engine.wiring import Wiring, capacities, wire
from simulator.program import Collective, Program

Floats = npt.NDArray[np.float64]
# Flows that share links are followed one by one; more than this take minutes.
_MOST_FOLLOWED = 2**22
# A difference of two late moments has lost its last digits: times that differ by less than so many of the smallest
# steps between such moments are the same. What comes of it is no farther off.
_ALIKE = 64.0


@dataclass(frozen=True, slots=True)
class Together:
    """What became of all groups' collectives of a line, relative to a moment.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        When each rank came, and when it was through [s].
    played : tuple of Played or None
        By group; None for those whose time is given.
    use : Use or None
        Of links that matter, by all.
    by_flow : bool
        Whether every flow stands there, none as part of a lap.
    """

    start: Floats
    done: Floats
    played: tuple[Played | None, ...]
    use: Use | None
    by_flow: bool


@dataclass(frozen=True, slots=True)
class _Known:
    """What was played once: bounds, shape (members, ranks), and what became of the members."""

    bounds: Floats
    found: list[Together]


@dataclass(slots=True)
class Teams:
    """Plays the collectives of a program's lines."""

    cluster: Cluster
    jitter: Jitter
    capacity: Floats
    laid: Laid
    _shapes: dict[tuple[int, str], Shape] = field(default_factory=dict)
    _known: dict[tuple[object, ...], list[_Known]] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, cluster: Cluster, jitter: Jitter) -> Teams:
        """Lay all collectives of a program on the fabric."""
        capacity = capacities(cluster)
        ops = [op for op in program.collectives().values() if op.duration is None]
        wirings = wire(cluster, ops, capacity)
        laid = {op.name: (number, wiring) for number, (op, wiring) in enumerate(zip(ops, wirings, strict=True))}
        return cls(cluster, jitter, np.array(capacity), laid)

    def wiring(self, op: Collective) -> Wiring:
        """How it lies on the fabric."""
        return self.laid[op.name][1]

    def play(self, members: Sequence[Member]) -> tuple[float, list[Together]]:
        """Play one line's collectives, or those of several lines that share links.

        Returns
        -------
        zero : float
            The moment to which all else is relative [s].
        list of Together
            By member; of several members the first has the uses of all.

        Raises
        ------
        DeclinedError
            Flows share links, and there are too many of them to be followed one by one.
        """
        zero = min(float(member.bound.min()) for member in members)
        bounds = np.stack([member.bound - zero for member in members])
        known = self._known.setdefault(tuple(part for member in members for part in self._alike(member)), [])
        for other in known:
            if bool((np.abs(other.bounds - bounds) <= _ALIKE * np.spacing(zero)).all()):
                return zero, other.found
        moved = [replace(member, bound=bound) for member, bound in zip(members, bounds, strict=True)]
        found = self._followed(moved) if len(members) > 1 else [self._alone(moved[0].teams, moved[0].bound)]
        known.append(_Known(bounds, found))
        return zero, found

    def every_flow(self, teams: tuple[Collective, ...], known: Together) -> Use | None:
        """The uses of a line, none of them told as a lap's."""
        if known.by_flow or known.use is None:
            return known.use
        return _use_of(self._by_arrays(teams, known.start, flow_by_flow=True))

    def link_name(self, link: int) -> str:
        """Ranks' HBM is numbered behind the links."""
        links = len(self.cluster.router.bandwidth)
        return self.cluster.router.link_name(link) if link < links else f"HBM of rank {link - links}"

    def _alike(self, member: Member) -> tuple[object, ...]:
        """Equal for members that give the same if they are reached at the same times."""
        teams = ((op.group, op.duration) if op.duration is not None else self._kind(op) for op in member.teams)
        return (*teams, member.follows)

    def _kind(self, op: Collective) -> tuple[object, ...]:
        return id(self.wiring(op)), op.name if self.jitter.latency else "", op.startup, op.together

    def _shape(self, op: Collective) -> Shape:
        number, wiring = self.laid[op.name]
        key = id(wiring), op.name if self.jitter.latency else ""
        if key not in self._shapes:
            stray = bool(self.jitter.latency)
            noise = latency_factors(self.jitter, number, op, wiring.transfers.src) if stray else None
            self._shapes[key] = Shape(wiring, len(op.group), noise, self.capacity)
        return self._shapes[key]

    def _alone(self, teams: tuple[Collective, ...], start: Floats) -> Together:
        found = self._by_arrays(teams, start, flow_by_flow=False)
        use, by_flow = _use_of(found), False
        if use is not None and meetings(use, self.capacity):
            found = self._by_arrays(teams, start, flow_by_flow=True)
            use, by_flow = _use_of(found), True
            if use is not None and meetings(use, self.capacity):
                return self._followed([Member(teams, start)])[0]
        done = start.copy()
        for op, played in zip(teams, found, strict=True):
            group = list(op.group)
            done[group] = _begun(op, start[group]) if played is None else played.done
        return Together(start, done, tuple(found), use, by_flow)

    def _by_arrays(self, teams: Sequence[Collective], start: Floats, *, flow_by_flow: bool) -> list[Played | None]:
        return [
            self._shape(op).played(_begun(op, start[list(op.group)]), flow_by_flow=flow_by_flow)
            if op.duration is None
            else None
            for op in teams
        ]

    def _followed(self, members: Sequence[Member]) -> list[Together]:
        """Follow all flows; what they do to each other is solved as it happens."""
        flows = sum(len(self.wiring(op)) for member in members for op in member.teams if op.duration is None)
        if flows > _MOST_FOLLOWED:
            raise DeclinedError(f"{flows} transfers share links and are too many to be followed one by one")
        found = []
        for member, outcome in zip(members, play_together(members, self.cluster, self.jitter, self.laid), strict=True):
            played = [self._as_followed(op, outcome.done, outcome.times) for op in member.teams]
            found.append(Together(outcome.start, outcome.done, tuple(played), _use_of(played), by_flow=True))
        uses = [together.use for together in found if together.use is not None]
        whole = joined(uses).as_one_crowd() if uses else None
        return [replace(together, use=whole if number == 0 else None) for number, together in enumerate(found)]

    def _as_followed(self, op: Collective, done: Floats, times: Mapping[str, tuple[Floats, Floats]]) -> Played | None:
        if op.duration is not None:
            return None
        wiring = self.wiring(op)
        return told_by_flow(wiring, done[list(op.group)], times[op.name], np.zeros(len(wiring), np.int64))


def _begun(op: Collective, start: Floats) -> Floats:
    """When each rank may send; where the collective's time is given, when it is through."""
    if op.duration is not None:
        return np.full(len(start), start.max() + op.duration)
    return (np.full(len(start), start.max()) if op.together else start) + op.startup


def _use_of(found: Sequence[Played | None]) -> Use | None:
    uses = [played.use for played in found if played is not None and played.use is not None]
    return joined(uses) if uses else None
