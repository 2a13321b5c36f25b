"""Which process group each collective of a step runs in: all ranks, a shard group, a replicate group, a smaller mesh.

Two further scopes are of one rank: "own" is a rank and its host, "worker" a rank and the parameter servers.

Rule: a step is written for rank 0; here it becomes every rank's own, with the groups that the rank is in.

Hybrid sharding [1]_ cuts the ranks into groups of n that share the states among them (shard groups: neighbours, inside
a node if n is a node); the ranks at the same place of every group hold the same part (replicate groups). A mesh is a
smaller group of neighbours still, over which parameters are spread between forward and backward.

References
----------
.. [1] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from simulator.records.program import Collective, Op, SameForAll

Scope = Literal["all", "shard", "replicate", "mesh", "own", "worker"]


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of so many ranks.

    Attributes
    ----------
    world_size : int
    shard_size : int
        Ranks that share one copy of the states; world_size where there is one copy.
    mesh_size : int or None
        Ranks that share parameters between forward and backward; None where that is shard_size.
    """

    world_size: int
    shard_size: int
    mesh_size: int | None = None

    def __post_init__(self) -> None:
        if self.shard_size < 1 or self.world_size % self.shard_size:
            raise ValueError(
                f"shard_size: got {self.shard_size}; must divide the {self.world_size} data-parallel ranks"
            )
        if self.mesh_size is not None and (self.mesh_size < 1 or self.shard_size % self.mesh_size):
            raise ValueError(
                f"reshard_after_forward: got {self.mesh_size}; must divide the {self.shard_size} ranks of a shard group"
            )

    @property
    def hybrid(self) -> bool:
        """Whether there are several copies."""
        return self.shard_size < self.world_size

    @property
    def several(self) -> bool:
        """Whether groups work side by side."""
        return self.hybrid or self.mesh_size not in (None, self.world_size)

    def size(self, scope: Scope) -> int:
        """Ranks of a group."""
        sizes: dict[Scope, int] = {
            "all": self.world_size,
            "shard": self.shard_size,
            "replicate": self.world_size // self.shard_size,
            "mesh": self.mesh_size or self.shard_size,
            "own": 1,
            "worker": 1,
        }
        return sizes[scope]

    def number(self, scope: Scope, rank: int) -> int:
        """Which of its kind a rank's group is."""
        return rank % self.shard_size if scope == "replicate" else rank // self.size(scope)

    def members(self, scope: Scope, number: int) -> tuple[int, ...]:
        """Ranks of a group."""
        if scope == "replicate":
            return tuple(range(number, self.world_size, self.shard_size))
        return tuple(range(number * self.size(scope), (number + 1) * self.size(scope)))


def for_every_rank(
    ops: Sequence[Op],
    scopes: Mapping[str, Scope],
    groups: Groups,
    among: Callable[[Collective, Scope, int, str], Collective],
) -> Sequence[tuple[Op, ...]]:
    """Rank 0's operations as every rank's, each collective among the rank's own group.

    Parameters
    ----------
    ops : sequence of Op
    scopes : mapping of a collective's name to its scope
    groups : Groups
    among : callable (op, scope, number, name) -> Collective
        The collective as another group of that scope carries it out, under its name.
    """
    if all(groups.size(scope) == groups.world_size for scope in set(scopes.values())):
        return (tuple(ops),) * groups.world_size
    made: dict[tuple[str, int], Collective] = {}

    def of_group(place: int, number: int) -> Collective:
        op, key = ops[place], (ops[place].name, number)
        if key not in made and isinstance(op, Collective):
            scope = scopes[op.name]
            first = groups.members(scope, number)[0]
            made[key] = among(op, scope, number, _named(op.name, first, scopes, groups))
        return made[key]

    def own(place: int, rank: int) -> Op:
        op = ops[place]
        after = tuple(_named(name, rank, scopes, groups) for name in op.after)
        if isinstance(op, Collective):
            op = of_group(place, groups.number(scopes[op.name], rank))
        # Ranks of one group may wait for collectives of different other groups, so `after` is each rank's own.
        return op if after == op.after else replace(op, after=after)

    def groups_at(place: int) -> tuple[Collective, ...]:
        scope = scopes[ops[place].name]
        return tuple(of_group(place, number) for number in range(groups.world_size // groups.size(scope)))

    return SameForAll(tuple(ops), groups.world_size, own, groups_at)


def _named(name: str, rank: int, scopes: Mapping[str, Scope], groups: Groups) -> str:
    scope = scopes.get(name, "all")
    return name if scope == "all" else f"{name} ({scope} {groups.number(scope, rank)})"
