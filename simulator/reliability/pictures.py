"""Pictures of an answer on days: where the time goes, failures, certainty, intervals, and values side by side."""

from __future__ import annotations

from simulator.basics.units import format_duration
from simulator.reliability.failures import DAY
from simulator.reliability.question import Comparison, Goodput
from simulator.report.plots.days import incident_calendar, interval_sweep, share_of_runs, useful_by_value, waterfall
from simulator.report.plots.picture import Picture


def pictures(found: Goodput | Comparison) -> tuple[Picture, ...]:
    """Return every picture for which an answer has data."""
    if isinstance(found, Comparison):
        return (values_picture(found),)
    drawn = waterfall_picture(found), incidents_picture(found), runs_picture(found), intervals_picture(found)
    return tuple(picture for picture in drawn if picture is not None)


def waterfall_picture(found: Goodput) -> Picture:
    """Draw the share of the time of each category."""
    days = sum(run.time for run in found.outlook.runs) / len(found.outlook.runs) / DAY
    return Picture("waterfall", waterfall.figure(_shares(found), days))


def incidents_picture(found: Goodput) -> Picture | None:
    """Draw the failures of the first run on a calendar; None if nothing stopped it."""
    run, kinds = found.outlook.runs[0], found.job.process.kinds
    stops = [incident_calendar.Stop(one.time, kinds[one.kind].name, one.lost, one.down) for one in run.incidents]
    return Picture("incidents", incident_calendar.figure(stops, run.time)) if stops else None


def runs_picture(found: Goodput) -> Picture | None:
    """Draw the share of the runs that have ended by a day, or that do some work in given days; None for equal runs."""
    if found.question.days is None:
        values = [run.time / DAY for run in found.outlook.runs]
        middle, late = (found.outlook.time(part) / DAY for part in (0.5, 0.95))
        axis = "days until the work is done"
        title = f"Half of the runs have ended after {middle:.1f} days, 95 % after {late:.1f} days"
    else:
        scale, unit = found.unit_of_work
        values = [run.work * found.work_per_step / found.step_time / scale for run in found.outlook.runs]
        axis = f"work in {found.question.days:g} days [{unit}]"
        title = f"Half of the runs do at least {found.middle} in {format_duration(found.question.days * DAY)}"
    if max(values) == min(values):
        return None
    return Picture("runs", share_of_runs.figure(values, axis, title, rising=found.question.days is None))


def intervals_picture(found: Goodput) -> Picture | None:
    """Draw the useful share against the interval between saves; None without failures."""
    choice = found.intervals
    if choice is None:
        return None
    marked = {"best": choice.best, "Young": choice.young, "Daly": choice.daly}
    if found.question.interval is not None:
        marked["given"] = found.question.interval
    return Picture("intervals", interval_sweep.figure(choice.tried, marked))


def values_picture(found: Comparison) -> Picture:
    """Draw the share of the time of each category for each value of a fact."""
    shares = {value: _shares(answer) for value, answer in zip(found.values, found.answers, strict=True)}
    return Picture("values", useful_by_value.figure(found.along, shares, found.sentences[0].rstrip(".")))


def _shares(found: Goodput) -> dict[str, float]:
    """Return the share of the time of each category, by name."""
    return {str(name): share for name, share in found.outlook.shares.items()}
