"""List all mistakes in a scenario or topology file.

For a valid scenario, print the time and memory of its simulation; for a valid topology, describe the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from simulator.basics.errors import ScenarioError, SimulatorError, in_lines
from simulator.basics.units import format_bytes, format_memory, format_time
from simulator.cli.console import print_text
from simulator.cli.options import NoPlugins, ScenarioName, Settings
from simulator.cli.progress import progress
from simulator.cli.settings import as_overrides
from simulator.cli.warnings_output import print_warnings
from simulator.scenario.records import Point, Scenario

if TYPE_CHECKING:
    from simulator.run.cost_estimate import CostEstimate
    from simulator.run.scenario_cluster import Clusters

# Imports take little time compared with this estimate [s].
_SOON: Final = 10.0
# A step whose lower bound on memory is above this share of the GPU's memory is simulated on a rank of each stage:
# fragments and buffers in flight add up to a fifth.
_NEAR: Final = 0.8
# Most unit passes of such a simulation (a second).
_MOST_PASSES: Final = 10_000


def command(source: ScenarioName, settings: Settings = None, no_plugins: NoPlugins = False) -> None:
    # The file's keys decide: `check` accepts scenarios and topologies.
    from simulator.cli.check_topology import check_topology, is_topology
    from simulator.run.checks import warnings_of
    from simulator.run.size_estimate import announced
    from simulator.scenario.load import load_scenario, points

    if is_topology(source):
        check_topology(source, settings or ())
        return
    scenario = load_scenario(source, as_overrides(settings or ()))
    print_warnings(warnings_of(scenario))
    # A plan has settings instead of points.
    if scenario.plan is not None:
        _print(scenario, _facts_of_plan(scenario))
        return
    numbered_points = points(scenario)
    print_warnings([announced(point.scenario for point in numbered_points)])
    efforts, unfit = _efforts(scenario, numbered_points)
    # Points are simulated one after another: the largest determines the memory, their sum the time.
    memory = max(estimate.memory for estimate in efforts)
    seconds = sum(estimate.seconds for estimate in efforts)
    facts = {
        "question": scenario.question,
        "points": str(len(efforts)),
        "transfers": f"{sum(estimate.transfers for estimate in efforts):,}",
        "engine": _engines(efforts),
        "memory": f"about {format_bytes(memory)} for the largest point, plus about 100 MiB for the program",
        "run time": f"about {format_time(seconds)} on one core, without pictures",
    }
    _print(scenario, facts)
    print_warnings([unfit])


@dataclass(frozen=True, slots=True)
class _Need:
    """Memory of a point's fullest rank [B]; zeros without a training."""

    least: int = 0  # memory that the rank surely needs
    # Largest memory that an estimate allows; 0 if the point needs much less than the GPU has, or if the
    # estimate takes long
    most: int = 0
    there: int = 0  # memory of the GPU

    @property
    def too_much(self) -> bool:
        """True if the step surely does not fit."""
        return self.least > self.there

    @property
    def close(self) -> bool:
        """True if the step may not fit: a simulation tells."""
        return not self.too_much and self.most > self.there


def _need(point: Point, clusters: Clusters) -> _Need:
    """Return the memory that a rank needs; the estimate only if the lower bound leaves little room."""
    from simulator.run.memory_need import APART, estimate_memory, least_need, passes_of
    from simulator.scenario.build_training import to_step

    training = point.scenario.training
    if training is None:
        return _Need()
    cluster = clusters.of(point.scenario)
    step = to_step(training, point.scenario.cluster.world_size, point.scenario.base)
    least, memory = least_need(cluster, step), cluster.gpus[0].hbm_bytes
    near = _NEAR * memory < least <= memory and passes_of(step) <= _MOST_PASSES
    # A single rank has exact times.
    factor = APART if cluster.world_size > 1 else 1.0
    most = 0
    if near:
        need = estimate_memory(cluster, step)
        most = int(factor * need.reserved) + need.beside.nbytes
    return _Need(least, most, memory)


def _out_of_memory(scenario: Scenario, points: Sequence[Point], bounds: Sequence[_Need]) -> str:
    """Return a warning about points that exceed the GPU's memory or may, from each `_need`; "" without any."""
    start, both = f"{scenario.source}: GPU memory:", list(zip(points, bounds, strict=True))
    surely = [(point, need) for point, need in both if need.too_much]
    if not surely:
        return _close(start, [(point, need) for point, need in both if need.close], len(points))
    point, need = surely[0]
    bytes_of_both = f"a rank needs at least {format_memory(need.least)} and has {format_memory(need.there)}"
    if len(points) == 1:
        return f"{start} the step does not fit: {bytes_of_both}; `simulator run` names changes that make the step fit"
    verb = "does" if len(surely) == 1 else "do"
    number = f"{len(surely)} of {len(points)} points {verb} not fit"
    return f"{start} {number}; in the first ({_settings(point)}), {bytes_of_both}"


