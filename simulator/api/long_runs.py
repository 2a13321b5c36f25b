"""How do Python users ask what is left of days with failures, and what jobs on one cluster cost each other?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.run.jobs.sharing import SharedRun, share
from simulator.run.reliability import question
from simulator.run.reliability.failures import DAY
from simulator.run.reliability.question import Goodput, GoodputQuestion
from simulator.scenario.days_file import RunOfDays, Save
from simulator.scenario.jobs_file import load_jobs
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario


def goodput(
    scenario: Scenario | str | Path | Mapping[str, Any],
    *,
    days: float | None = None,
    tokens: float | None = None,
    failures: float | None = None,
    mtbf: float | None = None,
    save: Save = "asynchronous",
    interval: float | None = None,
    storage: float | None = None,
    detection: float = 30.0,
    watchdog: float = 600.0,
    restart: float = 300.0,
    spares: int | None = None,
    repair: float = DAY,
    seed: int = 0,
) -> Goodput:
    """Find out how much work a training does in days with failures, and how often it should save.

    Parameters
    ----------
    scenario : Scenario or str or Path or mapping
        A training with a single point.
    days, tokens : float, optional
        Length of the run [days], or its work [tokens, samples]; one of the two.
    failures : float, optional
        Failures of a node in a day that stop the job; without `mtbf` the default is Llama 3's (3.79 of 1,000 nodes).
    mtbf : float, optional
        Mean time between failures of the whole job [s], in place of `failures`.
    save : {"asynchronous", "synchronous"}
        Whether the step goes on while a checkpoint travels from host memory to the storage.
    interval : float, optional
        Work between saves [s]; the best if omitted.
    storage : float, optional
        Rate of the storage for all GPUs together [B/s]; 160 MB/s for each GPU if omitted.
    detection, watchdog, restart : float
        Time until an error ends the job, until a hanging collective does, and from there to the first step without the
        load of the checkpoint [s].
    spares : int, optional
        Spare nodes; as many as needed if omitted.
    repair : float
        Time until a failed node is back [s].
    seed : int
        Seed of the failures.

    Returns
    -------
    Goodput
        `sentences` is the answer, `frame()` says where the time goes, `incidents()` lists the failures of a run.

    Raises
    ------
    ScenarioError
        The scenario has several points or is a collective, or a value is impossible.

    Examples
    --------
    >>> found = goodput("my_training.yaml", days=30.0)  # doctest: +SKIP
    >>> found.frame()  # doctest: +SKIP
    """
    read = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    # SI numbers, which the question checks; the keys of a file have units.
    run = RunOfDays.model_construct(
        days=days,
        tokens=tokens,
        failures=failures,
        mtbf=mtbf,
        save=save,
        interval=interval,
        storage=storage,
        detection=detection,
        watchdog=watchdog,
        restart=restart,
        spares=spares,
        repair=repair,
        seed=seed,
    )
    return question.goodput(GoodputQuestion(read, run))


def simulate_jobs(jobs: str | Path | Mapping[str, Any], *, shifts: int = 0) -> SharedRun:
    """Simulate several jobs on one cluster, alone and together, and return what they cost each other.

    Parameters
    ----------
    jobs : str or Path or mapping
        A shipped name, the path of a file of jobs, or its content.
    shifts : int
        Number of later starts of the last job that are tried, evenly over its step.

    Returns
    -------
    SharedRun
        `sentences` is the answer, `frame()` has a row for each job, `links` are the links that several jobs use.

    Raises
    ------
    ScenarioError
        A line for each fault of the file; or a job does not fit on its GPUs.

    Examples
    --------
    >>> simulate_jobs("two_jobs_one_fabric").sentences[0]
    'Job gpt2 loses most: 843.7 ms a step beside the others, 512.4 ms alone (1.65 times as long).'
    """
    return share(load_jobs(jobs), shifts=shifts)
