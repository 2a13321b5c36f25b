"""Simulates individually submitted points while further points run: here, on processes, or on a Dask cluster.

The caller chooses the next points by the outcomes that have returned. Outcomes return in any order. The caller asks for
the outcome of every submitted point; when the block ends, remaining points are dropped.
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
    """Simulates points submitted one by one, in any number."""

    def submit(self, point: NumberedPoint) -> None:
        """Submit a numbered point, to be simulated when a worker is free."""

    def outcome(self) -> PointOutcome:
        """Wait for the next outcome among the submitted points and return the outcome."""


@contextmanager
def open_player(backend: Backend, like: NumberedPoint, clusters: Clusters | None = None) -> Iterator[Player]:
    """Yield an object that simulates points submitted one by one, until the block ends.

    Parameters
    ----------
    backend : Backend
        Where points are simulated.
    like : NumberedPoint
        A point that names the same files as the points to come.
    clusters : Clusters, optional
        Cache of clusters, for points simulated in this process.

    Raises
    ------
    ScenarioError
        The cluster cannot be used.
    """
    backend.check()
    cache = None if backend.cache is None else Cache(backend.cache)
    if backend.scheduler is not None:
        with dask_cluster.submitted(backend.scheduler, [like]) as player:
            yield player if cache is None else _CachedPlayer(player, cache)
    elif backend.jobs in (None, 1):
        local = _LocalPlayer(clusters or Clusters())
        yield local if cache is None else _CachedPlayer(local, cache)
    else:
        with process_pool.staying(backend.jobs or 1, backend.pool) as player:
            yield player if cache is None else _CachedPlayer(player, cache)


@dataclass(slots=True)
class _LocalPlayer:
    """Simulates submitted points in this process, each when its outcome is requested."""

    clusters: Clusters
    waiting: deque[NumberedPoint] = field(default_factory=deque)

    def submit(self, point: NumberedPoint) -> None:
        self.waiting.append(point)

    def outcome(self) -> PointOutcome:
        index, point = self.waiting.popleft()
        return play_point(index, point, None, self.clusters)


@dataclass(slots=True)
class _CachedPlayer:
    """Looks submitted points up in the cache before their simulation, and caches their outcomes."""

    player: Player
    cache: Cache
    found: deque[PointOutcome] = field(default_factory=deque)  # cached outcomes, not yet returned
    missing: dict[int, tuple[NumberedPoint, str | None]] = field(default_factory=dict)  # submitted points, cache keys

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
