"""A sweep against its points simulated directly, and two processes against a single process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from simulator.cli.commands import application
from simulator.cli.guard import guarded
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points

# A thousand small collectives of 8 to 32 ranks with varying sizes: some ten milliseconds each.
SCENARIO = """\
name: small_points
cluster: {topology: dgx_a100, world_size: 8}
collective: {operation: all_reduce, algorithm: ring, size: 1 KiB, payload: false}
sweep:
  cluster.world_size: [8, 16, 24, 32]
  collective.size: [SIZES]
plots: []
""".replace("SIZES", ", ".join(f"{kib} KiB" for kib in range(16, 4016, 16)))


def overhead() -> tuple[float, float, int]:
    """Return CPU time per point in a sweep and without [s], the better of two rounds, and the number of points."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "s.yaml")
        file.write_text(SCENARIO, encoding="utf-8")
        found = points(load_scenario(file))
        bare, swept = [], []
        # In turn with the direct simulation, for equal conditions.
        for number in range(2):
            bare.append(_cpu(lambda: [simulate(point.scenario) for point in found]))
            command = ["sweep", str(file), "--jobs", "1", "--json", "--out", str(Path(scratch, f"out{number}"))]
            swept.append(_cpu(partial(_quietly, command)))
    return min(swept) / len(found), min(bare) / len(found), len(found)


def two_processes() -> tuple[float, float]:
    """Return the wall time of the command on one process and on two, with start-up [s]; the best of three rounds."""
    taken: dict[str, list[float]] = {"1": [], "2": []}
    for _ in range(3):
        for jobs, times in taken.items():
            with tempfile.TemporaryDirectory() as scratch:
                Path(scratch, "s.yaml").write_text(SCENARIO, encoding="utf-8")
                command = [sys.executable, "-m", "simulator", "sweep", "s.yaml", "--jobs", jobs, "--json"]
                # One BLAS thread per process: otherwise a single process could use both cores.
                environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
                began = time.perf_counter()
                subprocess.run(command, cwd=scratch, env=environment, check=True, capture_output=True)
                times.append(time.perf_counter() - began)
    return min(taken["1"]), min(taken["2"])


def _cpu(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _quietly(command: list[str]) -> None:
    """Run a command in this process, and discard its output."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        before = sys.stdout, sys.stderr
        sys.stdout = sys.stderr = nowhere
        try:
            code = guarded(lambda: application(command, prog_name="simulator", standalone_mode=False))
        finally:
            sys.stdout, sys.stderr = before
    if code:
        raise RuntimeError(f"{command} ended with {code}")
