"""In which order can a rank's nodes run, and how are faulty dependencies of converted traces dropped?"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.traces.chakra.trace_reader import ChakraNode, RankTrace


@dataclass(frozen=True, slots=True)
class RepairedTrace:
    """A trace without faulty dependencies."""

    trace: RankTrace
    # `missing`, `circular`: Dependencies that were dropped: on nodes that do not exist, and in circles.
    missing: int
    circular: int


def ordered(nodes: Mapping[int, ChakraNode]) -> tuple[tuple[ChakraNode, ...], list[int]]:
    """Return nodes in an order of rising ids in which each node follows its dependencies; and a circle of ids, or [].

    Each id of the circle depends on the next, and the first is repeated at the end. Every dependency must exist.

    >>> from simulator.traces.chakra.trace_reader import NodeType
    >>> nodes = {i: ChakraNode(i, "", NodeType.COMP, after, 1, {}) for i, after in ((1, (2,)), (2, ()))}
    >>> [node.id for node in ordered(nodes)[0]]
    [2, 1]
    """
    missing = {ident: len(node.after) for ident, node in nodes.items()}
    behind: dict[int, list[int]] = {}
    for ident, node in nodes.items():
        for other in node.after:
            behind.setdefault(other, []).append(ident)
    ready = [ident for ident, count in missing.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        ident = heapq.heappop(ready)
        order.append(nodes[ident])
        for other in behind.get(ident, ()):
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, other)
    blocked = {ident for ident, count in missing.items() if count}
    return tuple(order), _circle(nodes, blocked) if blocked else []


def _circle(nodes: Mapping[int, ChakraNode], blocked: set[int]) -> list[int]:
    """Return a circle of dependencies among the nodes `blocked`; each depends on another node of `blocked`."""
    path: dict[int, None] = {}
    ident = min(blocked)
    while ident not in path:
        path[ident] = None
        ident = next(other for other in nodes[ident].after if other in blocked)
    ids = list(path)
    return [*ids[ids.index(ident) :], ident]


def repaired(trace: RankTrace) -> RepairedTrace:
    """Return a trace without dependencies on nodes that do not exist, and without circles.

    Nodes of a circle lose their dependencies on nodes of the same circle with larger ids: ids rise with time.
    """
    ids = {node.id for node in trace.nodes}
    # Nodes with an id that occurred before are refused later.
    first = [replace(node, after=tuple(other for other in node.after if other in ids)) for node in trace.nodes]
    after = {node.id: node.after for node in first}
    part = strong_components(after)
    nodes = [
        replace(node, after=tuple(other for other in node.after if other < node.id or part[other] != part[node.id]))
        for node in first
    ]
    total, existing, acyclic = (sum(len(node.after) for node in stage) for stage in (trace.nodes, first, nodes))
    return RepairedTrace(replace(trace, nodes=tuple(nodes)), total - existing, existing - acyclic)


def strong_components(after: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Return the number of each node's strongly connected component: nodes of a component lie on common circles.

    Tarjan's algorithm, without recursion.

    >>> parts = strong_components({1: [2], 2: [1], 3: [2]})
    >>> parts[1] == parts[2], parts[1] == parts[3]
    (True, False)
    """
    index: dict[int, int] = {}
    lowest: dict[int, int] = {}
    part: dict[int, int] = {}
    stack: list[int] = []
    for root in after:
        if root in index:
            continue
        # Each entry is a node with the dependencies that have not been followed.
        walk = [(root, iter(after[root]))]
        index[root] = lowest[root] = len(index)
        stack.append(root)
        while walk:
            node, rest = walk[-1]
            other = next(rest, None)
            if other is None:
                walk.pop()
                if walk:
                    lowest[walk[-1][0]] = min(lowest[walk[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    while node not in part:
                        part[stack.pop()] = index[node]
            elif other not in index:
                index[other] = lowest[other] = len(index)
                stack.append(other)
                walk.append((other, iter(after[other])))
            elif other not in part:
                lowest[node] = min(lowest[node], index[other])
    return part
