"""A cluster simulator: what would this training job do on that cluster?

from simulator import load_scenario, simulate, sweep

run = simulate(load_scenario("straggler"))       # one point: run.report, run.timeline, run.results
table = sweep("ring_vs_parameter_server")        # many points: a pandas DataFrame
best = plan("llama3_8b", topology="dgx_h100", gpus=8, seq_len=8192, global_batch="64seq").frame()  # the fastest layouts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.api.plans import plan
    from simulator.api.runs import Run, Sweep, play, simulate
    from simulator.cluster.build import build as build_cluster
    from simulator.scenario.from_python import collective_scenario, training_scenario
    from simulator.scenario.load import load_scenario
    from simulator.scenario.records import Scenario
    from simulator.sweeps.sweep import sweep

__version__ = "0.1.0"
__all__ = [
    "Run",
    "Scenario",
    "Sweep",
    "__version__",
    "build_cluster",
    "collective_scenario",
    "load_scenario",
    "plan",
    "play",
    "simulate",
    "sweep",
    "training_scenario",
]

_HOMES = {
    "Run": ("simulator.api.runs", "Run"),
    "Sweep": ("simulator.api.runs", "Sweep"),
    "plan": ("simulator.api.plans", "plan"),
    "play": ("simulator.api.runs", "play"),
    "Scenario": ("simulator.scenario.records", "Scenario"),
    "build_cluster": ("simulator.cluster.build", "build"),
    "collective_scenario": ("simulator.scenario.from_python", "collective_scenario"),
    "load_scenario": ("simulator.scenario.load", "load_scenario"),
    "simulate": ("simulator.api.runs", "simulate"),
    "sweep": ("simulator.sweeps.sweep", "sweep"),
    "training_scenario": ("simulator.scenario.from_python", "training_scenario"),
}


def __getattr__(name: str) -> Any:
    # Imported when first used, so that `simulator --help` does not wait for numpy.
    if name not in _HOMES:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    # What is imported when first used is not there before: completion and dir() list it all the same.
    return sorted(__all__)
