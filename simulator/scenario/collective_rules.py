"""Rules between keys of `collective`.

A generator covers one topic in a few lines. Every generator runs, therefore all faults in a file are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import dtypes
from simulator.basics.errors import ScenarioError, ScheduleError, one_of
from simulator.basics.spec import servers_among
from simulator.cluster.limits import no_server_ports
from simulator.scenario.payload import request_of
from simulator.scenario.records import ClusterSpec, CollectiveSpec
from simulator.scenario.rule_violation import RuleViolation, first_duplicate

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts
    from simulator.collectives.algorithm import Algorithm, CollectiveRequest

# Keys read only by some algorithms, each with its name in the `options` of an algorithm.
OPTIONS: Final = {"servers": "servers", "rank_order": "rank_order", "chunks": "chunks", "group_size": "nodes"}


def algorithms_with(option: str) -> tuple[str, ...]:
    """Return the collective algorithms reading an option, a key of OPTIONS such as `group_size`."""
    from simulator.collectives.algorithm import ALGORITHMS

    return tuple(name for name in ALGORITHMS.names() if reads(ALGORITHMS.find(name), option))


def reads(algorithm: Algorithm | None, option: str) -> bool:
    """Return True if an algorithm reads an option, a key of OPTIONS; None stands for `auto`, which reads none."""
    if algorithm is None or OPTIONS[option] not in algorithm.options:
        return False
    # Algorithms with reductions in switches use the machine's nodes; their node size cannot be chosen.
    return option != "group_size" or not _in_switch(algorithm)


def chosen(name: str, base: Path) -> Algorithm | None:
    """Return the algorithm of a scenario in the folder `base`; None for `auto`; ScenarioError if unusable."""
    from simulator.collectives.algorithm_files import find_algorithm

    return None if name == "auto" else find_algorithm(name, base)


def file_reads(name: Any, option: str, base: Path) -> bool:
    """Return True if an algorithm outside the catalog reads an option; False for an unusable algorithm."""
    from simulator.collectives.algorithm import ALGORITHMS

    if not isinstance(name, str) or name in ("auto", *ALGORITHMS.names()):
        return False
    try:
        return reads(chosen(name, base), option)
    # The rules report an unusable algorithm.
    except ScenarioError:
        return False


def _in_switch(algorithm: Algorithm | None) -> bool:
    from simulator.collectives.algorithm import Auxiliary

    return algorithm is not None and algorithm.auxiliary is Auxiliary.SWITCHES


def conflicts(
    shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts | None, base: Path
) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule between the keys of `collective`.

    `facts` is None if the topology is invalid; `base` is the folder of the scenario.
    """
    try:
        algorithm = chosen(shape.algorithm, base)
    except ScenarioError as error:
        yield _conflict("algorithm", str(error))
        # The rules below look into the algorithm.
        return
    ranks = cluster.world_size if shape.group is None else len(shape.group)
    # A list, because its rules decide below whether the number of ranks is known.
    group = list(_group(shape, cluster.world_size))
    yield from group
    yield from _algorithm(shape, algorithm, ranks)
    yield from _options(shape, algorithm)
    yield from _size(shape)
    yield from _reduction(shape)
    yield from _root(shape, None if group else ranks)
    if not group:
        # With a wrong group the number of ranks is unknown, and these rules could report faults that do not exist.
        if reads(algorithm, "rank_order"):
            yield from _rank_order(shape, ranks)
        if reads(algorithm, "servers"):
            yield from _servers(shape, ranks, facts)
        if algorithm is not None and reads(algorithm, "group_size"):
            yield from _group_size(shape, ranks, algorithm)
        if facts is not None:
            yield from _algorithm_on_nodes(shape, cluster, facts, algorithm)
        if algorithm is not None and shape.operation in algorithm.plans and not list(_root(shape, ranks)):
            yield from _proof(shape, cluster.world_size, facts, algorithm)
    yield from _tensors(shape)


