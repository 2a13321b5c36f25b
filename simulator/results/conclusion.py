"""Which sentence stands at the end of a run: which setting won where, by how much, and what held it up?

Rule: numbers of outcomes in, words out; nothing is drawn or played here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.report.numbers.scaling import ScalingPoint, finding
from simulator.report.tables.setting_text import labelled
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario
from simulator.sweeps.outcome import PointOutcome

# Settings along the axes of a scaling picture; all others together name the line that a point is on.
_PLACES: Final = ("cluster.world_size", "collective.size")
# More conditions than this get one sentence together instead of a line each.
_CONDITIONS: Final = 6


def scaling_points(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> tuple[ScalingPoint, ...]:
    """The outcomes as points of a scaling picture: a line for each combination of settings but world and array size."""
    shown = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        apart = [key for key in point.settings if key not in _PLACES]
        scaled = _scaled(point, outcome, apart)
        shown += [scaled] if scaled else []
    return tuple(shown)


def _scaled(point: Point, outcome: PointOutcome, apart: Sequence[str]) -> ScalingPoint | None:
    """An outcome as a point, named by these settings (by its algorithm without any); None where there is no time."""
    spec, report = point.scenario.collective, outcome.report
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = _labels(point, apart) or report["algorithm"]
    # A group of ranks that stays the same on ever larger clusters is drawn at the cluster's size, not at its own.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.size, report["time_s"], report["predicted_s"])


def _labels(point: Point, keys: Sequence[str]) -> str:
    return labelled({key: point.settings[key] for key in keys})


def conclusion(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> str:
    """Say which setting won where and by how much: a line for each condition swept; for one point, what held it up."""
    if scenario.training is not None:
        return _of_steps(outcomes)
    done = [outcome for outcome in outcomes if outcome.report is not None]
    if not done:
        return f"no point could be played: {outcomes[0].error}"
    if len(outcomes) == 1:
        report = done[0].report or {}
        return f"{report['algorithm']}: {report['because']}."
    groups = _by_condition(scenario, outcomes)
    if not 1 < len(groups) <= _CONDITIONS:
        return finding(scaling_points(scenario, outcomes)) + "."
    return "\n".join(f"{condition}: {finding(competing)}." for condition, competing in groups.items())


def _by_condition(scenario: Scenario, outcomes: Sequence[PointOutcome]) -> dict[str, list[ScalingPoint]]:
    """Points that are compared with each other, by the condition they share.

    What a scenario sweeps besides world size and array size (a link's slowdown, say) is a condition; what it compares
    are competitors.
    """
    groups: dict[str, list[ScalingPoint]] = {}
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        swept = [key for key in scenario.sweep if key not in _PLACES]
        compared = [key for key in scenario.compare if key not in _PLACES]
        scaled = _scaled(point, outcome, compared) if compared and swept else None
        if scaled:
            groups.setdefault(_labels(point, swept), []).append(scaled)
    return groups


def _of_steps(outcomes: Sequence[PointOutcome]) -> str:
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
        from simulator.report.plots.loss import finding

        return f"{finding(known)}."
    label, report = max(fitting, key=lambda row: row[1]["tokens_per_s"])
    speed = f"{report['tokens_per_s']:,.0f} tokens/s, {report['mfu']:.1%} MFU"
    left = f" ({len(known) - len(fitting)} of {len(known)} settings do not fit)" if len(fitting) < len(known) else ""
    name = f"{label} is fastest: " if label and len(known) > 1 else ""
    return f"{name}{speed}; {report['because']}{left}."
