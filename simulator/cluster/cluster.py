"""What a cluster is: GPUs with ranks, links between them, and how well it runs collectives. Records.

Rule: the router numbers vertices and directed links once, and the engines use those numbers; names are for people.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from simulator.basics.recent import Recent
from simulator.cluster.routing import Route, Router

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")
# Whatever fits into one packet takes as long as one: 4096 B is the largest payload of an InfiniBand packet (MTU).
PACKET: Final = 4096
# Numbers that a cluster remembers in its answers: with some 50 B for each, 100 MB.
_REMEMBERED: Final = 2**21
# The same for routes, of 8 B a number; the newest are kept whatever their size.
_REMEMBERED_ROUTES: Final = 2**24
# Smaller arrays fit into one buffer and are not cut: NCCL_BUFFSIZE is 4 MiB (NCCL user guide, environment variables).
_BUFFER: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """What one GPU can do; from catalog/gpus/NAME.yaml.

    Attributes
    ----------
    name : str
    peak_flops : mapping of str to float
        Dense peak by dtype name, without sparsity [FLOP/s]; matrix units where the GPU has them for that dtype.
    hbm_bytes : int
        Usable [B].
    hbm_bandwidth : float
        [B/s]
    sms : int
        Streaming multiprocessors (compute units on AMD).
    scale_up_bandwidth : float
        All NVLink or xGMI links together, per direction [B/s]; 0 where there is none.
    host_bandwidth : float
        PCIe, per direction [B/s].
    facts : mapping
        All else that the catalog file holds: sources, uncertain figures, fitted constants.
    """

    name: str
    peak_flops: Mapping[str, float]
    hbm_bytes: int
    hbm_bandwidth: float
    sms: int
    scale_up_bandwidth: float
    host_bandwidth: float
    facts: Mapping[str, Any] = field(default_factory=dict)


class Steps(NamedTuple):
    """Transfers that wait for each other on the longest way through a collective.

    Attributes
    ----------
    inside, across : float
        Inside a node, and from one node to another.
    """

    inside: float = 0.0
    across: float = 0.0


@dataclass(frozen=True, slots=True)
class MachineCollective:
    """How well a machine runs one operation, as fitted from measurements; data of a topology file.

    Attributes
    ----------
    algorithm : str
        What it runs.
    startup : float
        Paid once an operation by every rank before its first transfer [s].
    rate_cap : float
        Bound on each flow for very large arrays [B/s]; in multi_ring on those from one rank into its node together.
    cross_rate_cap : float
        The same for flows between nodes [B/s].
    half_size : float
        Array size at which the caps have fallen to a half [B]; 0: they do not depend on size.
    exponent : float
        How steeply: factor(S) = 1 / (1 + (half_size / S)^exponent), S at least a packet.
    chunks : int or None
        Pipeline segments of a large array, for algorithms that take them; see `segments`.
    step, cross_step : float
        What a step of the algorithm takes besides its transfers: inside a node, and between nodes [s].
    source : str
        Where the figures were measured.
    """

    algorithm: str
    startup: float = 0.0
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")
    half_size: float = 0.0
    exponent: float = 1.0
    chunks: int | None = None
    step: float = 0.0
    cross_step: float = 0.0
    source: str = ""

    def factor(self, nbytes: float) -> float:
        """Share of the caps that an array of this size [B] reaches, 0 to 1."""
        if self.half_size == 0.0 or nbytes <= 0:
            return 1.0
        return float(1.0 / (1.0 + (self.half_size / max(nbytes, PACKET)) ** self.exponent))

    def latency(self, steps: Steps) -> float:
        """What is paid before the first transfer: the start-up, and all steps of the longest way at once [s].

        NCCL's own model of its algorithms adds them up so (src/graph/tuning.cc, ncclTopoTuneModel).
        """
        return self.startup + steps.inside * self.step + steps.across * self.cross_step

    def segments(self, nbytes: float) -> int | None:
        """Into how many pieces an array of this size [B] is cut: none smaller than a buffer; None where not said."""
        return None if self.chunks is None else min(self.chunks, max(1, int(nbytes // _BUFFER)))


@dataclass(frozen=True)
class Cluster:
    """GPUs on a graph.

    Attributes
    ----------
    name : str
        The topology's.
    graph : networkx.DiGraph
        Vertices have `kind` ("gpu", "nic", "switch", "host", "server") and `forwards` (may routes pass through);
        edges have `bandwidth` [B/s] and `latency` [s], one per direction.
    router : Router
        Numbers of vertices and links, and routes.
    gpus : tuple of Gpu
        Rank r's GPU.
    ranks : tuple of str
        Rank r's vertex.
    servers : tuple of str
        Vertices of parameter servers that stand on their own.
    speeds : tuple of float
        Factor on rank r's FLOP/s and HBM bandwidth; 1 for a healthy one.
    nodes : tuple of tuple of int
        Ranks of each node; one node with all ranks where the topology knows none.
    reducing_switches : tuple of str
        For each node the switch that can reduce; empty where none can.
    collectives : mapping of operation to MachineCollective
        What this machine runs over all of its nodes, where it was measured.
    in_node : mapping of operation to MachineCollective
        What it runs among ranks of one node; empty where that is not told apart.
    hosts : tuple of str
        Rank r's processor socket, where offloaded data lie; empty where the topology has none.
    """

    name: str
    graph: nx.DiGraph[str]
    router: Router
    gpus: tuple[Gpu, ...]
    ranks: tuple[str, ...]
    servers: tuple[str, ...] = ()
    speeds: tuple[float, ...] = ()
    nodes: tuple[tuple[int, ...], ...] = ()
    reducing_switches: tuple[str, ...] = ()
    collectives: Mapping[str, MachineCollective] = field(default_factory=dict)
    in_node: Mapping[str, MachineCollective] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    _recent: Recent = field(init=False, repr=False, compare=False)
    _routes: Recent = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_recent", Recent(_REMEMBERED))
        object.__setattr__(self, "_routes", Recent(_REMEMBERED_ROUTES))

    def remember(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int] | int | None = None) -> T:
        """What follows from this cluster and a key alone, worked out when it is first asked for.

        Points of a sweep that share a cluster share this. Where a key is an object's id, what is kept must hold the
        object, so that no other one gets its id. An answer holds about `size` numbers, one for each rank where it is
        not said; the oldest answers go.
        """
        return self._recent.get(key, make, self.world_size if size is None else size)

    def remember_routes(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The same of collectives' routes, which may be larger than all else together, and would drive it out."""
        return self._routes.get(key, make, size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def route(self, src: str, dst: str) -> Route:
        """The route between two vertices; see `Router.route`."""
        return self.router.route(src, dst)

    def machine(self, operation: str, group: Sequence[int]) -> MachineCollective | None:
        """How well this machine runs an operation among some ranks; None where that was not measured."""
        inside = len({self._node_of.get(rank, -1) for rank in group}) == 1
        return (self.in_node.get(operation) if inside else None) or self.collectives.get(operation)

    def node_of(self) -> Mapping[int, int]:
        """Number of each rank's node."""
        return self._node_of

    @cached_property
    def _node_of(self) -> Mapping[int, int]:
        return {rank: number for number, node in enumerate(self.nodes) for rank in node}

    def hbm_bandwidth(self, rank: int) -> float:
        """HBM bandwidth of a rank, its straggler factor applied [B/s]."""
        return self.gpus[rank].hbm_bandwidth * (self.speeds[rank] if self.speeds else 1.0)
