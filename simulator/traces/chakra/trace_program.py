"""Turns matched traces into a Program: kernels keep their times, collectives run the algorithms of the machine.

- COMP takes its measured time times a factor. Without a time, it takes what the GPU needs for `num_ops` operations and
  `tensor_size` bytes, whichever takes longer.
- MEM_LOAD and MEM_STORE take their measured time, or `tensor_size` bytes at the bandwidth of the GPU's memory.
- SEND ends when the bytes have arrived, although the receiver may be busy. RECV ends when they have arrived.
- COLL is planned on the machine, like any collective of this simulator. A barrier is an all-reduce of 4 bytes, as in
  PyTorch.
- A node of the host (`is_cpu_op`) takes its measured time, also one that issues a collective or a message.
- METADATA takes no time. `start_time_micros` is a measurement, and no constraint.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.cluster.cluster import Cluster, Gpu
from simulator.collectives.algorithm import ROOTED
from simulator.records.chakra import OPERATIONS, SIZE_OF_PART, NodeType
from simulator.records.operation import Collective, Compute, Op
from simulator.records.program import Program
from simulator.traces.chakra.matching import MatchedTraces, Meeting, Message, NodePlace, resource_of
from simulator.traces.chakra.planning import TracePlanner
from simulator.traces.chakra.trace_reader import ChakraNode, RankTrace

_BARRIER: Final = 4
# Largest array: a pebibyte [B].
_MOST_BYTES: Final = 2**50
_UNEVEN: Final = ("all_to_all", "all_gather", "gather", "scatter", "reduce_scatter")
_ROOTS: Final = ("root", "root_rank", "comm_root")


@dataclass(frozen=True, slots=True)
class ConvertedTraces:
    """Traces as a program."""

    program: Program
    counts: Mapping[str, int]  # number of nodes by kind
    notes: tuple[str, ...]  # what was assumed


@dataclass(slots=True)
class _Converter:
    traces: tuple[RankTrace, ...]
    planner: TracePlanner
    factor: float
    collectives: dict[tuple[int, int], Collective] = field(default_factory=dict)
    # Buffered messages, by the RECV and for the receiver's list.
    arrivals: dict[tuple[int, int], Collective] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)

    def message(self, message: Message) -> None:
        """Plan a message, as a transfer from its source to its destination."""
        sizes = [self.size(place) for place in (message.send, message.receive)]
        if sizes[0] != sizes[1]:
            raise self.fault(message.receive, f"comm_size: got {sizes[1]}, but {sizes[0]} B are sent")
        group = (message.send.rank, message.receive.rank)
        name = f"send {message.number} {group[0]} -> {group[1]} tag {message.tag}"
        op = replace(self.planner.message(sizes[0], group), name=name)
        self.collectives[message.send.rank, message.send.node.id] = op
        if message.rendezvous:
            self.collectives[message.receive.rank, message.receive.node.id] = op
        else:
            self.arrivals[message.receive.rank, message.receive.node.id] = op

    def meeting(self, meeting: Meeting) -> None:
        """Plan a collective of a group of several ranks."""
        group = tuple(place.rank for place in meeting.members)
        if len(group) == 1:
            return
        kinds = {self.kind(place) for place in meeting.members}
        if len(kinds) > 1:
            first, other = (next(p for p in meeting.members if self.kind(p) == kind) for kind in sorted(kinds)[:2])
            raise self.fault(
                other,
                f"is {self.kind(other)}, but node {first.node.id} of rank {first.rank}, in the same place of the group "
                f"{meeting.group!r}, is {self.kind(first)}",
            )
        (kind,) = kinds
        sizes = [self.size(place) for place in meeting.members]
        largest = max(sizes)
        if min(sizes) != largest:
            # Parts may be uneven; a whole array has a single size.
            if kind not in _UNEVEN:
                place = meeting.members[sizes.index(min(sizes))]
                raise self.fault(place, f"comm_size: got {min(sizes)}, but another rank of its group has {largest}")
            self.note(f"ranks of a {kind} state different sizes: the largest is taken")
        operation = "all_reduce" if kind == "barrier" else kind
        nbytes = _BARRIER if kind == "barrier" else largest * (len(group) if kind in SIZE_OF_PART else 1)
        root = self.root(meeting, group) if kind in ROOTED else 0
        try:
            planned = self.planner.collective(operation, nbytes, group, root)
        except ScenarioError as error:
            why = str(error).split(": ", 1)[-1]
            raise self.fault(meeting.members[0], f"{operation} cannot run here: {why}") from error
        # Names of other operations end with the id in brackets.
        name = f"{kind} {meeting.number}" + (f" of group {meeting.group!r}" if meeting.group else "")
        stream = resource_of(meeting.members[0].node)
        op = replace(planned, name=name, stream=stream)
        for place in meeting.members:
            self.collectives[place.rank, place.node.id] = op

    def kind(self, place: NodePlace) -> str:
        """Return the operation of a COLL."""
        number = place.node.number("comm_type")
        if number not in OPERATIONS:
            raise self.fault(place, f"comm_type: got {number}; must be 0 .. {max(OPERATIONS)}")
        return OPERATIONS[number]

    def size(self, place: NodePlace) -> int:
        """Return the bytes of a communicating node."""
        size = place.node.number("comm_size")
        if size is None and place.node.type == NodeType.COLL and self.kind(place) == "barrier":
            return 0
        if size is None or not 0 <= size <= _MOST_BYTES:
            problem = "is missing" if size is None else f"got {size}"
            raise self.fault(place, f"comm_size: {problem}; must be 0 .. {_MOST_BYTES} B")
        return size

    def root(self, meeting: Meeting, group: tuple[int, ...]) -> int:
        """Return the place of a collective's root in its group; the first rank if no node names another."""
        roots = [place.node.number(name) for place in meeting.members for name in _ROOTS]
        root = next((number for number in roots if number is not None), group[0])
        if root not in group:
            raise self.fault(meeting.members[0], f"root: got {root}; must be a rank of its group")
        return group.index(root)

    def own_time(self, gpu: Gpu, node: ChakraNode) -> float:
        """Return the time of a kernel, or of an operation on memory [s]."""
        if node.duration or node.on_host:
            return node.duration * 1e-6 * (self.factor if node.type == NodeType.COMP else 1.0)
        operations, nbytes = (max(node.number(name) or 0, 0) for name in ("num_ops", "tensor_size"))
        seconds = nbytes / gpu.hbm_bandwidth
        if node.type == NodeType.COMP:
            seconds = max(seconds, operations / _rate(gpu))
        if seconds:
            self.note(f"nodes without a time take num_ops and tensor_size at the bfloat16 rate of {gpu.name}")
        return seconds

    def operations(self, rank: int, order: tuple[ChakraNode, ...]) -> tuple[Op, ...]:
        """Return a rank's operations in the order of issue."""
        name_of: dict[int, str] = {}
        ops: list[Op] = []
        gpu = self.planner.cluster.gpus[rank]
        for node in order:
            after = tuple(name_of[other] for other in node.after if other in name_of)
            collective, key = self.collectives.get((rank, node.id)), (rank, node.id)
            name = f"{node.name or node.type.name} ({node.id})"
            resource = resource_of(node)
            if collective is not None:
                name = collective.name
                ops.append(replace(collective, stream=resource, after=after))
            elif arrival := self.arrivals.get(key):
                # The transfer needs no act of the receiver; the RECV waits for it.
                ops.append(replace(arrival, stream=f"arrivals {resource}", after=()))
                ops.append(Compute(name, 0.0, kind="receive", stream=resource, after=(*after, arrival.name)))
            else:
                seconds = self.own_time(gpu, node) if node.type in _TIMED or node.on_host else 0.0
                kind = "memory" if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE) else "compute"
                kind = "host" if resource.startswith("host") else kind
                ops.append(Compute(name, seconds, kind=kind, stream=resource, after=after, on_gpu=kind == "compute"))
            name_of[node.id] = name
        return tuple(ops)

    def note(self, text: str) -> None:
        """Count an assumption."""
        self.notes[text] = self.notes.get(text, 0) + 1

    def fault(self, place: NodePlace, message: str) -> ScenarioError:
        """Return an error about a node."""
        source = self.traces[place.rank].source
        return ScenarioError(one_line(f"{source}: node {place.node.id} {place.node.name!r}: {message}"))


