"""How much does each mechanism of the compiled engine save? An ablation: every job with every mechanism, then without.

`python -m benchmarks.ablation` prints the table in docs/speed.md. Mechanisms are everything beyond following transfers
event by event.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from benchmarks import scale
from simulator.engine import collective_routing, link_pruning
from simulator.engine.compiled import engine, library
from simulator.engine.compiled import sized_collective as playable
from simulator.engine.jitter import Jitter
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.plan import plan_step

# Longest time per cell [s]; slower jobs are stopped.
MOST: Final = 30.0


def _job(world_size: int, topology: Any, model: str = "llama3_8b", **training: Any) -> dict[str, Any]:
    step = {"model": model, "seq_len": 2048, "sharding": "zero3", "activation_checkpointing": "full", **training}
    return {"name": "x", "cluster": {"topology": topology, "world_size": world_size}, "training": step}


def _noisy(world_size: int, **jitter: float) -> dict[str, Any]:
    # Closed forms have no transfers and draw no latencies.
    job = _job(world_size, "dgx_h100", collectives="played")
    return job | {"cluster": job["cluster"] | {"jitter": jitter}}


# Two kinds of groups share links: shards, and copies over shards.
_SHARDED_8: Final[dict[str, Any]] = {"strategy": "zero3", "shard_size": 8}
# A ring all-reduce over 4 Mi elements; latency and rate differ from hop to hop.
_RING: Final = "a ring over 65,536 unlike hops"
JOBS: Final[dict[str, dict[str, Any]]] = {
    "8B, 64 H100, all played": _job(64, "dgx_h100", collectives="played"),
    "8B, 256 on a dragonfly": _job(256, "dragonfly", collectives="played"),
    "8B, 64 on a torus_3d, shards of 16": _job(64, "torus_3d", sharding={"strategy": "zero3", "shard_size": 16}),
    "8B, 2,048 on a star, shards of 8": _job(2048, "star_100g", sharding=_SHARDED_8),
    "8B, 512 H100, ddp over two levels": _job(512, "dgx_h100", sharding="ddp"),
    "8B, 256 H100, kernels and latencies drawn": _noisy(256, compute=0.05, latency=0.1),
    "8B, 1,024 H100, kernels drawn": _noisy(1024, compute=0.05),
    "70B, 2,048 H100, shards of 64": _job(2048, "dgx_h100", "llama3_70b", sharding=_SHARDED_8 | {"shard_size": 64}),
}


def _compiled(setting: str) -> Iterator[Any]:
    """Compile the core with a changed constant, and use this core."""
    # Loaded libraries stay mapped after the folder is removed.
    with tempfile.TemporaryDirectory() as folder:
        core = library.opened(library.compile_core(Path(folder) / "core.so", f"-D{setting}"))
    yield patch.object(library, "load", lambda: core)


def _without_recurrences() -> Iterator[Any]:
    """Compute rings round by round, without closed recurrences."""
    return _compiled("SOLVE_FROM=INT64_MAX")


def _all_shares() -> Iterator[Any]:
    """After every change, solve the rates of the whole connected component of flows."""
    return _compiled("MOST_ROUNDS=0")


def _followed() -> Iterator[Any]:
    """Follow every transfer event by event."""
    # Both modules import the function by name.
    yield patch.object(playable, "may_be_in_order", lambda _: False)
    yield patch("simulator.engine.compiled.quotient.may_be_in_order", lambda _: False)


def _without_lanes() -> Iterator[Any]:
    """Let all transfers on the same link contend."""

    def lanes(_: Any, potential: Any, contends: Any, __: Any) -> Any:
        return dict.fromkeys(contends, (-1, False))

    yield patch.object(collective_routing._CollectiveRouter, "_lanes", lanes)


def _all_links() -> Iterator[Any]:
    """Watch every link."""
    yield patch.object(collective_routing, "prune_links", lambda every, _: link_pruning.all_links(every))


def _all_ranks() -> Iterator[Any]:
    """Simulate every rank, without representatives of equivalence classes."""
    # Representatives are used from this number of transfers on: never.
    yield patch.dict(engine.execute.__kwdefaults__, reduced_from=sys.maxsize)


MECHANISMS: Final[dict[str, Callable[[], Iterator[Any]]]] = {
    "all": lambda: iter(()),
    "without closed recurrences": _without_recurrences,
    "without play in order": _followed,
    "without one of each class": _all_ranks,
    "without lanes": _without_lanes,
    "without link pruning": _all_links,
    "without incremental shares": _all_shares,
}


def cell(job: str, mechanism: str) -> str:
    """Return the CPU time of routing and simulating in a separate process [s]; or the reason for no time."""
    # A separate process: a mechanism is disabled by patching modules, and memory limits belong to the process.
    command = [sys.executable, "-m", "benchmarks.ablation", job, mechanism]
    try:
        told = subprocess.run(
            command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True, timeout=MOST + 10
        ).stdout
    # Such cells read "over 30" in the table.
    except subprocess.TimeoutExpired:
        return f"over {MOST:.0f}"
    except subprocess.CalledProcessError as error:
        # Any other failure is a bug in this benchmark.
        if "too little memory" in error.stderr:
            return "out of memory"
        raise
    return f"{float(json.loads(told)):.3g}"


def _played(job: str, mechanism: str) -> float:
    # Planning is not timed: mechanisms belong to routing and simulation.
    play = partial(scale.play, scale.ring(65_536, 2**22)) if job == _RING else _step(JOBS[job])
    with ExitStack() as stack:
        for changed in MECHANISMS[mechanism]():
            stack.enter_context(changed)
        # CPU time, because the machine is shared.
        began = time.process_time()
        play()
        return time.process_time() - began


def _step(job: dict[str, Any]) -> Callable[[], Any]:
    """Plan a step; return the function that routes and simulates it."""
    scenario = load_scenario(job)
    cluster = build_cluster(scenario)
    drawn = scenario.cluster.jitter
    jitter = Jitter(drawn.compute, drawn.latency, scenario.seed)
    if scenario.training is None:
        raise ValueError("a job trains")
    step = to_step(scenario.training, scenario.cluster.world_size, scenario.base)
    program = plan_step(cluster, step, steady=not (jitter.compute or jitter.latency)).program
    return partial(engine.execute, program, cluster, jitter=jitter, limit_memory=False, keep=(0,))


def rows() -> Iterator[str]:
    """Yield the table in Markdown: a row per job, a column per missing mechanism [s]."""
    yield f"| job | {' | '.join(MECHANISMS)} |"
    yield "|---" * (len(MECHANISMS) + 1) + "|"
    for job in (*JOBS, _RING):
        yield f"| {job} | {' | '.join(cell(job, mechanism) for mechanism in MECHANISMS)} |"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.stdout.write(json.dumps(_played(*sys.argv[1:])))
    else:
        for row in rows():
            print(row, flush=True)
