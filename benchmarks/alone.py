"""Measuring in a process of its own, so that nobody else's memory counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def alone(module: str, *arguments: str) -> dict[str, float]:
    """Run a module of the benchmarks that prints its figures as JSON, and return them."""
    command = [sys.executable, "-m", module, *arguments]
    told = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(told)
    return found


def peak_memory() -> float:
    """Most memory this process ever had resident [MiB]. Linux's ru_maxrss would include the process that started it."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc/self/status does not say; this benchmark needs Linux")
