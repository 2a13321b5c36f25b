"""Plans a collective: which algorithm does `auto` take, and which Program with which predicted time results?

Planning decides everything before a clock runs: the algorithm, the nodes, the vertices for servers and switches, the
machine's start-up time and rate caps. This module uses no clock and no arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Final, Literal

from simulator.basics.dtypes import find as find_dtype
from simulator.basics.errors import ScenarioError, ScheduleError
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import (
    ALGORITHMS,
    ROOTED,
    Algorithm,
    Auxiliary,
    CollectiveRequest,
)
from simulator.collectives.channels import MOST_IN_A_NODE, cable_widths, rings_over_links
from simulator.collectives.choose import Candidate, choose
from simulator.collectives.constants import as_library, caps_of, constants, on_whole_nodes, runs, source_of
from simulator.collectives.estimate import estimate
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.own_algorithms import (
    broken_text,
    flows_at_once,
    is_own,
    proof_text,
    prove,
    transfers_at_once,
)
from simulator.collectives.ring import widest_order
from simulator.collectives.torus import sides_of_group
from simulator.records.operation import Collective, ElementSizes, RateCaps
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule

# Reason for an algorithm that a scenario names.
AS_REQUESTED: Final = "as requested"
# Most pieces into which `auto` cuts an array: with more, start-ups count for more than what is gained.
_PIECES: Final = 32


@dataclass(frozen=True, slots=True)
class Task:
    """A collective to be planned for a cluster, with its algorithm, ranks and messages."""

    # The operation; empty nodes are filled in from the cluster.
    request: CollectiveRequest
    # Name of the algorithm: a name in the catalog, "auto", or the name of `own`.
    algorithm: str
    group: tuple[int, ...]  # ranks that take part
    dtype: str = "float32"
    reduction: str = "sum"
    # Dtype in which partial sums are stored, and sent if the algorithm sends partial sums.
    accumulate: Literal["payload", "float32"] = "payload"
    # Elements of each array if several arrays are sent in sequence; empty for a single array (request.elements).
    messages: tuple[int, ...] = ()
    wait: float = 0.0  # time before the first message starts [s]
    own: Algorithm | None = None  # an algorithm outside the catalog


@dataclass(frozen=True)
class Plan:
    """A planned collective, ready for simulation, with its predicted time."""

    ops: tuple[Collective, ...]  # one collective for each message, all over the same group
    ranks: int  # number of ranks in the cluster
    algorithm: str
    why: str  # reason for the choice of algorithm
    # Time on an idle network [s]; None unless every message has an exact closed form.
    predicted: float | None

    @cached_property
    def program(self) -> Program:
        """Return the program with every rank's operations; ranks outside the group have none."""
        group = frozenset(self.ops[0].group)
        return Program(tuple(self.ops if rank in group else () for rank in range(self.ranks)))


def plan(cluster: Cluster, task: Task) -> Plan:
    """Plan a collective on a cluster: choose algorithm, schedule, start-up and caps; return the plan.

    Raises
    ------
    ScenarioError
        The algorithm cannot run here: the operation is missing, nodes are unequal, no switch reduces, no servers.
    """
    if task.reduction == "average" and not find_dtype(task.dtype).is_float:
        raise ScenarioError(f"collective.reduction: got 'average' of {task.dtype}; integers cannot be divided; use sum")
    task = replace(task, request=_with_nodes(cluster, task))
    # The nodes are known from here on: `auto` and most algorithms need them.
    name, why = (task.algorithm, AS_REQUESTED) if task.algorithm != "auto" else _auto_choice(cluster, task)
    algorithm = task.own or ALGORITHMS.find(name)
    if task.request.operation not in algorithm.plans:
        able = ", ".join(algorithm.operations)
        raise ScenarioError(
            f"collective.algorithm: got {name!r}, which has no {task.request.operation}; its operations are {able}"
        )
    task = _on_links(cluster, task, name)
    ops, predicted = [], 0.0
    foreseen = True
    messages = task.messages or (task.request.elements,)
    for number, elements in enumerate(messages):
        part = _cut(cluster, replace(task, request=replace(task.request, elements=elements)), name, algorithm)
        label = task.request.operation if len(messages) == 1 else f"{task.request.operation} {number}"
        # A buffer with merged tensors starts when every rank has filled it (`together`), see Horovod's coordinator.
        # The wait delays only the first buffer; later buffers queue behind the first.
        op = _collective(cluster, part, name, algorithm, label, why)
        op = replace(op, startup=op.startup + (task.wait if number == 0 else 0.0), together=len(messages) > 1)
        time = algorithm.closed_form(part.request, op.sizes, _network(cluster, task.group, op))
        foreseen &= time is not None
        predicted += time or 0.0
        ops.append(op)
    if is_own(algorithm):
        why += proof_text(algorithm, task.request)
    return Plan(tuple(ops), cluster.world_size, name, why, predicted if foreseen else None)


