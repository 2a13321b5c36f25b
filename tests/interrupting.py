"""Commands in processes of their own, to be ended in the middle; and what a directory holds afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from simulator.sweeps.journal import NAME

ROOT = Path(__file__).parents[1]
# Limit of every wait for another process [s]. It is reached only where a test fails, and no test takes a tenth of it on
# a quiet machine.
PATIENCE_S = 600
# What may differ from run to run.
APART = {"run.json"}


def contents(folder: Path) -> dict[str, bytes]:
    """All files but those that may differ."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in APART)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def until(condition: Callable[[], object], pause: float = 0.01, what: str = "the event") -> None:
    """Wait until a condition is true; fail if it never is."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"{what} has not come"
        time.sleep(pause)


def wait_for_points(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    """Wait until the journal of a run has so many points, or the process has ended."""
    noted = folder / NAME
    until(lambda: process.poll() is not None or (noted.read_bytes().count(b"\n") if noted.is_file() else 0) >= count)


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until a process of `started` has ended, and return its stdout and stderr."""
    try:
        return process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


def held(first: int) -> tuple[str, ...]:
    """Return the program `simulator` in which points from `first` on do not end before the file `go` exists."""
    return "-c", "from tests.held import main; main()", str(first), "go"


def started(
    folder: Path, *arguments: str, hash_seed: str = "0", program: Sequence[str] = ("-m", "simulator")
) -> subprocess.Popen[str]:
    """`simulator ARGUMENTS` in a session of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "MPLBACKEND": "Agg"}
    return subprocess.Popen(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_hears_interrupts,
    )


def _hears_interrupts() -> None:
    """Also where the tests themselves run in the background, with Ctrl-C ignored, which processes inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running(group: int) -> list[int]:
    """Processes of a group that still run; those that have ended and wait to be collected do not count."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of_group = status.read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of_group) == group and state != "Z":
            found.append(int(status.parent.name))
    return found
