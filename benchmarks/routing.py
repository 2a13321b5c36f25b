"""Building 16,384 GPUs and routing every ring neighbour and as many random pairs."""

from __future__ import annotations

import random
import resource
import time
from pathlib import Path
from typing import Any

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
    """CPU time of building and routing [s], and what it leaves in memory [MiB]."""
    drawn = random.Random(0)
    before, began = _resident(), time.process_time()
    cluster = build(MACHINES[machine], RANKS)
    names = cluster.ranks
    for i, name in enumerate(names):
        cluster.route(name, names[(i + 1) % RANKS])
        other = drawn.randrange(RANKS)
        if other != i:
            cluster.route(name, names[other])
    return time.process_time() - began, _resident() - before


def _resident() -> float:
    """Of this process now [MiB]; 0 where the system does not say."""
    told = Path("/proc/self/statm")
    pages = int(told.read_text().split()[1]) if told.exists() else 0
    return pages * resource.getpagesize() / 2**20
