"""How is a large network folded? Levels of switches above blocks (pods, groups, nodes), a few drawn, the rest counted.

Computes places only; topology.py draws. Levels are hops from the leaves, which are nodes in clusters with several
nodes, else GPUs.

A network of 8 equivalent blocks of GPUs below two core switches, with 2 blocks drawn and 6 counted:

        core0        core1              level 2
      +---------+  +---------+
      |  leaf0  |  |  leaf1  |    +6    level 1
      | g g g g |  | g g g g |          level 0: GPUs
      +---------+  +---------+
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from simulator.basics.natural_order import natural

if TYPE_CHECKING:
    import networkx as nx

    Graph = nx.Graph[str]

Place = tuple[float, float]

# This many of equivalent things are drawn; the rest is counted.
_MOST_GPUS: Final = 4
_MOST_BLOCKS: Final = 2
_MOST_SWITCHES: Final = 12
# Width of a row of leaves joined directly by cables, in vertex widths.
_ROW: Final = 36.0
# Room between blocks, and for the count of omitted blocks, in widths of a vertex.
_GAP: Final = 0.6
_COUNT: Final = 1.6


@dataclass(frozen=True, slots=True)
class Leaf:
    """The smallest unit of folding: a GPU, or a node with its vertices, laid out from (0, 0) on."""

    at: Mapping[str, Place]
    label: str = ""  # empty for a GPU, which has no box
    hidden: str = ""  # text about its omitted vertices

    @property
    def width(self) -> float:
        """Width of the leaf's drawing, from its first vertex to the end of its last, in widths of a vertex."""
        return max(x for x, _ in self.at.values()) + 1.0

    @property
    def top(self) -> float:
        """Height coordinate of the leaf's highest vertex."""
        return max(y for _, y in self.at.values())


@dataclass(slots=True)
class Drawing:
    """Coordinates of a network drawing: vertices, boxes around blocks, and counts of hidden parts."""

    at: dict[str, Place] = field(default_factory=dict)
    boxes: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    counts: list[tuple[Place, str]] = field(default_factory=list)  # numbers of equivalent things that are not drawn


@dataclass(frozen=True, slots=True)
class _Block:
    """A block of a network drawing: switches on the same level, above smaller blocks."""

    level: int  # hops from the leaves
    own: tuple[str, ...] = ()  # the switches; empty for a leaf
    hidden: int = 0  # switches of the level that are not drawn
    children: tuple[_Block, ...] = ()  # blocks below
    more: int = 0  # children that are not drawn
    leaf: str = ""  # name of a leaf; empty otherwise


def folded(graph: Graph, leaves: Mapping[str, Leaf]) -> Drawing:
    """Lay out a network for a drawing: a few of its equivalent blocks are placed, the others only counted.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected; a leaf is a single vertex.
    leaves : mapping of vertex to Leaf
        Leaves from left to right.
    """
    import networkx as nx

    hops = nx.multi_source_dijkstra_path_length(graph, set(leaves))
    # Vertices without a path to a leaf are not drawn.
    level = {vertex: int(hops[vertex]) for vertex in graph if vertex in hops}
    order = {name: place for place, name in enumerate(leaves)}
    gpus = all(len(leaf.at) == 1 for leaf in leaves.values())
    joined = max(_MOST_BLOCKS, int(_ROW / max(leaf.width for leaf in leaves.values())))
    root = _Folder(graph, level, order, _MOST_GPUS if gpus else _MOST_BLOCKS, joined).fold(set(level), _MOST_BLOCKS)
    drawing = Drawing()
    height = max(leaf.top for leaf in leaves.values())
    _place(root, 0.0, height, leaves, drawing, outermost=True)
    return drawing


