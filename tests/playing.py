"""Play one collective outside any scenario, and what it must give by numpy alone.

Rule: whatever a test expects is worked out here or in the test without the package's own replay.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from simulator.basics.arrays import Array as Array
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, Auxiliary, CollectiveRequest
from simulator.testing.arrays import parts as parts
from simulator.testing.arrays import same_bits as same_bits
from simulator.testing.arrays import share_of as share_of
from simulator.testing.arrays import starts as starts
from simulator.testing.arrays import wrapped_sum as wrapped_sum
from simulator.testing.machines import WIDE_GPU as WIDE_GPU
from simulator.testing.machines import equal_nodes as equal_nodes
from simulator.testing.machines import nodes as nodes
from simulator.testing.machines import request_options as request_options
from simulator.testing.machines import star as star
from simulator.testing.playing import PlayedCollective as PlayedCollective
from simulator.testing.playing import planned as planned
from simulator.testing.playing import played as played
from simulator.testing.playing import time_of as time_of

# Algorithms that need to know which ranks share a node; of these some are told so by the request alone.
NODED = tuple(name for name in ALGORITHMS.names() if "nodes" in ALGORITHMS.find(name).options)
OVER_SWITCHES = tuple(name for name in NODED if ALGORITHMS.find(name).auxiliary is Auxiliary.SWITCHES)
TOLD_NODES = tuple(name for name in NODED if name not in OVER_SWITCHES)


@lru_cache(maxsize=64)
def regular(builder: str, world_size: int, bandwidth: str = "50 GB/s", latency: str = "1 us") -> Cluster:
    """A ring graph or a full mesh, with HBM out of the way."""
    topology = {"builder": builder, "options": {"bandwidth": bandwidth, "latency": latency}}
    return build(topology, world_size, gpu=WIDE_GPU)


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


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
