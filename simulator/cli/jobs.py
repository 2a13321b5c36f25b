"""`simulator jobs`: what do several jobs on one cluster cost each other?"""

from __future__ import annotations

from pathlib import Path

from simulator.cli.answer_output import give
from simulator.jobs.pictures import pictures
from simulator.jobs.sharing import share
from simulator.results.answer_directory import claimed
from simulator.results.presentation import Presentation
from simulator.scenario.jobs_file import load_jobs


def show(source: str, shifts: int, out: Path | None, *, as_json: bool) -> None:
    """Simulate the jobs of a file together, print what they cost each other, and write it to `out` if given.

    `shifts` later starts are tried.
    """
    file = load_jobs(source)
    with claimed(out):
        run = share(file, shifts=shifts)
        # Steps are many, and in the files alone.
        shown = [table for table in run.tables if table.name != "steps"]
        subject = f"{file.source}: {', '.join(job.name for job in run.jobs)}"
        drawn = pictures(run) if out else ()
        answer = Presentation(file.question, subject, run.sentences, run.to_dict(), run.tables, drawn)
        give(answer, shown, out, as_json=as_json)
