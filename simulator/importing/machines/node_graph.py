"""How do the parts of a node become vertices and cables?

The graph is the file's tree of PCIe, with NUMA nodes as hosts, and with two kinds of ports in front of a place. Routes
are the paths with the fewest hops, and without ports a place with several devices would allow routes that no library
takes.

    several cards at a place    A port for each card joins the card and its share of the GPUs, because a GPU would use
                                the cards in turn. A card below a bridge of its own counts as well. More cards than GPUs
                                become one card for each GPU, with the total rate.
    NVSwitch, and several       A port for each GPU, because two GPUs would be as near by PCIe as by NVSwitch.
    GPUs at a place or port

Example: a bridge with two GPUs and two cards, at a host.

    gpu0 -- port0 -- nic0        gpu1 -- port1 -- nic1        port0, port1 -- pcie0 -- host0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.cluster.graph import Graph, add_cable, add_vertex
from simulator.importing.machines.node_parts import Device, NodeParts, PlaceKind

# A GPU, a bridge or a network card: "gpu", "place" or "card", and its number.
Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NodeRates:
    """Figures of a node that belong to no single device: latencies [s] and bandwidth between sockets [B/s]."""

    link_latency: float
    pcie_latency: float
    socket_bandwidth: float
    socket_latency: float


def add_gpus(graph: Graph, parts: NodeParts, number: int, node: str) -> None:
    """Add the GPUs of node `number` to a graph, under names that continue from node to node."""
    for i, gpu in enumerate(parts.gpus):
        name = add_vertex(graph, _gpu(parts, number, i), "gpu", forwards=False)
        graph.nodes[name].update(node=node, original_name=gpu.name)


def add_parts(graph: Graph, parts: NodeParts, rates: NodeRates, number: int, node: str) -> None:
    """Add the other parts of node `number`, and all cables inside the node, to a graph that has its GPUs."""
    _Node(graph, parts, rates, number, node).add()


def merged_ports(cards: Sequence[tuple[str, Device]]) -> tuple[Device, ...]:
    """Return cards, given each network port with its card's address: ports of a card share its PCIe slot.

    >>> ports = [("03:00", Device(name, 0, 24e9, 25e9)) for name in ("a", "b")]
    >>> merged_ports(ports)
    (Device(name='a+b', place=0, bandwidth=24000000000.0, network=50000000000.0),)
    """
    by_address: dict[str, Device] = {}
    for address, port in cards:
        card = by_address.get(address)
        by_address[address] = (
            port
            if card is None
            else replace(card, name=f"{card.name}+{port.name}", network=card.network + port.network)
        )
    return tuple(by_address.values())


def merged_cards(parts: NodeParts) -> NodeParts:
    """Return a node in which a place has at most one card for each of its GPUs.

    Cards of one GPU become one card with their total rates, because a GPU sends to all of them at once.
    """
    cards: list[tuple[int, Device]] = []
    for place in dict.fromkeys(card.place for card in parts.cards):
        local = [(i, card) for i, card in enumerate(parts.cards) if card.place == place]
        users = len(_users(parts, place))
        if not users or len(local) <= users:
            cards += local
            continue
        for user in range(users):
            several = local[user * len(local) // users : (user + 1) * len(local) // users]
            name = "+".join(card.name for _, card in several)
            bandwidth = sum(card.bandwidth for _, card in several)
            network = sum(card.network for _, card in several)
            cards.append((several[0][0], Device(name, place, bandwidth, network)))
    return replace(parts, cards=tuple(card for _, card in sorted(cards, key=lambda entry: entry[0])))


def _users(parts: NodeParts, place: int) -> list[Part]:
    """Return the GPUs and bridges directly at a place whose GPUs have no nearer network card."""
    direct = [("gpu", i) for i, gpu in enumerate(parts.gpus) if gpu.place == place]
    return direct + _bridges(parts, place, with_gpus=True, with_cards=False)


def _cards(parts: NodeParts, place: int) -> list[Part]:
    """Return the network cards directly at a place, and the bridges there with network cards alone."""
    direct = [("card", i) for i, card in enumerate(parts.cards) if card.place == place]
    return direct + _bridges(parts, place, with_gpus=False, with_cards=True)


def _bridges(parts: NodeParts, place: int, *, with_gpus: bool, with_cards: bool) -> list[Part]:
    """Return the bridges directly at a place that have GPUs below or not, and network cards below or not."""
    gpus = {above for gpu in parts.gpus for above in parts.above(gpu.place)}
    cards = {above for card in parts.cards for above in parts.above(card.place)}
    below = [i for i, other in enumerate(parts.places) if other.parent == place]
    return [("place", i) for i in below if (i in gpus, i in cards) == (with_gpus, with_cards)]


def _gpu(parts: NodeParts, number: int, i: int) -> str:
    return f"gpu{number * len(parts.gpus) + i}"


class _Node:
    """Adds the parts of one node to a graph."""

    def __init__(self, graph: Graph, parts: NodeParts, rates: NodeRates, number: int, node: str) -> None:
        self._graph, self._parts, self._rates = graph, parts, rates
        self._number, self._node = number, node
        self._ports = 0

    def add(self) -> None:
        parts = self._parts
        self._join_gpus()
        places = self._add_places()
        # Vertex of each GPU, card and bridge in the tree: the vertex of its place, or a port in front of it.
        at: dict[Part, str] = {("gpu", i): places[gpu.place] for i, gpu in enumerate(parts.gpus)}
        at |= {("place", i): places[place.parent] for i, place in enumerate(parts.places) if place.parent is not None}
        at |= {("card", i): places[card.place] for i, card in enumerate(parts.cards)}
        self._add_card_ports(places, at)
        self._add_gpu_ports(at)
        for (kind, i), vertex in at.items():
            name = places[i] if kind == "place" else self._gpu(i) if kind == "gpu" else self._card(i)
            add_cable(self._graph, name, vertex, self._bandwidth((kind, i)), self._rates.pcie_latency)

    def _bandwidth(self, part: Part) -> float:
        """Return the bandwidth of a GPU, a bridge or a card to what is above it [B/s]."""
        kind, i = part
        if kind == "place":
            return self._parts.places[i].bandwidth
        return (self._parts.gpus if kind == "gpu" else self._parts.cards)[i].bandwidth

    def _gpu(self, i: int) -> str:
        return _gpu(self._parts, self._number, i)

    def _card(self, i: int) -> str:
        return f"nic{self._number * len(self._parts.cards) + i}"

    def _join_gpus(self) -> None:
        parts, graph, latency = self._parts, self._graph, self._rates.link_latency
        links = parts.links
        for number, bandwidths in enumerate(links.switches):
            name = f"node{self._number}/nvswitch{number if len(links.switches) > 1 else ''}"
            switch = add_vertex(graph, name, "switch", forwards=True)
            graph.nodes[switch].update({"node": self._node, "reduces": True} if links.reduces else {})
            for i, bandwidth in bandwidths.items():
                add_cable(graph, self._gpu(i), switch, bandwidth, latency)
        for (i, j), bandwidth in links.peers.items():
            add_cable(graph, self._gpu(i), self._gpu(j), bandwidth, latency)

    def _add_places(self) -> list[str]:
        """Add NUMA nodes, bridges and cards; return the vertex of each place."""
        graph, parts, names = self._graph, self._parts, list[str]()
        hosts = [i for i, place in enumerate(parts.places) if place.kind is PlaceKind.NUMA]
        bridges = 0
        for i, place in enumerate(parts.places):
            if place.kind is PlaceKind.NUMA:
                name = add_vertex(graph, f"host{self._number * len(hosts) + hosts.index(i)}", "host", forwards=True)
            else:
                name = add_vertex(graph, f"node{self._number}/pcie{bridges}", "switch", forwards=True)
                bridges += 1
            graph.nodes[name]["original_name"] = place.name
            names.append(name)
        for number, computer in enumerate(dict.fromkeys(parts.places[i].host for i in hosts)):
            self._join_hosts([names[i] for i in hosts if parts.places[i].host == computer], number)
        for i, card in enumerate(parts.cards):
            name = add_vertex(graph, self._card(i), "nic", forwards=True)
            graph.nodes[name].update(original_name=card.name, network_bandwidth=card.network)
        return names

    def _join_hosts(self, hosts: Sequence[str], number: int) -> None:
        """Join the NUMA nodes of a computer: two by a cable, more by a vertex, so that all traffic of one shares it."""
        bandwidth, latency = self._rates.socket_bandwidth, self._rates.socket_latency
        if len(hosts) == 2:
            add_cable(self._graph, hosts[0], hosts[1], bandwidth, latency)
        elif len(hosts) > 2:
            between = add_vertex(self._graph, f"node{self._number}/sockets{number or ''}", "switch", forwards=True)
            for host in hosts:
                add_cable(self._graph, host, between, bandwidth, latency / 2)

    def _port(self, below: str, bandwidth: float) -> str:
        """Add a port in front of a place; port and place are the same chip: the cable in between has no latency."""
        name = add_vertex(self._graph, f"node{self._number}/port{self._ports}", "switch", forwards=True)
        self._ports += 1
        add_cable(self._graph, name, below, bandwidth, 0.0)
        return name

    def _add_card_ports(self, places: Sequence[str], at: dict[Part, str]) -> None:
        """Put a port in front of each card at a place with several cards, and share out the GPUs there."""
        # In the order of the GPUs, so that port i belongs to GPU i.
        for place in dict.fromkeys(place for gpu in self._parts.gpus for place in self._parts.above(gpu.place)):
            users, cards = _users(self._parts, place), _cards(self._parts, place)
            ports = min(len(users), len(cards))
            if ports == 0 or len(cards) < 2:
                continue
            for number in range(ports):
                sharing = users[-(-number * len(users) // ports) : -(-(number + 1) * len(users) // ports)]
                port_cards = cards[-(-number * len(cards) // ports) : -(-(number + 1) * len(cards) // ports)]
                # All GPUs of the port may send through the place at once.
                port = self._port(places[place], sum(map(self._bandwidth, sharing)))
                at |= dict.fromkeys([*sharing, *port_cards], port)

    def _add_gpu_ports(self, at: dict[Part, str]) -> None:
        """Put a port in front of each GPU that shares its vertex with another GPU, beside an NVSwitch."""
        if not self._parts.links.switches:
            return
        gpus = [("gpu", i) for i in range(len(self._parts.gpus))]
        shared = {vertex for vertex, count in Counter(at[gpu] for gpu in gpus).items() if count > 1}
        for gpu in gpus:
            if at[gpu] in shared:
                at[gpu] = self._port(at[gpu], self._bandwidth(gpu))
