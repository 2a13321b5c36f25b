"""Which collectives and host copies a step is made of, with which algorithm, and whether a closed form stands for them.

Rule: asks the planner for the algorithm that the machine would take; what is alike is planned once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Final, Literal

from simulator.basics.dtypes import find
from simulator.basics.errors import ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.collectives import parameter_server
from simulator.collectives.algorithm import ALGORITHMS, Request
from simulator.collectives.plan import Task, plan
from simulator.collectives.point_to_point import point_to_point, ring_shift
from simulator.collectives.rough import roughly
from simulator.records.operation import Collective
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.step import offload
from simulator.step.process_groups import Groups, Scope
from simulator.step.spec import Sharding

ServerOperation = Literal["push", "pull", "clock"]
Mode = Literal["auto", "played", "closed_form", "rough", "at_once"]
# Of one rank alone: no schedules.
_ALONE: Final = ("rough", "at_once")


@dataclass
class Communicator:
    """Plans collectives over the ranks of a cluster.

    Attributes
    ----------
    cluster : Cluster
    groups : Groups
    mode : {"auto", "played", "closed_form", "rough", "at_once"}
        "rough" is for one rank alone: no schedules, and times that are good enough to say what memory is needed;
        "at_once" the same with no times at all, for which no other rank has to be in the cluster.
    steady : bool
        Whether all ranks reach a collective together: no stragglers, no jitter.
    offloads : bool
        Whether ranks also copy to their hosts.
    algorithm : str
        A name of the catalog, or "auto".
    """

    cluster: Cluster
    groups: Groups
    mode: Mode
    steady: bool
    offloads: bool = False
    algorithm: str = "auto"
    _planned: dict[tuple[str, int, str, tuple[int, ...]], Collective] = field(default_factory=dict)
    _seated: dict[tuple[tuple[int, ...], bool], tuple[int | None, ...]] = field(default_factory=dict)
    _unlike_groups: dict[Scope, tuple[int, ...]] = field(default_factory=dict)

    def plan(self, operation: str, elements: int, dtype: str, scope: Scope = "all", rank: int = 0) -> Collective | None:
        """The collective of the group that a rank is in, without a name of its own; None for one rank.

        Arrays are padded to a multiple of the ranks, as frameworks pad shards.
        """
        ranks = self.groups.size(scope)
        if ranks == 1:
            return None
        padded = -(-elements // ranks) * ranks
        return self._plan(operation, padded, dtype, self.groups.members(scope, self.groups.number(scope, rank)))

    def send(self, elements: int, dtype: str, stages: tuple[int, int], rank: int) -> Collective:
        """One transfer from a stage's rank to that of another, without a name of its own; `rank` is either of them."""
        group, itemsize = self.groups.members(stages, self.groups.number(stages, rank)), find(dtype).itemsize
        if self.mode in _ALONE:
            return self._roughly("send", elements, itemsize, dtype, group)
        return self.cluster.remember(
            (point_to_point, elements, dtype, group),
            partial(point_to_point, self.cluster, elements, dtype, group),
            _size(group),
        )

    def _plan(self, operation: str, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
        key = (operation, elements, dtype, group)
        if self.mode in _ALONE:
            return self._roughly(operation, elements, find(dtype).itemsize, dtype, group)
        if operation == "ring_shift":
            return self.cluster.remember(
                (ring_shift, *key), partial(ring_shift, self.cluster, elements, dtype, group), _size(group)
            )
        if key not in self._planned:
            # What a strategy needs an algorithm has, or it was refused; a cut model exchanges in other ways too.
            able = self.algorithm == "auto" or operation in ALGORITHMS.operations(self.algorithm)
            algorithm = self.algorithm if able else "auto"
            task = Task(Request(operation, len(group), elements), algorithm, group, dtype)
            try:
                made = self.cluster.remember((plan, algorithm, *key), partial(plan, self.cluster, task), _size(group))
            except ScenarioError as error:
                # The planner names keys of `collective:`, which a training scenario does not have.
                why = error.__cause__ or str(error).split(": ", 1)[-1]
                raise ScenarioError(f"training.algorithm: {algorithm} cannot run here: {why}; write auto") from error
            op = made.ops[0]
            stands = made.predicted is not None and self.alone
            self._planned[key] = replace(op, duration=made.predicted) if stands else op
        return self._planned[key]

    def _roughly(self, operation: str, elements: int, itemsize: int, dtype: str, group: tuple[int, ...]) -> Collective:
        """A collective that rank 0 is alone in, for about as long as the group would take, or for no time."""
        takes = 0.0 if self.mode == "at_once" else roughly(self.cluster, operation, elements * itemsize, group)
        return Collective(
            name=operation,
            group=(0,),
            schedule=Schedule(operation, "rough", 1, 0, 1, ReductionOrder.IN_SEQUENCE, lambda: iter(())),
            elements=elements,
            itemsize=itemsize,
            reduce_itemsize=itemsize,
            dtype=dtype,
            duration=takes,
        )

    def among(self, op: Collective, scope: Scope, number: int, name: str) -> Collective:
        """What rank 0's group does, done by another group of its scope, under a name of its own.

        It is planned anew where that one lies otherwise in its nodes, or where switches of nodes take part: two ranks
        of one node and two of different nodes are not served alike.
        """
        group, named = self.groups.members(scope, number), bool(op.auxiliaries)
        if scope == "own":
            return replace(op, name=name, group=group, auxiliaries=(self.cluster.hosts[number],))
        if scope == "worker" or isinstance(scope, tuple):
            return op.named(name, op.after, group)
        if group == op.group or self._seats(group, named=named) == self._seats(op.group, named=named):
            return op.named(name, op.after, group)
        anew = self._plan(op.schedule.operation, op.elements, op.dtype, group)
        return replace(anew, name=name, stream=op.stream, after=op.after, act=op.act, rendezvous=op.rendezvous)

    def in_every_group(self, op: Collective, scope: Scope) -> list[Collective]:
        """Return a collective once for each distribution of a process group's ranks over the nodes of the cluster.

        The step's plan holds the collective of the first process group alone, and the engines plan the collective of a
        further group during the simulation. In a group with two ranks on one node and four ranks on another, `auto` may
        choose another algorithm, and an algorithm such as `multi_ring` cannot run.

        Parameters
        ----------
        op : Collective
            The collective as planned for the first process group.
        scope : Scope
            Kind of process group: all data-parallel ranks, a shard, a tensor-parallel group, ...

        Raises
        ------
        ScenarioError
            The algorithm cannot run in some group.
        """
        if scope in ("own", "worker") or isinstance(scope, tuple):
            return [op]
        if scope not in self._unlike_groups:
            numbers: dict[tuple[int | None, ...], int] = {}
            for number in range(len(self.groups.table(scope))):
                numbers.setdefault(self._seats(self.groups.members(scope, number), named=False), number)
            self._unlike_groups[scope] = tuple(numbers.values())
        return [self.among(op, scope, number, op.name) for number in self._unlike_groups[scope]]

    def _seats(self, group: tuple[int, ...], *, named: bool) -> tuple[int | None, ...]:
        """Each rank's node, by its number, or by the first of the group that is in it."""
        if (group, named) not in self._seated:
            nodes = [self._node_of.get(rank) for rank in group]
            first = {node: place for place, node in reversed(list(enumerate(nodes)))}
            self._seated[group, named] = tuple(nodes if named else (first[node] for node in nodes))
        return self._seated[group, named]

    @cached_property
    def _node_of(self) -> Mapping[int, int]:
        return self.cluster.node_of()

    @cached_property
    def alone(self) -> bool:
        """Whether closed forms may stand: as asked, or because all ranks keep step and nothing else is on their links.

        Groups side by side may meet on links, and so may copies to the host.
        """
        if self.mode != "auto":
            return self.mode != "played"
        meets = self.offloads and offload.meets_collectives(self.cluster)
        return self.steady and not self.groups.several and not meets

    def copy(self, nbytes: int, direction: offload.CopyDirection) -> Collective | float:
        """A copy of rank 0 to or from its host: an operation to be played, or its time where that is sure [s]."""
        copy_rate = self._copy_rates[direction]
        if not self.cluster.hosts or (self.alone and (copy_rate.alike or self.mode != "auto")):
            return copy_rate.seconds(nbytes)
        return offload.copy_operation(self.cluster, nbytes, direction, copy_rate.cap)

    @cached_property
    def _copy_rates(self) -> dict[offload.CopyDirection, offload.CopyRate]:
        directions: tuple[offload.CopyDirection, ...] = ("to host", "to device")
        return {direction: offload.copies(self.cluster, direction) for direction in directions}

    def serve(self, operation: ServerOperation, elements: int, dtype: str, sharding: Sharding) -> Collective | None:
        """All workers' push to the parameter servers, their pull, or a number there and back; None for one worker.

        Where servers wait for nobody a worker goes there alone.

        Raises
        ------
        ValueError
            More servers than workers to live on, or than the topology has ports for.
        """
        ranks, count, own = self.cluster.world_size, sharding.servers, sharding.servers_on == "own"
        ports = self.cluster.servers
        if own and len(ports) < count:
            advice = f"{self.cluster.name} has ports for {len(ports)}; write servers_on: workers"
            raise ValueError(f"sharding.servers: got {count}; {advice}")
        if ranks == 1:
            return None
        padded = -(-elements // count) * count
        alone = sharding.asynchronous and operation != "clock"
        workers = 1 if alone else ranks
        itemsize = find(dtype).itemsize
        if self.mode in _ALONE:
            # What each of the workers sends goes through the ports of a few servers.
            made = self._roughly(operation, padded, itemsize, dtype, tuple(range(ranks)))
            return replace(made, duration=(made.duration or 0.0) * ranks / count, stream=f"communication {operation}")
        return Collective(
            name=operation,
            group=tuple(range(workers)),
            schedule=_served(operation, parameter_server.Party(workers, count, own, self.cluster.nodes)),
            elements=padded,
            itemsize=itemsize,
            reduce_itemsize=itemsize,
            dtype=dtype,
            auxiliaries=ports[:count] if own else (),
            together=operation == "pull" and not alone,
            stream=f"communication {operation}",
            why="parameter servers, as asked",
        )


def _served(operation: ServerOperation, party: parameter_server.Party) -> Schedule:
    if operation == "clock":
        on: Literal["own", "workers"] = "own" if party.own else "workers"
        nodes = tuple(map(tuple, party.nodes))
        return parameter_server.all_reduce(
            Request("all_reduce", party.workers, party.servers, servers=party.servers, servers_on=on, nodes=nodes)
        )
    return (parameter_server.push if operation == "push" else parameter_server.pull)(party)


def _size(group: tuple[int, ...]) -> int:
    """Numbers that a plan among so many ranks holds, about; its transfers are written out by nobody here."""
    return 64 + 2 * len(group)
