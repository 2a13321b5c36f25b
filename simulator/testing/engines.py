"""Do both engines simulate a program in the same time?"""

from __future__ import annotations

from simulator.cluster.cluster import Cluster
from simulator.engine.compiled import library
from simulator.engine.play import play
from simulator.records.program import Program
from simulator.testing.law import require

# Largest relative difference of the two engines' times.
_EQUAL = 1e-9


def same_in_both_engines(program: Program, cluster: Cluster) -> bool:
    """Check that both engines simulate a program in the same time; return False if there is no compiled core."""
    events = play("events", program, cluster, limit_memory=False).end
    if not library.is_there():
        return False
    compiled = play("compiled", program, cluster, limit_memory=False).end
    off = abs(events - compiled) > _EQUAL * events
    require(not off, f"takes {events:.9g} s in the events engine, and {compiled:.9g} s in the compiled engine")
    return True
