"""Which figures can be drawn from runs, in a notebook or a script? Each function returns a matplotlib figure.

Rule: these are doors to the plots of `simulator run`, for who has runs in hand; nothing is drawn or chosen here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from simulator.cluster.cluster import Cluster
    from simulator.records.schedule import Schedule
    from simulator.report.numbers.scaling import ScalingPoint
    from simulator.report.plots.plot import CloseUp
    from simulator.run.played import Played

__all__ = [
    "bandwidth",
    "breakdown",
    "loss",
    "memory",
    "memory_by_stage",
    "memory_peaks",
    "pipeline",
    "steps",
    "throughput",
    "time_against_size",
    "time_against_workers",
    "timeline",
    "topology",
]


def bandwidth(run: Played) -> Figure:
    """How well is each link used over time? The busiest links of a run."""
    from simulator.report.plots.both.bandwidth_utilization import figure

    return figure(run.timeline)


def timeline(run: Played, ranks: Collection[int] | None = None) -> Figure:
    """What does each rank do when? All ranks' streams, or some ranks'."""
    from simulator.report.plots.both.timeline import figure

    told = run.timeline
    if ranks is not None:
        told = replace(told, spans=tuple(span for span in told.spans if span.rank in ranks))
    return figure(told)


def breakdown(runs: Mapping[str, Played]) -> Figure:
    """Where does the time of a training step go? A bar for each run, by its label."""
    from simulator.report.plots.training.breakdown import figure

    return figure(_rows(runs))


def loss(runs: Mapping[str, Played]) -> Figure:
    """How does the loss fall, over steps and over simulated time? A line for each run of a real training."""
    from simulator.report.plots.training.loss import figure

    return figure(_rows(runs))


def memory(run: Played, rank: int = 0) -> Figure:
    """What does one rank of a training step hold over time, against what its GPU has?"""
    from simulator.report.plots.training.memory import over_time

    samples = [sample for sample in run.timeline.memory if sample.rank == rank]
    return over_time(samples, _capacity(run), end=run.timeline.end)


def memory_peaks(runs: Mapping[str, Played]) -> Figure:
    """What is held when most is held? A bar for each training step, by its label."""
    from simulator.report.plots.training.memory_peaks import Peak, composition

    reports = {label: run.report.to_dict() for label, run in runs.items()}
    peaks = [Peak(label, tuple(report["peak_memory_by_category"].items())) for label, report in reports.items()]
    return composition(peaks, max(report["capacity_bytes"] for report in reports.values()))


def memory_by_stage(run: Played) -> Figure | None:
    """What does each stage of a pipeline hold at its peak? None where layers are not cut over ranks."""
    from simulator.report.plots.training.memory_by_stage import figure

    return figure(_close_up(run))


def pipeline(run: Played) -> Figure | None:
    """Which micro-batch passes through which stage when? None where layers are not cut over ranks, or over too many."""
    from simulator.report.plots.training.pipeline import figure

    return figure(_close_up(run))


def topology(cluster: Cluster) -> Figure:
    """What is joined to what? A cluster as `simulator.build_cluster` gives it."""
    from simulator.report.plots.topology import figure

    return figure(cluster)


def steps(schedule: Schedule) -> Figure:
    """Who holds what after each step of a collective's schedule?"""
    from simulator.report.plots.collective.steps import figure

    return figure(schedule)


def time_against_workers(points: Iterable[ScalingPoint]) -> Figure:
    """How does the time of a collective grow with workers? A panel for each size."""
    from simulator.report.plots.collective import scaling

    return scaling.time_against_workers(tuple(points))


def time_against_size(points: Iterable[ScalingPoint]) -> Figure:
    """How does the time of a collective grow with the array? A panel for each number of workers."""
    from simulator.report.plots.collective import scaling

    return scaling.time_against_size(tuple(points))


def throughput(rows: Iterable[tuple[str, int, float, float]]) -> Figure:
    """How does training scale with GPUs? From (label of the line, GPUs, tokens/s, MFU) of each point."""
    from simulator.report.plots.plot import Throughput
    from simulator.report.plots.training.scaling import figure

    return figure([Throughput(*row) for row in rows])


def _rows(runs: Mapping[str, Played]) -> list[tuple[str, dict[str, Any]]]:
    return [(label, run.report.to_dict()) for label, run in runs.items()]


def _capacity(run: Played) -> float:
    return float(run.report.to_dict()["capacity_bytes"])


def _close_up(run: Played) -> CloseUp:
    from simulator.report.plots.plot import CloseUp

    return CloseUp(run.timeline, _capacity(run))
