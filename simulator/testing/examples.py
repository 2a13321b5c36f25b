"""Small scenarios on which plots and findings are checked: compared collectives, and compared trainings."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from simulator.findings.comparison import Comparison
from simulator.run.outcome import PointOutcome
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points

KINDS: Final = ("collective", "training")
_CLUSTER: Final = {"topology": "dgx_h100", "world_size": 4}
_SCENARIOS: Final[dict[str, dict[str, Any]]] = {
    "collective": {
        "name": "collectives",
        "cluster": _CLUSTER,
        "collective": {"operation": "all_reduce"},
        "compare": {"collective.algorithm": ["ring", "tree"]},
        "sweep": {"collective.size": ["64 KiB", "1 MiB"]},
        "plots": [],
    },
    "training": {
        "name": "trainings",
        "cluster": _CLUSTER,
        "training": {"model": "gpt2_small", "seq_len": 128, "collectives": "played"},
        "compare": {"training.sharding": ["ddp", "zero3"]},
        "plots": [],
    },
}


@cache
def compared(kind: str) -> Comparison:
    """Return the simulated points of the scenario of a kind."""
    scenario = load_scenario(_SCENARIOS[kind])
    runs = [(point.settings, simulate(point.scenario)) for point in points(scenario)]
    return Comparison(scenario, [PointOutcome.of(number, *run) for number, run in enumerate(runs)])
