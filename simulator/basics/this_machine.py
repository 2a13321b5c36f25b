"""How much memory this machine has, and a text for what does not fit into it.

Rule: callers check before they allocate something large, since the operating system kills a process that takes too much
without a message.
"""

from __future__ import annotations

import math
import os
from functools import cache
from pathlib import Path
from typing import Final

from simulator.basics.units import format_bytes

_PROC: Final = Path("/proc/self")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def memory() -> float:
    """Return the bytes that this process may take; infinite if the system does not say [B]."""
    if not hasattr(os, "sysconf"):  # Windows, where an array that is too large is refused when it is made
        return math.inf
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(installed, address_space_left(), cgroup_limit())


def lacking(needed: float) -> str:
    """Text with the bytes that are needed and those that there are; empty if they suffice [B]."""
    available = memory()
    return f"{format_bytes(needed)}, this machine has {format_bytes(available)}" if needed > available else ""


def address_space_left(proc: Path = _PROC) -> float:
    """Return the addresses that `ulimit -v` still allows this process; infinite if there is no limit [B]."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    try:
        # The first number of proc/self/statm is the size of the address space in pages: libraries and thread stacks
        # take a GB of it before anything is simulated.
        used = int((proc / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS
        used = 0
    return float(max(limit - used, 0))


# Read once: schedules are checked thousands of times a sweep.
@cache
def cgroup_limit(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the memory limit of this process's control group and the groups around it, as a container sets it [B].

    The limit is infinite if there is none.
    """
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for line in lines:
        # "0::/path" is a group of version 2, "4:memory:/path" a group of version 1.
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = root / path.lstrip("/")
        # A container shows its own group as the root, and the path may lie outside the container.
        for folder in (group, *group.parents):
            limits.append(_limit_in(folder / name))
            if folder == root:
                break
    return min(limits)


def _limit_in(file: Path) -> float:
    try:
        text = file.read_text().strip()
    except OSError:
        return math.inf
    return float(text) if text.isdigit() else math.inf