def proof_faults(name: str, algorithm: Algorithm, request: CollectiveRequest) -> Iterator[str]:
    """Yield the fault that the proof of the algorithm `name` finds for a request.

    A request that the algorithm refuses is reported when it is planned.
    """
    from simulator.collectives.own_algorithms import broken_text, prove

    try:
        prove(algorithm, request)
    except ScheduleError as error:
        yield broken_text(name, request.operation, error)
    except ValueError:
        return


def _proof(
    shape: CollectiveSpec, world_size: int, facts: TopologyFacts | None, algorithm: Algorithm
) -> Iterator[RuleViolation]:
    try:
        request = request_of(shape, world_size)
    # A wrong option, which other rules report.
    except ValueError:
        return
    if facts is not None and facts.node_size and "nodes" in algorithm.options:
        request = _on_nodes(request, facts.node_size)
    for message in proof_faults(shape.algorithm, algorithm, request):
        yield _conflict("algorithm", message)


def _on_nodes(request: CollectiveRequest, size: int) -> CollectiveRequest:
    """Return the request with nodes of `size` ranks, which its ranks fill in order, unless it has nodes."""
    nodes = tuple(tuple(range(b, min(b + size, request.world_size))) for b in range(0, request.world_size, size))
    return request if request.nodes else replace(request, nodes=nodes)


def _refuses(algorithm: Algorithm | None, request: CollectiveRequest) -> bool:
    """Return True if the algorithm cannot be planned for the request."""
    try:
        if algorithm is not None:
            algorithm.plans[request.operation](request)
    except (KeyError, ValueError):
        return True
    return False


def _conflict(name: str, message: str, *involved: str, at: int | None = None, of_key: bool = False) -> RuleViolation:
    key = ("collective", name) if at is None else ("collective", name, at)
    others = (i if i.startswith("cluster") else f"collective.{i}" for i in involved)
    return RuleViolation(key, message, (f"collective.{name}", *others), of_key)


def _group(shape: CollectiveSpec, world_size: int) -> Iterator[RuleViolation]:
    if shape.group is None:
        if world_size < 2:
            yield RuleViolation(
                ("cluster", "world_size"),
                f"got {world_size}; a collective needs at least 2 ranks",
                ("cluster.world_size", "collective.group"),
            )
        return
    if len(shape.group) < 2:
        yield _conflict("group", f"got {len(shape.group)} ranks; a collective needs at least 2")
    twice = first_duplicate(shape.group)
    if twice is not None:
        yield _conflict("group", f"got rank {shape.group[twice]} twice; name each rank once", at=twice)
    for i, rank in enumerate(shape.group):
        if rank >= world_size:
            allowed = f"must be one of 0 .. {world_size - 1}, because world_size is {world_size}"
            yield _conflict("group", f"got rank {rank}; {allowed}", "cluster.world_size", at=i)


def _algorithm(shape: CollectiveSpec, algorithm: Algorithm | None, ranks: int) -> Iterator[RuleViolation]:
    from simulator.collectives.algorithm import ALGORITHMS

    if algorithm is not None and algorithm.ranks not in (None, ranks):
        message = f"got {shape.algorithm!r}, which is for {algorithm.ranks} ranks, but {ranks} take part"
        yield _conflict("algorithm", message, "group", "cluster.world_size")
    # `auto` chooses only among algorithms that support the operation.
    if algorithm is None or shape.operation in algorithm.plans:
        return
    able = [name for name in ALGORITHMS.names() if shape.operation in ALGORITHMS.operations(name)]
    yield _conflict(
        "algorithm",
        f"got {shape.algorithm!r}, which cannot do {shape.operation}; {one_of([*able, 'auto'], shape.algorithm)}",
        "operation",
    )


def _options(shape: CollectiveSpec, algorithm: Algorithm | None) -> Iterator[RuleViolation]:
    # Options are None unless written, therefore only written options are refused.
    for option in OPTIONS:
        if getattr(shape, option) is None or reads(algorithm, option):
            continue
        able = algorithms_with(option)
        listeners = " and ".join(able) if len(able) < 3 else ", ".join(able[:-1]) + f" and {able[-1]}"
        yield _conflict(
            option,
            (f"only for {listeners}, but the algorithm is {shape.algorithm}; remove the key"),
            "algorithm",
            of_key=True,
        )


