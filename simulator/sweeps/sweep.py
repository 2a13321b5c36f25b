"""Simulates every point of a sweep: in this process, on several processes, or on a Dask cluster.

A point's outcome depends only on the point; the place of simulation does not matter. A failed point is stored with
its error, and the other points continue.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.errors import ScenarioError
from simulator.run.checks import warn_of
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.run.size_estimate import warn_of_size
from simulator.scenario.load import check_scenario, load_scenario, points
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps import dask_cluster, process_pool
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.cache import Cache
from simulator.sweeps.outcome import NumberedPoint, RunHandler, play_alone, play_point
from simulator.sweeps.outcome_table import frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Backend:
    """The place where points are simulated (process, processes or Dask cluster), and the folder for cached outcomes."""

    jobs: int | None = None  # number of processes on this machine; with 1 or None, points are simulated in this process
    scheduler: str | None = None  # "tcp://HOST:PORT" of a Dask cluster to use instead
    cache: Path | None = None  # folder with cached outcomes; see `simulator.sweeps.cache`
    # Processes that import in advance; see `simulator.sweeps.process_pool.preload`
    pool: process_pool.WorkerPool | None = None

    def check(self) -> None:
        """Raise an error if an option of the backend is unusable here or together with the others.

        Raises
        ------
        ScenarioError
            Invalid address of a scheduler, or Dask is not installed.
        ValueError
            Less than one process.
        """
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")
        if self.scheduler is not None:
            if self.jobs is not None:
                raise ScenarioError(
                    "--scheduler: excludes --jobs, because a Dask cluster has its own processes; omit one option"
                )
            dask_cluster.check(self.scheduler)


def play_points(
    numbered: Sequence[NumberedPoint],
    backend: Backend | int = 1,
    keep: RunHandler | None = None,
    *,
    strict: bool = False,
) -> Generator[PointOutcome]:
    """Simulate numbered points and yield their outcomes in order of completion, cached outcomes first.

    Parameters
    ----------
    numbered : sequence of (int, Point)
        Points with their numbers.
    backend : Backend or int
        Where to simulate; a number means that number of processes.
    keep : callable (int, Run), optional
        Called in the process that simulates the point; picklable for other processes, an ArtifactWriter for Dask.
    strict : bool
        Whether a point's error is raised instead of stored in its outcome, and memory is limited.

    Raises
    ------
    ScenarioError
        The cluster cannot be used, or the cache cannot be written.
    SimulationError
        Processes end before they are ready, or the connection to the cluster was lost.
    """
    backend = Backend(backend) if isinstance(backend, int) else backend
    backend.check()
    if backend.cache is None:
        yield from _outcomes(numbered, backend, keep, strict=strict)
        return
    cache = Cache(backend.cache, limit_memory=strict)
    missing = {}
    for numbered_point in numbered:
        # The key includes file contents: compute the key before the simulation, and check the key again afterwards.
        key = cache.key(numbered_point[1].scenario)
        outcome = cache.find(numbered_point, key)
        if outcome is None:
            missing[numbered_point[0]] = (numbered_point, key)
        else:
            yield outcome
    # Closed explicitly: if the caller stops iterating, workers must stop now, not when the garbage collector runs.
    with closing(
        _outcomes([numbered_point for numbered_point, _ in missing.values()], backend, keep, strict=strict)
    ) as outcomes:
        for outcome in outcomes:
            (_, point), key = missing[outcome.index]
            cache.keep(outcome, point.scenario, key)
            yield outcome


def _outcomes(
    numbered: Sequence[NumberedPoint], backend: Backend, keep: RunHandler | None, *, strict: bool
) -> Generator[PointOutcome]:
    if backend.scheduler is not None and numbered:
        if keep is not None and not isinstance(keep, ArtifactWriter):
            raise TypeError(f"a Dask cluster needs an ArtifactWriter to keep files, got {type(keep).__name__}")
        yield from dask_cluster.play(numbered, backend.scheduler, keep, strict=strict)
    elif backend.jobs in (None, 1) or len(numbered) < 2:
        # A single process, or a single point, needs no pool.
        play_one, clusters = (play_alone if strict else play_point), Clusters()
        for index, point in numbered:
            yield play_one(index, point, keep, clusters)
    else:
        yield from process_pool.play(numbered, backend.jobs or 1, keep, backend.pool)


def sweep(
    scenario: Scenario | str | Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: Path | str | None = None,
) -> pd.DataFrame:
    """Simulate a scenario over axes and return a table with a row per point.

    Parameters
    ----------
    scenario : Scenario, or anything that load_scenario accepts
        The scenario.
    axes : mapping of dotted key to values, optional
        Further axes, such as {"cluster.world_size": [2, 4, 8]}; they replace the scenario's axes for the same keys.
    jobs : int, optional
        Number of processes on this machine; by default, points are simulated in this process.
    scheduler : str, optional
        "tcp://HOST:PORT" of a Dask cluster to use instead; needs the extra `distributed`.
    cache : path, optional
        Folder in which outcomes are cached, and looked up before a simulation.

    Returns
    -------
    pandas.DataFrame
        A row per point, in order: a column for each axis, then a column for each report key ("bottleneck.link" for keys
        inside the bottleneck), `engine` and `error`.

    Raises
    ------
    ScenarioError
        Invalid axis, or unusable cluster or cache.
    SimulationError
        Processes end before they are ready, or the connection to the cluster was lost.

    Warns
    -----
    ScenarioWarning
        A key has no effect in any point (reported once), or a point takes long.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    backend.check()
    swept = with_axes(loaded, axes or {})
    # Warnings concern the whole sweep, so each is reported once, not per point.
    warn_of(swept)
    all_points = points(swept)
    warn_of_size(point.scenario for point in all_points)
    outcomes = play_points(list(enumerate(all_points)), backend)
    return frame(sorted(outcomes, key=lambda outcome: outcome.index))


def with_axes(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> Scenario:
    """Return a scenario with further axes in its sweep, checked like axes in a file."""
    if not axes:
        return scenario
    # A key may be an axis only once, so new values replace the axis under `compare` or `sweep`.
    compare, sweep = ({k: v for k, v in old.items() if k not in axes} for old in (scenario.compare, scenario.sweep))
    swept = scenario.replaced(compare=compare, sweep=sweep | {key: tuple(values) for key, values in axes.items()})
    return check_scenario(resolved(swept), scenario.source, scenario.base)
