"""Many points: a scenario's compare and sweep multiplied out and played, here or on several processes.

Rule: a point's outcome depends on the point alone, so their order and the number of processes change nothing. A point
that fails is kept with its error; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any

from simulator.errors import ScenarioError, SimulationError, SimulatorError
from simulator.report.setting_text import entry_text, setting_text
from simulator.run import Run, simulate
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import resolved

if TYPE_CHECKING:
    import pandas as pd

Keep = Callable[[int, Run], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a point.

    Attributes
    ----------
    index : int
        Its place among the points.
    settings : mapping of str to Any
        What distinguishes it, as it was written.
    engine : str or None
        What played it; None if it failed.
    report : mapping of str to Any, or None
    error : str or None
    """

    index: int
    settings: Mapping[str, Any]
    engine: str | None
    report: Mapping[str, Any] | None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As one of the points of report.json."""
        told: dict[str, Any] = {"settings": dict(self.settings), "engine": self.engine, "report": self.report}
        return told if self.error is None else told | {"error": self.error}


def play_alone(index: int, point: Point, keep: Keep | None = None, *, limit_memory: bool = True) -> Outcome:
    """Play one point; `keep` is handed the run while it is at hand.

    Raises
    ------
    SimulatorError
        The point cannot be played.
    """
    run = simulate(point.scenario, limit_memory=limit_memory)
    if keep is not None:
        keep(index, run)
    return Outcome(index, point.settings, run.timeline.engine, run.report.to_dict())


def play_point(index: int, point: Point, keep: Keep | None = None) -> Outcome:
    """Play one of many points: an error is its outcome, and a step that does not fit is played on."""
    try:
        return play_alone(index, point, keep, limit_memory=False)
    except SimulatorError as error:
        return Outcome(index, point.settings, None, None, str(error))


def play_points(numbered: Sequence[tuple[int, Point]], jobs: int = 1, keep: Keep | None = None) -> Generator[Outcome]:
    """Play points and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    jobs : int
        Processes; with one, all are played here.
    keep : callable (int, Run), optional
        Called where the point is played; must be picklable if jobs > 1.

    Raises
    ------
    SimulationError
        A process was ended from outside.
    """
    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if jobs == 1 or len(numbered) < 2:
        for index, point in numbered:
            yield play_point(index, point, keep)
        return
    # Spawned, not forked: the parent may hold threads of numpy or of a notebook.
    pool = ProcessPoolExecutor(min(jobs, len(numbered)), mp_context=get_context("spawn"), initializer=_ignore_interrupt)
    futures = [pool.submit(play_point, index, point, keep) for index, point in numbered]
    try:
        for done in as_completed(futures):
            yield done.result()
    except BrokenProcessPool as error:
        raise SimulationError(
            "a process that played points was ended from outside, perhaps because memory ran out; take fewer --jobs"
        ) from error
    finally:
        _stop(pool, unfinished=not all(future.done() for future in futures))


def _stop(pool: ProcessPoolExecutor, *, unfinished: bool) -> None:
    """End the pool; where somebody gave up on it, without waiting for what it is at."""
    # Asked to cancel but not to wait, the pool would go on to the last point once nobody holds it any more.
    processes = list((pool._processes or {}).values())
    for process in processes if unfinished else ():
        process.terminate()
    pool.shutdown(wait=True, cancel_futures=True)


def _ignore_interrupt() -> None:
    """Ctrl-C is for the parent, which ends the pool; workers would only print tracebacks."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def sweep(
    scenario: Scenario | str | Mapping[str, Any], axes: Mapping[str, Sequence[Any]] | None = None, *, jobs: int = 1
) -> pd.DataFrame:
    """Play a scenario over axes and return a table.

    Parameters
    ----------
    scenario : Scenario, or what load_scenario takes
    axes : mapping of dotted key to values, optional
        Further axes, such as {"cluster.world_size": [2, 4, 8]}; they replace axes of the same key.
    jobs : int
        Processes.

    Returns
    -------
    pandas.DataFrame
        One row a point, in order: a column for each axis, then one for each report key ("bottleneck.link" for those of
        the bottleneck), `engine` and `error`.

    Raises
    ------
    ScenarioError
        An axis that the scenario cannot have.
    """
    import pandas as pd

    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    table = sorted(play_points(list(enumerate(points(with_axes(loaded, axes or {})))), jobs), key=lambda o: o.index)
    return pd.DataFrame([row(outcome) for outcome in table])


def with_axes(scenario: Scenario, axes: Mapping[str, Sequence[Any]]) -> Scenario:
    """Add axes to a scenario's sweep; checked like those of a file."""
    if not axes:
        return scenario
    data = resolved(replace(scenario, compare={k: v for k, v in scenario.compare.items() if k not in axes}))
    kept = {k: v for k, v in data.get("sweep", {}).items() if k not in axes}
    data["sweep"] = kept | {key: list(values) for key, values in axes.items()}
    try:
        checked = load_scenario(data)
    except ScenarioError as error:
        raise ScenarioError(str(error).replace("<dict>", scenario.source)) from error
    return replace(checked, source=scenario.source, base=scenario.base)


def row(outcome: Outcome) -> dict[str, Any]:
    """One outcome as a flat row of a table."""
    flat: dict[str, Any] = dict(outcome.settings)
    for key, value in (outcome.report or {}).items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat | {"engine": outcome.engine, "error": outcome.error}


# Settings whose values say by themselves what they are.
_BARE = ("algorithm", "topology", "operation", "dtype", "strategy", "sharding", "model", "attention", "faults")


def labelled(settings: Mapping[str, Any]) -> str:
    """Settings as a label for people.

    Examples
    --------
    >>> labelled({"collective.algorithm": "ring", "training.micro_batch_size": 2})
    'ring, micro batch size 2'
    """
    return ", ".join(_label(key, value) for key, value in settings.items())


def _label(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    return setting_text(value) if name in _BARE else entry_text(name, value)
