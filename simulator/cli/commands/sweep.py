"""Simulate a scenario on several processes or machines.

The points and the meaning of --set are the same as for `run`. --resume continues an interrupted sweep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from simulator.cli.options import RunOptions, takes
from simulator.sweeps.process_pool import number_of_processes, preload


@dataclass(frozen=True, slots=True)
class SweepOptions(RunOptions):
    """Arguments and options of the command."""

    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes on this machine; the number of cores if omitted.")
    ] = None
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Simulate on a Dask cluster, tcp://HOST:PORT (extra `distributed`)."),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted sweep in --out.")] = False


@takes(SweepOptions)
def command(options: SweepOptions) -> None:
    """Simulate on worker processes of this machine, or on a Dask cluster."""
    jobs = number_of_processes(options.jobs, options.scheduler)
    # Workers start importing now, while this process imports the modules below and reads the scenario.
    pool = preload(__name__) if jobs and jobs > 1 else None
    from simulator.cli.commands.run import play

    play(options, jobs, options.scheduler, pool, resume=options.resume)
