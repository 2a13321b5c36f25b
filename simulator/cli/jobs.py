"""`simulator jobs`: what do several jobs on one cluster cost each other?"""

from __future__ import annotations

import json
from typing import Final

import typer

from simulator.basics.units import format_bandwidth, format_bytes, format_time
from simulator.cli.console import print_table, print_text
from simulator.jobs.sharing import SharedRun, share
from simulator.report.tables.layout import Column
from simulator.scenario.jobs_file import load_jobs

# Shared links in the table.
_LINKS: Final = 5


def show(source: str, shifts: int, *, as_json: bool) -> None:
    """Simulate the jobs of a file together, and print what they cost each other; `shifts` later starts are tried."""
    run = share(load_jobs(source), shifts=shifts)
    if as_json:
        typer.echo(json.dumps(run.to_dict(), indent=2))
    else:
        _print(run)


def _print(run: SharedRun) -> None:
    if run.file.question:
        print_text(f"{run.file.question}\n")
    for sentence in run.sentences:
        print_text(sentence)
    print_text("\nTime of a step, or of a batch where a job only generates")
    columns = (Column("job", left=True), Column("GPUs"), Column("steps"), Column("alone"), Column("together"))
    rows = [
        [job.name, str(job.ranks), str(len(job.step_ends)), format_time(job.alone), format_time(job.together),
         f"{job.slowdown:.3f}"]
        for job in run.jobs
    ]  # fmt: skip
    print_table((*columns, Column("slowdown")), rows, keys=(0,), indent="  ")
    if run.links:
        print_text("\nLinks that several jobs use, the one whose bytes take longest first")
        names = [job.name for job in run.jobs]
        rows = [
            [link.name, format_bandwidth(link.bandwidth), *(_size(link.nbytes.get(name, 0.0)) for name in names)]
            for link in run.links[:_LINKS]
        ]
        print_table((Column("link", left=True), Column("bandwidth"), *map(Column, names)), rows, keys=(0,), indent="  ")
        if len(run.links) > _LINKS:
            print_text(f"  and {len(run.links) - _LINKS} more; --json lists all")
    if run.shifts:
        print_text(f"\nSlowdown if job {run.jobs[-1].name} starts later")
        names = [job.name for job in run.jobs]
        rows = [[format_time(shift.delay), *(f"{shift.slowdowns[name]:.3f}" for name in names)] for shift in run.shifts]
        print_table((Column("later by"), *map(Column, names)), rows, keys=(0,), indent="  ")


def _size(nbytes: float) -> str:
    return format_bytes(nbytes) if nbytes else "-"
