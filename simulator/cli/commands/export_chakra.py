"""Write a simulated step as Chakra execution traces.

Kernels have their simulated times in whole microseconds. `simulator simulate-trace` reads the files back.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_time
from simulator.cli.options import NoPlugins, ScenarioName, Settings
from simulator.cli.settings import as_overrides
from simulator.cli.warnings_output import print_warnings
from simulator.step.framework import load_framework

if TYPE_CHECKING:
    from simulator.scenario.records import Scenario


def command(
    source: ScenarioName,
    out: Annotated[
        Path, typer.Option("--out", metavar="PREFIX", help="Path of the files PREFIX.0.et, PREFIX.1.et, ...")
    ],
    settings: Settings = None,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.run.checks import warnings_of
    from simulator.run.scenario_cluster import build_cluster
    from simulator.run.simulate import simulate_point
    from simulator.scenario.load import load_scenario, points
    from simulator.traces.chakra.trace_writer import write_step

    scenario = load_scenario(source, as_overrides(settings or ()))
    training = scenario.training
    if training is None or len(points(scenario)) > 1:
        raise ScenarioError(f"{scenario.source}: must have a training and a single point; choose values with --set")
    if not out.parent.is_dir():
        raise ScenarioError(f"--out: {out.parent}: there is no such directory; create it first")
    print_warnings([*warnings_of(scenario), *_not_in_traces(scenario)])
    run = simulate_point(scenario, limit_memory=False, keep=range(scenario.cluster.world_size))
    factor = load_framework(training.framework, scenario.base).network_time
    nodes = write_step(
        run.plan.program, run.timeline, build_cluster(scenario), out, algorithm=training.algorithm, factor=factor
    )
    ranks = scenario.cluster.world_size
    typer.echo(f"{out}.R.et: {nodes} nodes of {ranks} ranks; the simulated step takes {format_time(run.timeline.end)}")


def _not_in_traces(scenario: Scenario) -> list[str]:
    """Return notes on parts of the scenario's machine that no trace states."""
    spec = scenario.cluster
    in_use = {
        "cluster.link_factors": bool(spec.link_factors),
        "cluster.events": bool(spec.events),
        "cluster.placement": bool(spec.placement),
        "cluster.jitter.latency": bool(spec.jitter.latency),
    }
    return [f"{key}: is part of the machine, and not of a trace" for key, is_set in in_use.items() if is_set]
