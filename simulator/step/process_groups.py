"""Which process group each collective of a step runs in.

Over all ranks that hold the same part of the model ("all"), and inside of these over a shard group, a replicate group,
a smaller mesh; over the ranks that a layer's matrices are cut among ("tensor"), over all ranks that hold a copy of the
model together ("model"), over those that cut sequences and hand heads to each other ("context") or keys round ("context
ring"), over those that experts are spread over ("experts"), those that cut one expert's matrices ("expert tensor") and
those that have the same experts ("expert data"), over the ends of a pipeline ("ends"), and between the ranks of two
places in a pipeline (a pair of numbers). Two scopes are of one rank: "own" is a rank and its host, "worker" a rank and
the parameter servers.

Rule: a step is written once for the ranks of each place in a pipeline; here it becomes every rank's own, with the
groups that the rank is in.

Hybrid sharding [1]_ cuts the ranks into groups of n that share the states among them (shard groups: neighbours, inside
a node if n is a node); the ranks at the same place of every group hold the same part (replicate groups). A mesh is a
smaller group of neighbours still, over which parameters are spread between forward and backward.

References
----------
.. [1] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, Literal

import networkx as nx
import numpy as np

from simulator.basics.arrays import Ints
from simulator.records.operation import Collective, Op, content
from simulator.records.program import Family, OperationLists, RanksByList
from simulator.step.rank_grid import RankGrid

Scope = (
    Literal[
        "all", "shard", "replicate", "mesh", "tensor", "context", "context ring", "experts", "expert tensor",
        "expert data", "model", "ends", "own", "worker",
    ]
    | tuple[int, int]
)  # fmt: skip


# Which axis of the table of experts' ranks a group goes along.
_OF_EXPERTS: Final[Mapping[Scope, int]] = {"expert data": 1, "experts": 2, "expert tensor": 3}


@dataclass(frozen=True)
class Groups:
    """The groups of so many ranks.

    Attributes
    ----------
    grid : RankGrid
    shard_size : int
        Ranks that share one copy of the states; all data-parallel ones where there is one copy.
    mesh_size : int or None
        Ranks that share parameters between forward and backward; None where that is shard_size.
    ulysses : int
        Of the ranks that cut a sequence, those that hand heads to each other.
    expert_ranks, expert_tensor : int
        Ranks that experts are spread over, and that cut one expert's matrices.
    unlike_places : int
        How many ranks of those that cut a sequence have a list of operations of their own.
    """

    grid: RankGrid
    shard_size: int
    mesh_size: int | None = None
    ulysses: int = 1
    expert_ranks: int = 1
    expert_tensor: int = 1
    unlike_places: int = 1
    _tables: dict[Scope, Ints] = field(default_factory=dict, repr=False, compare=False)
    _of_list: dict[tuple[Scope, int], list[int]] = field(default_factory=dict, repr=False, compare=False)
    _numbers: dict[Scope, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.shard_size < 1 or self.data_parallel % self.shard_size:
            raise ValueError(
                f"shard_size: got {self.shard_size}; must divide the {self.data_parallel} data-parallel ranks"
            )
        if self.mesh_size is not None and (self.mesh_size < 1 or self.shard_size % self.mesh_size):
            raise ValueError(
                f"reshard_after_forward: got {self.mesh_size}; must divide the {self.shard_size} ranks of a shard group"
            )

    @property
    def world_size(self) -> int:
        """All ranks."""
        return self.grid.world_size

    @cached_property
    def data_parallel(self) -> int:
        """Ranks that hold the same part of the model."""
        return self.grid.holders

    @property
    def hybrid(self) -> bool:
        """Whether there are several copies of a part's states."""
        return self.shard_size < self.data_parallel

    @property
    def several(self) -> bool:
        """Whether groups work side by side."""
        parted = self.data_parallel < self.world_size
        return parted or self.hybrid or self.mesh_size not in (None, self.data_parallel)

    @cached_property
    def list_of(self) -> tuple[int, ...]:
        """By rank the number of its list: its place in the pipeline and, where these differ, along the sequence."""
        return tuple((self.grid.coordinate("pp") * self.unlike_places + self.place_of).tolist())

    @cached_property
    def place_of(self) -> Ints:
        """By rank its place along the sequence, where places differ."""
        return self.grid.coordinate("cp") % self.unlike_places

    @cached_property
    def lists(self) -> int:
        """Different lists of operations."""
        return self.grid.size("pp") * self.unlike_places

    def table(self, scope: Scope) -> Ints:
        """Ranks of every group, shape (groups, ranks of a group)."""
        if scope not in self._tables:
            self._tables[scope] = self._made(scope)
        return self._tables[scope]

    def _made(self, scope: Scope) -> Ints:
        data = self.grid.same_part()
        if isinstance(scope, tuple):
            return self.grid.groups("pp")[:, list(scope)]
        if scope == "replicate":
            return data.reshape(len(data), -1, self.shard_size).transpose(0, 2, 1).reshape(-1, self.size("replicate"))
        if scope in ("own", "worker"):
            return np.arange(self.world_size).reshape(-1, 1)
        if scope == "tensor":
            return self.grid.groups("tp")
        if scope == "context":
            return self.grid.groups("cp").reshape(-1, self.ulysses)
        if scope == "context ring":
            rows = self.grid.groups("cp").reshape(-1, self.size(scope), self.ulysses)
            return rows.transpose(0, 2, 1).reshape(-1, self.size(scope))
        if scope in _OF_EXPERTS:
            # By stage, ranks with the same experts, places among those that they are spread over, and that cut one's.
            there = self.grid.stages().reshape(len(self.grid.stages()), -1, self.expert_ranks, self.expert_tensor)
            return np.moveaxis(there, _OF_EXPERTS[scope], -1).reshape(-1, self.size(scope))
        if scope == "model":
            return self.grid.one_model()
        if scope == "ends":
            return self.grid.groups("pp")[:, [0, -1]]
        return data.reshape(-1, self.size(scope))

    def size(self, scope: Scope) -> int:
        """Ranks of a group."""
        return 2 if isinstance(scope, tuple) else self._sizes[scope]

    @cached_property
    def _sizes(self) -> Mapping[Scope, int]:
        return {
            "all": self.data_parallel,
            "shard": self.shard_size,
            "replicate": self.data_parallel // self.shard_size,
            "mesh": self.mesh_size or self.shard_size,
            "tensor": self.grid.size("tp"),
            "context": self.ulysses,
            "context ring": self.grid.size("cp") // self.ulysses,
            "experts": self.expert_ranks,
            "expert tensor": self.expert_tensor,
            "expert data": self._sharing_experts,
            "model": self.world_size // self.data_parallel,
            "ends": 2 if self.grid.size("pp") > 1 else 1,
            "own": 1,
            "worker": 1,
        }

    @cached_property
    def _sharing_experts(self) -> int:
        """Ranks that have the same experts."""
        return self.data_parallel * self.grid.size("tp") // (self.expert_ranks * self.expert_tensor)

    def number(self, scope: Scope, rank: int) -> int:
        """Which of its kind a rank's group is; -1 where it is in none."""
        if scope not in self._numbers:
            number = np.full(self.world_size, -1)
            table = self.table(scope)
            number[table] = np.arange(len(table))[:, None]
            self._numbers[scope] = number.tolist()
        return self._numbers[scope][rank]

    def members(self, scope: Scope, number: int) -> tuple[int, ...]:
        """Ranks of a group."""
        return tuple(self.table(scope)[number].tolist())

    def of_list(self, scope: Scope, number: int) -> Sequence[int]:
        """Return the numbers of the groups that carry out a collective of one list of operations.

        Two lists whose ranks meet in one group share the collective, so the groups of both lists belong to it, and
        those of every list that is linked to them through further groups.

        Examples
        --------
        Six ranks, three places along the sequence with a list each, experts over two ranks: the groups are (0, 1),
        (2, 3) and (4, 5), their lists (0, 1), (2, 0) and (1, 2). List 0 alone is in groups 0 and 1, but shares these
        with lists 1 and 2, which are in group 2 too.

        >>> groups = Groups(RankGrid({"cp": 3, "dp": 2}), shard_size=6, expert_ranks=2, unlike_places=3)
        >>> groups.list_of, groups.of_list("experts", 0)
        ((0, 1, 2, 0, 1, 2), [0, 1, 2])
        """
        if self.lists == 1:
            return range(len(self.table(scope)))
        if (scope, number) not in self._of_list:
            lists = np.array(self.list_of)[self.table(scope)]
            linked: nx.Graph[int] = nx.Graph()
            for met in np.unique(np.sort(lists, axis=1), axis=0).tolist():
                nx.add_path(linked, met)
            for together in nx.connected_components(linked):
                there = np.flatnonzero(np.isin(lists[:, 0], list(together))).tolist()
                self._of_list.update({(scope, own): there for own in together})
        return self._of_list[scope, number]


