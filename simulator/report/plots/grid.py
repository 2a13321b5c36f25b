"""Is a network of GPUs alone a grid or torus, and where do its GPUs stand then?

Rule: it is one only if its links are exactly those of a grid whose GPUs are numbered row by row.
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
# Distance between two layers of a grid of three dimensions.
_GAP = 1.6


def dimensions(graph: Graph, order: Sequence[str]) -> tuple[int, ...]:
    """Lengths of a torus of two or three dimensions, the slowest first; empty where it is none.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected.
    order : sequence of str
        Its GPUs by number; the graph has nothing else.
    """
    number = {vertex: place for place, vertex in enumerate(order)}
    if len(number) != len(graph):
        return ()
    links = {frozenset((number[a], number[b])) for a, b in graph.edges}
    for lengths in _factors(len(order)):
        if links == _links(lengths):
            return lengths
    return ()


def _factors(count: int) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as a product of two or three numbers from 3 on."""
    divisors = [d for d in range(3, count + 1) if count % d == 0]
    for number in (2, 3):
        yield from (lengths for lengths in product(divisors, repeat=number) if prod(lengths) == count)


def _links(lengths: Sequence[int]) -> set[frozenset[int]]:
    strides = [prod(lengths[i + 1 :]) for i in range(len(lengths))]
    links = set()
    for at in product(*map(range, lengths)):
        here = sum(a * s for a, s in zip(at, strides, strict=True))
        for axis, (length, stride) in enumerate(zip(lengths, strides, strict=True)):
            links.add(frozenset((here, here + ((at[axis] + 1) % length - at[axis]) * stride)))
    return links


def grid_places(lengths: Sequence[int], order: Sequence[str]) -> dict[str, Place]:
    """Rows below each other; the layers of three dimensions side by side, in as many rows as make a square."""
    *layers, rows, columns = lengths
    count = prod(layers)
    across = max(1, round((count * rows / columns) ** 0.5)) if count > 1 else 1
    at: dict[str, Place] = {}
    for number, vertex in enumerate(order):
        layer, rest = divmod(number, rows * columns)
        row, column = divmod(rest, columns)
        x = (layer % across) * (columns + _GAP) + column
        y = (layer // across) * (rows + _GAP) + row
        at[vertex] = (float(x), -float(y))
    return at
