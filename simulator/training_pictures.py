"""Pictures of training scenarios: where the time goes, memory over time, lanes, links, and how it scales.

Rule: chooses and names, as pictures.py does for collectives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.points.outcome import Outcome
from simulator.run import Run, build_cluster, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario
from simulator.sweeping import labelled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More close-ups than this are not drawn: a sweep of hundreds would leave hundreds of pictures.
_CLOSE_UPS = 8

# Beyond this many transfers the bandwidth of links is not drawn over time.
_MOST_DRAWN: Final = 5_000_000


def figures(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Figure]]:
    """Each picture with its file's name."""
    from simulator.report import (
        plot_bandwidth,
        plot_breakdown,
        plot_loss,
        plot_memory,
        plot_timeline,
        plot_training_scaling,
    )

    rows = [
        (labelled(outcome.settings) or scenario.name, outcome.report)
        for outcome in outcomes
        if outcome.report is not None
    ]
    if "breakdown" in scenario.plots and rows:
        yield "breakdown", plot_breakdown.figure(rows)
    if "scaling" in scenario.plots and "cluster.world_size" in {*scenario.compare, *scenario.sweep}:
        yield "scaling", plot_training_scaling.figure(_scaled(scenario, outcomes))
    learned = [row for row in rows if row[1]["learning"]]
    if "loss" in scenario.plots and learned:
        yield "loss", plot_loss.figure(learned)
    wanted = {"timeline", "memory", "bandwidth_utilization"} & set(scenario.plots)
    for name, run in _close_ups(scenario) if wanted else ():
        if "memory" in wanted:
            samples = [sample for sample in run.timeline.memory if sample.rank == 0]
            capacity = float(build_cluster(run.scenario).gpus[0].hbm_bytes)
            yield f"memory{name}", plot_memory.over_time(samples, capacity, end=run.timeline.end)
        if "timeline" in wanted:
            yield f"timeline{name}", plot_timeline.figure(run.timeline)
        few = 0 < sum(sent.transfers for sent in run.timeline.sent) <= _MOST_DRAWN
        if "bandwidth_utilization" in wanted and few:
            yield f"bandwidth_utilization{name}", plot_bandwidth.figure(run.timeline)


def _scaled(scenario: Scenario, outcomes: Sequence[Outcome]) -> list[tuple[str, int, float, float]]:
    """Line, GPUs, tokens per second, MFU of every point that was played."""
    found = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        if outcome.report is not None:
            apart = {k: v for k, v in point.settings.items() if k != "cluster.world_size"}
            line = labelled(apart) or scenario.name
            report = outcome.report
            found.append((line, point.scenario.cluster.world_size, report["tokens_per_s"], report["mfu"]))
    return found


def _close_ups(scenario: Scenario) -> Iterator[tuple[str, Run]]:
    """The smallest cluster of each compared setting, played again to look at."""
    groups: dict[str, Point] = {}
    for point in points(scenario):
        key = labelled({k: point.settings[k] for k in scenario.compare})
        if key not in groups or point.scenario.cluster.world_size < groups[key].scenario.cluster.world_size:
            groups[key] = point
    for name, point in list(groups.items())[:_CLOSE_UPS]:
        suffix = "".join(c if c.isalnum() or c in "._" else "-" for c in name).strip("-")
        yield f"_{suffix}" if suffix else "", simulate(_without_numbers(point.scenario), limit_memory=False)


def _without_numbers(scenario: Scenario) -> Scenario:
    """The same step; what it learns is known already."""
    if scenario.training is None or not scenario.training.numerics:
        return scenario
    return replace(scenario, training=replace(scenario.training, numerics=False, collectives="played"))


def conclusion(outcomes: Sequence[Outcome]) -> str:
    """One sentence: which point is the fastest of those that fit, and what held it up; or what was learned."""
    known = [(labelled(o.settings), o.report) for o in outcomes if o.report is not None]
    fitting = [row for row in known if row[1]["fits"]]
    if not known:
        return str(outcomes[0].error)
    if not fitting:
        label, report = min(known, key=lambda row: row[1]["shortfall_bytes"])
        lacks = report["shortfall_bytes"] / 1e9
        return f"nothing fits; nearest is {label or 'this step'}, which lacks {lacks:.3g} GB."
    if all(report["learning"] for _, report in known):
        from simulator.report.plot_loss import finding

        return f"{finding(known)}."
    label, report = max(fitting, key=lambda row: row[1]["tokens_per_s"])
    speed = f"{report['tokens_per_s']:,.0f} tokens/s, {report['mfu']:.1%} MFU"
    left = f" ({len(known) - len(fitting)} of {len(known)} settings do not fit)" if len(fitting) < len(known) else ""
    name = f"{label} is fastest: " if label and len(known) > 1 else ""
    return f"{name}{speed}; {report['because']}{left}."
