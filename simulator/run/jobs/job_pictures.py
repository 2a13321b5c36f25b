"""Pictures of several jobs: their steps beside each other and alone, the use of a shared link, and later starts."""

from __future__ import annotations

import numpy as np

from simulator.report.numbers.link_use import link_traffic, within_bandwidths
from simulator.report.plots.jobs import lanes, later_starts, link_shares
from simulator.report.plots.picture import Picture
from simulator.run.jobs.job_outcome import steps_at_work, timeline_of
from simulator.run.jobs.sharing import SharedRun


def pictures(run: SharedRun) -> tuple[Picture, ...]:
    """Return every picture for which a run has data."""
    candidates = lanes_picture(run), link_picture(run), shifts_picture(run)
    return tuple(picture for picture in candidates if picture is not None)


def lanes_picture(run: SharedRun) -> Picture:
    """Draw the steps of each job over time, and below them the same steps alone."""
    job_lanes = [lanes.JobLane(job.name, job.start, steps_at_work(run.timeline, job), job.alone) for job in run.jobs]
    return Picture("jobs", lanes.figure(job_lanes, run.sentences[0].rstrip(".")))


def link_picture(run: SharedRun) -> Picture | None:
    """Draw the use of the shared link whose bytes take longest over time, by job; None if jobs share no link."""
    if not run.links:
        return None
    link = run.links[0]
    traffic_of = {name: link_traffic(timeline_of(run.timeline, name), links=(link.name,)) for name in link.nbytes}
    # Every job has the same parts of the time, up to the end of the run.
    edges = max((traffic.edges for traffic in traffic_of.values()), key=lambda edges: float(edges[-1]))
    rates = np.stack([traffic.rates[0] for traffic in traffic_of.values()])
    shares = within_bandwidths(rates[None], np.array([link.bandwidth]))[0] / link.bandwidth
    return Picture("shared_link", link_shares.figure(link.name, edges, dict(zip(traffic_of, shares, strict=True))))


def shifts_picture(run: SharedRun) -> Picture | None:
    """Draw the slowdown of each job against the later start of the last job; None if none was tried."""
    if not run.shifts:
        return None
    slowdowns = {job.name: [job.slowdown, *(shift.slowdowns[job.name] for shift in run.shifts)] for job in run.jobs}
    title = run.shift_sentence.rstrip(".")
    delays = [0.0, *(shift.delay for shift in run.shifts)]
    return Picture("later_starts", later_starts.figure(run.jobs[-1].name, delays, slowdowns, title))
