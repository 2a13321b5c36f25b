"""Which names does a shell propose at TAB? Shipped scenarios, topologies, GPUs and models.

Names come from listing folders. If no name has the typed beginning, the shell proposes files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from simulator.basics import registry

# Arguments of `simulator list`.
LISTS: Final = (
    "algorithms", "builders", "days", "dtypes", "findings", "frameworks", "gpus", "jobs", "models",
    "operations", "optimizers", "plots", "scenarios", "schedules", "strategies", "topologies",
)  # fmt: skip


def names_of(kind: registry.Kind) -> Callable[[str], list[str]]:
    """Return a function from typed text to the names of a kind (topology, GPU, model ...) beginning with the text."""
    return lambda incomplete: [name for name in registry.names(kind) if name.startswith(incomplete)]


def lists(incomplete: str) -> list[str]:
    """Return the arguments of `simulator list` beginning with the typed text."""
    return [kind for kind in LISTS if kind.startswith(incomplete)]
