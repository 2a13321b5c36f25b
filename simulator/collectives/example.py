"""Settings in which shared tests simulate an algorithm: nodes, servers, pieces. Each algorithm selects its settings.

An Example only names the surroundings of the ranks and the options; the test builds them. A new algorithm is therefore
tested without a change to any test.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from simulator.basics.counts import divisors


@dataclass(frozen=True, slots=True)
class Example:
    """A setting in which shared tests simulate a collective algorithm."""

    # Ranks per node; None if the algorithm does not use nodes.
    node_size: int | None = None
    # True: the request lists the nodes, and the cluster has none. False: the cluster has the nodes, with switches that
    # can reduce.
    given: bool = False
    # Number of parameter servers; None if the algorithm has none.
    servers: int | None = None
    servers_on: str = "own"  # whether servers have separate vertices ("own") or run on workers
    # Number of pipeline pieces; None for the algorithm's own choice.
    chunks: int | None = None
    # Number of ranks along each dimension of a torus; empty for none.
    sides: tuple[int, ...] = ()


def plain(ranks: int) -> Iterator[Example]:
    """Yield the test setting with ranks alone, without nodes or servers."""
    yield Example()


def in_pieces(ranks: int) -> Iterator[Example]:
    """Yield test settings: the algorithm's own number of pieces, and three pieces.

    >>> [example.chunks for example in in_pieces(4)]
    [None, 3]
    """
    yield Example()
    # The larger arrays in the tests are not multiples of 3, so these pieces differ in size.
    yield Example(chunks=3)


def in_nodes(ranks: int) -> Iterator[Example]:
    """Yield test settings with nodes of every size that divides `ranks`: listed in the request, and in the cluster.

    >>> [(example.node_size, example.given) for example in in_nodes(2)]
    [(1, True), (1, False), (2, True), (2, False)]
    """
    for size in divisors(ranks):
        yield Example(node_size=size, given=True)
        yield Example(node_size=size)


def in_tori(ranks: int) -> Iterator[Example]:
    """Yield test settings with the ranks on every grid of two dimensions, on a grid of three, and on a ring.

    >>> [example.sides for example in in_tori(12)]
    [(2, 6), (3, 4), (4, 3), (6, 2), (2, 3, 2), ()]
    """
    lengths = [length for length in divisors(ranks) if 1 < length < ranks]
    yield from (Example(sides=(length, ranks // length)) for length in lengths)
    if len(lengths) > 2:
        yield Example(sides=(lengths[0], lengths[-1] // lengths[0], ranks // lengths[-1]))
    yield Example()


def at_switches(ranks: int) -> Iterator[Example]:
    """Yield test settings with nodes of every size that divides `ranks`, each node with a reducing switch.

    >>> [example.node_size for example in at_switches(6)]
    [1, 2, 3, 6]
    """
    yield from (Example(node_size=size) for size in divisors(ranks))


def with_servers(ranks: int) -> Iterator[Example]:
    """Yield test settings with 1, 2 and N servers: on separate vertices, on workers, and on workers in nodes.

    >>> sorted({(example.servers, example.servers_on) for example in with_servers(4)})
    [(1, 'own'), (1, 'workers'), (2, 'own'), (2, 'workers'), (4, 'own'), (4, 'workers')]
    """
    for size in divisors(ranks):
        yield Example(servers=min(2, ranks), servers_on="workers", node_size=size)
    for chunks in (1, 3):
        for count in sorted({1, 2, ranks}):
            yield Example(servers=count, chunks=chunks)
            yield Example(servers=count, servers_on="workers", chunks=chunks)
