"""What all groups do at one place of their programs, side by side: played once for all lines that are alike.

Rule: lines are alike if their collectives lie on the same links with the same sizes and their ranks come at the same
times relative to each other. Groups that share links among themselves are played together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.beside import play_beside
from simulator.engine.compiled.meetings import Use, first_meeting, joined, refuse
from simulator.engine.compiled.played import Played, Shape, told_by_flow
from simulator.engine.jitter import Jitter, latency_factors
from simulator.engine.wiring import Wiring, capacities, wire
from simulator.program import Collective, Program

Floats = npt.NDArray[np.float64]
# Flows that share links are followed one by one; more than this take minutes.
_MOST_FOLLOWED = 2**22


@dataclass(frozen=True, slots=True)
class Together:
    """What became of all groups' collectives of a line, relative to when the first rank came.

    Attributes
    ----------
    start, done : float array, shape (ranks,)
        When each rank came, and when it was through [s].
    played : tuple of Played or None
        By group; None for those whose time is given.
    use : Use or None
        Of links that matter, by all; its collectives are those that are played, in order.
    followed : bool
        Whether every flow stands there, none as part of its channel.
    """

    start: Floats
    done: Floats
    played: tuple[Played | None, ...]
    use: Use | None
    followed: bool


@dataclass(slots=True)
class Teams:
    """Plays the collectives of a program's lines."""

    cluster: Cluster
    jitter: Jitter
    capacity: list[float]
    wirings: dict[str, Wiring]
    _numbers: dict[str, int]
    _shapes: dict[tuple[int, str], Shape] = field(default_factory=dict)
    _known: dict[tuple[object, ...], Together] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, cluster: Cluster, jitter: Jitter) -> Teams:
        """Lay all collectives of a program on the fabric."""
        capacity = capacities(cluster)
        ops = [op for op in program.collectives().values() if op.duration is None]
        wirings = dict(zip((op.name for op in ops), wire(cluster, ops, capacity), strict=True))
        return cls(cluster, jitter, capacity, wirings, {op.name: number for number, op in enumerate(ops)})

    def play(self, teams: tuple[Collective, ...], start: Floats) -> tuple[float, Together]:
        """Play a line's collectives from when each rank reaches its own, shape (ranks,).

        Returns
        -------
        zero : float
            The moment to which all else is relative [s].
        Together

        Raises
        ------
        DeclinedError
            Flows share links, and there are too many of them to be followed one by one.
        """
        zero = float(start.min())
        relative = _rounded(start - zero, zero)
        key = (*map(self._alike, teams), relative.tobytes())
        if key not in self._known:
            self._known[key] = self._play(teams, relative)
        return zero, self._known[key]

    def _alike(self, op: Collective) -> tuple[object, ...]:
        """Equal for collectives that give the same if reached at the same times."""
        if op.duration is not None:
            return op.group, op.duration
        return id(self._shape(op)), op.startup, op.together

    def _shape(self, op: Collective) -> Shape:
        wiring = self.wirings[op.name]
        key = id(wiring), op.name if self.jitter.latency else ""
        if key not in self._shapes:
            self._shapes[key] = Shape(wiring, len(op.group), self._noise(op), self.capacity)
        return self._shapes[key]

    def _noise(self, op: Collective) -> Floats | None:
        if not self.jitter.latency:
            return None
        return latency_factors(self.jitter, self._numbers[op.name], op, self.wirings[op.name].transfers.src)

    def every_flow(self, teams: tuple[Collective, ...], known: Together) -> Use | None:
        """The uses of a line, none of them told as a whole channel's."""
        if known.followed or known.use is None:
            return known.use
        begun = [_begun(op, known.start[list(op.group)]) for op in teams]
        return _use_of_all(self._by_arrays(teams, begun, flow_by_flow=True))

    def _play(self, teams: tuple[Collective, ...], start: Floats) -> Together:
        begun = [_begun(op, start[list(op.group)]) for op in teams]
        found = self._by_arrays(teams, begun, flow_by_flow=False)
        use, followed = _use_of_all(found), False
        if use is not None and first_meeting(use):
            found = self._by_arrays(teams, begun, flow_by_flow=True)
            use, followed = _use_of_all(found), True
            met = first_meeting(use) if use is not None else None
            if use is not None and met is not None:
                if sum(len(self.wirings[name]) for name in found) > _MOST_FOLLOWED:
                    raise refuse(use, met, list(found), self.link_name)
                found = self._by_events(teams, begun)
                use = _use_of_all(found)
                # All flows of the line are one crowd now.
                use = use and replace(use, crowd=np.zeros_like(use.crowd))
        done = start.copy()
        for op, b in zip(teams, begun, strict=True):
            done[list(op.group)] = found[op.name].done if op.name in found else b
        return Together(start, done, tuple(found.get(op.name) for op in teams), use, followed)

    def _by_arrays(
        self, teams: Sequence[Collective], begun: Sequence[Floats], *, flow_by_flow: bool
    ) -> dict[str, Played]:
        return {
            op.name: self._shape(op).played(b, flow_by_flow=flow_by_flow)
            for op, b in zip(teams, begun, strict=True)
            if op.duration is None
        }

    def _by_events(self, teams: Sequence[Collective], begun: Sequence[Floats]) -> dict[str, Played]:
        """Follow all flows of all groups; what they do to each other is solved as it happens."""
        several = [(op, b) for op, b in zip(teams, begun, strict=True) if op.duration is None]
        ops, starts = [op for op, _ in several], [b for _, b in several]
        wirings = [self.wirings[op.name] for op in ops]
        rows = play_beside(ops, wirings, [self._noise(op) for op in ops], starts, self.capacity)
        found = {}
        for op, wiring, (done, times) in zip(ops, wirings, rows, strict=True):
            found[op.name] = told_by_flow(wiring, done, times, np.zeros(len(wiring), np.int64))
        return found

    def link_name(self, link: int) -> str:
        """Ranks' HBM is numbered behind the links."""
        links = len(self.cluster.router.bandwidth)
        return self.cluster.router.link_name(link) if link < links else f"HBM of rank {link - links}"


def _begun(op: Collective, start: Floats) -> Floats:
    """When each rank may send; where the collective's time is given, when it is through."""
    if op.duration is not None:
        return np.full(len(start), start.max() + op.duration)
    return (np.full(len(start), start.max()) if op.together else start) + op.startup


def _use_of_all(found: Mapping[str, Played]) -> Use | None:
    uses = [played.use for played in found.values() if played.use is not None]
    return joined(uses) if uses else None


def _rounded(relative: Floats, zero: float) -> Floats:
    """Without the digits that a difference of two late moments has lost."""
    grain = 4.0 * float(np.spacing(zero))
    return np.asarray(np.rint(relative / grain) * grain) if zero > 0.0 else relative
