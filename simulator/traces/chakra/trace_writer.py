"""Writes a simulated training step as Chakra execution traces, a file PREFIX.R.et for each rank R.

- A kernel is a COMP with its simulated time, slowdowns by collectives included, in whole microseconds. Borders of
  operations are rounded, not lengths: roundings of successive kernels do not add up.
- A collective is a COLL. Each pair of process group and stream has a `pg_name`, because collectives of one name follow
  each other. A shift around a ring is a SEND and a RECV.
- A send of a pipeline is a SEND and a RECV with the attribute `rendezvous`: the transfer waits for the receiver.
- A copy between GPU and host is a MEM_STORE or MEM_LOAD with its time.
- Allocations are no nodes; what waits for one depends on what the allocation waits for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.basics.protobuf_wire import written_field, written_message, written_packed
from simulator.cluster.cluster import Cluster
from simulator.records import chakra
from simulator.records.chakra import NUMBERS, SIZE_OF_PART, NodeType
from simulator.records.operation import HOST, ISSUE, Allocate, Collective, Compute, Free, Op
from simulator.records.program import Program
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.traces.chakra.planning import TracePlanner

# Most ranks and nodes, as in the reader.
_MOST_RANKS: Final = 4096
_MOST_NODES: Final = 1_000_000
# PyTorch's number of the compute stream; numbers of threads of the host.
_COMPUTE_STREAM: Final = 7
_THREADS: Final = {HOST: 1, ISSUE: 2}
# Threads that delay a stream of collectives.
_DELAYS: Final = 1000
_COPIES: Final = {"copy to host": (NodeType.MEM_STORE, 14), "copy to device": (NodeType.MEM_LOAD, 15)}
_MICRO: Final = 1e6


@dataclass(slots=True)
class _RankWriter:
    rank: int
    spans: Mapping[str, Span]
    shared: _SharedNames
    ends: dict[str, tuple[int, ...]] = field(default_factory=dict)  # nodes that have ended when an operation has ended
    last: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the same for the last operation of each stream
    messages: list[bytes] = field(default_factory=list)

    def add(self, op: Op) -> None:
        """Write an operation."""
        after = tuple(dict.fromkeys(ident for name in op.after for ident in self.ends[name]))
        before = self.last.get(op.stream, ())
        if isinstance(op, Allocate | Free):
            ends = tuple(dict.fromkeys([*before, *after]))
        elif isinstance(op, Compute):
            ends = (self._compute(op, before, after),)
        else:
            ends = self._collective(op, before, after)
        self.ends[op.name] = ends
        self.last[op.stream] = ends

    def _compute(self, op: Compute, before: tuple[int, ...], after: tuple[int, ...]) -> int:
        if op.kind == "server update":
            raise _servers()
        work: dict[str, int] = {"num_ops": round(op.flops), "tensor_size": round(op.nbytes)}
        kind, micros = NodeType.COMP, self._micros(op.name)
        if op.stream in _COPIES:
            kind, stream = _COPIES[op.stream]
            work["stream"] = stream
        elif op.stream in _THREADS:
            work = {"is_cpu_op": True, "tid": _THREADS[op.stream]}
        else:
            work |= {"is_cpu_op": False, "stream": _COMPUTE_STREAM}
        return self._node(op.name, kind, before, after, micros, **work)

    def _collective(self, op: Collective, before: tuple[int, ...], after: tuple[int, ...]) -> tuple[int, ...]:
        operation, group, nbytes = op.schedule.operation, op.group, op.nbytes
        if op.stream in _COPIES:
            kind, stream = _COPIES[op.stream]
            size = {"tensor_size": op.nbytes, "stream": stream}
            return (self._node(op.name, kind, before, after, self._micros(op.name), **size),)
        if operation == "ring_shift":
            place, ranks = group.index(self.rank), len(group)
            peers = {NodeType.SEND: group[(place + 1) % ranks], NodeType.RECV: group[(place - 1) % ranks]}
            # Each rank sends its part of the array.
            nbytes = -(-nbytes // ranks)
        elif operation == "send":
            sends = group[0] == self.rank
            peers = {NodeType.SEND: group[1]} if sends else {NodeType.RECV: group[0]}
        elif operation in NUMBERS:
            before, after = self._delayed(op, before, after)
            nbytes = -(-nbytes // len(group)) if operation in SIZE_OF_PART else nbytes
            name = str(self.shared.group(op))
            facts = {"comm_type": NUMBERS[operation], "comm_size": nbytes, "is_cpu_op": False}
            return (self._node(op.name, NodeType.COLL, before, after, pg_name=name, **facts),)
        else:
            raise _servers()
        tag = self.shared.tag(op)
        return tuple(
            self._node(
                op.name, kind, before, after, is_cpu_op=False, comm_size=nbytes, comm_tag=tag, rendezvous=True,
                **{"comm_dst" if kind == NodeType.SEND else "comm_src": peer},
            )
            for kind, peer in peers.items()
        )  # fmt: skip

    def _delayed(
        self, op: Collective, before: tuple[int, ...], after: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Write the start-up time that a collective has beyond the machine's; return what the collective waits for.

        Some frameworks send each tensor of a bucket on its own, or wait before a collective.
        """
        micros = round(self.shared.more(op) * _MICRO)
        if not micros:
            return before, after
        thread = _DELAYS + self.shared.group(op)
        name = f"start-up of {op.name}"
        return (self._node(name, NodeType.COMP, before, after, micros, is_cpu_op=True, tid=thread),), ()

    def _node(
        self,
        name: str,
        kind: NodeType,
        before: tuple[int, ...],
        after: tuple[int, ...],
        micros: int = 0,
        **attributes: int | str,
    ) -> int:
        ident = len(self.messages) + 1
        fields = [
            written_field(chakra.ID, ident),
            written_field(chakra.NAME, name),
            written_field(chakra.TYPE, int(kind)),
            written_packed(chakra.CONTROL_DEPENDENCIES, (other for other in before if other not in after)),
            written_packed(chakra.DATA_DEPENDENCIES, after),
            written_field(chakra.DURATION, micros) if micros else b"",
            *(written_field(chakra.ATTRIBUTE, _attribute(key, value)) for key, value in attributes.items()),
        ]
        self.messages.append(b"".join(fields))
        return ident

    def _micros(self, name: str) -> int:
        """Return an operation's simulated time in whole microseconds."""
        span = self.spans[name]
        return round(span.end * _MICRO) - round(span.start * _MICRO)


