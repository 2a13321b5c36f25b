"""Settings in which shared tests play an algorithm: nodes, servers, pieces; its own module says which of them apply.

Rule: an Example only names what surrounds the ranks and which options are set; the test builds it. So a new algorithm
is tested without a change to any test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Example:
    """One setting for a number of ranks.

    Attributes
    ----------
    node_size : int or None
        Ranks of each node; None where the algorithm knows no nodes.
    given : bool
        Whether the request lists the nodes, on a cluster that has none; otherwise the cluster has them, with switches
        that can reduce.
    servers : int or None
        Number of parameter servers; None where the algorithm has none.
    servers_on : {"own", "workers"}
        Whether servers are vertices of their own or run on workers.
    chunks : int or None
        Number of pipeline pieces; None for the algorithm's own choice.
    """

    node_size: int | None = None
    given: bool = False
    servers: int | None = None
    servers_on: str = "own"
    chunks: int | None = None


def plain(ranks: int) -> Iterator[Example]:
    """The ranks alone, without nodes or servers."""
    yield Example()


def in_pieces(ranks: int) -> Iterator[Example]:
    """The number of pieces that the algorithm chooses by itself, and three pieces."""
    yield Example()
    yield Example(chunks=3)


def in_nodes(ranks: int) -> Iterator[Example]:
    """Nodes of every size that divides the number of ranks, listed in the request and as the cluster has them."""
    for size in _divisors(ranks):
        yield Example(node_size=size, given=True)
        yield Example(node_size=size)


def at_switches(ranks: int) -> Iterator[Example]:
    """Nodes of every size that divides the number of ranks, each with a switch that reduces."""
    yield from (Example(node_size=size) for size in _divisors(ranks))


def with_servers(ranks: int) -> Iterator[Example]:
    """One server, two, and as many as ranks; on vertices of their own, on workers, and on workers in nodes."""
    for size in _divisors(ranks):
        yield Example(servers=min(2, ranks), servers_on="workers", node_size=size)
    for chunks in (1, 3):
        for count in sorted({1, 2, ranks}):
            yield Example(servers=count, chunks=chunks)
            yield Example(servers=count, servers_on="workers", chunks=chunks)


def _divisors(ranks: int) -> list[int]:
    return [size for size in range(1, ranks + 1) if ranks % size == 0]
