"""A training step of Llama 3 8B under zero3: every collective simulated, and by closed forms on 512 GPUs."""

from __future__ import annotations

import time
from typing import Any

from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario


def seconds(world_size: int, collectives: str) -> float:
    """Return the CPU time of a step, including planning and report [s]."""
    scenario: dict[str, Any] = {
        "name": "bench",
        "cluster": {"topology": "dgx_h100", "world_size": world_size},
        "training": {"model": "llama3_8b", "seq_len": 8192, "sharding": "zero3", "collectives": collectives},
    }
    loaded = load_scenario(scenario)
    began = time.process_time()
    simulate(loaded)
    return time.process_time() - began
