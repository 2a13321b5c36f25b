"""Which errors and warnings does the package raise? For example: `from simulator.errors import ScenarioError`.

The classes are defined in basics/errors.py, below every module in which they are raised.
"""

# A public module, because users should not import from `simulator.basics`.
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
