"""Play one collective outside any scenario, and what it must give by numpy alone.

Rule: whatever a test expects is worked out here or in the test without the package's own replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from simulator.basics import dtypes
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, Auxiliary, CollectiveRequest
from simulator.collectives.example import Example
from simulator.collectives.plan import Plan, Task, plan
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.payload import inputs
from simulator.payload.carry import Payload, ended_order
from simulator.payload.judge import Numbers, Verdict, judge
from simulator.records.operation import Collective
from simulator.records.timeline import Timeline
from simulator.records.transfers import Transfers

Array = npt.NDArray[Any]

# Algorithms that need to know which ranks share a node; of these some are told so by the request alone.
NODED = tuple(name for name in ALGORITHMS.names() if "nodes" in ALGORITHMS.find(name).options)
OVER_SWITCHES = tuple(name for name in NODED if ALGORITHMS.find(name).auxiliary is Auxiliary.SWITCHES)
TOLD_NODES = tuple(name for name in NODED if name not in OVER_SWITCHES)

# HBM so wide that it never counts, and nothing else of interest.
WIDE_GPU = {
    "vector_flops": {"float32": "20 TFLOP/s"},
    "hbm_bytes": "80 GB",
    "hbm_bandwidth": "1000 TB/s",
    "sms": 100,
    "host_bandwidth": "32 GB/s",
}


@lru_cache(maxsize=256)
def star(world_size: int, servers: int = 0, latency: str = "5 us", bandwidth: str = "100 Gb/s") -> Cluster:
    """GPUs around one switch, with HBM out of the way."""
    topology = {"builder": "star", "options": {"bandwidth": bandwidth, "latency": latency}}
    return build(topology, world_size, gpu=WIDE_GPU, servers=servers)


@lru_cache(maxsize=64)
def regular(builder: str, world_size: int, bandwidth: str = "50 GB/s", latency: str = "1 us") -> Cluster:
    """A ring graph or a full mesh, with HBM out of the way."""
    topology = {"builder": builder, "options": {"bandwidth": bandwidth, "latency": latency}}
    return build(topology, world_size, gpu=WIDE_GPU)


@lru_cache(maxsize=256)
def nodes(world_size: int, size: int, nics: int | None = None) -> Cluster:
    """Nodes of `size` GPUs on a switch that can add, joined by rails of 25 GB/s network cards."""
    options = {
        "gpus": size,
        "inside": "nvswitch",
        "link_bandwidth": "300 GB/s",
        "link_latency": "0.5 us",
        "in_switch_reduction": True,
        "hosts": 1,
        "pcie_bandwidth": "63 GB/s",
        "pcie_latency": "0.25 us",
        "nics": size if nics is None else nics,
        "nic_bandwidth": "25 GB/s",
        "nic_latency": "1 us",
        "fabric": "rail",
    }
    return build({"builder": "nodes", "options": options}, world_size, gpu=WIDE_GPU)


def equal_nodes(world_size: int, size: int) -> tuple[tuple[int, ...], ...]:
    """0 .. size - 1, size .. 2 size - 1, ..."""
    return tuple(tuple(range(start, start + size)) for start in range(0, world_size, size))


def request_options(example: Example, world_size: int) -> dict[str, Any]:
    """Fields of a Request that an algorithm's example gives."""
    found: dict[str, Any] = {} if example.chunks is None else {"chunks": example.chunks}
    if example.servers is not None:
        found |= {"servers": example.servers, "servers_on": example.servers_on}
    if example.given and example.node_size:
        found["nodes"] = equal_nodes(world_size, example.node_size)
    return found


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


@dataclass(frozen=True, slots=True)
class Played:
    """A collective after it was played."""

    plan: Plan
    op: Collective
    transfers: Transfers
    timeline: Timeline
    inputs: list[Array]
    buffers: list[Array]
    numbers: Numbers

    @property
    def time(self) -> float:
        return self.timeline.end

    @property
    def results(self) -> list[Array]:
        """What the operation gives each rank."""
        return [inputs.result(self.op.schedule, b, r, self.op.elements) for r, b in enumerate(self.buffers)]

    @property
    def verdict(self) -> Verdict:
        order = ended_order(self.transfers, self.timeline.logs[0].end)
        return judge(self.op.schedule, self.transfers, order, self.numbers, self.inputs, self.buffers)


def planned(cluster: Cluster, algorithm: str, request: CollectiveRequest, **facts: Any) -> Plan:
    """Plan over the first ranks, or over `group`."""
    group = facts.pop("group", tuple(range(request.world_size)))
    return plan(cluster, Task(request, algorithm, group, **facts))


