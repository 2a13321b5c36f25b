"""Which pictures a run leaves, and of which of its points.

Rule: chooses and names; drawing is report/'s business. A sweep is drawn as a whole (scaling), and one point of each
compared setting is drawn closely: the largest one for links and timeline, a small one for steps, because cells must be
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.errors import SimulatorError
from simulator.report.scaling import ScalingPoint, finding
from simulator.run import Run, build_cluster, plan_scenario, simulate
from simulator.scenario.load import points
from simulator.scenario.records import Point, Scenario
from simulator.sweep import Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Cells of a steps picture hold words up to here.
_READABLE: Final = 8
# Beyond this many transfers a point is not played again for a picture.
_CLOSE_UP: Final = 200_000


def scaling_points(scenario: Scenario, outcomes: Sequence[Outcome]) -> tuple[ScalingPoint, ...]:
    """The outcomes as points of a scaling picture: one line for each setting but world size and array size."""
    found = []
    for point, outcome in zip(points(scenario), outcomes, strict=True):
        spec = point.scenario.collective
        if outcome.report is None or spec is None:
            continue
        apart = {k: v for k, v in point.settings.items() if k not in ("cluster.world_size", "collective.size")}
        label = ", ".join(_label(key, value) for key, value in apart.items()) or outcome.report["algorithm"]
        ranks = len(spec.group) if spec.group else point.scenario.cluster.world_size
        time, predicted = outcome.report["time_s"], outcome.report["predicted_s"]
        found.append(ScalingPoint(label, ranks, spec.size, time, predicted))
    return tuple(found)


def _label(key: str, value: Any) -> str:
    name = key.rpartition(".")[2]
    if name in ("algorithm", "topology", "operation", "dtype"):
        return str(value)
    if isinstance(value, Mapping):
        value = " ".join(f"{k} {v}" for k, v in value.items()) or "none"
    return f"{name.replace('_', ' ')} {value}"


def conclusion(scenario: Scenario, outcomes: Sequence[Outcome]) -> str:
    """One sentence: which won where and by how much, or, for a single point, what held it up."""
    found = scaling_points(scenario, outcomes)
    if len(found) > 1:
        return finding(found) + "."
    report = outcomes[0].report
    return f"{report['algorithm']}: {report['because']}." if report else str(outcomes[0].error)


def draw(folder: Path, scenario: Scenario, outcomes: Sequence[Outcome]) -> list[Path]:
    """Draw what the scenario asks for into folder/plots; the PNG files, in order."""
    from simulator.report import style

    pngs = []
    for name, figure in _figures(scenario, outcomes):
        png, _ = style.save(figure, folder / "plots", name)
        pngs.append(png)
    return pngs


def _figures(scenario: Scenario, outcomes: Sequence[Outcome]) -> Iterator[tuple[str, Figure]]:
    from simulator.report import plot_bandwidth, plot_scaling, plot_steps, plot_timeline

    scaled = scaling_points(scenario, outcomes)
    if "scaling" in scenario.plots and len(scaled) > 1:
        yield from plot_scaling.figures(scaled).items()
    close = {"bandwidth_utilization", "timeline"} & set(scenario.plots)
    for name, point in _largest(scenario).items() if close else ():
        run = _played(point)
        if run is None:
            continue
        if "bandwidth_utilization" in scenario.plots:
            yield f"bandwidth_utilization{name}", plot_bandwidth.figure(run.timeline)
        if "timeline" in scenario.plots:
            groups = {op.name: op.group for op in run.plan.program.collectives().values()}
            yield f"timeline{name}", plot_timeline.figure(run.timeline, groups)
    if "steps" in scenario.plots:
        for name, point in _readable(scenario).items():
            schedule = next(
                iter(plan_scenario(point.scenario, build_cluster(point.scenario)).program.collectives().values())
            ).schedule
            if schedule.world_size <= 64:
                yield f"steps{name}", plot_steps.figure(schedule)


def _played(point: Point) -> Run | None:
    """The point's timeline, or None where it failed or is too large to be played twice."""
    try:
        planned = plan_scenario(point.scenario, build_cluster(point.scenario))
        transfers = sum(op.schedule.length() for op in planned.program.collectives().values())
        return simulate(point.scenario) if transfers <= _CLOSE_UP else None
    except SimulatorError:
        return None


def _compared(scenario: Scenario) -> dict[str, list[Point]]:
    """Points by what is compared; the key is a suffix for file names, empty where nothing is."""
    groups: dict[str, list[Point]] = {}
    for point in points(scenario):
        values = [point.settings[key] for key in scenario.compare]
        words = ["".join(c if c.isalnum() or c in "._-" else "-" for c in str(value)).strip("-") for value in values]
        groups.setdefault("".join(f"_{word or 'none'}" for word in words), []).append(point)
    return groups


def _size(point: Point) -> tuple[int, int]:
    spec = point.scenario.collective
    return point.scenario.cluster.world_size, spec.size if spec else 0


def _largest(scenario: Scenario) -> dict[str, Point]:
    return {name: max(group, key=_size) for name, group in _compared(scenario).items()}


def _readable(scenario: Scenario) -> dict[str, Point]:
    """For steps: as many ranks as can be read, and the schedule is the same for every size but tiny ones."""
    return {
        name: min(group, key=lambda p: (abs(_size(p)[0] - _READABLE), -_size(p)[1]))
        for name, group in _compared(scenario).items()
    }
