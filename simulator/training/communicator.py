"""The data-parallel groups' collectives, each planned once.

Rule: asks the planner for the algorithm the machine would take, and decides whether its closed form may stand for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.program import Collective
from simulator.training.groups import Groups, Scope


@dataclass(slots=True)
class Communicator:
    """Plans collectives over the ranks of a cluster.

    Attributes
    ----------
    cluster : Cluster
    groups : Groups
    mode : {"auto", "played", "closed_form"}
    steady : bool
        Whether all ranks reach a collective together: no stragglers, no jitter.
    """

    cluster: Cluster
    groups: Groups
    mode: Literal["auto", "played", "closed_form"]
    steady: bool
    _planned: dict[tuple[str, int, str, Scope], Collective] = field(default_factory=dict)

    def plan(self, operation: str, elements: int, dtype: str, scope: Scope = "all") -> Collective | None:
        """The collective of the group that rank 0 is in, without a name of its own; None for one rank.

        Arrays are padded to a multiple of the ranks, as frameworks pad shards.
        """
        ranks = self.groups.size(scope)
        if ranks == 1:
            return None
        padded = -(-elements // ranks) * ranks
        key = (operation, padded, dtype, scope)
        if key not in self._planned:
            self._planned[key] = self._plan(operation, padded, dtype, self.groups.members(scope, 0))
        return self._planned[key]

    def _plan(self, operation: str, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
        task = Task(Request(operation, len(group), elements), "auto", group, dtype)
        made = plan(self.cluster, task)
        op = next(iter(made.program.collectives().values()))
        # Groups side by side may meet on links, so theirs are played unless closed forms are asked for.
        alone = self.mode == "auto" and self.steady and not self.groups.hybrid
        stands = made.predicted is not None and (self.mode == "closed_form" or alone)
        return replace(op, duration=made.predicted) if stands else op
