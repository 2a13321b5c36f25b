"""Checks of a scenario before it is simulated, and the warnings that a user should see once."""

from __future__ import annotations

import warnings
from collections.abc import Collection

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.engine.compiled.library import engine_warnings
from simulator.scenario.records import Scenario


def warnings_of(scenario: Scenario) -> tuple[str, ...]:
    """Return what a user should be told of a scenario: keys without effect, and an engine that is not there."""
    return (*scenario.warnings, *engine_warnings(scenario.engine))


def warn_of(scenario: Scenario) -> None:
    """Issue the warnings of a scenario at the caller's caller; `simulate_point` repeats them for none of its points."""
    for line in warnings_of(scenario):
        warnings.warn(line, ScenarioWarning, stacklevel=3)


def check_ranks(scenario: Scenario, ranks: Collection[int]) -> None:
    """ScenarioError where a rank is not there."""
    last = scenario.cluster.world_size - 1
    absent = [rank for rank in ranks if not 0 <= rank <= last]
    if absent:
        raise ScenarioError(f"{scenario.source}: operations of rank {absent[0]} cannot be kept; ranks are 0 .. {last}")