@dataclass(frozen=True, slots=True)
class _Folder:
    """Builds the tree of blocks of a network drawing, with a few blocks drawn per level and the others counted."""

    graph: Graph
    level: Mapping[str, int]  # hops of each vertex from the nearest leaf
    order: Mapping[str, int]  # place of each leaf
    most_leaves: int  # leaves drawn per switch
    most_joined: int  # leaves drawn if cables join leaves directly: there the cables are the structure

    def fold(self, vertices: set[str], most_blocks: int) -> _Block:
        """Return the block of a connected set; below its highest switches, `most_blocks` equal blocks are drawn."""
        import networkx as nx

        level = self.level
        top = max(level[v] for v in vertices)
        if top == 0 and len(vertices) == 1:
            return _Block(0, leaf=next(iter(vertices)))
        tops = sorted((v for v in vertices if level[v] == top > 0), key=natural)
        # Switches are joined with each other, like a dragonfly's: fold by group.
        groups = _groups(self.graph, tops) if top == 1 else []
        if top == 0:
            # Leaves joined directly by cables: without switches to remove, the leaves would stay a single part for
            # ever.
            parts = [{vertex} for vertex in vertices]
        elif groups:
            parts, tops = [self._with_leaves(group) for group in groups], []
        else:
            # Without the highest switches the network falls apart into equivalent blocks.
            parts = [set(part) for part in nx.connected_components(self.graph.subgraph(vertices - set(tops)))]
        parts.sort(key=lambda part: min((self.order[v] for v in part if v in self.order), default=len(self.order)))
        few = self.most_leaves * most_blocks // _MOST_BLOCKS
        most = self.most_joined if top == 0 else few if all(len(part) == 1 for part in parts) else most_blocks
        # If only one part would be hidden, draw it: a count takes the same room.
        visible = parts if len(parts) <= most + (most_blocks > 1) else parts[:most]
        # Beside each other, blocks have room for a single inner block of each kind.
        inside = most_blocks if len(visible) == 1 else 1
        children = tuple(self._group(part) if groups else self.fold(part, inside) for part in visible)
        switches = tuple(tops[:_MOST_SWITCHES])
        return _Block(top, switches, len(tops) - len(switches), children, len(parts) - len(visible))

    def _with_leaves(self, switches: Sequence[str]) -> set[str]:
        """Return the set of the given switches and of all GPUs or nodes (leaves) cabled directly to them."""
        return {*switches, *(v for switch in switches for v in self.graph[switch] if self.level[v] == 0)}

    def _group(self, vertices: set[str]) -> _Block:
        """Return the block of a group of switches joined with each other; each switch stands above its own leaves."""
        switches = sorted((v for v in vertices if self.level[v] == 1), key=natural)
        visible = switches[:_MOST_GPUS]
        children = []
        for switch in visible:
            leaves = sorted((v for v in self.graph[switch] if self.level[v] == 0), key=self.order.__getitem__)
            few = tuple(_Block(0, leaf=leaf) for leaf in leaves[:_MOST_BLOCKS])
            children.append(_Block(1, (switch,), 0, few, len(leaves) - len(few)))
        return _Block(2, (), 0, tuple(children), len(switches) - len(visible))


def _groups(graph: Graph, switches: Sequence[str]) -> list[list[str]]:
    """Return the groups of fully connected switches, as in a dragonfly; empty without such groups."""
    import networkx as nx

    among = graph.subgraph(switches)
    if not among.number_of_edges():
        return []
    left, groups = set(switches), []
    # Take the largest cliques first; a switch belongs to a single group.
    for clique in sorted(nx.find_cliques(among), key=lambda c: (-len(c), sorted(map(natural, c)))):
        if len(clique) > 2 and left.issuperset(clique):
            groups.append(sorted(clique, key=natural))
            left -= set(clique)
    # Every switch must belong to a group, else the network is no dragonfly.
    return groups if not left and len(groups) > 1 else []


def _place(
    block: _Block, left: float, height: float, leaves: Mapping[str, Leaf], drawing: Drawing, *, outermost: bool = False
) -> float:
    """Add a block's coordinates, from `left` on, to `drawing`, and return the block's width."""
    if block.leaf:
        return _place_leaf(leaves[block.leaf], left, drawing)
    right, first_box = left, len(drawing.boxes)
    for child in block.children:
        # Single GPUs stand close together, blocks have a gap.
        right += _place(child, right, height, leaves, drawing) + (0.0 if child.leaf and _small(leaves, child) else _GAP)
    if block.more:
        below = max((child.level for child in block.children), default=0)
        # The count of hidden blocks stands beside the drawn blocks, at half height.
        middle = (height + below) / 2 if below or height else 0.0
        drawing.counts.append(((right + _COUNT / 2 - 0.5, middle), f"+{block.more:,}"))
        right += _COUNT
    width = max(right - left, 1.0 * len(block.own))
    if block.own:
        # Spread the block's switches evenly above its children.
        step = width / len(block.own)
        places = {v: (left + (i + 0.5) * step - 0.5, height + 1.2 * block.level) for i, v in enumerate(block.own)}
        drawing.at |= places
        if block.hidden:
            drawing.counts.append(((left + width - 0.2, height + 1.2 * block.level), f"+{block.hidden:,}"))
    composite = any(not child.leaf for child in block.children) or len(block.own) > 1
    if not outermost and composite:
        top = height + 1.2 * max([block.level if block.own else 1, *(c.level for c in block.children)])
        # The box must enclose the boxes of the children.
        inside = drawing.boxes[first_box:]
        low, end = (
            min([-0.6, *(b[1] - 0.25 for b in inside)]),
            max([width - 0.4, *(b[2] - left + 0.15 for b in inside)]),
        )
        drawing.boxes.append((left - 0.8, low, left + end, top + 0.6, ""))
    return width


def _small(leaves: Mapping[str, Leaf], block: _Block) -> bool:
    """Return True if the block's leaf is a single vertex, i.e. a GPU and no node."""
    return len(leaves[block.leaf].at) == 1


def _place_leaf(leaf: Leaf, left: float, drawing: Drawing) -> float:
    """Add the coordinates of a leaf's vertices and box, from `left` on, to `drawing`, and return the leaf's width."""
    drawing.at |= {vertex: (left + x, y) for vertex, (x, y) in leaf.at.items()}
    if leaf.label:
        low = min(y for _, y in leaf.at.values())
        label = f"{leaf.label}: {leaf.hidden}" if leaf.hidden else leaf.label
        drawing.boxes.append((left - 0.6, low - 0.75, left + leaf.width - 0.4, leaf.top + 0.6, label))
    return leaf.width
