"""Parameter server: workers push their arrays to servers, which add them in order of arrival, and pull the sum.

Each of k servers holds 1/k of the array. Servers are vertices of their own (2 N S on the wire) or run on k of the
workers (2(N-1) S: a worker sends nothing to the server on its own host), one in each node before a node gets a
second. With `chunks` every server's part is cut into pieces, and workers pull a piece as soon as all of them have
pushed it.

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

from simulator.collectives.algorithm import Algorithm, Auxiliary, Request, Sizes
from simulator.collectives.example import with_servers
from simulator.collectives.idle import IdleNetwork
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule


@dataclass(frozen=True, slots=True)
class Party:
    """How many workers and servers there are, and where the servers run.

    Attributes
    ----------
    workers, servers : int
        At least 1.
    own : bool
        Whether servers are vertices of their own; otherwise they run on workers.
    nodes : sequence of sequence of int
        Workers of each node; empty where each worker is a machine of its own.
    """

    workers: int
    servers: int
    own: bool = True
    nodes: Sequence[Sequence[int]] = ()

    def __post_init__(self) -> None:
        if not self.own and self.servers > self.workers:
            raise ValueError(
                f"servers on workers: got {self.servers} servers for {self.workers} workers; at most one a worker"
            )

    @property
    def pairs(self) -> int:
        """Number of (worker, server) pairs that are not on one machine: transfers in each direction."""
        return (self.workers - (not self.own)) * self.servers

    @property
    def hosts(self) -> tuple[int, ...]:
        """Participant that each server is: a vertex behind the workers, or a worker.

        Servers on workers share as few nodes as possible, because a node's network cards carry the traffic of all its
        servers: one server in each node, then a second in each node, and so on.

        Examples
        --------
        >>> Party(4, 2, own=False, nodes=((0, 1), (2, 3))).hosts, Party(4, 2, own=False).hosts, Party(4, 2).hosts
        ((0, 2), (0, 1), (4, 5))
        """
        if self.own:
            return tuple(range(self.workers, self.workers + self.servers))
        in_nodes = {worker for node in self.nodes for worker in node}
        machines = [*self.nodes, *([worker] for worker in range(self.workers) if worker not in in_nodes)]
        rounds = zip_longest(*sorted(machines, key=min))
        return tuple(worker for one in rounds for worker in one if worker is not None)[: self.servers]

    @staticmethod
    def of(request: Request) -> Party:
        """Workers and servers of a request."""
        return Party(request.world_size, request.servers, request.servers_on == "own", request.nodes)


def all_reduce(request: Request) -> Schedule:
    """For each piece all pushes, then all pulls; one channel for each (worker, server) and direction."""
    cut, party = request.chunks or 1, Party.of(request)

    def parts() -> Iterator[Round]:
        pushed, pulled = _ways(party)
        places, server = np.unique(pulled.src, return_inverse=True)
        pushed_to = np.array([np.flatnonzero(pushed.dst == place) for place in places])
        for piece in range(cut):
            first = pushed.first * cut + piece
            yield replace(pushed, first=first)
            yield replace(pulled, first=first, after=pushed_to + piece * 2 * len(pushed), gate=server)

    return _schedule(party, request.operation, cut, parts, 2 * cut * party.pairs)


def push(party: Party) -> Schedule:
    """Only the pushes: every worker sends its part of each server's sum."""
    return _schedule(party, "push", 1, lambda: iter(_ways(party)[:1]), party.pairs)


def pull(party: Party) -> Schedule:
    """Only the pulls: every server sends what it holds to every worker."""
    return _schedule(party, "pull", 1, lambda: iter(_ways(party)[1:]), party.pairs)


def _ways(party: Party) -> tuple[Round, Round]:
    """A round of pushes from every worker to every server, and one of pulls back; neither waits for any transfer."""
    n, k = party.workers, party.servers
    places = np.array(party.hosts, np.int64)
    worker, server = (grid.ravel() for grid in np.meshgrid(np.arange(n), np.arange(k), indexing="ij"))
    apart = worker != places[server]
    worker, server = worker[apart], server[apart]
    host, ones = places[server], np.ones(len(worker), np.int64)
    nothing = np.full((len(worker), 1), -1)
    channel = worker * k + server
    return (
        Round(worker, host, server, ones, ones.astype(np.bool_), channel, nothing),
        Round(host, worker, server, ones, np.zeros(len(worker), np.bool_), channel + n * k, nothing),
    )


def _schedule(party: Party, operation: str, cut: int, parts: Callable[[], Iterator[Round]], rows: int) -> Schedule:
    auxiliaries = party.servers if party.own else 0
    chunks = party.servers * cut
    return Schedule(
        operation, "parameter_server", party.workers, auxiliaries, chunks, ReductionOrder.ON_ARRIVAL, parts, rows=rows
    )


def volume(request: Request) -> int:
    """2 N S with servers on vertices of their own; 2(N-1) S where each runs on a worker, for any number of servers."""
    workers = request.world_size - (request.servers_on == "workers")
    return 2 * workers * request.elements


def minimal(request: Request) -> bool:
    """True where servers run on workers: then no element is sent more often than necessary."""
    return request.servers_on == "workers"


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """Star: k of their own 2(alpha + max(S, N S/k)/beta), k | n; one on each worker 2(alpha + (N-1) S/(N beta)), N | n.

    On a full mesh with one server on each worker: 2(alpha + S/(N beta)).
    """
    n, k = request.world_size, request.servers
    if (request.chunks or 1) != 1 or request.elements % k:
        return None
    part = request.elements // k * sizes.copied
    own = request.servers_on == "own"
    if not own and k != n:
        return None
    port, mesh = network.port, None if own else network.mesh
    if port is not None:
        sharing = max(n, k) if own else n - 1
        link, rate = port, port.rate(sharing)
    elif mesh is not None:
        link, rate = mesh, mesh.rate(1)
    else:
        return None
    if not own and not network.hbm_bears((n - 1) * rate):
        return None
    return network.startup + 2 * (link.latency + part / rate)


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce},
    volume=volume,
    minimal=minimal,
    closed_form=closed_form,
    options=("servers", "chunks"),
    auxiliary=Auxiliary.SERVERS,
    examples=with_servers,
)
