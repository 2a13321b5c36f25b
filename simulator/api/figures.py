"""Which figures can be drawn from runs, in a notebook or a script? Each function returns a matplotlib figure.

The functions call the plots of `simulator run`, for users with runs in hand; they draw and choose nothing themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from simulator.cluster.cluster import Cluster
    from simulator.records.schedule import Schedule
    from simulator.report.numbers.algorithm_crossovers import ScalingPoint
    from simulator.report.plots.picture import Picture
    from simulator.report.plots.plot import CloseUp
    from simulator.run.jobs.sharing import SharedRun
    from simulator.run.point_result import PointResult
    from simulator.run.reliability.question import Goodput

__all__ = [
    "bandwidth",
    "breakdown",
    "incidents",
    "job_steps",
    "later_starts",
    "loss",
    "memory",
    "memory_by_stage",
    "memory_peaks",
    "outcomes",
    "pipeline",
    "save_intervals",
    "shared_link",
    "speedup",
    "steps",
    "throughput",
    "time_against_size",
    "time_against_workers",
    "timeline",
    "topology",
    "values",
    "waterfall",
]


def bandwidth(run: PointResult) -> Figure:
    """Draw the use of a run's busiest links over time."""
    # Plots are imported late in every function: matplotlib takes long to load.
    from simulator.report.plots.both.bandwidth_utilization import figure

    return figure(run.timeline)


def timeline(run: PointResult, ranks: Collection[int] | None = None) -> Figure:
    """Draw each rank's streams over time, for every rank or for `ranks`."""
    from simulator.report.plots.both.timeline import figure

    record = run.timeline
    if ranks is not None:
        # The plot draws every rank with a span.
        record = replace(record, spans=tuple(span for span in record.spans if span.rank in ranks))
    return figure(record)


def breakdown(runs: Mapping[str, PointResult]) -> Figure:
    """Draw the parts of a training step's time: a bar for each run, by label."""
    from simulator.report.plots.training.breakdown import figure

    # The plot takes reports as plain data, as stored by a sweep.
    return figure(_rows(runs))


def loss(runs: Mapping[str, PointResult]) -> Figure:
    """Draw the loss over steps and over simulated time: a line for each run of real training."""
    from simulator.report.plots.training.loss import figure

    return figure(_rows(runs))


def memory(run: PointResult, rank: int = 0) -> Figure:
    """Draw a rank's memory over time in a training step, with its GPU's capacity."""
    from simulator.report.plots.training.memory import finding, over_time

    samples = [sample for sample in run.timeline.memory if sample.rank == rank]
    margin = _close_up(run).margin
    return over_time(samples, _capacity(run), end=run.timeline.end, title=finding(samples, margin))


def memory_peaks(runs: Mapping[str, PointResult]) -> Figure:
    """Draw the memory categories at the peak: a bar for each training step, by label."""
    from simulator.report.plots.training.memory_peaks import composition, peak_of_report

    # Categories at the peak, not each category's own peak.
    peaks = [peak_of_report(label, report) for label, report in _rows(runs)]
    # Runs may use different GPUs: draw the largest capacity.
    return composition(peaks, max(map(_capacity, runs.values())))


def memory_by_stage(run: PointResult) -> Figure | None:
    """Draw each pipeline stage's memory at its peak; return None without pipeline parallelism."""
    from simulator.report.plots.training.memory_by_stage import figure

    return figure(_close_up(run))


def pipeline(run: PointResult) -> Figure | None:
    """Draw micro-batches passing through pipeline stages; return None without a pipeline, or with too many ranks."""
    from simulator.report.plots.training.pipeline import figure

    return figure(_close_up(run))


def topology(cluster: Cluster) -> Figure:
    """Draw the links of a cluster returned by `simulator.build_cluster`."""
    from simulator.report.plots.topology import figure

    return figure(cluster)


def steps(schedule: Schedule) -> Figure:
    """Draw the chunks held by each rank after each step of a collective's schedule."""
    from simulator.report.plots.collective.steps import figure

    return figure(schedule)