def _size(shape: CollectiveSpec) -> Iterator[RuleViolation]:
    if shape.size is None and shape.tensors is None:
        yield RuleViolation(
            ("collective", "size"),
            "missing; write for example 'size: 256 MiB'",
            ("collective.size", "collective.tensors"),
        )
    itemsize = dtypes.find(shape.dtype).itemsize
    rule = f"must be a multiple of {itemsize} B, the size of one {shape.dtype}"
    if shape.size is not None and shape.size % itemsize:
        # Suggest the multiples below and above.
        near = f"try {shape.size // itemsize * itemsize} B or {(shape.size // itemsize + 1) * itemsize} B"
        yield _conflict("size", f"got {shape.size} B; {rule}; {near}", "dtype")
    for i, nbytes in enumerate(shape.tensors or ()):
        if nbytes % itemsize:
            yield _conflict("tensors", f"got {nbytes} B; {rule}", "dtype", at=i)


def _reduction(shape: CollectiveSpec) -> Iterator[RuleViolation]:
    from simulator.collectives.algorithm import REDUCING

    dtype, reduces = dtypes.find(shape.dtype), shape.operation in REDUCING
    only = f"{shape.operation} adds no elements; remove the key, or use one of {', '.join(REDUCING)}"
    if shape.reduction != "sum" and not reduces:
        yield _conflict("reduction", f"got {shape.reduction!r}; {only}", "operation")
    if shape.reduction == "average" and not dtype.is_float:
        yield _conflict("reduction", f"got 'average' of {dtype.name}; integers cannot be averaged; use sum", "dtype")
    if shape.accumulate == "payload":
        return
    if not reduces:
        yield _conflict("accumulate", f"got {shape.accumulate!r}; {only}", "operation")
    # A float32 sum of float64 values would lose digits; integers are exact in their own dtype.
    if not dtype.is_float or dtype.bits > 32:
        rule = "only for floats of at most 32 bits; use accumulate: payload"
        yield _conflict("accumulate", f"got {shape.accumulate!r} with dtype {dtype.name}; {rule}", "dtype")


def _root(shape: CollectiveSpec, ranks: int | None) -> Iterator[RuleViolation]:
    from simulator.collectives.algorithm import ROOTED

    if shape.root is None:
        return
    if shape.operation not in ROOTED:
        yield _conflict(
            "root",
            (f"only for {', '.join(ROOTED)}; {shape.operation} has no root; remove the key"),
            "operation",
            of_key=True,
        )
    elif ranks is not None and shape.root >= ranks:
        allowed = f"must be a position in the group, 0 .. {ranks - 1}"
        yield _conflict("root", f"got {shape.root}; {allowed}", "group", "cluster.world_size")


def _rank_order(shape: CollectiveSpec, ranks: int) -> Iterator[RuleViolation]:
    if shape.rank_order is not None and sorted(shape.rank_order) != list(range(ranks)):
        missing = sorted(set(range(ranks)) - set(shape.rank_order))[:4]
        # Four missing places suffice to see the mistake.
        hint = f"; missing: {', '.join(map(str, missing))}" if missing else ""
        rule = f"must contain each position in the group, 0 .. {ranks - 1}, once"
        message = f"got {len(shape.rank_order)} entries; {rule}{hint}"
        yield _conflict("rank_order", message, "group", "cluster.world_size")


