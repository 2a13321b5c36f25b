"""Which links hold a machine back, those inside its nodes or those between them, and so which cap is fitted?

Rule: one sweep determines one rate, so one cap is fitted: of the links that its largest array fills most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.basics.dtypes import find
from simulator.calibration.machines.response import Limit
from simulator.calibration.machines.sweep import Sweep
from simulator.calibration.machines.sweep_cluster import with_machine
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.engine.events import execute
from simulator.records.timeline import TransferLog

# Share of their rated bandwidth that links inside a node reach at best, against network cards, which reach nearly all:
# 8 A100 0.78, 8 H100 0.69, 8 B200 0.60 of NVLink in the shipped sweeps.
_BEST_INSIDE: Final = 0.7


@dataclass(frozen=True, slots=True)
class Bounds:
    """What holds a machine back.

    Attributes
    ----------
    limit : {"inside", "across"}
        Which cap is fitted.
    fastest : float
        Bandwidth of the fastest route that it bounds [B/s].
    time : float
        Of the largest array without any cap [s].
    """

    limit: Limit
    fastest: float
    time: float


def bounds(cluster: Cluster, sweep: Sweep, algorithm: str, *, pieces: int | None) -> Bounds:
    """Compare how full links inside and links between nodes are when the largest array is sent in the measured time.

    Raises
    ------
    ScenarioError
        The algorithm cannot do this here.
    """
    size, time = sweep.rows[-1]
    elements = max(size // find(sweep.dtype).itemsize, 1)
    request = Request(sweep.operation, cluster.world_size, elements, chunks=pieces)
    task = Task(request, algorithm, tuple(range(cluster.world_size)), sweep.dtype)
    bare = MachineCollective(algorithm)
    timeline = execute(plan(with_machine(cluster, sweep.operation, bare), task).program, cluster)
    full = {"inside": 0.0, "across": 0.0}
    fastest = {"inside": 0.0, "across": 0.0}
    for log in timeline.logs:
        for side, use, rate in _uses(cluster, log):
            full[side] = max(full[side], use / time)
            fastest[side] = max(fastest[side], rate)
    limit: Limit = "across" if full["across"] > full["inside"] / _BEST_INSIDE else "inside"
    return Bounds(limit, fastest[limit], timeline.end)


def _uses(cluster: Cluster, log: TransferLog) -> list[tuple[Limit, float, float]]:
    """For each route: which limit, the least time that its busiest link needs [s], and its bandwidth [B/s]."""
    node_of = {cluster.ranks[rank]: b for b, node in enumerate(cluster.nodes) for rank in node}
    carried: dict[int, float] = {}
    ends: dict[int, tuple[int, int]] = {}
    for i, route in enumerate(log.route_of.tolist()):
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