def _close(start: str, close: Sequence[tuple[Point, _Need]], count: int) -> str:
    """Return a warning about points, of `count`, whose estimated memory leaves little room; "" without any."""
    if not close:
        return ""
    point, need = close[0]
    which = "the step may not fit" if count == 1 else f"{len(close)} of {count} points may not fit"
    first = "" if count == 1 else f"in the first ({_settings(point)}), "
    return (
        f"{start} {which}: {first}a rank needs at least {format_memory(need.least)} and may reserve up to "
        f"{format_memory(need.most)}, and has {format_memory(need.there)}; `simulator run` finds the exact need"
    )


def _settings(point: Point) -> str:
    """Return a point's values on the axes: "training.sharding=ddp, cluster.world_size=8"."""
    return ", ".join(f"{key}={value}" for key, value in point.settings.items())


def _facts_of_plan(scenario: Scenario) -> dict[str, str]:
    """Return lines for `simulator check` on a scenario with a plan, {name: text}, with the number of settings."""
    from simulator.planner.contradictions import refuse_contradictions
    from simulator.planner.plan_question import plan_question
    from simulator.planner.space import InfeasibleCounts, settings

    question, refused = plan_question(scenario), InfeasibleCounts()
    print_warnings(question.announced())
    # Contradictory constraints leave no setting to count.
    refuse_contradictions(question)
    possible = sum(1 for _ in settings(question.choices(), question.base, question.sequences, refused))
    return {
        "question": question.text,
        "settings": f"{possible:,} possible; {sum(refused.counts.values()):,} further combinations are impossible",
    }


def _print(scenario: Scenario, facts: Mapping[str, str]) -> None:
    typer.echo(f"{scenario.source}: valid")
    for name, fact in facts.items():
        if fact:
            print_text(f"{name + ':':<10} {fact}", indent=" " * 11)


def _efforts(scenario: Scenario, points: Sequence[Point]) -> tuple[list[CostEstimate], str]:
    """Return the estimated simulation cost of each point, and the warning of `_out_of_memory`.

    Raises
    ------
    ScenarioError
        Points are invalid: a line for each different fault.
    """
    from simulator.run.cost_estimate import effort
    from simulator.run.scenario_cluster import Clusters
    from simulator.run.size_estimate import refuse_too_large

    # Points with the same cluster share the cluster and its routes.
    clusters = Clusters()
    efforts: list[CostEstimate] = []
    faults = _Faults(scenario, len(points))
    with progress(len(points), what=f"checking {scenario.name}", counted="points checked", lasting=False) as step:
        # Points larger than this machine's memory are reported first, because planning the rest may take minutes.
        for point in points:
            with faults.of(point):
                refuse_too_large(point.scenario)
        faults.tell()
        bounds: list[_Need] = []
        for point in points:
            with faults.of(point):
                estimate = effort(point.scenario, clusters)
                if not efforts and estimate.seconds < _SOON:
                    # The first estimate includes import time: repeat.
                    estimate = effort(point.scenario, clusters)
                efforts.append(estimate)
                bounds.append(_need(point, clusters))
            step()
        faults.tell()
    return efforts, _out_of_memory(scenario, points, bounds)


class _Faults:
    """Collector for faults in a scenario's points: {fault: points with this fault}."""

    def __init__(self, scenario: Scenario, count: int) -> None:
        self._scenario, self._count = scenario, count
        self._points: dict[str, list[Point]] = {}

    @contextmanager
    def of(self, point: Point) -> Iterator[None]:
        """Store a fault raised inside the `with` block for this point; a scenario's only point raises it."""
        try:
            yield
        except SimulatorError as error:
            if self._count == 1:
                raise
            self._points.setdefault(str(error), []).append(point)

    def tell(self) -> None:
        """Raise ScenarioError with a line for each different stored fault, if any."""
        if self._points:
            raise ScenarioError(in_lines([self._line(error, by) for error, by in self._points.items()]))

    def _line(self, error: str, faulty: Sequence[Point]) -> str:
        """Return a line with a fault, the number of affected points, and the first such point."""
        first = f"the first with {_settings(faulty[0])}"
        start = f"{self._scenario.source}: {len(faulty)} of {self._count} points are invalid, {first}: "
        return start + error.replace("\n", "; ")


def _engines(efforts: Sequence[CostEstimate]) -> str:
    """Return a text on how many points each engine simulates, and why."""
    counts: dict[tuple[str, str], int] = {}
    for estimate in efforts:
        counts[estimate.engine, estimate.why] = counts.get((estimate.engine, estimate.why), 0) + 1
    # The number of points is of interest only if engines differ.
    several = len(counts) > 1
    return "; ".join(
        f"{engine}, {why}{f' ({count} points)' if several else ''}" for (engine, why), count in counts.items()
    )
