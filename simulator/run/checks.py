"""Checks a scenario before it is simulated, and issues warnings once."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.engine.compiled.library import engine_warnings
from simulator.scenario.records import Scenario


def warnings_of(scenario: Scenario) -> tuple[str, ...]:
    """Return a scenario's warnings: keys without effect, and a missing engine."""
    return (*scenario.warnings, *engine_warnings(scenario.engine))


def warn_of(scenario: Scenario) -> None:
    """Issue a scenario's warnings as Python warnings at the line of the user's call; `simulate_point` does not."""
    for line in warnings_of(scenario):
        # Level 3 names the line in the user's code: user, API function, this function.
        warnings.warn(line, ScenarioWarning, stacklevel=3)


def check_ranks(scenario: Scenario, ranks: Collection[int]) -> None:
    """Raise ScenarioError if a rank in `ranks` is outside the scenario's cluster."""
    last = scenario.cluster.world_size - 1
    absent = [rank for rank in ranks if not 0 <= rank <= last]
    if absent:
        raise ScenarioError(
            f"{scenario.source}: operations of rank {absent[0]} cannot be kept; the ranks are 0 .. {last}"
        )
