"""How much memory this machine has, and a text for what does not fit into it.

Rule: callers check before they allocate something large, since the operating system kills a process that takes too much
without a message.
"""

from __future__ import annotations

import math
import os

from simulator.basics.units import format_bytes


def memory() -> float:
    """Bytes that this process may take; infinite if the system does not say [B]."""
    if not hasattr(os, "sysconf"):  # Windows, where an array that is too large is refused when it is made
        return math.inf
    import resource

    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return float(installed if limit == resource.RLIM_INFINITY else min(installed, limit))


def lacking(needed: float) -> str:
    """Text with the bytes that are needed and those that there are; empty if they suffice [B]."""
    available = memory()
    return f"{format_bytes(needed)}, this machine has {format_bytes(available)}" if needed > available else ""
