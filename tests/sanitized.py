"""Simulates drawn scenarios and programs with a core that is built with sanitizers: `python -m tests.sanitized LIBRARY
FIRST LAST`.

The process must be started with the sanitizer's runtime loaded first (tests/test_sanitized_core.py).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path

from simulator.cluster.build import build
from simulator.engine.compiled import library
from simulator.engine.compiled.engine import execute
from simulator.step.plan import plan_step
from tests.combinations import accepted, any_scenario, own_files, run_on, training_scenario
from tests.programs import FAMILIES, drawn
from tests.training import TINY, step

NEVER = 2**62


def servers(seed: int) -> None:
    """Pull from servers that wait for nobody, over contended links: a server's first transfer may be handed over."""
    workers, count = 2 + seed % 6, 1 + seed % 4
    cluster = build("star_100g", workers, servers=count, stragglers={seed % workers: 0.5})
    facts = {"servers": count, "asynchronous": True, "steps": 3, "staleness": seed % 2 or None}
    execute(plan_step(cluster, step("parameter_server", replace(TINY, num_layers=1), **facts)).program, cluster)


# Scenarios of each seed that are run: events, checkpoints in flight, and one file of jobs (tests/combinations.py).
RUNS = (1, 2, 3, 25)
UNFIT = {
    "name": "unfit",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {"model": "llama3_8b", "seq_len": "8k", "sharding": "ddp", "optimizer": "paged_adam"},
}


def runs(seed: int, folder: Path) -> int:
    """Run scenarios as `run` does, and a step that does not fit beside an event on each rank; return how many."""
    scenarios = [any_scenario(40 * seed + number, folder) for number in RUNS]
    event = {"at": "1 ms", "rank": seed % 8, "factor": 0.5}
    scenarios.append({**UNFIT, "cluster": {**UNFIT["cluster"], "events": [event]}})  # type: ignore[dict-item]
    for data in scenarios:
        run_on("compiled", data)
    return len(scenarios)


def main(path: str, first: int, last: int) -> None:
    """Simulate scenarios, programs of each family and servers, of these seeds."""
    core = library.opened(Path(path))
    library.load = lambda: core  # type: ignore[assignment]
    warnings.simplefilter("ignore")
    simulated = 0
    folder = Path(tempfile.mkdtemp())
    own_files(folder)
    for seed in range(first, last):
        scenario = accepted(training_scenario(seed))
        cases = [drawn(family, seed) for family in FAMILIES]
        programs = [(case.program, case.cluster, case.jitter) for case in (scenario, *cases) if case is not None]
        for program, cluster, jitter in programs:
            for reduced_from in (0, NEVER):
                execute(program, cluster, jitter=jitter, limit_memory=False, reduced_from=reduced_from)
                simulated += 1
        servers(seed)
        simulated += runs(seed, folder)
    sys.stdout.write(f"{simulated} simulated\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
