"""How is a large network folded: levels of switches over blocks (pods, groups, nodes, GPUs), few of many drawn?

Rule: computes what is drawn and where; topology.py draws. Levels are hops from the leaves, which are nodes where the
cluster has several, and GPUs otherwise.
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

# Of alike things so many are drawn, the others counted.
_MOST_GPUS: Final = 4
_MOST_BLOCKS: Final = 2
_MOST_SWITCHES: Final = 12
# Width of a row of leaves that cables join directly, in widths of a vertex.
_ROW: Final = 36.0
# Room between blocks, and of the count of those left out, in widths of a vertex.
_GAP: Final = 0.6
_COUNT: Final = 1.6


@dataclass(frozen=True, slots=True)
class Leaf:
    """What is not folded further: a GPU, or a node with all that belongs to it, laid out from (0, 0) on.

    Attributes
    ----------
    at : mapping of vertex to place
    label : str
        Empty for a GPU, which has no box.
    hidden : str
        What of it is not drawn.
    """

    at: Mapping[str, Place]
    label: str = ""
    hidden: str = ""

    @property
    def width(self) -> float:
        """From the first vertex to the end of the last."""
        return max(x for x, _ in self.at.values()) + 1.0

    @property
    def top(self) -> float:
        """Height of the highest vertex."""
        return max(y for _, y in self.at.values())


@dataclass(slots=True)
class Drawing:
    """Places of vertices, boxes and counts.

    Attributes
    ----------
    at : dict of vertex to place
    boxes : list of (left, low, right, high, label)
    counts : list of (place, text)
        Of what is alike and not drawn.
    """

    at: dict[str, Place] = field(default_factory=dict)
    boxes: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    counts: list[tuple[Place, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Block:
    """Switches of one level, above the blocks that they join.

    Attributes
    ----------
    level : int
    own : tuple of str
        Empty for a leaf.
    hidden : int
        Switches of the level that are not drawn.
    children : tuple of _Block
    more : int
        Children that are not drawn.
    leaf : str
        Name of a leaf; empty otherwise.
    """

    level: int
    own: tuple[str, ...] = ()
    hidden: int = 0
    children: tuple[_Block, ...] = ()
    more: int = 0
    leaf: str = ""


def folded(graph: Graph, leaves: Mapping[str, Leaf]) -> Drawing:
    """Fold a network.

    Parameters
    ----------
    graph : networkx.Graph
        Undirected; a leaf is a single vertex of it.
    leaves : mapping of vertex to Leaf
        In the order in which they stand.
    """
    import networkx as nx

    hops = nx.multi_source_dijkstra_path_length(graph, set(leaves))
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
    """Folds parts of a network.

    Attributes
    ----------
    graph : networkx.Graph
    level : mapping of vertex to hops from the nearest leaf
    order : mapping of leaf to its place
    most_leaves : int
        That are drawn of those at one switch.
    most_joined : int
        Leaves that are drawn of those that cables join directly: there the cables are the structure.
    """

    graph: Graph
    level: Mapping[str, int]
    order: Mapping[str, int]
    most_leaves: int
    most_joined: int

    def fold(self, vertices: set[str], most_blocks: int) -> _Block:
        """Fold connected vertices; of alike blocks below the highest switches so many are drawn."""
        import networkx as nx

        level = self.level
        top = max(level[v] for v in vertices)
        if top == 0 and len(vertices) == 1:
            return _Block(0, leaf=next(iter(vertices)))
        tops = sorted((v for v in vertices if level[v] == top > 0), key=natural)
        groups = _groups(self.graph, tops) if top == 1 else []
        if top == 0:
            # Leaves that cables join directly: there is no switch to take away, so all would be one part again.
            parts = [{vertex} for vertex in vertices]
        elif groups:
            parts, tops = [self._with_leaves(group) for group in groups], []
        else:
            parts = [set(part) for part in nx.connected_components(self.graph.subgraph(vertices - set(tops)))]
        parts.sort(key=lambda part: min((self.order[v] for v in part if v in self.order), default=len(self.order)))
        few = self.most_leaves * most_blocks // _MOST_BLOCKS
        most = self.most_joined if top == 0 else few if all(len(part) == 1 for part in parts) else most_blocks
        # One more than that is drawn instead of counted, where there is room.
        shown = parts if len(parts) <= most + (most_blocks > 1) else parts[:most]
        # Where several blocks stand beside each other there is room for one of each kind in them.
        inside = most_blocks if len(shown) == 1 else 1
        children = tuple(self._group(part) if groups else self.fold(part, inside) for part in shown)
        own = tuple(tops[:_MOST_SWITCHES])
        return _Block(top, own, len(tops) - len(own), children, len(parts) - len(shown))

    def _with_leaves(self, switches: Sequence[str]) -> set[str]:
        return {*switches, *(v for switch in switches for v in self.graph[switch] if self.level[v] == 0)}

    def _group(self, vertices: set[str]) -> _Block:
        """A group: each of its switches over its own leaves."""
        switches = sorted((v for v in vertices if self.level[v] == 1), key=natural)
        shown = switches[:_MOST_GPUS]
        children = []
        for switch in shown:
            own = sorted((v for v in self.graph[switch] if self.level[v] == 0), key=self.order.__getitem__)
            few = tuple(_Block(0, leaf=leaf) for leaf in own[:_MOST_BLOCKS])
            children.append(_Block(1, (switch,), 0, few, len(own) - len(few)))
        return _Block(2, (), 0, tuple(children), len(switches) - len(shown))


def _groups(graph: Graph, switches: Sequence[str]) -> list[list[str]]:
    """Switches that are all joined with each other, as in a group of a dragonfly; empty where there are none."""
    import networkx as nx

    among = graph.subgraph(switches)
    if not among.number_of_edges():
        return []
    left, groups = set(switches), []
    for clique in sorted(nx.find_cliques(among), key=lambda c: (-len(c), sorted(map(natural, c)))):
        if len(clique) > 2 and left.issuperset(clique):
            groups.append(sorted(clique, key=natural))
            left -= set(clique)
    return groups if not left and len(groups) > 1 else []


def _place(
    block: _Block, left: float, height: float, leaves: Mapping[str, Leaf], drawing: Drawing, *, outermost: bool = False
) -> float:
    """Place a block from `left` on; its width."""
    if block.leaf:
        return _place_leaf(leaves[block.leaf], left, drawing)
    right, drawn = left, len(drawing.boxes)
    for child in block.children:
        right += _place(child, right, height, leaves, drawing) + (0.0 if child.leaf and _small(leaves, child) else _GAP)
    if block.more:
        below = max((child.level for child in block.children), default=0)
        middle = (height + below) / 2 if below or height else 0.0
        drawing.counts.append(((right + _COUNT / 2 - 0.5, middle), f"+{block.more:,}"))
        right += _COUNT
    width = max(right - left, 1.0 * len(block.own))
    if block.own:
        step = width / len(block.own)
        places = {v: (left + (i + 0.5) * step - 0.5, height + 1.2 * block.level) for i, v in enumerate(block.own)}
        drawing.at |= places
        if block.hidden:
            drawing.counts.append(((left + width - 0.2, height + 1.2 * block.level), f"+{block.hidden:,}"))
    composite = any(not child.leaf for child in block.children) or len(block.own) > 1
    if not outermost and composite:
        top = height + 1.2 * max([block.level if block.own else 1, *(c.level for c in block.children)])
        inside = drawing.boxes[drawn:]
        low, end = (
            min([-0.6, *(b[1] - 0.25 for b in inside)]),
            max([width - 0.4, *(b[2] - left + 0.15 for b in inside)]),
        )
        drawing.boxes.append((left - 0.8, low, left + end, top + 0.6, ""))
    return width


def _small(leaves: Mapping[str, Leaf], block: _Block) -> bool:
    return len(leaves[block.leaf].at) == 1


def _place_leaf(leaf: Leaf, left: float, drawing: Drawing) -> float:
    drawing.at |= {vertex: (left + x, y) for vertex, (x, y) in leaf.at.items()}
    if leaf.label:
        low = min(y for _, y in leaf.at.values())
        said = f"{leaf.label}: {leaf.hidden}" if leaf.hidden else leaf.label
        drawing.boxes.append((left - 0.6, low - 0.75, left + leaf.width - 0.4, leaf.top + 0.6, said))
    return leaf.width