def packed(tensors: Sequence[int], buffer: int, first: int | None = None) -> tuple[int, ...]:
    """Return the elements in each buffer after packing tensors, in order, into buffers with limited size.

    A tensor larger than a buffer gets a separate buffer.

    Parameters
    ----------
    tensors : sequence of int
        Elements of each tensor.
    buffer : int
        Maximum elements per buffer.
    first : int, optional
        Maximum elements in the first buffer; PyTorch's DDP keeps this buffer small, so that communication starts early.

    Examples
    --------
    >>> packed([4, 4, 9, 1, 1], 8)
    (8, 9, 2)
    """
    buffers: list[int] = []
    room = 0
    for elements in tensors:
        if buffers and elements <= room:
            buffers[-1] += elements
            room -= elements
        else:
            limit = first if first is not None and not buffers else buffer
            buffers.append(elements)
            room = limit - elements
    return tuple(buffers)


def _with_nodes(cluster: Cluster, task: Task) -> CollectiveRequest:
    """Return the task's request with nodes; if absent, with the cluster's nodes as places in the group."""
    request = task.request
    if not request.nodes and not cluster.flat:
        request = replace(request, nodes=tuple(map(tuple, _places_by_node(cluster, task.group).values())))
    if cluster.flat and request.operation not in ROOTED and not request.sides:
        request = replace(request, sides=sides_of_group(cluster, task.group))
    nodes = request.nodes or (tuple(range(request.world_size)),)
    request = replace(request, mesh=all(_meshed(cluster, [task.group[place] for place in node]) for node in nodes))
    if request.rings or request.operation in ROOTED:
        return request
    # Over several nodes, a full mesh has the rings of `multi_ring`.
    if request.mesh and len(nodes) > 1:
        return request
    key = rings_over_links, task.group, request.nodes
    rings = cluster.remember(key, lambda: rings_over_links(cluster, task.group, nodes), len(task.group))
    return replace(request, rings=rings)


def _on_links(cluster: Cluster, task: Task, name: str) -> Task:
    """Return the task with a rank order over the widest links between GPUs, if `auto` chose a ring inside a node.

    Libraries search for such rings. Without a wider ring, or with more GPUs than a node has, the task stays unchanged.
    """
    request = task.request
    if task.algorithm != "auto" or request.operation in ROOTED or request.rank_order:
        return task
    if "rank_order" not in ALGORITHMS.find(name).options or len(request.nodes) > 1:
        return task
    order = cluster.remember((_wider_order, task.group), lambda: _wider_order(cluster, task.group), len(task.group))
    return replace(task, request=replace(request, rank_order=order)) if order else task


def _wider_order(cluster: Cluster, group: tuple[int, ...]) -> tuple[int, ...]:
    """Return the order of a ring over wider links than those of the given order; empty if none is found."""
    if len(group) > MOST_IN_A_NODE:
        return ()
    widths = cable_widths(cluster, group)
    narrowest = min(widths[place - 1][place] for place in range(len(group)))
    order = widest_order(widths)
    return order if order and narrowest < min(widths[a][b] for a, b in pairwise([*order, order[0]])) else ()


