"""Plans the messages and collectives of execution traces on a machine, for traces that are read and that are written.

A trace has bytes and no elements: every array consists of single bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.point_to_point import point_to_point
from simulator.records.operation import Collective

_DTYPE = "uint8"


@dataclass(slots=True)
class TracePlanner:
    """Plans collectives on a cluster; equal ones are planned once."""

    cluster: Cluster
    algorithm: str = "auto"  # algorithm of collectives; "auto" where it lacks an operation
    _planned: dict[tuple[str, int, int, tuple[int, ...]], Collective] = field(default_factory=dict)

    def message(self, nbytes: int, group: tuple[int, int]) -> Collective:
        """Return a message of `nbytes` bytes from the first to the second rank of a group."""
        key = "send", nbytes, 0, group
        if key not in self._planned:
            self._planned[key] = point_to_point(self.cluster, nbytes, _DTYPE, group)
        return self._planned[key]

    def collective(self, operation: str, nbytes: int, group: tuple[int, ...], root: int = 0) -> Collective:
        """Return a collective over an array of `nbytes` bytes; `root` is the place of its root in the group.

        Raises
        ------
        ScenarioError
            The algorithm cannot run on these ranks of the machine.
        """
        key = operation, nbytes, root, group
        if key not in self._planned:
            algorithm = None if self.algorithm == "auto" else find_algorithm(self.algorithm)
            if algorithm is not None and operation not in algorithm.plans:
                algorithm = None
            name = "auto" if algorithm is None else self.algorithm
            request = CollectiveRequest(operation, len(group), nbytes, root=root)
            self._planned[key] = plan(self.cluster, Task(request, name, group, _DTYPE, own=algorithm)).ops[0]
        return self._planned[key]
