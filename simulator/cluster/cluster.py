"""How is a cluster recorded: GPUs with ranks, links between them, and constants for its collectives?

This module holds the records. The router numbers vertices and directed links once, and the engines use these numbers;
names are only for people.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from simulator.basics.recent import Recent
from simulator.cluster.changes import RateChange, avoided_sets
from simulator.cluster.library import Library, own_share, saturation
from simulator.cluster.routing import Route, Router

if TYPE_CHECKING:
    import networkx as nx

T = TypeVar("T")
# Capacity of a cluster's cache, in numbers: at about 50 B each, 100 MB.
_REMEMBERED: Final = 2**21
# Capacity of the cache for routes, in numbers of 8 B; the newest routes stay, whatever their size.
_REMEMBERED_ROUTES: Final = 2**24
# Smaller arrays fit into a single buffer and are not cut: NCCL_BUFFSIZE is 4 MiB (NCCL user guide, environment
# variables).
_BUFFER: Final = 4 * 2**20
# Context of a process on each multiprocessor: 534 MiB on the 132 of an H100 (catalog/gpus/h100_sxm.yaml) [B].
_CONTEXT_OF_SM: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU's peak rates, memory and bandwidths, from catalog/gpus/NAME.yaml."""

    name: str
    # Dense peak by dtype name, without sparsity [FLOP/s]; matrix units if the GPU has them for the dtype.
    peak_flops: Mapping[str, float]
    hbm_bytes: int  # usable memory [B]
    hbm_bandwidth: float  # memory bandwidth [B/s]
    sms: int  # number of streaming multiprocessors (compute units on AMD)
    # Bandwidth of the NVLink or xGMI links together, per direction [B/s]; 0 without such links.
    scale_up_bandwidth: float
    host_bandwidth: float  # bandwidth of PCIe, per direction [B/s]
    # Further contents of the catalog file: sources, uncertain figures, fitted constants.
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def chip(self) -> str:
        """Name of the chip, without the module on which the chip is sold; see `chip_of`."""
        return chip_of(self.name)

    @property
    def mixed_precision(self) -> str:
        """Precision of mixed-precision training: "bf16" (from Ampere on), or "fp16" without bfloat16."""
        return "bf16" if "bfloat16" in self.peak_flops else "fp16"

    @property
    def context_bytes(self) -> int:
        """Memory of a process without tensors, as nvidia-smi prints it [B]; estimated if the GPU file has no figure."""
        return int(self.facts.get("context_bytes", _CONTEXT_OF_SM * self.sms))


def chip_of(gpu: str) -> str:
    """Return the name of a catalog GPU's chip, independent of its module and memory.

    >>> chip_of("h100_sxm"), chip_of("h100_pcie"), chip_of("rtx_4090")
    ('h100', 'h100', 'rtx_4090')
    """
    # "rtx" is a family of chips.
    return gpu if gpu.startswith("rtx_") else gpu.split("_")[0]


class Steps(NamedTuple):
    """Number of transfers on the longest way through a collective, each waiting for the one before.

    Attributes
    ----------
    inside, across : float
        Transfers inside a node, and transfers from one node to another.
    """

    inside: float = 0.0
    across: float = 0.0


# Prefix of a source for constants measured on another machine.
BORROWED: Final = "not measured here"


