"""In which process group does each collective of a step run? Groups are rows of tables, made from the grid of ranks.

A scope names a kind of process group:

- "all": ranks that hold the same part of the model; inside, "shard", "replicate" and "mesh" (see below);
- "tensor": tensor-parallel ranks;
- "model": ranks that together hold a copy of the model;
- "context": ranks that exchange heads for tokens (Ulysses); "context ring": ranks that rotate or gather keys and
  values;
- "experts": ranks with different experts; "experts node": those of a node; "experts rail": those at equal places of
  the nodes; "expert tensor": ranks that shard an expert's matrices; "expert data": ranks
  with the same experts;
- "ends": first and last stage of a pipeline; a pair of numbers: ranks of two pipeline stages, for sends;
- "own": a rank and its host; "worker": a rank and the parameter servers. The process group is a single rank in both.

A step is written once for the ranks of each pipeline stage. `for_every_rank` turns the stages' operations into every
rank's operations, with the rank's own groups.

Hybrid sharding [1]_ cuts the data-parallel ranks into shard groups of n neighbours, often a node, that share the model
states. Ranks at the same place of every shard group hold the same shard and form a replicate group. A mesh is a smaller
group of neighbours over which parameters are sharded between forward and backward pass.

Example: 8 ranks, tp 2, shard groups of 2 ranks::

    tensor     (0, 1)  (2, 3)  (4, 5)  (6, 7)
    all        (0, 2, 4, 6)    (1, 3, 5, 7)
    shard      (0, 2)  (4, 6)  (1, 3)  (5, 7)
    replicate  (0, 4)  (2, 6)  (1, 5)  (3, 7)

References
----------
.. [1] Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", VLDB 2023, section 3.2.2.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, Literal

import numpy as np

from simulator.basics.arrays import Ints
from simulator.records.operation import Collective, Op, content
from simulator.records.program import CollectiveGroupFamily, OperationLists, RanksByList
from simulator.step.rank_grid import RankGrid

Scope = (
    Literal[
        "all", "shard", "replicate", "mesh", "tensor", "context", "context ring", "experts", "experts node",
        "experts rail", "expert tensor", "expert data", "model", "ends", "own", "worker",
    ]
    | tuple[int, int]
)  # fmt: skip


# Axis for each expert scope in `Groups._build_table`'s four-dimensional table.
_OF_EXPERTS: Final[Mapping[Scope, int]] = {"expert data": 1, "experts": 2, "expert tensor": 3}


@dataclass(frozen=True)
class Groups:
    """Process groups in a training step: for each scope (kind of process group) a table with the groups' ranks."""

    grid: RankGrid  # ranks as a grid with an axis for each kind of parallelism
    shard_size: int  # ranks that share a copy of the model states; every data-parallel rank without hybrid sharding
    mesh_size: int | None = None  # ranks that share parameters between forward and backward pass; None for `shard_size`
    ulysses: int = 1  # context-parallel ranks that exchange heads for tokens
    # `expert_ranks`, `expert_tensor`: Ranks with different experts, and ranks that shard an expert's matrices.
    expert_ranks: int = 1
    expert_tensor: int = 1
    unlike_places: int = 1  # number of context-parallel ranks with their own operation lists
    experts_in_node: int = 0  # consecutive ranks with different experts on each node; 0 for all
    _tables: dict[Scope, Ints] = field(default_factory=dict, repr=False, compare=False)
    _of_list: dict[tuple[Scope, int], list[int]] = field(default_factory=dict, repr=False, compare=False)
    _numbers: dict[Scope, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Unequal groups would break every table's rectangular shape.
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
        """Number of ranks in the cluster."""
        return self.grid.world_size

    @cached_property
    def data_parallel(self) -> int:
        """Number of ranks holding the same model part."""
        return self.grid.holders

    @property
    def hybrid(self) -> bool:
        """True if the model states have several copies (hybrid sharding)."""
        return self.shard_size < self.data_parallel

    @property
    def several(self) -> bool:
        """True if a scope has several process groups, which communicate side by side."""
        parted = self.data_parallel < self.world_size
        return parted or self.hybrid or self.mesh_size not in (None, self.data_parallel)

    @cached_property
    def list_of(self) -> tuple[int, ...]:
        """Number of the operation list of each rank; lists differ by pipeline stage, and along the sequence if
        context-parallel work is unequal.
        """
        return tuple((self.grid.coordinate("pp") * self.unlike_places + self.place_of).tolist())

    @cached_property
    def place_of(self) -> Ints:
        """Each rank's place along the sequence, if lists differ along the sequence; otherwise 0."""
        return self.grid.coordinate("cp") % self.unlike_places

    @cached_property
    def lists(self) -> int:
        """Number of distinct operation lists: pipeline stages times unequal places along the sequence."""
        return self.grid.size("pp") * self.unlike_places

    def table(self, scope: Scope) -> Ints:
        """Return the ranks in every process group of a scope, shape (groups, ranks per group).

        >>> groups = Groups(RankGrid({"dp": 4}), shard_size=2)
        >>> groups.table("shard").tolist(), groups.table("replicate").tolist()
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
        """
        # Tables are built once: a program may look up groups millions of times.
        if scope not in self._tables:
            self._tables[scope] = self._build_table(scope)
        return self._tables[scope]

    def _build_table(self, scope: Scope) -> Ints:
        """Build the table of a scope's process groups, shape (groups, ranks per group)."""
        # Data-parallel scopes are cut from these rows.
        data = self.grid.same_part()
        # Both ends of a send: a column for each of the two pipeline stages.
        if isinstance(scope, tuple):
            return self.grid.groups("pp")[:, list(scope)]
        # Transposing shard groups pairs up the ranks at equal places.
        if scope == "replicate":
            return data.reshape(len(data), -1, self.shard_size).transpose(0, 2, 1).reshape(-1, self.size("replicate"))
        if scope in ("own", "worker"):
            return np.arange(self.world_size).reshape(-1, 1)
        if scope == "tensor":
            return self.grid.groups("tp")
        if scope == "context":
            return self.grid.groups("cp").reshape(-1, self.ulysses)
        # Ranks at equal places of neighbouring Ulysses groups form a ring.
        if scope == "context ring":
            rows = self.grid.groups("cp").reshape(-1, self.size(scope), self.ulysses)
            return rows.transpose(0, 2, 1).reshape(-1, self.size(scope))
        # Tensor-parallel ranks in a stage also belong to the expert groups.
        if scope in _OF_EXPERTS:
            # Shape (stages, ranks with the same experts, ranks with different experts, ranks that shard an expert).
            stages = self.grid.stages().reshape(len(self.grid.stages()), -1, self.expert_ranks, self.expert_tensor)
            return np.moveaxis(stages, _OF_EXPERTS[scope], -1).reshape(-1, self.size(scope))
        if scope == "experts node":
            return self.table("experts").reshape(-1, self.size(scope))
        # Ranks at equal places of a group's nodes.
        if scope == "experts rail":
            rows = self.table("experts").reshape(-1, self.size(scope), self.size("experts node"))
            return rows.transpose(0, 2, 1).reshape(-1, self.size(scope))
        if scope == "model":
            return self.grid.one_model()
        if scope == "ends":
            # First and last stage share the embedding if embedding and head are tied.
            return self.grid.groups("pp")[:, [0, -1]]
        # "all", "shard" and "mesh" are runs of neighbours among the data-parallel ranks.
        return data.reshape(-1, self.size(scope))

    def size(self, scope: Scope) -> int:
        """Return the number of ranks per process group in a scope."""
        return 2 if isinstance(scope, tuple) else self._sizes[scope]

    @cached_property
    def _sizes(self) -> Mapping[Scope, int]:
        """Number of ranks per process group, for each scope."""
        return {
            "all": self.data_parallel,
            "shard": self.shard_size,
            "replicate": self.data_parallel // self.shard_size,
            "mesh": self.mesh_size or self.shard_size,
            "tensor": self.grid.size("tp"),
            "context": self.ulysses,
            "context ring": self.grid.size("cp") // self.ulysses,
            "experts": self.expert_ranks,
            "experts node": self.experts_in_node or self.expert_ranks,
            "experts rail": self.expert_ranks // (self.experts_in_node or self.expert_ranks),
            "expert tensor": self.expert_tensor,
            "expert data": self._sharing_experts,
            "model": self.world_size // self.data_parallel,
            "ends": 2 if self.grid.size("pp") > 1 else 1,
            "own": 1,
            "worker": 1,
        }

    @cached_property
    def _sharing_experts(self) -> int:
        """Number of ranks holding the same experts."""
        return self.data_parallel * self.grid.size("tp") // (self.expert_ranks * self.expert_tensor)

    def number(self, scope: Scope, rank: int) -> int:
        """Return the index of the process group that contains a rank, within a scope; -1 if the rank is in no such
        group.
        """
        if scope not in self._numbers:
            # A middle stage is in no "ends" group, and a stage is in no send between two other stages.
            number = np.full(self.world_size, -1)
            table = self.table(scope)
            number[table] = np.arange(len(table))[:, None]
            self._numbers[scope] = number.tolist()
        return self._numbers[scope][rank]

    def members(self, scope: Scope, number: int) -> tuple[int, ...]:
        """Return the ranks of the process group with this index in a scope."""
        return tuple(self.table(scope)[number].tolist())

    def with_rank(self, scope: Scope, rank: int) -> tuple[int, ...]:
        """Return the ranks of the process group that contains a rank, within a scope."""
        return self.members(scope, self.number(scope, rank))

    def of_list(self, scope: Scope, number: int) -> Sequence[int]:
        """Return the indices of the process groups in a scope that run a collective written in operation list `number`.

        A group whose ranks have different lists runs both lists' collectives together, therefore both lists' groups
        belong together, and transitively every linked list's groups.

        Six ranks with three places along the sequence, a list for each place, and experts over two ranks. The groups
        are (0, 1), (2, 3) and (4, 5), with lists (0, 1), (2, 0) and (1, 2). List 0 is only in groups 0 and 1, but
        shares these groups with lists 1 and 2, and both are also in group 2.

        >>> groups = Groups(RankGrid({"cp": 3, "dp": 2}), shard_size=6, expert_ranks=2, unlike_places=3)
        >>> groups.list_of, groups.of_list("experts", 0)
        ((0, 1, 2, 0, 1, 2), [0, 1, 2])
        """
        # Every rank runs the single list.
        if self.lists == 1:
            return range(len(self.table(scope)))
        if (scope, number) not in self._of_list:
            # Imported late, because few commands need graphs.
            import networkx as nx

            # Vertices are lists; an edge joins lists that meet in a group. Linked lists share their groups.
            lists = np.array(self.list_of)[self.table(scope)]
            linked: nx.Graph[int] = nx.Graph()
            # Many groups have equal lists: a path per distinct combination suffices.
            for met in np.unique(np.sort(lists, axis=1), axis=0).tolist():
                nx.add_path(linked, met)
            for together in nx.connected_components(linked):
                groups = np.flatnonzero(np.isin(lists[:, 0], list(together))).tolist()
                self._of_list.update({(scope, member): groups for member in together})
        return self._of_list[scope, number]


@dataclass(frozen=True, slots=True)
class StageOps:
    """Operations for ranks with equal operation lists (usually a pipeline stage), written for the lowest rank."""

    ops: Sequence[Op]  # operations, in order of issue
    scopes: Mapping[str, Scope]  # scope of each collective, by its name


Among = Callable[[Collective, Scope, int, str], Collective]


def for_every_rank(stages: Sequence[StageOps], groups: Groups, among: Among) -> Sequence[tuple[Op, ...]]:
    """Return the operations of every rank, in which each collective runs in the rank's own process group.

    Parameters
    ----------
    stages : sequence of StageOps
        Distinct operation lists.
    groups : Groups
        The step's process groups.
    among : callable (op, scope, number, name) -> Collective
        Return the collective for the scope's group `number`, under a new name.
    """
    scopes = {scope for stage in stages for scope in stage.scopes.values()}
    # Without parallelism inside the model, the list suits every rank unchanged: ranks share a single tuple.
    if len(stages) == 1 and all(groups.size(scope) == groups.world_size for scope in scopes):
        return (tuple(stages[0].ops),) * groups.world_size
    spread = _GroupExpander(stages, groups, among)
    # Ranks' operations are built on access; distinct lists are shared.
    lists = OperationLists.made(tuple(tuple(stage.ops) for stage in stages), groups.list_of, spread.family_at)
    return RanksByList(lists, spread.own, spread.name)


@dataclass(slots=True)
class _GroupExpander:
    """Turns the operation lists of pipeline stages into operations of single ranks and process groups, on request."""

    stages: Sequence[StageOps]  # distinct operation lists
    groups: Groups  # the step's process groups
    among: Among  # see `for_every_rank`
    _made: dict[tuple[str, Scope, int], Collective] = field(default_factory=dict)

    def own(self, place: int, rank: int) -> Op:
        """Return the operation at index `place` in a rank's operation list, with the rank's own process groups."""
        stage = self.stages[self.groups.list_of[rank]]
        # Names of collectives in `after` become the names of the rank's own groups.
        op = stage.ops[place]
        after = tuple(self._name_on_rank(name, rank, stage.scopes) for name in op.after)
        if isinstance(op, Collective):
            op = self._of_group(op, stage.scopes[op.name], self.groups.number(stage.scopes[op.name], rank))
            # Ranks in a group share the collective, unless they wait for different collectives.
            return op if after == op.after else op.named(op.name, after, op.group)
        # Ranks in a group may be in different groups of another scope, hence `after` differs by rank.
        return op if after == op.after else replace(op, after=after)

    def name(self, place: int, rank: int) -> str:
        """Return the name of the operation at index `place` in a rank's list, without building the operation."""
        stage = self.stages[self.groups.list_of[rank]]
        return self._name_on_rank(stage.ops[place].name, rank, stage.scopes)

    def family_at(self, stage: int, op: Collective) -> tuple[Hashable, Callable[[], CollectiveGroupFamily]]:
        """Return a key for a stage's collective, and a function to build the family with the collective's copies in
        every process group.

        Two lists share either every group of a scope (`Groups.of_list`) or none, therefore the first group's number
        identifies the groups.
        """
        scope = self.stages[stage].scopes[op.name]
        numbers = self.groups.of_list(scope, stage)

        def make() -> CollectiveGroupFamily:
            """Build the family: a collective's copies that differ only in the process group."""
            return CollectiveGroupFamily(
                (content(op), scope, numbers[0]), len(numbers), partial(self._numbered, op, scope, numbers)
            )

        return (op.name, scope, numbers[0]), make

    def _numbered(self, op: Collective, scope: Scope, numbers: Sequence[int], number: int) -> Collective:
        """Return the copy of a collective for the process group `numbers[number]` of a scope."""
        return self._of_group(op, scope, numbers[number])

    def _of_group(self, op: Collective, scope: Scope, number: int) -> Collective:
        """Return a collective's copy for a process group; built once, because the group's ranks share the object."""
        key = op.name, scope, number
        if key not in self._made:
            self._made[key] = self.among(op, scope, number, self._name(op.name, scope, number))
        return self._made[key]

    def _name_on_rank(self, name: str, rank: int, scopes: Mapping[str, Scope]) -> str:
        """Return the name that an operation has on a rank: collectives get the name of the rank's own process group."""
        scope = scopes.get(name)
        return name if scope is None else self._name(name, scope, self.groups.number(scope, rank))

    def _name(self, name: str, scope: Scope, number: int) -> str:
        """Return a collective's name in the process group of this number: "gather layer 0 forward 0 (shard 1)"."""
        # A group that spans every rank needs no number.
        if scope == "all" and self.groups.data_parallel == self.groups.world_size:
            return name
        of = "pipeline" if isinstance(scope, tuple) else scope
        return f"{name} ({of} {number})"
