"""Which nodes of different ranks belong together, and in which order does each rank issue its nodes?

- A SEND matches the RECV of its destination with the same source and tag; the n-th matches the n-th.
- The n-th COLL of a process group on each of its ranks is one collective. A group is named by `pg_name`; its members
  are the ranks with such a COLL, or those of a file of groups. Without a name the group has all ranks.

Nodes are issued in the order of their ids, as far as dependencies allow. If the ranks would then wait for each other in
a circle, the nodes are issued in an order in which no rank waits for a node behind its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from simulator.basics.errors import ScenarioError, few, one_line
from simulator.records.chakra import RENDEZVOUS, NodeType
from simulator.traces.chakra.dependencies import ordered
from simulator.traces.chakra.trace_reader import ChakraNode, RankTrace

# Name of the group of all ranks.
EVERYBODY = ""
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class NodePlace:
    """A node of a rank."""

    rank: int
    node: ChakraNode


@dataclass(frozen=True, slots=True)
class Message:
    """A SEND and the RECV that it matches."""

    send: NodePlace
    receive: NodePlace
    tag: int
    number: int  # how many messages with the same source, destination and tag precede it

    @property
    def rendezvous(self) -> bool:
        """True if the transfer waits for the receiver, as traces of this simulator say; otherwise it is buffered."""
        return all(bool(end.node.attributes.get(RENDEZVOUS)) for end in (self.send, self.receive))


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective: the COLL of each rank of a group, in the order of the ranks."""

    group: str  # name of the process group; empty for all ranks
    number: int  # how many collectives of the group precede it
    members: tuple[NodePlace, ...]


@dataclass(frozen=True, slots=True)
class MatchedTraces:
    """Traces whose nodes have been matched."""

    order: tuple[tuple[ChakraNode, ...], ...]  # nodes of each rank in the order in which they are issued
    # `messages`, `meetings`: In no particular order.
    messages: tuple[Message, ...]
    meetings: tuple[Meeting, ...]
    reordered: bool  # True if some rank does not issue its nodes in the order of their ids


def matched(traces: Sequence[RankTrace], groups: Mapping[str, Sequence[int]] | None = None) -> MatchedTraces:
    """Return the traces with their nodes matched and ordered.

    Parameters
    ----------
    groups : mapping of str to sequence of int, optional
        Ranks of process groups by name.

    Raises
    ------
    ScenarioError
        Two nodes have an id, a dependency is missing, nodes wait for each other in a circle, or a node has no partner.
    """
    by_id = [_by_id(trace) for trace in traces]
    plain = tuple(_in_order(trace, nodes) for trace, nodes in zip(traces, by_id, strict=True))
    messages, meetings = tuple(_messages(traces, plain)), tuple(_meetings(traces, plain, groups or {}))
    together = _Together(len(traces), messages, meetings)
    if together.order(plain, streams=True) is not None:
        return MatchedTraces(plain, messages, meetings, reordered=False)
    other = together.order(plain, streams=False)
    if other is None:
        raise _circle(traces, together)
    return MatchedTraces(other, messages, meetings, reordered=True)


def _by_id(trace: RankTrace) -> dict[int, ChakraNode]:
    """Return a rank's nodes by id, after checks of ids and dependencies."""
    by_id: dict[int, ChakraNode] = {}
    for node in trace.nodes:
        if node.id in by_id:
            names = f"{by_id[node.id].name!r}, {node.name!r}"
            raise ScenarioError(one_line(f"{trace.source}: two nodes have the id {node.id}: {names}"))
        by_id[node.id] = node
    for node in trace.nodes:
        for other in node.after:
            if other not in by_id:
                problem = f"node {node.id} {node.name!r} depends on node {other}, which does not exist"
                raise ScenarioError(one_line(f"{trace.source}: {problem}; --repair drops such dependencies"))
    return by_id


def _in_order(trace: RankTrace, nodes: Mapping[int, ChakraNode]) -> tuple[ChakraNode, ...]:
    """Return a rank's nodes so that each follows its dependencies, otherwise by id."""
    order, circle = ordered(nodes)
    if circle:
        names = few([str(ident) for ident in circle], _MOST_SHOWN).replace(", ", " -> ")
        problem = f"nodes depend on each other in a circle: {names}; --repair drops a dependency of each circle"
        raise ScenarioError(one_line(f"{trace.source}: {problem}"))
    return order


