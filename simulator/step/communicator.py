"""Which collectives and host copies does a step contain, with which algorithm, and do closed forms replace them?

The communicator asks the collectives' planner for the algorithm that the machine would choose. Equal collectives are
planned once.
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
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.point_to_point import point_to_point, ring_shift
from simulator.collectives.time_estimate import estimated_time
from simulator.records.operation import Collective, ElementSizes
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.step import offload
from simulator.step.checkpoint_traffic import save_operation
from simulator.step.process_groups import Groups, Scope
from simulator.step.sharding import Sharding

ServerOperation = Literal["push", "pull", "clock"]
Mode = Literal["auto", "played", "closed_form", "rough", "at_once"]
# Modes for a single rank without schedules.
_ALONE: Final = ("rough", "at_once")


@dataclass
class Communicator:
    """Plans the collectives of a training step over a cluster's ranks, with algorithms and closed forms."""

    cluster: Cluster
    groups: Groups
    # "played": simulate every transfer. "closed_form": use closed forms. "auto": closed forms if nothing else is on
    # their links. "rough": a single rank without schedules, with times accurate enough to find the memory. "at_once": a
    # single rank with no times, for which the cluster may lack the other ranks.
    mode: Mode
    steady: bool  # whether every rank reaches a collective at the same time: no stragglers, no jitter
    offloads: bool = False  # whether ranks also copy to their hosts
    algorithm: str | Algorithm = "auto"  # name in the catalog of algorithms, path of a file, "auto", or a record
    _planned: dict[tuple[str, int, str, tuple[int, ...]], Collective] = field(default_factory=dict)
    _seated: dict[tuple[tuple[int, ...], bool], tuple[int | None, ...]] = field(default_factory=dict)
    _unlike_groups: dict[Scope, tuple[int, ...]] = field(default_factory=dict)

    def plan(self, operation: str, elements: int, dtype: str, scope: Scope = "all", rank: int = 0) -> Collective | None:
        """Return the collective `operation` on `elements` elements in a rank's process group of the given scope; None
        for a single rank.

        Arrays are padded to a multiple of the group's ranks, as frameworks pad shards.
        """
        ranks = self.groups.size(scope)
        if ranks == 1:
            return None
        padded = -(-elements // ranks) * ranks
        return self._plan(operation, padded, dtype, self.groups.with_rank(scope, rank))

    def send(self, elements: int, dtype: str, pair: tuple[int, ...]) -> Collective:
        """Return the point-to-point transfer of `elements` elements between a pair of ranks, sender and receiver."""
        if self.mode in _ALONE:
            return self._roughly("send", elements, find(dtype).itemsize, dtype, pair)
        return self.cluster.remember(
            (point_to_point, elements, dtype, pair),
            partial(point_to_point, self.cluster, elements, dtype, pair),
            _size(pair),
        )

    @property
    def _algorithm(self) -> Algorithm | None:
        """The algorithm of every collective for which it has a plan; None for the machine's choice."""
        if not isinstance(self.algorithm, str):
            return self.algorithm
        return None if self.algorithm == "auto" else find_algorithm(self.algorithm)

    def _plan(self, operation: str, elements: int, dtype: str, group: tuple[int, ...]) -> Collective:
        """Return the cached collective `operation` over a group; closed forms set its duration if allowed."""
        key = (operation, elements, dtype, group)
        if self.mode in _ALONE:
            return self._roughly(operation, elements, find(dtype).itemsize, dtype, group)
        # Shifts around a ring (context parallelism, tensor overlap) have a fixed schedule.
        if operation == "ring_shift":
            return self.cluster.remember(
                (ring_shift, *key), partial(ring_shift, self.cluster, elements, dtype, group), _size(group)
            )
        if key not in self._planned:
            # The scenario is refused if the algorithm lacks an operation of the strategy. Exchanges inside the model
            # may need further operations: these fall back to "auto".
            custom = self._algorithm
            if custom is not None and operation not in custom.plans:
                custom = None
            name = self.algorithm if isinstance(self.algorithm, str) else "own"
            algorithm = "auto" if custom is None else name
            task = Task(CollectiveRequest(operation, len(group), elements), algorithm, group, dtype, own=custom)
            try:
                program = self.cluster.remember((plan, custom, *key), partial(plan, self.cluster, task), _size(group))
            except ScenarioError as error:
                # The planner's error names keys of `collective:`, absent in a training scenario.
                why = error.__cause__ or str(error).split(": ", 1)[-1]
                raise ScenarioError(f"training.algorithm: {algorithm} cannot run here: {why}; write auto") from error
            op = program.ops[0]
            # The closed form replaces the simulation of transfers.
            stands = program.predicted is not None and self.alone
            self._planned[key] = replace(op, duration=program.predicted) if stands else op
        return self._planned[key]

    def _roughly(self, operation: str, elements: int, itemsize: int, dtype: str, group: tuple[int, ...]) -> Collective:
        """Return a stand-in of rank 0 alone without transfers, with an estimated duration (0 in mode "at_once")."""
        takes = 0.0 if self.mode == "at_once" else estimated_time(self.cluster, operation, elements * itemsize, group)
        return Collective(
            name=operation,
            group=(0,),
            schedule=Schedule(operation, "rough", 1, 0, 1, ReductionOrder.IN_SEQUENCE, lambda: iter(())),
            elements=elements,
            sizes=ElementSizes(itemsize, itemsize),
            dtype=dtype,
            duration=takes,
        )

    def among(self, op: Collective, scope: Scope, number: int, name: str) -> Collective:
        """Return a planned collective for the process group with this number in the same scope, under a new name.

        The collective is planned anew if the group's ranks are distributed differently over nodes, or if switches take
        part: two ranks on one node and two ranks on different nodes use different links.
        """
        # A collective with switches (`auxiliaries`) depends on the nodes themselves, not only on the distribution.
        group, by_number = self.groups.members(scope, number), bool(op.auxiliaries)
        # A rank's copy differs only in its host.
        if scope == "own":
            return replace(op, name=name, group=group, auxiliaries=(self.cluster.host_of(number), *op.auxiliaries[1:]))
        # A send, and an asynchronous worker's exchange, has equal schedules in every group.
        if scope == "worker" or isinstance(scope, tuple):
            return op.named(name, op.after, group)
        if group == op.group or self._seats(group, by_number=by_number) == self._seats(op.group, by_number=by_number):
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
                numbers.setdefault(self._seats(self.groups.members(scope, number), by_number=False), number)
            self._unlike_groups[scope] = tuple(numbers.values())
        return [self.among(op, scope, number, op.name) for number in self._unlike_groups[scope]]

    def _seats(self, group: tuple[int, ...], *, by_number: bool) -> tuple[int | None, ...]:
        """Return each rank's node: its number if `by_number`, else the index of the node's first rank in the group.

        Example: ranks on nodes (5, 5, 7) have seats (5, 5, 7) or (0, 0, 2).
        """
        if (group, by_number) not in self._seated:
            nodes = [self._node_of.get(rank) for rank in group]
            first = {node: place for place, node in reversed(list(enumerate(nodes)))}
            self._seated[group, by_number] = tuple(nodes if by_number else (first[node] for node in nodes))
        return self._seated[group, by_number]

    @cached_property
    def _node_of(self) -> Mapping[int, int]:
        """Number of the node of each rank."""
        return self.cluster.node_of()

    @cached_property
    def alone(self) -> bool:
        """True if closed forms may replace simulated transfers: on request, or because nothing else is on their links.

        With "auto", ranks must arrive together, a single group must run at a time, and copies to hosts must use other
        links.
        """
        if self.mode != "auto":
            return self.mode != "played"
        meets = self.offloads and offload.meets_collectives(self.cluster)
        return self.steady and not self.groups.several and not meets

    def copy(self, nbytes: int, direction: offload.CopyDirection, *, paged: bool = False) -> Collective | float:
        """Return rank 0's copy of `nbytes` bytes to or from its host: an operation to simulate, or a duration [s] if no
        simulation is needed. Managed memory is copied page by page (`paged`), which is slower.
        """
        copy_rate = self._copy_rates[direction]
        if paged:
            copy_rate = copy_rate.slowed(offload.PAGE_EFFICIENCY)
        if not self.cluster.hosts or (self.alone and (copy_rate.alike or self.mode != "auto")):
            return copy_rate.seconds(nbytes)
        return offload.copy_operation(self.cluster, nbytes, direction, copy_rate.cap)

    def save(self, nbytes: int) -> Collective | None:
        """Return rank 0's copy of its share of a checkpoint to the host and the write to the storage; None for a rank
        alone, which knows no other traffic.
        """
        if self.mode in _ALONE:
            return None
        return save_operation(self.cluster, nbytes, self._copy_rates["to host"].cap)

    @cached_property
    def _copy_rates(self) -> dict[offload.CopyDirection, offload.CopyRate]:
        """Latency and bandwidth of copies between GPUs and hosts, by direction: "to host" and "to device"."""
        directions: tuple[offload.CopyDirection, ...] = ("to host", "to device")
        return {direction: offload.copies(self.cluster, direction) for direction in directions}

    def serve(self, operation: ServerOperation, elements: int, dtype: str, sharding: Sharding) -> Collective | None:
        """Return a push of `elements` elements to the parameter servers, a pull from the servers, or a clock exchange;
        None for one worker.

        Asynchronous workers push and pull alone.

        Raises
        ------
        ValueError
            There are more servers than workers to host them, or than the topology's ports.
        """
        ranks, count, own_ports = self.cluster.world_size, sharding.server_count, sharding.servers_on == "own"
        ports = self.cluster.servers
        if own_ports and len(ports) < count:
            advice = f"{self.cluster.name} has ports for {len(ports)}; write servers_on: workers"
            raise ValueError(f"sharding.servers: got {count}; {advice}")
        if ranks == 1:
            return None
        padded = -(-elements // count) * count
        asynchronous = sharding.asynchronous and operation != "clock"
        workers = 1 if asynchronous else ranks
        itemsize = find(dtype).itemsize
        if self.mode in _ALONE:
            # Every worker's data passes through the ports of a few servers.
            op = self._roughly(operation, padded, itemsize, dtype, tuple(range(ranks)))
            return replace(op, duration=(op.duration or 0.0) * ranks / count, stream=f"communication {operation}")
        return Collective(
            name=operation,
            group=tuple(range(workers)),
            schedule=_served(operation, parameter_server.ServerLayout(workers, count, own_ports, self.cluster.nodes)),
            elements=padded,
            sizes=ElementSizes(itemsize, itemsize),
            dtype=dtype,
            auxiliaries=ports[:count] if own_ports else (),
            # Workers pull together: a synchronous pull starts after the last push.
            together=operation == "pull" and not asynchronous,
            stream=f"communication {operation}",
            why="parameter servers, as requested",
        )


def _served(operation: ServerOperation, party: parameter_server.ServerLayout) -> Schedule:
    """Return the transfer schedule of a push, a pull or a clock exchange between workers and parameter servers."""
    # The clock is a single number, summed on the servers and returned to every worker.
    if operation == "clock":
        on: Literal["own", "workers"] = "own" if party.own else "workers"
        nodes = tuple(map(tuple, party.nodes))
        return parameter_server.all_reduce(
            CollectiveRequest(
                "all_reduce", party.workers, party.servers, servers=party.servers, servers_on=on, nodes=nodes
            )
        )
    return (parameter_server.push if operation == "push" else parameter_server.pull)(party)


def _size(group: tuple[int, ...]) -> int:
    """Return the approximate number of array elements in the plan of a collective over this group, as weight in a
    cache.

    Transfers do not count: the step's plan never writes them out.
    """
    return 64 + 2 * len(group)