@dataclass(frozen=True, slots=True)
class NotedList:
    """What the ranks of one list do, as the first of them has it.

    Attributes
    ----------
    ops : sequence of Op
    scopes : mapping of a collective's name to its scope
    """

    ops: Sequence[Op]
    scopes: Mapping[str, Scope]


Among = Callable[[Collective, Scope, int, str], Collective]


def for_every_rank(stages: Sequence[NotedList], groups: Groups, among: Among) -> Sequence[tuple[Op, ...]]:
    """The stages' operations as every rank's, each collective among the rank's own group.

    Parameters
    ----------
    stages : sequence of NotedList
    groups : Groups
    among : callable (op, scope, number, name) -> Collective
        The collective as another group of that scope carries it out, under its name.
    """
    scopes = {scope for stage in stages for scope in stage.scopes.values()}
    if len(stages) == 1 and all(groups.size(scope) == groups.world_size for scope in scopes):
        return (tuple(stages[0].ops),) * groups.world_size
    spread = _Spread(stages, groups, among)
    lists = OperationLists.made(tuple(tuple(stage.ops) for stage in stages), groups.list_of, spread.family_at)
    return RanksByList(lists, spread.own, spread.name)


@dataclass(slots=True)
class _Spread:
    """Hands operations out among the groups.

    Attributes
    ----------
    stages : sequence of NotedList
    groups : Groups
    among : callable
    """

    stages: Sequence[NotedList]
    groups: Groups
    among: Among
    _made: dict[tuple[str, Scope, int], Collective] = field(default_factory=dict)

    def own(self, place: int, rank: int) -> Op:
        """What a rank does at a place of its stage's list."""
        stage = self.stages[self.groups.list_of[rank]]
        op = stage.ops[place]
        after = tuple(self._named(name, rank, stage.scopes) for name in op.after)
        if isinstance(op, Collective):
            op = self._of_group(op, stage.scopes[op.name], self.groups.number(stage.scopes[op.name], rank))
            return op if after == op.after else op.named(op.name, after, op.group)
        # Ranks of one group may wait for collectives of different other groups, so `after` is each rank's own.
        return op if after == op.after else replace(op, after=after)

    def name(self, place: int, rank: int) -> str:
        """The name of what a rank does at a place of its stage's list."""
        stage = self.stages[self.groups.list_of[rank]]
        return self._named(stage.ops[place].name, rank, stage.scopes)

    def family_at(self, stage: int, op: Collective) -> tuple[Hashable, Callable[[], Family]]:
        """Return the identity of a collective of a list, and a function that makes its family.

        Two lists share either all groups of a scope (`Groups.of_list`) or none, so the first group identifies them.
        """
        scope = self.stages[stage].scopes[op.name]
        numbers = self.groups.of_list(scope, stage)

        def make() -> Family:
            return Family((content(op), scope, numbers[0]), len(numbers), partial(self._numbered, op, scope, numbers))

        return (op.name, scope, numbers[0]), make

    def _numbered(self, op: Collective, scope: Scope, numbers: Sequence[int], number: int) -> Collective:
        return self._of_group(op, scope, numbers[number])

    def _of_group(self, op: Collective, scope: Scope, number: int) -> Collective:
        key = op.name, scope, number
        if key not in self._made:
            self._made[key] = self.among(op, scope, number, self._name(op.name, scope, number))
        return self._made[key]

    def _named(self, name: str, rank: int, scopes: Mapping[str, Scope]) -> str:
        scope = scopes.get(name)
        return name if scope is None else self._name(name, scope, self.groups.number(scope, rank))

    def _name(self, name: str, scope: Scope, number: int) -> str:
        if scope == "all" and self.groups.data_parallel == self.groups.world_size:
            return name
        of = "pipeline" if isinstance(scope, tuple) else scope
        return f"{name} ({of} {number})"
