"""Large jobs: rings over unequal links up to 131,072 ranks, and training steps up to 16,384 GPUs."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.alone import alone, peak_memory
from benchmarks.timing import best_of
from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.recurrence import by_rounds
from simulator.engine.collective_routing import RoutedCollective, capacities, route_collectives
from simulator.engine.compiled.core import Times, run
from simulator.engine.compiled.operation_lists import Lists
from simulator.engine.compiled.problem import problem_of
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.engine.compiled.sized_collective import SizedCollectiveMaker
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective

# A star: every hop is an uplink and a downlink, and no two hops share a link.
_FABRIC: dict[str, Any] = {"builder": "star", "options": {"bandwidth": "100 Gb/s", "latency": "5 us"}}


# A planned collective with its routes.
Routed = tuple[Collective, RoutedCollective]


def ring(ranks: int, elements: int, *, alike: bool = False) -> Routed:
    """Return a ring all-reduce of float32 on a star; hops are unequal unless `alike`.

    Latencies are 5 to 15 us and rates 6.25 to 12.5 GB/s, drawn with seed 0.
    """
    cluster = build(_FABRIC, ranks, gpu="h100_sxm")
    task = Task(CollectiveRequest("all_reduce", ranks, elements), "ring", tuple(range(ranks)), "float32")
    (op,) = plan(cluster, task).ops
    routed = route_collectives(cluster, [op], capacities(cluster))[0]
    if alike:
        return op, routed
    # Drawn per rank, and used for the route that starts at the rank.
    generator = np.random.default_rng(0)
    hop = routed.traffic.route_keys[:, 0]
    latency, rate = generator.uniform(5e-6, 15e-6, ranks)[hop], generator.uniform(6.25e9, 12.5e9, ranks)[hop]
    return op, replace(routed, routes=replace(routed.routes, latency=latency, rate=rate))


def times(made: Routed, *, followed: bool = False) -> Times:
    """Prepare the collective for the core and simulate; event by event if `followed`."""
    op, routed = made
    playable = SizedCollectiveMaker().make(op, routed)
    # Out of order means event by event.
    if followed:
        playable = replace(playable, in_order=False)
    ranks = np.arange(len(op.group))
    lists = Lists([(op,)], [(0,)], [0], 0 * ranks, np.ones(len(ranks)), np.ones((0, len(ranks))))
    kind = SimulatedKind([op], [op.group], [playable], 0 * ranks, ranks)
    return run(problem_of(lists, [kind], np.array(routed.capacity), Jitter()))


def play(made: Routed, *, followed: bool = False) -> float:
    """Prepare the collective for the core and simulate; return the end of the last rank [s]."""
    return float(times(made, followed=followed).end.max())


def rounds(made: Routed) -> float:
    """Return the same end by plain numpy, round by round: the floor for following every round."""
    _, routed = made
    routes, part = routed.routes, routed.traffic.parts[0]
    # Rows in order of the sending rank.
    row = part.route_of[np.argsort(part.repeat.round.src)]
    latency, rate = routes.latency[row], routes.rate[row]
    takes = int(routed.traffic.chunk_sizes[0]) * routed.traffic.sizes.copied / rate
    end = latency + takes
    return float(by_rounds(end, latency, [takes] * (2 * (len(row) - 1) - 1)).max())


def ring_seconds(ranks: int, elements: int, *, alike: bool = False) -> float:
    """Return the CPU time of preparing and simulating, the best of five [s]."""
    return best_of(5, partial(play, ring(ranks, elements, alike=alike)))[0]


def apart(elements: int) -> float:
    """Return the relative difference between the ring of 1,024 ranks and its rounds."""
    routed = ring(1024, elements)
    return abs(play(routed) - rounds(routed)) / rounds(routed)


def step(model: str, world_size: int, sharding: Any, seq_len: int, topology: str = "dgx_h100") -> dict[str, float]:
    """Simulate a training step in a separate process; return CPU time [s], peak memory [MiB], and transfers."""
    scenario = {
        "name": "bench",
        "cluster": {"topology": topology, "world_size": world_size},
        "training": {"model": model, "seq_len": seq_len, "sharding": sharding, "activation_checkpointing": "full"},
    }
    return alone("benchmarks.scale", json.dumps(scenario))


def growth(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the exponent p in time ~ (N log N)^p: the slope of a line through the logarithms."""
    # A schedule of N ranks in log N levels.
    work = [math.log(size * math.log(size)) for size in sizes]
    return float(np.polyfit(work, np.log(seconds), 1)[0])


def _step(scenario: dict[str, Any]) -> dict[str, float]:
    import time

    from simulator.run.simulate import simulate
    from simulator.scenario.load import load_scenario

    loaded = load_scenario(scenario)
    began = time.process_time()
    run = simulate(loaded)
    seconds = time.process_time() - began
    return {
        "seconds": seconds,
        "mib": peak_memory(),
        "transfers": float(sum(sent.transfers for sent in run.timeline.sent)),
    }


if __name__ == "__main__":
    print(json.dumps(_step(json.loads(sys.argv[1]))))
