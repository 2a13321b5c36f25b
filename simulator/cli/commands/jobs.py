"""Tell what several jobs on one cluster cost each other.

Each job is simulated alone, and then all together on the links that they share.
"""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.cli.completion import names_of
from simulator.cli.options import AnswerOut, AsJson, NoPlugins


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="JOBS", help="Shipped name, or path to a file of jobs.", autocompletion=names_of("jobs")
        ),
    ],
    shifts: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="Try N later starts of the last job, within its step.")
    ] = 0,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.cli.answer_output import give
    from simulator.results.answer_directory import claimed
    from simulator.results.presentation import Presentation
    from simulator.run.jobs.job_pictures import pictures
    from simulator.run.jobs.sharing import share
    from simulator.scenario.jobs_file import load_jobs

    file = load_jobs(source)
    with claimed(out):
        run = share(file, shifts=shifts)
        # Steps are many, and in the files alone.
        tables = [table for table in run.tables if table.name != "steps"]
        subject = f"{file.source}: {', '.join(job.name for job in run.jobs)}"
        plots = pictures(run) if out else ()
        answer = Presentation(file.question, subject, run.sentences, run.to_dict(), run.tables, plots)
        give(answer, tables, out, as_json=as_json)
