"""Refuses results without a time although the program ended: a link that is down for good, or a defect of the core."""

from __future__ import annotations

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.errors import DefectError
from simulator.engine.compiled.core import Times
from simulator.engine.compiled.fields import Problem
from simulator.engine.compiled.prepared import CoreProgram
from simulator.engine.program_checks import never_ends


def refuse_missing_times(prepared: CoreProgram, problem: Problem, times: Times) -> None:
    """Raise DefectError if a finished program has an operation or a logged transfer without a finite time.

    Raise DeadlockError if the transfer may wait for a link that went down.
    """
    if times.stuck:
        return
    operation = _first_missing(times.start, times.end)
    if operation is not None:
        # Find the operation's rank, list and name for the message.
        ranks = np.repeat(np.arange(len(problem.out_begin)), np.diff([*problem.out_begin, problem.operations]))
        rank = int(ranks[operation])
        list_of = int(problem.values["list_of"][rank])
        name = prepared.lists.ops[list_of][operation - int(problem.out_begin[rank])].name
        raise DefectError(f"operation {name!r} has start {times.start[operation]} s and end {times.end[operation]} s")
    transfer = _first_missing(times.enter, times.through)
    if transfer is not None:
        begins = problem.values["log_begin"]
        instance = int(np.flatnonzero((begins >= 0) & (begins <= transfer))[-1])
        family = int(np.searchsorted(prepared.first_instance, instance, "right")) - 1
        kind = prepared.kinds[prepared.program.lists.kind_of[family]]
        name = kind.members[instance - int(prepared.first_instance[family])].name
        if prepared.cluster.changes:
            raise never_ends(times.now, name)
        raise DefectError(
            f"transfer {transfer - int(begins[instance])} of collective {name!r} enters at {times.enter[transfer]} s "
            f"and ends at {times.through[transfer]} s"
        )


def _first_missing(begin: Floats, end: Floats) -> int | None:
    """Return the first index at which `begin` or `end` is not finite; None if both are finite everywhere."""
    missing = np.flatnonzero(~(np.isfinite(begin) & np.isfinite(end)))
    return int(missing[0]) if len(missing) else None
