"""`simulator expect`: compares a measured step with its prediction, and simulates what would explain the difference."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_time
from simulator.calibration.table import Table
from simulator.cli.console import print_text, width
from simulator.cli.progress import progress
from simulator.cli.warnings_output import print_assumed_framework
from simulator.run.expectation import Expectation, expectation
from simulator.scenario.load import load_scenario

# Simulations of the largest question: the prediction, five causes with sizes, and six without.
_MOST_SIMULATED: Final = 1 + 5 * 9 + 6
_UNITS: Final[Mapping[str, tuple[bool, float]]] = {
    # Unit -> (whether the measurement is a rate, factor to seconds or tokens per second).
    "s": (False, 1.0), "ms": (False, 1e-3), "tokens/s": (True, 1.0), "tok/s": (True, 1.0), "tokens/s/GPU": (True, 0.0),
    "tok/s/GPU": (True, 0.0),
}  # fmt: skip


def expect(source: str, measured: str, overrides: Mapping[str, str], *, as_json: bool) -> None:
    """Print a measured step time beside its prediction, with simulated explanations of the difference.

    Raises
    ------
    ScenarioError
        The scenario is invalid or no training step, or the measurement has no known unit.
    """
    scenario = load_scenario(source, overrides)
    seconds, rate = _measurement(measured, scenario.cluster.world_size)
    print_assumed_framework(scenario)
    with progress(_MOST_SIMULATED, what=scenario.name, counted="simulations at most") as advance:
        found = expectation(scenario, seconds, rate, advance)
    if scenario.compare or scenario.sweep:
        print_text(
            f"{source}: `compare` and `sweep` do not count here; the scenario's other values are simulated", stderr=True
        )
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    print_text(_said(found))
    # A normal time needs no explanation.
    if found.normal or not found.explanations:
        return
    lines = [(one.cause, format_time(one.step_time), f"{100 * one.share:.0f} %", one.key) for one in found.explanations]
    head = ("what if", "step time", "of the gap", "to simulate it")
    typer.echo(f"\n{Table('simulated explanations, each alone', head, tuple(lines)).text(width())}")
    print_text("\nExplanations are alternatives: their shares do not add up.")


def _measurement(text: str, gpus: int) -> tuple[float | None, float | None]:
    """Return a measurement as (seconds per step, None) or (None, tokens per second of all GPUs)."""
    number, _, unit = text.strip().partition(" ")
    allowed = "write a number and a unit, such as '14.7 s', '980 ms', '120000 tokens/s' or '5700 tokens/s/GPU'"
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        raise ScenarioError(f"--measured: got {text!r}; {allowed}") from None
    if unit.strip() not in _UNITS or not value > 0:
        raise ScenarioError(f"--measured: got {text!r}; {allowed}")
    is_rate, factor = _UNITS[unit.strip()]
    # A rate of one GPU, times the number of GPUs, is the rate of the job.
    value *= factor or gpus
    return (None, value) if is_rate else (value, None)


def _said(found: Expectation) -> str:
    """Return a sentence on whether the measured step time is normal."""
    apart = found.measured / found.predicted - 1
    ends = f"{format_time(found.low)} to {format_time(found.high)}"
    if found.normal:
        return (
            f"Normal: measured {format_time(found.measured)}, predicted {format_time(found.predicted)} ({apart:+.1%}); "
            f"four in five comparable runs lie within {ends}."
        )
    return (
        f"{'Slower' if apart > 0 else 'Faster'} than expected: measured {format_time(found.measured)}, predicted "
        f"{format_time(found.predicted)} ({apart:+.1%}); four in five comparable runs lie within {ends}."
    )
