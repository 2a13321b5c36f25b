"""What the machine has that this runs on: its memory, and words for what it cannot hold.

Rule: asked before something large is made, for the system ends a process that takes too much without a word.
"""

from __future__ import annotations

import math
import os

from simulator.basics.units import format_bytes


def memory() -> float:
    """Bytes that this process may take; infinite where nobody says [B]."""
    if not hasattr(os, "sysconf"):  # Windows, where an array that is too large is refused when it is made
        return math.inf
    import resource

    there, limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]
    return float(there if limit == resource.RLIM_INFINITY else min(there, limit))


def lacking(needed: float) -> str:
    """How much that is and how much is there; empty where it is there [B]."""
    there = memory()
    return f"{format_bytes(needed)}, this machine has {format_bytes(there)}" if needed > there else ""
