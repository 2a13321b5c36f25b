"""Pictures of an answer on days: where the time goes, failures, certainty, intervals, and values side by side."""

from __future__ import annotations

from simulator.basics.units import format_duration
from simulator.report.plots.days import incident_calendar, interval_sweep, share_of_runs, useful_by_value, waterfall
from simulator.report.plots.picture import Picture
from simulator.run.reliability.failures import DAY
from simulator.run.reliability.question import Goodput, GoodputComparison


def pictures(answer: Goodput | GoodputComparison) -> tuple[Picture, ...]:
    """Return every picture for which an answer has data."""
    if isinstance(answer, GoodputComparison):
        return (values_picture(answer),)
    candidates = waterfall_picture(answer), incidents_picture(answer), runs_picture(answer), intervals_picture(answer)
    return tuple(picture for picture in candidates if picture is not None)


def waterfall_picture(answer: Goodput) -> Picture:
    """Draw the share of the time of each category."""
    days = sum(run.time for run in answer.outlook.runs) / len(answer.outlook.runs) / DAY
    return Picture("waterfall", waterfall.figure(_shares(answer), days))


def incidents_picture(answer: Goodput) -> Picture | None:
    """Draw the failures of the first run on a calendar; None if nothing stopped it."""
    run, kinds = answer.outlook.runs[0], answer.job.process.kinds
    stops = [
        incident_calendar.Stop(incident.time, kinds[incident.kind].name, incident.lost, incident.down)
        for incident in run.incidents
    ]
    return Picture("incidents", incident_calendar.figure(stops, run.time)) if stops else None


def runs_picture(answer: Goodput) -> Picture | None:
    """Draw the share of the runs that have ended by a day, or that do some work in given days; None for equal runs."""
    if answer.question.run.days is None:
        values = [run.time / DAY for run in answer.outlook.runs]
        middle, late = (answer.outlook.time(part) / DAY for part in (0.5, 0.95))
        axis = "days until the work is done"
        title = f"Half of the runs have ended after {middle:.1f} days, 95 % after {late:.1f} days"
    else:
        scale, unit = answer.unit_of_work
        values = [run.work * answer.work_per_step / answer.step_time / scale for run in answer.outlook.runs]
        axis = f"work in {answer.question.run.days:g} days [{unit}]"
        title = f"Half of the runs do at least {answer.middle} in {format_duration(answer.question.run.days * DAY)}"
    if max(values) == min(values):
        return None
    return Picture("runs", share_of_runs.figure(values, axis, title, rising=answer.question.run.days is None))


def intervals_picture(answer: Goodput) -> Picture | None:
    """Draw the useful share against the interval between saves; None without failures."""
    choice = answer.intervals
    if choice is None:
        return None
    marked = {"best": choice.best, "Young": choice.young, "Daly": choice.daly}
    if answer.question.run.interval is not None:
        marked["given"] = answer.question.run.interval
    return Picture("intervals", interval_sweep.figure(choice.tried, marked))


def values_picture(comparison: GoodputComparison) -> Picture:
    """Draw the share of the time of each category for each value of a fact."""
    shares = {value: _shares(answer) for value, answer in zip(comparison.values, comparison.answers, strict=True)}
    return Picture("values", useful_by_value.figure(comparison.along, shares, comparison.sentences[0].rstrip(".")))


def _shares(answer: Goodput) -> dict[str, float]:
    """Return the share of the time of each category, by name."""
    return {str(name): share for name, share in answer.outlook.shares.items()}
