"""The sentence at the end of a run: which setting won where, by how much, and what held it up.

Rule: numbers of outcomes in, words out; nothing is drawn or played here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.report.numbers.scaling import ScalingPoint, finding
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario
from simulator.sweeps.outcome import Outcome
from simulator.sweeps.sweep import labelled

# Settings that say where a point lies in a scaling picture; all others say which line it is on.
_PLACES: Final = ("cluster.world_size", "collective.size")
# More conditions than this are not told one by one.
_CONDITIONS: Final = 6


def scaling_points(scenario: Scenario, outcomes: Sequence[Outcome]) -> tuple[ScalingPoint, ...]:
    """The outcomes as points of a scaling picture: one line for each setting but world size and array size."""
    found = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        apart = [key for key in point.settings if key not in _PLACES]
        drawn = _scaled(point, outcome, apart)
        found += [drawn] if drawn else []
    return tuple(found)


def _scaled(point: Point, outcome: Outcome, apart: Sequence[str]) -> ScalingPoint | None:
    """A point, called by some of its settings (its algorithm where there are none); None where there is no time."""
    spec, report = point.scenario.collective, outcome.report
    if report is None or spec is None or report["time_s"] <= 0:
        return None
    label = _labels(point, apart) or report["algorithm"]
    # A group that stays the same on ever larger clusters has its place by the cluster.
    along = spec.group is None or "cluster.world_size" in point.settings
    ranks = point.scenario.cluster.world_size if along else len(spec.group or ())
    return ScalingPoint(label, ranks, spec.size, report["time_s"], report["predicted_s"])


def _labels(point: Point, keys: Sequence[str]) -> str:
    return labelled({key: point.settings[key] for key in keys})


def conclusion(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    """Which won where and by how much, a line for each thing swept; for a single point, what held it up."""
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
    return "\n".join(f"{condition}: {finding(found)}." for condition, found in groups.items())


def _by_condition(scenario: Scenario, outcomes: Sequence[Outcome]) -> dict[str, list[ScalingPoint]]:
    """Points that compete, by what is swept besides world size and array size: a slow link is no competitor."""
    groups: dict[str, list[ScalingPoint]] = {}
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        swept = [key for key in scenario.sweep if key not in _PLACES]
        compared = [key for key in scenario.compare if key not in _PLACES]
        drawn = _scaled(point, outcome, compared) if compared and swept else None
        if drawn:
            groups.setdefault(_labels(point, swept), []).append(drawn)
    return groups


def _of_steps(outcomes: Sequence[Outcome]) -> str:
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