def _meshed(cluster: Cluster, ranks: Sequence[int]) -> bool:
    """Return True if each rank has a link to every other of several ranks."""
    vertices = [cluster.ranks[rank] for rank in ranks]
    return len(vertices) > 2 and all(b in cluster.graph[a] for a in vertices for b in vertices if a != b)


def _places_by_node(cluster: Cluster, group: tuple[int, ...]) -> dict[int, list[int]]:
    """Return, by node number, the indices in `group` of the ranks on this node; ranks without a node are left out.

    Nodes are in the order in which the group reaches them, not in the order of their numbers. In a group (8, 9, 0, 1)
    on nodes of eight ranks, node 1 has the indices 0 and 1 and comes first: consecutive indices, as blueconnect needs.
    """
    node_of, places = cluster.node_of(), dict[int, list[int]]()
    for place, rank in enumerate(group):
        if rank in node_of:
            places.setdefault(node_of[rank], []).append(place)
    return places


def _auto_choice(cluster: Cluster, task: Task) -> tuple[str, str]:
    """Return the algorithm that "auto" chooses for a task on a cluster, and the reason as text.

    The machine's own measured algorithm wins on whole nodes. Otherwise the fastest of the algorithms wins that
    collective libraries run.
    """
    request, machine = task.request, runs(cluster, task.request, task.group)
    measured = machine is not None and on_whole_nodes(cluster, request)
    if machine is not None and measured and _tried(cluster, task, machine.algorithm) is not None:
        return machine.algorithm, f"{cluster.name} runs {machine.algorithm} ({machine.source or 'its topology file'})"
    usual = [name for name in ALGORITHMS.names() if ALGORITHMS.find(name).in_libraries(request)]
    return choose(_candidates(cluster, task, usual))


def _candidates(cluster: Cluster, task: Task, names: Iterable[str]) -> list[Candidate]:
    """Return the algorithms among `names` that can run a task on a cluster, with their predicted times."""
    candidates = []
    for name in names:
        attempt = _tried(cluster, task, name)
        if attempt is not None:
            request, op = attempt
            algorithm = ALGORITHMS.find(name)
            network = _network(cluster, task.group, op)
            time = algorithm.closed_form(request, op.sizes, network)
            exact = time is not None
            rough = None if exact else algorithm.about(request, op.sizes, network)
            seconds = time if exact else estimate(cluster, op) if rough is None else rough
            candidates.append(Candidate(name, seconds, exact, algorithm.stands_in))
    return candidates


def _tried(cluster: Cluster, task: Task, name: str) -> tuple[CollectiveRequest, Collective] | None:
    """Return the request and the collective of a task by algorithm `name`; None if the algorithm cannot run here."""
    algorithm = ALGORITHMS.find(name)
    if task.request.operation not in algorithm.plans:
        return None
    try:
        part = _cut(cluster, _on_links(cluster, task, name), name, algorithm)
        return part.request, _collective(cluster, part, name, algorithm, task.request.operation, "")
    except ScenarioError:
        # For example, nodes of different sizes, or no switch that reduces.
        return None


def _cut(cluster: Cluster, task: Task, name: str, algorithm: Algorithm) -> Task:
    """Return the task with the machine's measured number of pipeline segments for algorithm `name`.

    On a machine without measurements, `auto` cuts an array as libraries do: into buffers. The task stays unchanged if
    the machine runs another algorithm for this operation, or if `chunks` was requested.
    """
    machine = runs(cluster, task.request, task.group)
    cuts = not algorithm.chooses_chunks and task.request.operation not in algorithm.whole
    if machine is None and task.algorithm == "auto" and cuts:
        machine = MachineCollective(name, chunks=_PIECES)
    if (
        machine is None
        or machine.algorithm != name
        or task.request.chunks is not None
        or "chunks" not in algorithm.options
    ):
        return task
    nbytes = task.request.elements * find_dtype(task.dtype).itemsize
    return replace(task, request=replace(task.request, chunks=machine.segments(nbytes)))


