"""Runs measurements in a separate process, because earlier work would count in the process's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def alone(module: str, *arguments: str) -> dict[str, float]:
    """Run a benchmark module in a separate process; return the figures printed as JSON."""
    command = [sys.executable, "-m", module, *arguments]
    told = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def peak_memory() -> float:
    """Return this process's peak resident memory [MiB]. ru_maxrss on Linux would include the parent process."""
    # VmHWM is the high-water mark of resident memory [kB].
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not say; this benchmark needs Linux")
