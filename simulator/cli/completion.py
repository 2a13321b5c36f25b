"""Which names does a shell propose at TAB: shipped scenarios, topologies, GPUs, models?

Rule: names alone, from listing folders; where none begins as what is typed, the shell proposes files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.basics import registry

# What `simulator list` lists.
LISTS: Final = (
    "algorithms", "builders", "dtypes", "frameworks", "gpus", "links", "models", "operations", "plots", "scenarios",
    "strategies", "topologies",
)  # fmt: skip


def names_of(kind: registry.Kind) -> Callable[[str], list[str]]:
    """Make the function that proposes the names of a kind which begin as what is typed."""
    return lambda incomplete: [name for name in registry.names(kind) if name.startswith(incomplete)]


def lists(incomplete: str) -> list[str]:
    """Propose what `simulator list` lists."""
    return [kind for kind in LISTS if kind.startswith(incomplete)]