def _messages(traces: Sequence[RankTrace], order: Sequence[Sequence[ChakraNode]]) -> Iterator[Message]:
    """Yield each SEND with its RECV."""
    ends: tuple[dict[tuple[int, int, int], list[NodePlace]], ...] = ({}, {})
    for rank, nodes in enumerate(order):
        for node in nodes:
            if node.communicates(NodeType.SEND, NodeType.RECV):
                sends = node.type == NodeType.SEND
                peer = _peer(traces, rank, node, "comm_dst" if sends else "comm_src")
                tag = node.number("comm_tag") or 0
                key = (rank, peer, tag) if sends else (peer, rank, tag)
                ends[0 if sends else 1].setdefault(key, []).append(NodePlace(rank, node))
    for source, destination, tag in dict.fromkeys([*ends[0], *ends[1]]):
        sent, received = (side.get((source, destination, tag), []) for side in ends)
        if len(sent) != len(received):
            raise ScenarioError(
                one_line(
                    f"{traces[source].source}: rank {source} sends {len(sent)} messages to rank {destination} with tag "
                    f"{tag}, and rank {destination} receives {len(received)}; every message needs a partner"
                )
            )
        for number, (send, receive) in enumerate(zip(sent, received, strict=True)):
            yield Message(send, receive, tag, number)


def _peer(traces: Sequence[RankTrace], rank: int, node: ChakraNode, attribute: str) -> int:
    peer = node.number(attribute)
    if peer is None or not 0 <= peer < len(traces) or peer == rank:
        problem = "is missing" if peer is None else f"got {peer}"
        others = f"another rank, 0 .. {len(traces) - 1}"
        raise ScenarioError(
            one_line(f"{traces[rank].source}: node {node.id} {node.name!r}: {attribute}: {problem}; must be {others}")
        )
    return peer


def _meetings(
    traces: Sequence[RankTrace], order: Sequence[Sequence[ChakraNode]], groups: Mapping[str, Sequence[int]]
) -> Iterator[Meeting]:
    """Yield each collective with the nodes of its ranks."""
    by_group: dict[str, dict[int, list[NodePlace]]] = {}
    for rank, nodes in enumerate(order):
        for node in nodes:
            if node.communicates(NodeType.COLL):
                name = node.text("pg_name")
                dimensions = node.attributes.get("involved_dim")
                if not name and isinstance(dimensions, tuple) and not all(dimensions):
                    raise ScenarioError(
                        one_line(
                            f"{traces[rank].source}: node {node.id} {node.name!r}: involves some dimensions of a "
                            "network (involved_dim), and names no process group; give pg_name"
                        )
                    )
                by_group.setdefault(name, {}).setdefault(rank, []).append(NodePlace(rank, node))
    for name, by_rank in by_group.items():
        members = groups.get(name, range(len(traces)) if name == EVERYBODY else sorted(by_rank))
        counts = {rank: len(by_rank.get(rank, ())) for rank in members}
        counts |= {rank: len(nodes) for rank, nodes in by_rank.items() if rank not in counts}
        if len(set(counts.values())) > 1 or set(by_rank) - set(members):
            most, least = (choose(counts, key=lambda rank: counts[rank]) for choose in (max, min))
            which = f"the group {name!r}" if name else "the group of all ranks"
            raise ScenarioError(
                one_line(
                    f"{traces[most].source}: rank {most} has {counts[most]} collectives of {which}, and rank {least} "
                    f"has {counts[least]}; every rank of a group takes part in each"
                )
            )
        for number, places in enumerate(zip(*(by_rank[rank] for rank in members), strict=True)):
            yield Meeting(name, number, places)


