"""Is a network of GPUs alone a grid or torus, and at which places do the GPUs stand?

A network counts as a torus only if its links equal a grid's links, with GPUs numbered row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.Graph[str]

Place = tuple[float, float]
# Distance between two layers of a three-dimensional grid.
_GAP = 1.6


def dimensions(graph: Graph, order: Sequence[str]) -> tuple[int, ...]:
    """Return the side lengths of a torus with two or three dimensions, slowest first; empty if the graph is no torus.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    order : sequence of str
        The graph's GPUs by number; the graph has no other vertices.
    """
    number = {vertex: place for place, vertex in enumerate(order)}
    if len(number) != len(graph):
        return ()
    links = {frozenset((number[a], number[b])) for a, b in graph.edges}
    # Try every factorisation: 12 GPUs may be 3 x 4 or 4 x 3.
    for lengths in _factors(len(order)):
        if links == _links(lengths):
            return lengths
    return ()


def _factors(count: int) -> Iterator[tuple[int, ...]]:
    """Yield the tuples of two or three factors, each at least 3, whose product is the number.

    >>> list(_factors(12))
    [(3, 4), (4, 3)]
    """
    divisors = [d for d in range(3, count + 1) if count % d == 0]
    for number in (2, 3):
        yield from (lengths for lengths in product(divisors, repeat=number) if prod(lengths) == count)


def _links(lengths: Sequence[int]) -> set[frozenset[int]]:
    """Return the links, as pairs of GPU numbers, of a torus with these side lengths and GPUs numbered row by row."""
    strides = [prod(lengths[i + 1 :]) for i in range(len(lengths))]
    links = set()
    for at in product(*map(range, lengths)):
        here = sum(a * s for a, s in zip(at, strides, strict=True))
        for axis, (length, stride) in enumerate(zip(lengths, strides, strict=True)):
            # The neighbour after the last in a row is the first of the row (wrap-around).
            links.add(frozenset((here, here + ((at[axis] + 1) % length - at[axis]) * stride)))
    return links


def grid_places(lengths: Sequence[int], order: Sequence[str]) -> dict[str, Place]:
    """Return the coordinates of a torus's GPUs: rows below each other, layers of a third dimension side by side.

    >>> grid_places((2, 2), ["gpu0", "gpu1", "gpu2", "gpu3"])
    {'gpu0': (0.0, -0.0), 'gpu1': (1.0, -0.0), 'gpu2': (0.0, -1.0), 'gpu3': (1.0, -1.0)}
    """
    *layers, rows, columns = lengths
    count = prod(layers)
    # Layers per row, chosen for an almost square drawing.
    across = max(1, round((count * rows / columns) ** 0.5)) if count > 1 else 1
    at: dict[str, Place] = {}
    for number, vertex in enumerate(order):
        layer, rest = divmod(number, rows * columns)
        row, column = divmod(rest, columns)
        x = (layer % across) * (columns + _GAP) + column
        y = (layer // across) * (rows + _GAP) + row
        at[vertex] = (float(x), -float(y))
    return at
