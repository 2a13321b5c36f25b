"""Which errors and warnings does the package raise? `from simulator.errors import ScenarioError` catches one of them.

The classes are defined in basics/errors.py, below everything that raises them.
"""

from simulator.basics.errors import (
    DeadlockError,
    DefectError,
    NoRouteError,
    OutOfMemoryError,
    ScenarioError,
    ScenarioWarning,
    ScheduleError,
    SimulationError,
    SimulatorError,
    TooLargeError,
    UnknownNameError,
)

__all__ = [
    "DeadlockError",
    "DefectError",
    "NoRouteError",
    "OutOfMemoryError",
    "ScenarioError",
    "ScenarioWarning",
    "ScheduleError",
    "SimulationError",
    "SimulatorError",
    "TooLargeError",
    "UnknownNameError",
]