def _collective(cluster: Cluster, task: Task, name: str, algorithm: Algorithm, label: str, why: str) -> Collective:
    dtype, request = find_dtype(task.dtype), task.request
    machine = constants(cluster, request, task.group, algorithm)
    # Fails on networks without a reducing switch, and therefore comes before the schedule, which may be long.
    auxiliaries = _auxiliaries(cluster, task, name, algorithm.auxiliary)
    try:
        schedule = _schedule(algorithm, request)
    except ValueError as error:
        hint = "; give group_size" if str(error).startswith("nodes ") else ""
        raise ScenarioError(f"collective.algorithm: {name}: {error}{hint}") from error
    except ScheduleError as error:
        raise ScenarioError(f"collective.algorithm: {broken_text(name, request.operation, error)}") from error
    # Partial sums travel, and need the wider dtype, only if each add waits for the add before. With buffered adds and
    # adds on arrival, ranks send their inputs.
    wide = task.accumulate == "float32" and schedule.reduction_order == ReductionOrder.IN_SEQUENCE
    inside, across = caps_of(cluster, request, task.group, algorithm, machine, request.elements * dtype.itemsize)
    # Without constants no rate is shared, and counting the flows of a large program would take seconds.
    counts_flows = machine is not None and is_own(algorithm)
    flows = flows_at_once(algorithm, request) if counts_flows else algorithm.flows(request)
    op = Collective(
        name=label,
        group=task.group,
        schedule=schedule,
        elements=request.elements,
        sizes=ElementSizes(dtype.itemsize, max(4, dtype.itemsize) if wide else dtype.itemsize),
        dtype=task.dtype,
        reduction=task.reduction,
        accumulate="float32" if task.accumulate == "float32" else task.dtype,
        auxiliaries=auxiliaries,
        startup=machine.latency(algorithm.steps(request)) if machine else 0.0,
        caps=RateCaps(inside / flows.inside, across / flows.across, source_of(cluster, machine)),
        why=why,
    )
    # Routes do not depend on the size.
    key = algorithm, replace(request, elements=1)
    at_once = transfers_at_once(algorithm, request) if is_own(algorithm) and cluster.modelled(task.group) else ()
    return as_library(cluster, op, algorithm.steps(request), key=key, at_once=at_once)


@lru_cache(maxsize=256)
def _schedule(algorithm: Algorithm, request: CollectiveRequest) -> Schedule:
    """Return an algorithm's schedule for a request; cached, because equal requests share the schedule.

    Raises
    ------
    ScheduleError
        An algorithm from outside the package does not carry out its operation.
    """
    prove(algorithm, request)
    return algorithm.plans[request.operation](request)


def _auxiliaries(cluster: Cluster, task: Task, name: str, auxiliary: Auxiliary) -> tuple[str, ...]:
    """Return the vertices of a collective's participants besides ranks: parameter servers or reducing switches.

    ScenarioError if the cluster has too few.
    """
    request = task.request
    if auxiliary is Auxiliary.SERVERS and request.servers_on == "own":
        if len(cluster.servers) < request.servers:
            raise ScenarioError(
                f"collective.servers.on: got 'own', but {cluster.name} has ports for {len(cluster.servers)} servers; "
                "write on: workers, or use star or leaf-spine"
            )
        return cluster.servers[: request.servers]
    if auxiliary is not Auxiliary.SWITCHES:
        return ()
    # Switches in the order of the request's nodes; `Schedule` numbers them behind the ranks in the same order.
    nodes = _places_by_node(cluster, task.group)
    switches = [cluster.reducing_switches[node] for node in nodes if node < len(cluster.reducing_switches)]
    if len(switches) != max(1, len(request.nodes)):
        raise ScenarioError(
            f"collective.algorithm: got {name!r}, but no switch of {cluster.name} reduces; the algorithm needs a "
            "topology with in_switch_reduction: true"
        )
    return tuple(switches)


def _network(cluster: Cluster, group: tuple[int, ...], op: Collective) -> IdleNetwork:
    vertices = tuple(cluster.ranks[rank] for rank in group) + op.auxiliaries
    return IdleNetwork(cluster, vertices, group, op.startup, op.caps.inside, op.caps.across)