@dataclass(slots=True)
class _Together:
    """The nodes of all ranks in one graph, in which the nodes of a collective are a single vertex, and
    so are both ends of a message that waits for its receiver.
    """

    ranks: int
    messages: Sequence[Message]
    meetings: Sequence[Meeting]
    left: tuple[NodePlace, ...] = field(default=())  # nodes that wait for each other, after an attempt without a result

    def order(
        self, plain: Sequence[Sequence[ChakraNode]], *, streams: bool
    ) -> tuple[tuple[ChakraNode, ...], ...] | None:
        """Return the nodes of each rank so that nobody waits for a node behind its own; None if there is no such order.

        With `streams`, the nodes that share a resource keep their order in `plain`.
        """
        vertex: dict[tuple[int, int], int] = {}
        members: list[list[NodePlace]] = []
        for meeting in self.meetings:
            for place in meeting.members:
                vertex[place.rank, place.node.id] = len(members)
            members.append(list(meeting.members))
        for message in self.messages:
            if message.rendezvous:
                for place in (message.send, message.receive):
                    vertex[place.rank, place.node.id] = len(members)
                members.append([message.send, message.receive])
        for rank, nodes in enumerate(plain):
            for node in nodes:
                if (rank, node.id) not in vertex:
                    vertex[rank, node.id] = len(members)
                    members.append([NodePlace(rank, node)])
        behind: list[list[int]] = [[] for _ in members]
        missing = [0] * len(members)

        def add(first: int, second: int) -> None:
            behind[first].append(second)
            missing[second] += 1

        for rank, nodes in enumerate(plain):
            last: dict[str, int] = {}
            for node in nodes:
                target = vertex[rank, node.id]
                for other in node.after:
                    add(vertex[rank, other], target)
                resource = resource_of(node)
                if streams and resource in last:
                    add(last[resource], target)
                last[resource] = target
        for message in self.messages:
            if not message.rendezvous:
                send, receive = (vertex[place.rank, place.node.id] for place in (message.send, message.receive))
                add(send, receive)
        return self._sorted(members, behind, missing)

    def _sorted(
        self, members: Sequence[Sequence[NodePlace]], behind: Sequence[Sequence[int]], missing: list[int]
    ) -> tuple[tuple[ChakraNode, ...], ...] | None:
        # Smallest id first, then the lowest rank.
        key = [min((place.node.id, place.rank) for place in places) for places in members]
        ready = [(key[vertex], vertex) for vertex, count in enumerate(missing) if not count]
        heapq.heapify(ready)
        order: list[list[ChakraNode]] = [[] for _ in range(self.ranks)]
        done = 0
        while ready:
            _, vertex = heapq.heappop(ready)
            done += 1
            for place in members[vertex]:
                order[place.rank].append(place.node)
            for other in behind[vertex]:
                missing[other] -= 1
                if not missing[other]:
                    heapq.heappush(ready, (key[other], other))
        if done < len(members):
            self.left = tuple(members[vertex][0] for vertex, count in enumerate(missing) if count)
            return None
        return tuple(map(tuple, order))


def resource_of(node: ChakraNode) -> str:
    """Return the resource that runs a node: its nodes run one at a time, in the order of issue.

    Kernels have a resource for each `stream` (or else `tid`), operations of the host for each thread (`tid`),
    collectives for each group, and messages for each peer and tag. Metadata takes no time and no resource.

    >>> resource_of(ChakraNode(1, "mm", NodeType.COMP, (), 5, {"stream": 7}))
    'compute 7'
    >>> resource_of(ChakraNode(2, "send", NodeType.SEND, (), 5, {"comm_dst": 3}))
    'send to 3 tag 0'
    """
    if node.type == NodeType.METADATA:
        return f"metadata {node.id}"
    if node.on_host:
        return f"host {node.text('tid')}".rstrip()
    if node.type == NodeType.COLL:
        return f"communication {node.text('pg_name')}".rstrip()
    if node.type == NodeType.SEND:
        return f"send to {node.number('comm_dst')} tag {node.number('comm_tag') or 0}"
    if node.type == NodeType.RECV:
        return f"receive from {node.number('comm_src')} tag {node.number('comm_tag') or 0}"
    # Converters from PyTorch write the stream of a kernel as its thread.
    stream = node.text("stream") or node.text("tid")
    if node.type in (NodeType.MEM_LOAD, NodeType.MEM_STORE):
        return f"memory {stream}".rstrip()
    return f"compute {stream}".rstrip()


def _circle(traces: Sequence[RankTrace], together: _Together) -> ScenarioError:
    """Return the error for ranks that wait for each other."""
    names = few([f"rank {place.rank} node {place.node.id} {place.node.name!r}" for place in together.left], _MOST_SHOWN)
    return ScenarioError(one_line(f"{traces[0].source}: ranks wait for each other in a circle, among them {names}"))
