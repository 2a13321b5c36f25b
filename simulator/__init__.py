"""Simulator of distributed training on GPU clusters: step time, memory and link traffic.

from simulator import load_scenario, plan, simulate, sweep

run = simulate(load_scenario("straggler"))       # a single point: run.report, run.timeline, run.results
table = sweep("ring_vs_parameter_server")        # many points: a pandas DataFrame
best = plan("llama3_8b", topology="dgx_h100", gpus=8, seq_len=8192, global_batch="64seq").frame()  # the fastest layouts
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.api.fit_check import fit_check
    from simulator.api.long_runs import goodput, simulate_jobs
    from simulator.api.plans import plan, what_if
    from simulator.api.runs import Run, Sweep, play, simulate
    from simulator.api.schedules import collective
    from simulator.api.tracing import model_from_torch
    from simulator.basics.edition import VERSION as __version__  # noqa: N811
    from simulator.cluster.build import build as build_cluster
    from simulator.scenario.from_python import collective_scenario, training_scenario
    from simulator.scenario.load import load_scenario
    from simulator.scenario.records import Scenario
    from simulator.sweeps.sweep import sweep

__all__ = [
    "Run",
    "Scenario",
    "Sweep",
    "__version__",
    "build_cluster",
    "collective",
    "collective_scenario",
    "fit_check",
    "goodput",
    "load_scenario",
    "model_from_torch",
    "plan",
    "play",
    "simulate",
    "simulate_jobs",
    "sweep",
    "training_scenario",
    "what_if",
]

# Module and attribute of each public name.
_HOMES = {
    "Run": ("simulator.api.runs", "Run"),
    "Sweep": ("simulator.api.runs", "Sweep"),
    "model_from_torch": ("simulator.api.tracing", "model_from_torch"),
    "fit_check": ("simulator.api.fit_check", "fit_check"),
    "goodput": ("simulator.api.long_runs", "goodput"),
    "plan": ("simulator.api.plans", "plan"),
    "play": ("simulator.api.runs", "play"),
    "Scenario": ("simulator.scenario.records", "Scenario"),
    "__version__": ("simulator.basics.edition", "VERSION"),
    "build_cluster": ("simulator.cluster.build", "build"),
    "collective": ("simulator.api.schedules", "collective"),
    "collective_scenario": ("simulator.scenario.from_python", "collective_scenario"),
    "load_scenario": ("simulator.scenario.load", "load_scenario"),
    "simulate": ("simulator.api.runs", "simulate"),
    "simulate_jobs": ("simulator.api.long_runs", "simulate_jobs"),
    "sweep": ("simulator.sweeps.sweep", "sweep"),
    "training_scenario": ("simulator.scenario.from_python", "training_scenario"),
    "what_if": ("simulator.api.plans", "what_if"),
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `simulator --help` must not wait for numpy.
    if name not in _HOMES:
        raise AttributeError(f"module 'simulator' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    # Names appear in the module only after first use; completion and dir() list them anyway.
    return sorted(__all__)
