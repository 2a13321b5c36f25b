"""Which links limit a machine, links inside nodes or links between nodes? This decides which cap is fitted.

A sweep determines a single rate, therefore a single cap is fitted: the cap on the links most filled by the largest
array.

Example: two nodes with 8 GPUs. With the largest array, NVLink would be 30 % busy in the measured time, cards 60 %.
0.6 > 0.3 / 0.7, therefore the cap on links between nodes is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.basics.dtypes import find
from simulator.calibration.machines.measured_sweep import SweepTimes
from simulator.calibration.machines.sweep_cluster import with_machine
from simulator.calibration.machines.time_model import Limit
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute
from simulator.records.timeline import TransferLog

# Best share of the rated bandwidth on links inside a node (8 A100 0.78, 8 H100 0.69, 8 B200 0.60 of NVLink in the
# shipped sweeps). Network cards reach nearly all of their rating.
_BEST_INSIDE: Final = 0.7


@dataclass(frozen=True, slots=True)
class LimitingLinks:
    """The links that limit a machine's collective: inside nodes or across nodes."""

    limit: Limit  # the cap to fit
    fastest: float  # bandwidth of the fastest route bounded by this cap [B/s]
    time: float  # time for the largest array without any cap [s]


def bounds(cluster: Cluster, sweep: SweepTimes, algorithm: str, *, pieces: int | None) -> LimitingLinks:
    """Return the links (inside or across nodes) that an algorithm fills most when a sweep's largest array takes the
    measured time.

    Raises
    ------
    ScenarioError
        The algorithm cannot perform this operation here.
    """
    size, time = sweep.rows[-1]
    elements = max(size // find(sweep.dtype).itemsize, 1)
    request = CollectiveRequest(sweep.operation, cluster.world_size, elements, chunks=pieces)
    task = Task(request, algorithm, tuple(range(cluster.world_size)), sweep.dtype)
    bare = MachineCollective(algorithm)
    # No start-up and no caps: the links alone determine the time.
    timeline = execute(plan(with_machine(cluster, sweep.operation, bare), task).program, cluster)
    full = {"inside": 0.0, "across": 0.0}
    fastest = {"inside": 0.0, "across": 0.0}
    for log in timeline.logs:
        for side, use, rate in _uses(cluster, log):
            full[side] = max(full[side], use / time)
            fastest[side] = max(fastest[side], rate)
    limit: Limit = "across" if full["across"] > full["inside"] / _BEST_INSIDE else "inside"
    return LimitingLinks(limit, fastest[limit], timeline.end)


def _uses(cluster: Cluster, log: TransferLog) -> list[tuple[Limit, float, float]]:
    """Return ("inside" or "across" nodes, busy time of the busiest link [s], bandwidth [B/s]) of each route."""
    # Vertices outside every node are switches and servers; routes there count as "inside".
    node_of = {cluster.ranks[rank]: b for b, node in enumerate(cluster.nodes) for rank in node}
    # Bytes per link over every transfer; a link on several routes counts once with their sum.
    carried: dict[int, float] = {}
    ends: dict[int, tuple[int, int]] = {}
    for i, route in enumerate(log.route_of.tolist()):
        # Every transfer on a route has the same two ends.
        ends[route] = int(log.transfers.src[i]), int(log.transfers.dst[i])
        for link in log.routes[route]:
            carried[link] = carried.get(link, 0.0) + float(log.nbytes[i])
    bandwidth = cluster.router.bandwidth
    uses: list[tuple[Limit, float, float]] = []
    for route, (src, dst) in ends.items():
        a, b = node_of.get(log.vertices[src]), node_of.get(log.vertices[dst])
        limit: Limit = "across" if a is not None and b is not None and a != b else "inside"
        links = log.routes[route]
        busy = max((carried[link] / bandwidth[link] for link in links), default=0.0)
        uses.append((limit, busy, min((bandwidth[link] for link in links), default=float("inf"))))
    return uses
