"""Parameter server: workers push arrays to servers, the servers add in arrival order, and workers pull the sum.

Each of k servers holds 1/k of the array. Servers have separate vertices (2 N S on the wire), or run on k of the workers
(2(N-1) S, because a worker sends nothing to the server on its own host). Servers on workers are spread evenly over
nodes. With `chunks`, every server's part is cut into pieces, and workers pull a piece as soon as every worker has
pushed it.

Example: 2 workers (0, 1) and 2 servers on separate vertices (2, 3). Chunk c belongs to server 2 + c.

    push    0 -> 2, 1 -> 2  chunk 0      0 -> 3, 1 -> 3  chunk 1      add
    pull    2 -> 0, 2 -> 1  chunk 0      3 -> 0, 3 -> 1  chunk 1      copy

References
----------
.. [1] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
.. [2] Jiang et al., "A unified architecture for accelerating distributed DNN training" (BytePS), OSDI 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from simulator.collectives.algorithm import Algorithm, Auxiliary, CollectiveRequest, ElementSizes
from simulator.collectives.example import with_servers
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule


@dataclass(frozen=True, slots=True)
class ServerLayout:
    """Number of workers and servers, and the servers' location."""

    # `workers`, `servers`: Numbers of workers and servers, at least 1 each.
    workers: int
    servers: int
    # True if servers have separate vertices; False if they run on workers.
    own: bool = True
    # Workers in each node; empty if each worker is a separate machine.
    nodes: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        if not self.own and self.servers > self.workers:
            raise ValueError(
                f"servers on workers: got {self.servers} servers for {self.workers} workers; at most one per worker"
            )

    @property
    def pairs(self) -> int:
        """Number of (worker, server) pairs on different machines: transfers in each direction."""
        return (self.workers - (not self.own)) * self.servers

    @property
    def hosts(self) -> tuple[int, ...]:
        """Participant number of each server: a vertex after the workers, or a worker.

        Servers on workers are spread evenly over nodes, because a node's network cards carry the traffic of every
        server in the node: first one server in each node, then a second in each node, and so on.

        >>> ServerLayout(4, 2, own=False, nodes=((0, 1), (2, 3))).hosts
        (0, 2)
        >>> ServerLayout(4, 2, own=False).hosts, ServerLayout(4, 2).hosts
        ((0, 1), (4, 5))
        """
        if self.own:
            return tuple(range(self.workers, self.workers + self.servers))
        in_nodes = {worker for node in self.nodes for worker in node}
        # Workers outside the nodes count as nodes with a single worker. zip_longest takes each node's first worker,
        # then each node's second worker, ...
        machines = [*self.nodes, *([worker] for worker in range(self.workers) if worker not in in_nodes)]
        rounds = zip_longest(*sorted(machines, key=min))
        return tuple(worker for turn in rounds for worker in turn if worker is not None)[: self.servers]

    @staticmethod
    def of(request: CollectiveRequest) -> ServerLayout:
        """Return the layout with workers and servers for a collective's request."""
        return ServerLayout(request.world_size, request.servers, request.servers_on == "own", request.nodes)


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-reduce over parameter servers: pushes, then pulls, for each piece.

    Each (worker, server) and direction has its own channel.
    """
    cut, party = request.chunks or 1, ServerLayout.of(request)

    def parts() -> Iterator[Round]:
        pushed, pulled = _ways(party)
        # A server's pulls wait for every push to the server. Pulls share these waits by server (`gate`), because
        # separate waits would take workers^2 x servers numbers.
        places, server = np.unique(pulled.src, return_inverse=True)
        pushed_to = np.array([np.flatnonzero(pushed.dst == place) for place in places])
        for piece in range(cut):
            first = pushed.first * cut + piece
            yield replace(pushed, first=first)
            yield replace(pulled, first=first, after=pushed_to + piece * 2 * len(pushed), gate=server)

    return _schedule(party, request.operation, cut, parts, 2 * cut * party.pairs)


def push(party: ServerLayout) -> Schedule:
    """Return a schedule for the pushes alone: every worker sends each server the server's array part."""
    return _schedule(party, "push", 1, lambda: iter(_ways(party)[:1]), party.pairs)


def pull(party: ServerLayout) -> Schedule:
    """Return a schedule for the pulls alone: every server sends the sum to every worker."""
    return _schedule(party, "pull", 1, lambda: iter(_ways(party)[1:]), party.pairs)


def _ways(party: ServerLayout) -> tuple[Round, Round]:
    """Return a round with a push for every (worker, server), and a round with the pulls; without any waits."""
    n, k = party.workers, party.servers
    places = np.array(party.hosts, np.int64)
    worker, server = (grid.ravel() for grid in np.meshgrid(np.arange(n), np.arange(k), indexing="ij"))
    # A worker neither pushes to nor pulls from the server on its own host.
    remote = worker != places[server]
    worker, server = worker[remote], server[remote]
    host, ones = places[server], np.ones(len(worker), np.int64)
    nothing = np.full((len(worker), 1), -1)
    channel = worker * k + server
    return (
        Round(worker, host, server, ones, ones.astype(np.bool_), channel, nothing),
        Round(host, worker, server, ones, np.zeros(len(worker), np.bool_), channel + n * k, nothing),
    )


def _schedule(
    party: ServerLayout, operation: str, cut: int, parts: Callable[[], Iterator[Round]], rows: int
) -> Schedule:
    auxiliaries = party.servers if party.own else 0
    chunks = party.servers * cut
    return Schedule(
        operation, "parameter_server", party.workers, auxiliaries, chunks, ReductionOrder.ON_ARRIVAL, parts, rows=rows
    )


def volume(request: CollectiveRequest) -> int:
    """Return the elements on the wire: 2 N S with servers on separate vertices, 2(N-1) S with servers on workers."""
    workers = request.world_size - (request.servers_on == "workers")
    return 2 * workers * request.elements


def minimal(request: CollectiveRequest) -> bool:
    """Return True if servers run on workers: then no element is sent more often than necessary."""
    return request.servers_on == "workers"


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time for an all-reduce over servers on an idle network [s]; None if no formula is exact.

    The array must not be cut into pieces.
    Star, k servers on separate vertices, k | n: 2(alpha + max(S, N S/k)/beta).
    Star, a server on each worker, N | n: 2(alpha + (N-1) S/(N beta)).
    Full mesh, a server on each worker: 2(alpha + S/(N beta)).
    """
    n, k = request.world_size, request.servers
    if (request.chunks or 1) != 1 or request.elements % k:
        return None
    part = request.elements // k * sizes.copied
    separate = request.servers_on == "own"
    if not separate and k != n:
        return None
    port, mesh = network.port, None if separate else network.mesh
    if port is not None:
        sharing = max(n, k) if separate else n - 1
        link, rate = port, port.rate(sharing)
    elif mesh is not None:
        link, rate = mesh, mesh.rate(1)
    else:
        return None
    if not separate and not network.hbm_bears((n - 1) * rate):
        return None
    return network.startup + 2 * (link.latency + part / rate)


ALGORITHM = Algorithm(
    summary="workers send arrays to servers, which add them and send the sum",
    plans={"all_reduce": all_reduce},
    volume=volume,
    minimal=minimal,
    closed_form=closed_form,
    options=("servers", "chunks"),
    auxiliary=Auxiliary.SERVERS,
    examples=with_servers,
)
