"""Why a slower part can make a whole faster, shown on cases that are counted by hand.

Adding latency made 1 of 99 drawn steps faster, and a straggler 4 of 246. Both are properties of what is simulated:

- `algorithm: auto` chooses by estimates. More latency can turn the choice to an algorithm that is faster than its
  estimate. With a given algorithm, a lone collective never gains by latency.
- Who comes later to a shared link leaves it to the others meanwhile. If the critical path runs through these, the step
  ends earlier: a scheduling anomaly.

References
----------
.. [1] Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17(2), 1969.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster.build import build
from simulator.collectives.algorithm import ALGORITHMS
from simulator.collectives.point_to_point import point_to_point
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.records.operation import Compute
from simulator.records.program import Program
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario

# A port of star_100g [B/s], and the latency of the two hops between GPUs [s].
RATE, LATENCY = 12.5e9, 10e-6
NBYTES = 12_500_000


def two_sends(speed: float) -> Program:
    """Rank 0 sends an array to rank 1 and another one, after a kernel, to rank 2; rank 1 then computes for 2 ms.

    The kernel takes 0.2 us on a healthy GPU and 1 ms on a GPU of 0.0002 of its speed.
    """
    cluster = build("star_100g", 3)
    first, second = (
        point_to_point(cluster, NBYTES // 2, "bfloat16", (0, target)).named(name, after, (0, target))
        for name, target, after in (("critical", 1, ()), ("other", 2, ("kernel",)))
    )
    receiver = Compute("rest", 2e-3, after=("critical",))
    kernel = Compute("kernel", 0.2e-6 / speed)
    return Program(
        (
            (kernel, replace(first, stream="a"), replace(second, stream="b")),
            (replace(first, stream="a"), receiver),
            (replace(second, stream="b", after=()),),
        )
    )


@pytest.mark.parametrize("execute", [events, compiled])
def test_a_straggler_that_leaves_a_link_to_the_critical_path_makes_the_step_faster(execute: Any) -> None:
    """12.5 MB take 1 ms alone. Together the two sends take 2 ms each, and the step 2 ms + 2 ms.

    The straggler's second send begins 1 ms later, when the first is through but for the latency's 10 us: the step takes
    1 ms + 2 ms.
    """
    cluster = build("star_100g", 3)
    healthy, slow = (execute(two_sends(speed), cluster).end for speed in (1.0, 0.0002))
    alone = NBYTES / RATE
    # The second send enters 0.2 us behind the first, which has the link alone so long.
    assert healthy == pytest.approx(LATENCY + 2 * alone - 0.2e-6 + 2e-3, rel=1e-9)
    assert slow == pytest.approx(LATENCY + alone + 2e-3, rel=1e-9)
    assert slow < 0.8 * healthy


def time_of(algorithm: str, latency_us: float, operation: str, ranks: int, nbytes: int, builder: str) -> Any:
    """Simulate a lone collective; return its report."""
    options = {"bandwidth": "2 GB/s", "latency": f"{latency_us} us"}
    cluster = {"topology": {"builder": builder, "options": options}, "gpu": "h100_sxm", "world_size": ranks}
    asked = {"operation": operation, "algorithm": algorithm, "size": f"{nbytes} B", "payload": False}
    if algorithm != "auto" and "nodes" in ALGORITHMS.find(algorithm).options:
        asked["group_size"] = next(size for size in (4, 3, 2, 1) if ranks % size == 0)
    return simulate(load_scenario({"name": "latency", "cluster": cluster, "collective": asked})).report


LONE = [name for name in ALGORITHMS.names() if "all_reduce" in ALGORITHMS.operations(name) and name not in ("nvls",)]


@settings(max_examples=40)
@given(
    algorithm=st.sampled_from([name for name in LONE if name != "parameter_server"]),
    builder=st.sampled_from(["star", "ring", "fully_connected"]),
    ranks=st.integers(2, 12),
    nbytes=st.integers(1, 2**18).map(lambda count: 4 * count),
    latencies=st.tuples(st.integers(1, 200), st.integers(1, 200)),
)
def test_a_lone_collective_of_a_given_algorithm_never_gains_by_latency(
    algorithm: str, builder: str, ranks: int, nbytes: int, latencies: tuple[int, int]
) -> None:
    low, high = sorted(latencies)
    less, more = (time_of(algorithm, one, "all_reduce", ranks, nbytes, builder).time_s for one in (low, high))
    assert less <= more * (1 + 1e-12)


def test_latency_turns_the_choice_of_auto_to_an_algorithm_that_is_faster_than_foreseen() -> None:
    """With 2.7 us a hop `auto` takes the ring, with 3.5 us trees; each is slower with 3.5 us than with 2.7 us."""
    job = ("all_reduce", 10, 105360, "star")
    before, after = time_of("auto", 2.74, *job), time_of("auto", 3.46, *job)
    assert (before.algorithm, after.algorithm) == ("ring", "double_binary_tree")
    assert after.time_s < before.time_s
    for algorithm in (before.algorithm, after.algorithm):
        assert time_of(algorithm, 2.74, *job).time_s < time_of(algorithm, 3.46, *job).time_s
