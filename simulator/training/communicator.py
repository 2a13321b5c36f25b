"""The data-parallel group's collectives, each planned once.

Rule: asks the planner for the algorithm the machine would take, and decides whether its closed form may stand for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.program import Collective


@dataclass(slots=True)
class Communicator:
    """Plans collectives over all ranks of a cluster.

    Attributes
    ----------
    cluster : Cluster
    mode : {"auto", "played", "closed_form"}
    steady : bool
        Whether all ranks reach a collective together: no stragglers, no jitter.
    """

    cluster: Cluster
    mode: Literal["auto", "played", "closed_form"]
    steady: bool
    _planned: dict[tuple[str, int, str], Collective] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        """Ranks of the group."""
        return self.cluster.world_size

    def plan(self, operation: str, elements: int, dtype: str) -> Collective | None:
        """The collective, without a name of its own; None for one rank.

        Arrays are padded to a multiple of the ranks, as frameworks pad shards.
        """
        if self.ranks == 1:
            return None
        padded = -(-elements // self.ranks) * self.ranks
        key = (operation, padded, dtype)
        if key not in self._planned:
            self._planned[key] = self._plan(operation, padded, dtype)
        return self._planned[key]

    def _plan(self, operation: str, elements: int, dtype: str) -> Collective:
        group = tuple(range(self.ranks))
        task = Task(Request(operation, self.ranks, elements), "auto", group, dtype)
        made = plan(self.cluster, task)
        op = next(iter(made.program.collectives().values()))
        stands = made.predicted is not None and (self.mode == "closed_form" or (self.mode == "auto" and self.steady))
        return replace(op, duration=made.predicted) if stands else op