@dataclass(frozen=True, slots=True)
class MachineCollective:
    """A machine's measured constants for a collective operation (start-up, caps), from a topology file."""

    algorithm: str  # algorithm that the machine runs
    startup: float = 0.0  # time that every rank pays once per operation, before its first transfer [s]
    # Upper bound on each flow for very large arrays [B/s]; in multi_ring, on the sum of a rank's flows in its node.
    rate_cap: float = float("inf")
    cross_rate_cap: float = float("inf")  # upper bound on each flow between nodes [B/s]
    # Array size at which the caps are halved [B]; 0: the caps do not depend on size.
    half_size: float = 0.0
    # Steepness: factor(S) = 1 / (1 + (half_size / S)^exponent), for S of at least a packet.
    exponent: float = 1.0
    # Number of pipeline segments in a large array, for algorithms with segments; see `segments`.
    chunks: int | None = None
    # `step`, `cross_step`: Time per step besides the transfer, inside a node and between nodes [s].
    step: float = 0.0
    cross_step: float = 0.0
    # Time that a rank of a node takes for its own part of the array, relative to a part that it sends; see
    # `simulator.cluster.library.own_share`.
    own_part: float = 0.0
    source: str = ""  # source of the measurements

    def factor(self, nbytes: float) -> float:
        """Return the fraction of the rate caps (0 to 1) reached with an array of `nbytes` bytes."""
        return saturation(nbytes, self.half_size, self.exponent)

    def share(self, operation: str, ranks: int) -> float:
        """Return the fraction of the rate cap that is left for what a rank of a node sends to others."""
        return own_share(operation, ranks, self.own_part)

    @property
    def borrowed(self) -> bool:
        """True if the constants were measured on another machine."""
        return self.source.startswith(BORROWED)

    def stretched(self, factor: float) -> MachineCollective:
        """Return the constants of a machine whose collectives take `factor` times as long."""
        if factor == 1.0:
            return self
        return replace(
            self,
            startup=self.startup * factor,
            rate_cap=self.rate_cap / factor,
            cross_rate_cap=self.cross_rate_cap / factor,
            step=self.step * factor,
            cross_step=self.cross_step * factor,
        )

    def latency(self, steps: Steps) -> float:
        """Return the time paid before a collective's first transfer [s]: start-up plus each of its steps.

        `steps` counts the transfers on the longest way. NCCL's model of its algorithms adds up the steps in the same
        way (src/graph/tuning.cc, ncclTopoTuneModel).
        """
        return self.startup + steps.inside * self.step + steps.across * self.cross_step

    def segments(self, nbytes: float) -> int | None:
        """Return the number of pipeline pieces for an array of `nbytes` bytes; None if unknown.

        No piece is smaller than a buffer.
        """
        return None if self.chunks is None else min(self.chunks, max(1, int(nbytes // _BUFFER)))


@dataclass(frozen=True)
class Cluster:
    """A cluster: GPUs with ranks, the graph of links between them, and measured constants for collectives."""

    name: str  # name of the topology
    # Vertices have `kind` ("gpu", "nic", "switch", "host", "server", "storage") and `forwards` (may routes pass
    # through); edges have `bandwidth` [B/s] and `latency` [s], one per direction.
    graph: nx.DiGraph[str]
    router: Router  # numbers of vertices and links, and routes
    gpus: tuple[Gpu, ...]  # GPU of each rank
    ranks: tuple[str, ...]  # vertex of each rank
    servers: tuple[str, ...] = ()  # vertices of parameter servers with separate ports
    # Factor on FLOP/s and HBM bandwidth of each rank; 1 for a healthy GPU, less for a straggler.
    speeds: tuple[float, ...] = ()
    # Ranks in each node; a single node with every rank if the topology has no nodes.
    nodes: tuple[tuple[int, ...], ...] = ()
    # GPUs in a complete node; None if the topology has no nodes of equal size.
    node_size: int | None = None
    # Switch in each node that can reduce; empty if no switch can.
    reducing_switches: tuple[str, ...] = ()
    # Measured constants for groups over several nodes, or for the only node in use.
    collectives: Mapping[str, MachineCollective] = field(default_factory=dict)
    # Measured constants for groups inside a node; empty if the measurements do not distinguish them.
    in_node: Mapping[str, MachineCollective] = field(default_factory=dict)
    # Model of the library where no collective was measured; None: flows fill their links, without start-up.
    library: Library | None = None
    # Processor socket of each rank, which stores offloaded data; empty if the topology has no sockets.
    hosts: tuple[str, ...] = ()
    # Vertex that takes checkpoints; empty if the cluster has none.
    storage: str = ""
    changes: tuple[RateChange, ...] = ()  # moments at which links and GPUs slow down or recover during a step
    _recent: Recent = field(init=False, repr=False, compare=False)
    _routes: Recent = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The record is frozen, so caches are set through object.__setattr__.
        object.__setattr__(self, "_recent", Recent(_REMEMBERED))
        object.__setattr__(self, "_routes", Recent(_REMEMBERED_ROUTES))

    def remember(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int] | int | None = None) -> T:
        """Return the cached result for a key; if there is none, compute the result with `make` and cache it.

        The result must depend only on this cluster and the key. Points of a sweep with the same cluster share the
        cache. If the key contains the id of an object, the result must hold the object: otherwise another object could
        get the same id. `size` is the approximate count of numbers in the result, by default the number of ranks; when
        the cache is full, the oldest results are removed.
        """
        return self._recent.get(key, make, self.world_size if size is None else size)

    def remember_routes(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached result for a key about routes; without a cached result, compute the result and cache it.

        Routes have a separate cache, because they may outgrow everything else. `size` gives the size of a result.
        """
        return self._routes.get(key, make, size)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.ranks)

    def host_of(self, rank: int) -> str:
        """Return the vertex whose memory takes a rank's copies: its processor socket, or without sockets the rank's own
        vertex.
        """
        return self.hosts[rank] if self.hosts else self.ranks[rank]

    def route(self, src: str, dst: str) -> Route:
        """Return the route (links, latency, bandwidth) between two vertices given by name."""
        return self.router.route(src, dst)

    def machine(self, operation: str, group: Sequence[int]) -> MachineCollective | None:
        """Return the machine's measured constants for an operation in a group of ranks; None if not measured.

        Groups inside a node have separate constants if these were measured.
        """
        # Ranks without a node count as a single common node (-1).
        inside = len({self._node_of.get(rank, -1) for rank in group}) == 1
        return (self.in_node.get(operation) if inside else None) or self.collectives.get(operation)

    def modelled(self, group: Sequence[int]) -> Library | None:
        """Return the model that times collectives of a group of ranks; None if any was measured, or without a model."""
        inside = len({self._node_of.get(rank, -1) for rank in group}) == 1
        return None if self.flat or self.collectives or (inside and self.in_node) else self.library

    @property
    def flat(self) -> bool:
        """True if the topology has no nodes: each GPU is a machine of its own, or all are in a single machine."""
        return not self.graph.graph.get("nodes")

    @cached_property
    def changing_links(self) -> frozenset[int]:
        """Numbers of the fabric's links whose rate changes during a step."""
        return frozenset(link for change in self.changes for link in change.links)

    @cached_property
    def avoided(self) -> tuple[frozenset[int], ...]:
        """Sets of links that routes avoid at some time of a step, each once; the first is empty: the usual routes."""
        return avoided_sets(self.changes)

    def node_of(self) -> Mapping[int, int]:
        """Return the node number of each rank."""
        return self._node_of

    @cached_property
    def _node_of(self) -> Mapping[int, int]:
        return {rank: number for number, node in enumerate(self.nodes) for rank in node}

    def hbm_bandwidth(self, rank: int) -> float:
        """Return a rank's HBM bandwidth, with its straggler factor applied [B/s]."""
        return self.gpus[rank].hbm_bandwidth * (self.speeds[rank] if self.speeds else 1.0)

    def part(self, ranks: Sequence[int]) -> Cluster:
        """Return the cluster of a job that has some of the ranks, renumbered from 0 in the given order.

        Graph and routes stay the whole cluster's. A job inside a node has the measured constants of a node.
        """
        place = {rank: number for number, rank in enumerate(ranks)}
        nodes = [tuple(place[rank] for rank in node if rank in place) for node in self.nodes]
        used = [number for number, node in enumerate(nodes) if node]
        one_node = len(used) == 1
        return replace(
            self,
            gpus=tuple(self.gpus[rank] for rank in ranks),
            ranks=tuple(self.ranks[rank] for rank in ranks),
            speeds=tuple(self.speeds[rank] for rank in ranks) if self.speeds else (),
            nodes=tuple(nodes[number] for number in used),
            reducing_switches=tuple(self.reducing_switches[number] for number in used if self.reducing_switches),
            collectives=self.in_node or self.collectives if one_node else self.collectives,
            in_node={} if one_node else self.in_node,
            hosts=tuple(self.hosts[rank] for rank in ranks) if self.hosts else (),
            changes=tuple(change.part(place, len(self.router.bandwidth)) for change in self.changes),
        )