def played(
    cluster: Cluster,
    algorithm: str,
    request: CollectiveRequest,
    *,
    start: Sequence[Array] | None = None,
    jitter: Jitter | None = None,
    tamper: dict[int, Callable[[Array], Array]] | None = None,
    **facts: Any,
) -> Played:
    """Play with payload; `start` holds every rank's whole buffer (numbers of its own where it is left out)."""
    made = planned(cluster, algorithm, request, **facts)
    (op,) = made.program.collectives().values()
    dtype = dtypes.find(op.dtype)
    before = [a.copy() for a in (start if start is not None else starts(request, op.dtype))]
    after = [a.copy() for a in before]
    accumulate = dtypes.find(op.accumulate).numpy
    payload = Payload(after, dtype, op.reduction, accumulate, tamper or {})
    timeline = execute(made.program, cluster, jitter=jitter, payloads={op.name: payload})
    log = timeline.logs[0]
    return Played(made, op, log.transfers, timeline, before, after, Numbers(dtype, op.reduction, accumulate))


def time_of(cluster: Cluster, algorithm: str, request: CollectiveRequest, **facts: Any) -> float:
    """Simulated time without payload [s]."""
    return execute(planned(cluster, algorithm, request, **facts).program, cluster).end


def assert_time(
    expected: float,
    cluster: Cluster,
    algorithm: str,
    request: CollectiveRequest,
    *,
    foreseen: bool = True,
    **facts: Any,
) -> None:
    """The played time is the expected one, and so is the planner's prediction, where one is to be given."""
    assert time_of(cluster, algorithm, request, **facts) == pytest.approx(expected, rel=1e-9)
    predicted = planned(cluster, algorithm, request, **facts).predicted
    if foreseen or predicted is not None:
        assert predicted == pytest.approx(expected, rel=1e-9)


def draw(rank: int, elements: int, dtype: str) -> Array:
    """Unit normals, or integers over the dtype's whole range, so that sums wrap round; different in each rank."""
    generator = np.random.default_rng([2_026, rank])
    kind = dtypes.find(dtype)
    if kind.is_float:
        return generator.standard_normal(elements).astype(kind.numpy)
    limits = np.iinfo(kind.numpy)
    return generator.integers(limits.min, limits.max, elements, dtype=kind.numpy, endpoint=True)


def parts(elements: int, pieces: int) -> list[slice]:
    """Cut into pieces: the first elements mod pieces have one more."""
    borders = [sum(elements // pieces + (j < elements % pieces) for j in range(i)) for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(borders)]


def starts(request: CollectiveRequest, dtype: str) -> list[Array]:
    """Every rank's whole buffer before the operation, zero where it has nothing yet."""
    n, elements, operation = request.world_size, request.elements, request.operation
    kind = dtypes.find(dtype).numpy
    found = []
    for rank in range(n):
        if operation == "all_to_all":
            buffer = np.zeros(n * elements, kind)
            buffer[rank * elements : (rank + 1) * elements] = draw(rank, elements, dtype)
        else:
            buffer = np.zeros(elements, kind)
            part = _own(request, rank)
            buffer[part] = draw(rank, elements, dtype)[part]
        found.append(buffer)
    return found


def _own(request: CollectiveRequest, rank: int) -> slice:
    """What a rank has before the operation."""
    if request.operation in ("all_gather", "gather"):
        return parts(request.elements, request.world_size)[rank]
    rooted = request.operation in ("broadcast", "scatter")
    return slice(0, 0) if rooted and rank != request.root else slice(0, request.elements)


def share_of(request: CollectiveRequest, whole: Array | list[Array]) -> list[Array]:
    """What each rank is promised of the reduced (or gathered, or root's) array."""
    n, elements, operation = request.world_size, request.elements, request.operation
    if operation == "all_to_all":
        rows = [np.asarray(buffer)[r * elements : (r + 1) * elements] for r, buffer in enumerate(whole)]
        return [np.concatenate([row[part] for row in rows]) for part in parts(elements, n)]
    array = np.asarray(whole)
    if operation in ("reduce_scatter", "scatter"):
        return [array[part] for part in parts(elements, n)]
    if operation in ("reduce", "gather"):
        return [array if rank == request.root else array[:0] for rank in range(n)]
    return [array] * n


def wrapped_sum(arrays: Sequence[Array]) -> Array:
    """The exact integer sum modulo 2^bits, in unsigned arithmetic of 64 bits."""
    unsigned = sum((a.astype(np.int64).view(np.uint64) for a in arrays), np.zeros(len(arrays[0]), np.uint64))
    bits = 8 * arrays[0].dtype.itemsize
    low = (unsigned & np.uint64(2**bits - 1)).astype(f"u{arrays[0].dtype.itemsize}")
    return low.view(arrays[0].dtype)


def same_bits(a: Array, b: Array) -> bool:
    """Whether two arrays are equal in every bit."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()
