"""`simulator check`: what is in a scenario, and what playing it will take."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from simulator.basics.units import format_bytes, format_time
from simulator.cli.settings import as_overrides
from simulator.cli.warnings_output import print_warnings
from simulator.engine.play import BYTES_A_TRANSFER, SECONDS_A_TRANSFER
from simulator.model.parameters import total
from simulator.playing.collective import plan_collective
from simulator.playing.scenario_cluster import build_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario, points
from simulator.scenario.payload import carries_payload
from simulator.scenario.records import Scenario
from simulator.step.plan import StepPlan, plan_step

# Measured with benchmarks/events.py on 2 cores, rounded up: each point about 10 ms beside its transfers; payload about
# 8 ns a byte of all ranks' arrays, drawing, adding and checking.
_SECONDS_AN_OPERATION = 20e-6
_BYTES_AN_OPERATION = 1000
_SECONDS_A_POINT = 10e-3
_SECONDS_A_PAYLOAD_BYTE = 8e-9
# Real training of small models in numpy on one core: about 30 ns a thousand FLOP, twice that in float16, and 150 us
# for each unit's pass; parameters, gradients, states and what is kept, of all ranks.
_SECONDS_A_FLOP, _SECONDS_A_PASS, _BYTES_A_PARAMETER = 3e-11, 150e-6, 40


def check(source: str, settings: Sequence[str]) -> None:
    """Print the number of points, transfers, and the memory and time that playing takes."""
    scenario = load_scenario(source, as_overrides(settings))
    print_warnings(scenario.warnings)
    all_points = points(scenario)
    transfers, memory, seconds = 0, 0, 0.0
    for point in all_points:
        moved, needed, takes = _estimate(point.scenario)
        transfers, memory, seconds = transfers + moved, max(memory, needed), seconds + takes
    typer.echo(f"{scenario.source}: valid")
    if scenario.question:
        typer.echo(f"question:  {scenario.question}")
    typer.echo(f"points:    {len(all_points)}")
    typer.echo(f"transfers: {transfers:,}")
    typer.echo(f"memory:    about {format_bytes(memory)} for the largest point, beside some 100 MiB for the program")
    typer.echo(f"run time:  about {format_time(seconds)} on one core, pictures not counted")


def _estimate(scenario: Scenario) -> tuple[int, int, float]:
    cluster, ranks, learning = build_cluster(scenario), scenario.cluster.world_size, (0, 0.0)
    if scenario.training is not None:
        plan = plan_step(cluster, to_step(scenario.training, ranks, scenario.base))
        program, learning = plan.program, _learning(plan)
    else:
        program = plan_collective(scenario, cluster).program
    played = [op for op in program.collectives().values() if op.duration is None]
    transfers = sum(op.schedule.length() for op in played)
    operations = sum(len(ops) for ops in program.ranks)
    spec = scenario.collective
    payload = ranks * spec.size if spec is not None and carries_payload(spec.payload, ranks * spec.size) else 0
    seconds = transfers * SECONDS_A_TRANSFER + operations * _SECONDS_AN_OPERATION + payload * _SECONDS_A_PAYLOAD_BYTE
    memory = transfers * BYTES_A_TRANSFER + operations * _BYTES_AN_OPERATION + 2 * payload + learning[0]
    return transfers, memory, seconds + learning[1] + _SECONDS_A_POINT


def _learning(plan: StepPlan) -> tuple[int, float]:
    """Bytes and time of real training; nothing where there is none."""
    step = plan.step
    if step.lesson is None:
        return 0, 0.0
    ranks = len(plan.program.ranks)
    passes = 2 * (step.model.num_layers + 2) * step.accumulation * ranks
    seconds = plan.hardware_flops * _SECONDS_A_FLOP + passes * _SECONDS_A_PASS
    return total(step.model) * ranks * _BYTES_A_PARAMETER, step.steps * seconds
