"""How large may an imported machine be? As large as a graph file that the package reads again."""

from __future__ import annotations

from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import MOST_TEXT
from simulator.basics.units import format_bytes

# Largest description that is read [B]; NCCL's dump of 72 GPUs has about 200 kB.
MOST_BYTES: Final = 4 * 2**20
# The same of a YAML file, whose reader takes 5 s for each MiB.
MOST_YAML_BYTES: Final = 2**20
# Largest number of names in a hostlist, and of GPUs.
MOST_NODES: Final = 100_000
# Bytes of a vertex or cable in a graph file, about.
_PART_BYTES: Final = 90


def check_size(parts: int, remedy: str) -> None:
    """Raise ScenarioError if a graph of so many vertices and cables exceeds the limit of graph files."""
    if parts * _PART_BYTES > MOST_TEXT:
        raise ScenarioError(
            f"the machine has about {parts:,} vertices and cables; a graph file has at most "
            f"{MOST_TEXT // _PART_BYTES:,} ({format_bytes(MOST_TEXT)}); {remedy}"
        )
