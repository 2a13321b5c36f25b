"""Simulate the points of a scenario, one after another.

A point is one combination of the values in the scenario's `compare` and `sweep`. The command `sweep` simulates
points on several processes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from simulator.basics.errors import ScenarioError
from simulator.basics.optional_packages import require_package
from simulator.cli.options import RunOptions, takes
from simulator.cli.settings import as_full, as_overrides, as_ranks

if TYPE_CHECKING:
    from simulator.sweeps.process_pool import WorkerPool


@takes(RunOptions)
def command(options: RunOptions) -> None:
    """Simulate in this process."""
    play(options)


def play(
    options: RunOptions,
    jobs: int | None = None,
    scheduler: str | None = None,
    pool: WorkerPool | None = None,
    *,
    resume: bool = False,
) -> None:
    """Simulate a scenario, write its run directory, and print the results; `resume` continues the run in --out.

    `jobs`, `scheduler` and `pool` say where, as in `Backend`.
    """
    # The reported wall time includes reading and checking.
    began = time.perf_counter()
    # Refused before anything is read.
    as_ranks(options.ranks)
    as_full(options.table)
    _check(options)
    engine = [f"engine={options.engine}"] if options.engine else []
    from simulator.scenario.load import load_scenario

    scenario = load_scenario(options.scenario, as_overrides([*(options.settings or ()), *engine]))
    # Imported late: a refused scenario needs nothing that simulates.
    from simulator.cli.point_runs import simulate
    from simulator.sweeps.sweep import Backend

    backend = Backend(jobs, scheduler, options.cache, pool)
    backend.check()
    simulate(scenario, options, backend, began, resume=resume)


def _check(options: RunOptions) -> None:
    """Raise an error for incompatible options, and for packages not installed, before any simulation."""
    if options.svg and options.as_json:
        raise ScenarioError("--svg: excludes --json, because --json draws no pictures; omit one option")
    if options.parquet:
        require_package("--parquet", "pyarrow", "parquet")
    # A point from the cache was simulated elsewhere and left no such files.
    left = {"--transfers": options.transfers, "--trace": options.trace, "--ranks": options.ranks is not None}
    option = next((name for name, value in left.items() if value), None)
    if options.cache is not None and option is not None:
        raise ScenarioError(f"{option}: excludes --cache, because cached points have no timeline; omit one option")
