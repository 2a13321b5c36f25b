"""Plays points that come one by one, while others are played: here, on processes, or on a Dask cluster.

Rule: who hands points over decides by what has come back which are next, so points come back in any order, and all that
were submitted are asked for before the next one is chosen, or are dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.sweeps import dask_cluster, process_pool
from simulator.sweeps.cache import Cache
from simulator.sweeps.outcome import NumberedPoint, play_point
from simulator.sweeps.sweep import Backend


class Player(Protocol):
    """Plays points."""

    def submit(self, point: NumberedPoint) -> None:
        """Take a point; it is played when there is room."""

    def outcome(self) -> PointOutcome:
        """Wait for an outcome of what was submitted."""


@contextmanager
def playing(backend: Backend, like: NumberedPoint, clusters: Clusters | None = None) -> Iterator[Player]:
    """What plays points until the block ends.

    Parameters
    ----------
    backend : Backend
    like : NumberedPoint
        A point that names the same files as those to come.
    clusters : Clusters, optional
        For what is played in this process.

    Raises
    ------
    ScenarioError
        A cluster that cannot be used.
    """
    backend.check()
    kept = None if backend.cache is None else Cache(backend.cache)
    if backend.scheduler is not None:
        with dask_cluster.submitted(backend.scheduler, [like]) as player:
            yield player if kept is None else _Kept(player, kept)
    elif backend.jobs in (None, 1):
        here = _Here(clusters or Clusters())
        yield here if kept is None else _Kept(here, kept)
    else:
        with process_pool.staying(backend.jobs or 1, backend.pool) as player:
            yield player if kept is None else _Kept(player, kept)


@dataclass(slots=True)
class _Here:
    """Plays in this process, when an outcome is asked for."""

    clusters: Clusters
    waiting: deque[NumberedPoint] = field(default_factory=deque)

    def submit(self, point: NumberedPoint) -> None:
        self.waiting.append(point)

    def outcome(self) -> PointOutcome:
        index, point = self.waiting.popleft()
        return play_point(index, point, None, self.clusters)


@dataclass(slots=True)
class _Kept:
    """Looks points up before they are played, and keeps their outcomes."""

    player: Player
    cache: Cache
    found: deque[PointOutcome] = field(default_factory=deque)
    missing: dict[int, tuple[NumberedPoint, str | None]] = field(default_factory=dict)

    def submit(self, point: NumberedPoint) -> None:
        key = self.cache.key(point[1].scenario)
        outcome = self.cache.find(point, key)
        if outcome is None:
            self.missing[point[0]] = point, key
            self.player.submit(point)
        else:
            self.found.append(outcome)

    def outcome(self) -> PointOutcome:
        if self.found:
            return self.found.popleft()
        outcome = self.player.outcome()
        point, key = self.missing.pop(outcome.index)
        self.cache.keep(outcome, point[1].scenario, key)
        return outcome