@dataclass(slots=True)
class _SharedNames:
    """Names that the ranks share: process groups, and tags of messages."""

    planner: TracePlanner
    groups: dict[tuple[tuple[int, ...], str], int] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)

    def group(self, op: Collective) -> int:
        """Return the number of a process group on a stream."""
        return self.groups.setdefault((op.group, op.stream), len(self.groups))

    def tag(self, op: Collective) -> int:
        """Return the number of a stream of messages."""
        return self.tags.setdefault(op.stream, len(self.tags))

    def more(self, op: Collective) -> float:
        """Return the start-up time of a collective beyond the machine's [s]."""
        planned = self.planner.collective(op.schedule.operation, op.nbytes, op.group, op.schedule.root)
        return max(op.startup - planned.startup, 0.0)


def write_step(
    program: Program,
    timeline: Timeline,
    cluster: Cluster,
    prefix: Path,
    *,
    algorithm: str = "auto",
    factor: float = 1.0,
) -> int:
    """Write a simulated step as PREFIX.R.et for each rank R, and the ranks of its groups as PREFIX.groups.json.

    Parameters
    ----------
    timeline : Timeline
        With the operations of every rank.
    algorithm : str
        Algorithm of collectives with which the step was planned.
    factor : float
        Factor on the time of transfers to which the step's framework was calibrated.

    Returns
    -------
    int
        Number of nodes of all ranks.

    Raises
    ------
    ScenarioError
        The step has parameter servers, too many ranks or nodes, or a file cannot be written.
    """
    ranks = len(program.ranks)
    if ranks > _MOST_RANKS:
        raise ScenarioError(f"cluster.world_size: got {ranks}; traces are written for at most {_MOST_RANKS} ranks")
    shared, spans, nodes = _SharedNames(TracePlanner(cluster, algorithm)), by_rank(timeline.spans), 0
    metadata = written_field(chakra.METADATA_VERSION, chakra.VERSION)
    if factor != 1.0:
        metadata += written_field(chakra.METADATA_ATTRIBUTE, _attribute(chakra.NETWORK_TIME, factor))
    files: dict[Path, bytes] = {}
    for rank in range(ranks):
        writer = _RankWriter(rank, {span.name: span for span in spans.get(rank, ())}, shared)
        for op in program.ranks[rank]:
            writer.add(op)
        nodes += len(writer.messages)
        if nodes > _MOST_NODES:
            raise ScenarioError(f"the step has more than {_MOST_NODES:,} operations; take fewer ranks or micro-batches")
        path = prefix.with_name(f"{prefix.name}.{rank}.et")
        files[path] = b"".join(map(written_message, [metadata, *writer.messages]))
    members = {str(number): list(group) for (group, _), number in shared.groups.items()}
    files[prefix.with_name(f"{prefix.name}.groups.json")] = (json.dumps(members) + "\n").encode()
    for path, content in files.items():
        write_atomically(path, content)
    return nodes


def _attribute(name: str, value: float | str) -> bytes:
    """Return an attribute with a value of its type."""
    if isinstance(value, bool):
        number, content = chakra.BOOL, int(value)
    elif isinstance(value, str):
        return written_field(chakra.ATTRIBUTE_NAME, name) + written_field(chakra.STRING, value)
    elif isinstance(value, float):
        return written_field(chakra.ATTRIBUTE_NAME, name) + written_field(chakra.DOUBLE, value)
    else:
        # ASTRA-sim's own traces have peers and tags of 32 bits.
        number, content = (chakra.INT32 if name in _SHORT else chakra.INT64), value
    return written_field(chakra.ATTRIBUTE_NAME, name) + written_field(number, content)


_SHORT: Final = ("comm_src", "comm_dst", "comm_tag")


def _servers() -> ScenarioError:
    return ScenarioError("training.sharding: parameter servers cannot be written as a trace; choose another strategy")