def _servers(shape: CollectiveSpec, ranks: int, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    # Without `servers`, a single server on its own machine is used.
    count, on = (1, "own") if shape.servers is None else (shape.servers.count, shape.servers.on)
    # Separate server machines need ports, and not every topology has ports for servers.
    if on == "own" and facts is not None and not facts.own_servers:
        message = f"{no_server_ports(facts.name)}; or write 'servers: {{on: workers}}'"
        yield RuleViolation(
            ("collective", "algorithm") if shape.servers is None else ("collective", "servers", "on"),
            message,
            ("collective.algorithm", "collective.servers", "cluster.topology"),
        )
    if on == "workers" and servers_among(count, ranks) > ranks:
        yield RuleViolation(
            ("collective", "servers", "count"),
            f"got {count} servers on {ranks} workers; at most one per worker",
            ("collective.servers", "collective.group", "cluster.world_size"),
        )


def _group_size(shape: CollectiveSpec, ranks: int, algorithm: Algorithm) -> Iterator[RuleViolation]:
    if shape.group_size is not None and ranks % shape.group_size:
        # The three largest divisors up to 64.
        fits = [str(d) for d in range(1, min(ranks, 64) + 1) if ranks % d == 0]
        message = f"got {shape.group_size}; must divide the {ranks} ranks of the group; try {', '.join(fits[-3:])}"
        yield _conflict("group_size", message, "group", "cluster.world_size")
    if shape.operation in algorithm.whole and shape.chunks not in (None, 1):
        message = f"got {shape.chunks}; {shape.algorithm} {shape.operation} has no pieces; remove the key"
        yield _conflict("chunks", message, "operation", "algorithm", of_key=True)


def _algorithm_on_nodes(
    shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts, algorithm: Algorithm | None
) -> Iterator[RuleViolation]:
    name, node_size, ranks = shape.algorithm, facts.node_size, cluster.world_size
    if _in_switch(algorithm) and not facts.in_switch_reduction:
        message = f"got {name!r}; the switches of topology {facts.name} cannot reduce; use ring or tree"
        yield _conflict("algorithm", message, "cluster.topology")
    elif _in_switch(algorithm) or (reads(algorithm, "group_size") and shape.group_size is None):
        if node_size is None:
            message = (
                f"topology {facts.name} has no nodes of equal size; write the number of ranks in a node, for example "
                "'group_size: 4'"
            )
            yield _conflict("algorithm", f"got {name!r}; {message}", "group_size", "cluster.topology")
            # Without placement, ranks fill nodes in order, and the last node must be full too.
        elif (
            shape.group is None
            and cluster.placement is None
            and ranks > node_size
            and ranks % node_size
            and _refuses(algorithm, _on_nodes(request_of(shape, ranks), node_size))
        ):
            near = f"{ranks // node_size * node_size} or {(ranks // node_size + 1) * node_size}"
            message = (
                f"got {name!r} on {ranks} ranks, but a node has {node_size} ranks and every node must be full; take "
                f"{near} ranks"
            )
            yield _conflict("algorithm", message, "group_size", "group", "cluster")


def _tensors(shape: CollectiveSpec) -> Iterator[RuleViolation]:
    if shape.fusion is not None:
        # Horovod merges by buffer and cycle, PyTorch's DDP by buckets; a run uses either.
        mixed = shape.fusion.buckets is not None and (shape.fusion.buffer, shape.fusion.cycle) != (None, None)
        empty = (shape.fusion.buffer, shape.fusion.cycle, shape.fusion.buckets) == (None, None, None)
        if mixed or empty:
            message = "got a buffer and buckets" if mixed else "got neither a buffer nor buckets"
            yield _conflict("fusion", f"{message}; write either {{buffer: 64 MiB, cycle: 1 ms}} or {{buckets: 25 MiB}}")
        if shape.tensors is None:
            yield _conflict(
                "fusion", "only with tensors; write for example 'tensors: [4 MiB, 1 MiB]'", "tensors", of_key=True
            )
    if shape.tensors is None:
        return
    if not shape.tensors:
        yield _conflict("tensors", "got an empty list; write for example [4 MiB, 1 MiB]")
    if shape.operation != "all_reduce":
        message = f"only for all_reduce, but the operation is {shape.operation}; give a size"
        yield _conflict("tensors", message, "operation", of_key=True)
    elif shape.tensors and shape.size not in (None, sum(shape.tensors)):
        message = f"got {shape.size} B, but the tensors add up to {sum(shape.tensors)} B; omit size"
        yield _conflict("size", message, "tensors")
