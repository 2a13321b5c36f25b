"""How much memory does this machine have, and which text describes a shortage?

Callers check before they allocate something large, because the operating system kills a process that takes too much
memory, without any message.
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
    """Return the bytes that this process may allocate [B]; infinite if the system does not say."""
    # On Windows, an array that is too large is refused when it is created.
    if not hasattr(os, "sysconf"):
        return math.inf
    installed = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min(installed, address_space_left(), cgroup_limit())


def shortage_text(needed: float) -> str:
    """Return a text with the bytes needed and the bytes available; empty if the memory suffices."""
    available = memory()
    return f"{format_bytes(needed)}, this machine has {format_bytes(available)}" if needed > available else ""


def address_space_left(proc: Path = _PROC) -> float:
    """Return the address space that `ulimit -v` still allows this process [B]; infinite without a limit."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    try:
        # The first number in proc/self/statm is the size of the address space in pages: libraries and thread stacks
        # take a GB before anything is simulated.
        used = int((proc / "statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS
        used = 0
    return float(max(limit - used, 0))


# Read only once: schedules are checked thousands of times in a sweep.
@cache
def cgroup_limit(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the memory limit in this process's control group and parent groups, set by containers [B].

    >>> cgroup_limit(Path("/system/without/groups"))
    inf
    """
    try:
        lines = (proc / "cgroup").read_text().splitlines()
    except OSError:
        return math.inf
    # The smallest limit on the path from the group to the root holds.
    limits = [math.inf]
    for line in lines:
        # "0::/path" is a version 2 group, "4:memory:/path" a version 1 group.
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (cgroups / "memory", "memory.limit_in_bytes") if controllers else (cgroups, "memory.max")
        group = root / path.lstrip("/")
        # A container sees its own group as the root, and the path may be outside the container.
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
