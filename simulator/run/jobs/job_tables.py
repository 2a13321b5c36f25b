"""Tables of an answer on jobs: the jobs, their steps, the links that they share, and later starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.basics.units import format_bandwidth, format_bytes, format_time
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.run.jobs.job_outcome import FELT, JobOutcome, SharedLink, Shift

# Rows for readers.
_LINKS: Final = 5
_STEPS: Final = 20


def job_table(jobs: Sequence[JobOutcome]) -> AnswerTable:
    """Return a row for each job: GPUs, nodes, leaf switches, start [s], steps, step time alone and together [s],
    slowdown, bytes sent [B]; if slow links cost a job time, also the step time alone on healthy links [s].
    """
    slow = any(job.slowdown_by_links > 1.0 + FELT for job in jobs)
    columns = (
        AnswerColumn("job", "job", left=True),
        AnswerColumn("gpus", "GPUs"),
        AnswerColumn("nodes", "nodes", _number),
        AnswerColumn("leaf_switches", "leaf switches", _number),
        AnswerColumn("start_s"),
        AnswerColumn("steps", "steps"),
        *([AnswerColumn("healthy_links_s", "healthy links", format_time)] if slow else []),
        AnswerColumn("alone_s", "alone", format_time),
        AnswerColumn("together_s", "together", format_time),
        AnswerColumn("slowdown", "slowdown", _factor),
        AnswerColumn("wire_bytes"),
    )
    rows = [
        (
            job.name, job.ranks, job.nodes, len(job.leaf_switches), job.start, len(job.step_ends),
            *([job.healthy] if slow else []), job.alone, job.together, job.slowdown, job.nbytes,
        )
        for job in jobs
    ]  # fmt: skip
    return AnswerTable("jobs", "Time of a step (of a batch, for jobs that only generate)", columns, rows)


def step_table(jobs: Sequence[JobOutcome]) -> AnswerTable:
    """Return a row for each step of each job: when it ends and its time [s], and whether the slowdown counts it."""
    columns = (
        AnswerColumn("job", "job", left=True),
        AnswerColumn("step", "step"),
        AnswerColumn("end_s", "ends at", format_time),
        AnswerColumn("time_s", "time", format_time),
        AnswerColumn("judged", "counts", left=True),
    )
    rows = [
        (job.name, step, end, time, "yes" if step in job.judged else "no")
        for job in jobs
        for step, (end, time) in enumerate(zip(job.step_ends, job.step_times, strict=True))
    ]
    title = "Steps of each job; a step counts for the mean time together if every other job was running"
    return AnswerTable("steps", title, columns, rows, most=_STEPS)


def link_table(links: Sequence[SharedLink], jobs: Sequence[str]) -> AnswerTable:
    """Return a row for each link that several jobs use: its bandwidth [B/s], and the bytes of each job [B]."""
    columns = (
        AnswerColumn("link", "link", left=True),
        AnswerColumn("bandwidth_bytes_per_s", "bandwidth", format_bandwidth),
        *(AnswerColumn(f"{name}_bytes", name, _size) for name in jobs),
    )
    rows = [(link.name, link.bandwidth, *(link.nbytes.get(name, 0.0) for name in jobs)) for link in links]
    title = "Links that several jobs use, the one whose bytes take longest first"
    return AnswerTable("shared_links", title, columns, rows, most=_LINKS)


def shift_table(shifts: Sequence[Shift], jobs: Sequence[str]) -> AnswerTable:
    """Return a row for each later start of the last job [s], with the slowdown of each job."""
    columns = (
        AnswerColumn("delay_s", "later by", format_time),
        *(AnswerColumn(f"{name}_slowdown", name, _factor) for name in jobs),
    )
    rows = [(shift.delay, *(shift.slowdowns[name] for name in jobs)) for shift in shifts]
    return AnswerTable("shifts", f"Slowdown if job {jobs[-1]} starts later", columns, rows)


def _number(number: int | None) -> str:
    return str(number) if number else "-"


def _factor(number: float) -> str:
    return f"{number:.3f}"


def _size(nbytes: float) -> str:
    return format_bytes(nbytes) if nbytes else "-"