_TIMED: Final = (NodeType.COMP, NodeType.MEM_LOAD, NodeType.MEM_STORE)


def _rate(gpu: Gpu) -> float:
    """Return a GPU's dense rate in bfloat16, or in the first dtype that it has of float16 and float32 [FLOP/s]."""
    return next(gpu.peak_flops[name] for name in ("bfloat16", "float16", "float32") if name in gpu.peak_flops)


def converted(
    traces: tuple[RankTrace, ...],
    matches: MatchedTraces,
    cluster: Cluster,
    *,
    algorithm: str = "auto",
    factor: float = 1.0,
) -> ConvertedTraces:
    """Return matched traces as a program for a cluster with as many ranks.

    Parameters
    ----------
    algorithm : str
        Algorithm of collectives; "auto" where it lacks an operation.
    factor : float
        Factor on the measured times of kernels.

    Raises
    ------
    ScenarioError
        A node lacks an attribute or has a wrong one, ranks disagree on a collective, or it cannot run on the machine.
    """
    converter = _Converter(traces, TracePlanner(cluster, algorithm), factor)
    for message in matches.messages:
        converter.message(message)
    for meeting in matches.meetings:
        converter.meeting(meeting)
    ranks = tuple(converter.operations(rank, order) for rank, order in enumerate(matches.order))
    counts = Counter(node.type.name for order in matches.order for node in order)
    notes = [text if count == 1 else f"{text} ({count} nodes)" for text, count in converter.notes.items()]
    if matches.reordered:
        notes.append("some nodes are issued before nodes with smaller ids, because the ranks would wait in a circle")
    return ConvertedTraces(Program(ranks), dict(counts), tuple(notes))
