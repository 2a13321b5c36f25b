"""Plays all points of a sweep: in this process, on several processes, or on a Dask cluster.

Rule: a point's outcome depends on the point alone, so it does not matter where it is played. A point that fails is kept
with its error; the others go on.
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
from simulator.run.size import warn_of_size
from simulator.scenario.load import check_scenario, load_scenario, points
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps import dask_cluster, process_pool
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.cache import Cache
from simulator.sweeps.outcome import NumberedPoint, RunHandler, play_alone, play_point
from simulator.sweeps.table import frame

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Backend:
    """What plays the points, and the folder in which their outcomes are cached.

    Attributes
    ----------
    jobs : int or None
        Processes of this machine; with one, or none given, all are played here.
    scheduler : str or None
        "tcp://HOST:PORT" of a Dask cluster that plays instead.
    cache : Path or None
        Folder of outcomes that were kept; see `simulator.sweeps.cache`.
    pool : WorkerPool or None
        Processes that import in advance; see `simulator.sweeps.process_pool.preload`.
    """

    jobs: int | None = None
    scheduler: str | None = None
    cache: Path | None = None
    pool: process_pool.WorkerPool | None = None

    def check(self) -> None:
        """Refuse options that cannot be used together, or not here, before anything is played.

        Raises
        ------
        ScenarioError
            No address of a scheduler, or Dask is not installed.
        ValueError
            Fewer than one process.
        """
        if self.jobs is not None and self.jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {self.jobs}")
        if self.scheduler is not None:
            if self.jobs is not None:
                raise ScenarioError(
                    "--scheduler: goes without --jobs, for a cluster has its own processes; leave one of the two out"
                )
            dask_cluster.check(self.scheduler)


def play_points(
    numbered: Sequence[NumberedPoint],
    backend: Backend | int = 1,
    keep: RunHandler | None = None,
    *,
    alone: bool = False,
) -> Generator[PointOutcome]:
    """Play points and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    backend : Backend or int
        What plays them; a number is that of processes.
    keep : callable (int, Run), optional
        Called where the point is played; must be picklable for other processes, and an ArtifactWriter for Dask.
    alone : bool
        Whether a point's error is raised instead of being its outcome, and memory is limited.

    Raises
    ------
    ScenarioError
        A cluster that cannot be used, or a cache that cannot be written.
    SimulationError
        Processes end before they can play anything, or the cluster went away.
    """
    backend = Backend(backend) if isinstance(backend, int) else backend
    backend.check()
    if backend.cache is None:
        yield from _played(numbered, backend, keep, alone=alone)
        return
    cache = Cache(backend.cache, limit_memory=alone)
    missing = {}
    for numbered_point in numbered:
        key = cache.key(numbered_point[1].scenario)
        outcome = cache.find(numbered_point, key)
        if outcome is None:
            missing[numbered_point[0]] = (numbered_point, key)
        else:
            yield outcome
    with closing(
        _played([numbered_point for numbered_point, _ in missing.values()], backend, keep, alone=alone)
    ) as outcomes:
        for outcome in outcomes:
            (_, point), key = missing[outcome.index]
            cache.keep(outcome, point.scenario, key)
            yield outcome


def _played(
    numbered: Sequence[NumberedPoint], backend: Backend, keep: RunHandler | None, *, alone: bool
) -> Generator[PointOutcome]:
    if backend.scheduler is not None and numbered:
        if keep is not None and not isinstance(keep, ArtifactWriter):
            raise TypeError(f"what a Dask cluster keeps must be an ArtifactWriter, got {type(keep).__name__}")
        yield from dask_cluster.play(numbered, backend.scheduler, keep, alone=alone)
    elif backend.jobs in (None, 1) or len(numbered) < 2:
        play_one, clusters = (play_alone if alone else play_point), Clusters()
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
    """Play a scenario over axes and return a table.

    Parameters
    ----------
    scenario : Scenario, or what load_scenario takes
    axes : mapping of dotted key to values, optional
        Further axes, such as {"cluster.world_size": [2, 4, 8]}; they replace axes of the same key.
    jobs : int, optional
        Processes of this machine; all is played in this one if it is left out.
    scheduler : str, optional
        "tcp://HOST:PORT" of a Dask cluster that plays instead; needs the extra `distributed`.
    cache : path, optional
        Folder in which outcomes are kept, and looked up before they are played.

    Returns
    -------
    pandas.DataFrame
        One row a point, in order: a column for each axis, then one for each report key ("bottleneck.link" for those of
        the bottleneck), `engine` and `error`.

    Raises
    ------
    ScenarioError
        An axis that the scenario cannot have; a cluster or a cache that cannot be used.
    SimulationError
        Processes end before they can play anything, or the cluster went away.

    Warns
    -----
    ScenarioWarning
        A key changes no number in any point, told once; or a point takes long.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    backend.check()
    swept = with_axes(loaded, axes or {})
    warn_of(swept)
    found = points(swept)
    warn_of_size(point.scenario for point in found)
    outcomes = play_points(list(enumerate(found)), backend)
    return frame(sorted(outcomes, key=lambda outcome: outcome.index))


def with_axes(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> Scenario:
    """Add axes to a scenario's sweep; checked like those of a file."""
    if not axes:
        return scenario
    compare, sweep = ({k: v for k, v in old.items() if k not in axes} for old in (scenario.compare, scenario.sweep))
    swept = scenario.replaced(compare=compare, sweep=sweep | {key: tuple(values) for key, values in axes.items()})
    return check_scenario(resolved(swept), scenario.source, scenario.base)
