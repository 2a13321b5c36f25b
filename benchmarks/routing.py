"""Builds 16,384 GPUs, and routes every ring neighbour and equally many random pairs."""

from __future__ import annotations

import json
import random
import sys
import time
from typing import Any

from benchmarks.alone import alone, peak_memory
from simulator.cluster.build import build

RANKS = 16_384
_FAT_TREE: dict[str, Any] = {
    "name": "fat_tree",
    "builder": "fat_tree",
    "options": {"bandwidth": "50 GB/s", "latency": "1 us"},
    "gpu": "h100_sxm",
}
MACHINES: dict[str, str | dict[str, Any]] = {"fat tree": _FAT_TREE, "rail-optimised pod": "dgx_h100"}


def seconds(machine: str) -> tuple[float, float]:
    """Return the CPU time of building and routing [s], and the memory added to the process [MiB]."""
    found = alone("benchmarks.routing", machine)
    return found["seconds"], found["mib"]


def _routed(machine: str) -> dict[str, float]:
    drawn = random.Random(0)
    # Memory of the imports does not count.
    before, began = peak_memory(), time.process_time()
    cluster = build(MACHINES[machine], RANKS)
    names = cluster.ranks
    for i, name in enumerate(names):
        cluster.route(name, names[(i + 1) % RANKS])
        other = drawn.randrange(RANKS)
        if other != i:
            cluster.route(name, names[other])
    return {"seconds": time.process_time() - began, "mib": peak_memory() - before}


if __name__ == "__main__":
    print(json.dumps(_routed(sys.argv[1])))