def time_against_workers(points: Iterable[ScalingPoint]) -> Figure:
    """Draw a collective's time over the number of workers, with a panel for each size."""
    from simulator.report.plots.collective import scaling

    # Sizes and numbers of workers come from the points themselves.
    return scaling.time_against_workers(tuple(points))


def time_against_size(points: Iterable[ScalingPoint]) -> Figure:
    """Draw a collective's time over the array size, with a panel for each number of workers."""
    from simulator.report.plots.collective import scaling

    return scaling.time_against_size(tuple(points))


def speedup(table: pd.DataFrame, label: str | None = None) -> Figure:
    """Draw the speedup of training steps over the number of GPUs, with the line of an ideal speedup.

    Parameters
    ----------
    table : DataFrame
        Result of `simulator.sweep`, with several values of `cluster.world_size`.
    label : str, optional
        Column whose values name the lines: "training.sharding"; a single line if omitted.

    Raises
    ------
    ValueError
        The table has no `speedup`: no training steps, or a single number of GPUs.
    """
    from simulator.report.plots.training.scaling import speedup_figure

    return speedup_figure(table, label)


def throughput(rows: Iterable[tuple[str, int, float, float]]) -> Figure:
    """Draw training throughput over GPUs; each row is (line label, GPUs, tokens/s, MFU)."""
    from simulator.report.plots.plot import Throughput
    from simulator.report.plots.training.scaling import figure

    return figure([Throughput(*row) for row in rows])


def waterfall(goodput: Goodput) -> Figure:
    """Draw where the time of a training of days goes: the whole time, and the losses one after another."""
    from simulator.run.reliability.goodput_pictures import waterfall_picture

    return waterfall_picture(goodput).figure


def incidents(goodput: Goodput) -> Figure | None:
    """Draw the failures of the first run on a calendar; return None if nothing stopped the run."""
    from simulator.run.reliability.goodput_pictures import incidents_picture

    return _figure(incidents_picture(goodput))


def outcomes(goodput: Goodput) -> Figure | None:
    """Draw the share of the runs that have ended by a day, or that do some work; return None if all runs are equal."""
    from simulator.run.reliability.goodput_pictures import runs_picture

    return _figure(runs_picture(goodput))


def save_intervals(goodput: Goodput) -> Figure | None:
    """Draw the useful share of the time against the interval between saves; return None without failures."""
    from simulator.run.reliability.goodput_pictures import intervals_picture

    return _figure(intervals_picture(goodput))


def values(goodputs: Mapping[str, Goodput], along: str) -> Figure:
    """Draw where the time goes with each value of a fact; `along` is the fact's name."""
    from simulator.run.reliability.goodput_pictures import values_picture
    from simulator.run.reliability.question import GoodputComparison

    return values_picture(GoodputComparison(along, tuple(goodputs), tuple(goodputs.values()))).figure


def job_steps(run: SharedRun) -> Figure:
    """Draw the steps of each job over time, and below them the same steps without the other jobs."""
    from simulator.run.jobs.job_pictures import lanes_picture

    return lanes_picture(run).figure


def shared_link(run: SharedRun) -> Figure | None:
    """Draw the use of the shared link whose bytes take longest, by job; return None if jobs share no link."""
    from simulator.run.jobs.job_pictures import link_picture

    return _figure(link_picture(run))


def later_starts(run: SharedRun) -> Figure | None:
    """Draw the slowdown of each job against the later start of the last job; return None if none was tried."""
    from simulator.run.jobs.job_pictures import shifts_picture

    return _figure(shifts_picture(run))


def _figure(picture: Picture | None) -> Figure | None:
    return None if picture is None else picture.figure


def _rows(runs: Mapping[str, PointResult]) -> list[tuple[str, dict[str, Any]]]:
    """Return the label and the report of each run."""
    return [(label, run.report.to_dict()) for label, run in runs.items()]


def _capacity(run: PointResult) -> float:
    """Return the GPU's memory capacity [B]."""
    return float(run.report.to_dict()["capacity_bytes"])


def _close_up(run: PointResult) -> CloseUp:
    """Return a run in the form used by plots of a single point."""
    from simulator.report.plots.plot import CloseUp

    return CloseUp(run.timeline, _capacity(run))
