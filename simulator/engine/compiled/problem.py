"""Writes a program into the flat arrays read by the core.

Only the form changes; `prepared` has decided before which ranks and collectives are simulated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from simulator.basics.arrays import Floats, Ints
from simulator.cluster.changes import RateChange, avoided_sets
from simulator.engine.compiled.columns import begins
from simulator.engine.compiled.fields import FIELDS, Problem, as_field
from simulator.engine.compiled.instances import instances
from simulator.engine.compiled.operation_lists import Lists, operation_lists
from simulator.engine.compiled.rows import starts
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.engine.jitter import Jitter
from simulator.engine.noise import factor_table


def problem_of(
    lists: Lists,
    kinds: Sequence[SimulatedKind],
    capacity: Floats,
    jitter: Jitter,
    changes: Sequence[RateChange] = (),
    *,
    logged: Collection[int] = (),
    tapped: Mapping[tuple[int, int], Ints] | None = None,
) -> Problem:
    """Return the compiled core's input: the program in flat arrays, with the fields of problem.h.

    Parameters
    ----------
    lists : Lists
        Simulated ranks and their operations.
    kinds : sequence of SimulatedKind
        Simulated members of each kind.
    capacity : float array, shape (links,)
        Capacity of the fabric's links [B/s].
    jitter : Jitter
        Noise on kernels and latencies.
    changes : sequence of RateChange
        Moments at which links and GPUs slow down or recover; every rank of the program must then be simulated.
    logged : collection of int
        Instances whose transfers are logged, numbered as in `first_instances`.
    tapped : mapping of (kind, member) to int array
        Routes whose flows are reported.
    """
    ranks = len(lists.list_of)
    values: dict[str, Any] = {"links": len(capacity), "capacity": capacity, "ranks": ranks}
    avoided = avoided_sets(changes)
    values |= _changes(changes, capacity, avoided)
    values |= operation_lists(lists, kinds)
    values |= instances(kinds, lists.kind_of, logged, tapped or {}, capacity, len(avoided))
    # Operations of each simulated rank.
    lengths = np.diff(values["list_begin"])[lists.list_of]
    values |= {
        "list_of": lists.list_of,
        "speed": lists.speeds,
        "work": lists.work.ravel(),
        "out_begin": starts(lengths),
        "seed": jitter.seed,
        "noise_rank": np.arange(ranks),
    }
    tables = {"noise_compute": jitter.compute, "noise_latency": jitter.latency}
    # Absent fields stay NULL in the struct, which means no noise.
    values |= {name: factor_table(sigma) for name, sigma in tables.items() if sigma}
    total = values.pop("logged")
    arrays = {name: as_field(name, value) for name, value in values.items() if isinstance(FIELDS[name], str)}
    return Problem(values | arrays, starts(lengths), int(lengths.sum()), total)


def _changes(changes: Sequence[RateChange], capacity: Floats, avoided: Sequence[frozenset[int]]) -> dict[str, Any]:
    """Return the fields of problem.h for the moments at which links, GPUs and routes change."""
    links = [(link, factor) for change in changes for link, factor in change.links.items()]
    ranks = [(rank, factor) for change in changes for rank, factor in change.ranks.items()]
    number = np.array([link for link, _ in links], np.int64)
    changing = np.zeros(len(capacity), np.bool_)
    changing[number] = True
    return {
        "changes": len(changes),
        "change_time": [change.time for change in changes],
        "change_link_begin": begins(len(change.links) for change in changes),
        "change_rank_begin": begins(len(change.ranks) for change in changes),
        "change_link": number,
        "change_rank": [rank for rank, _ in ranks],
        "change_capacity": capacity[number] * np.array([factor for _, factor in links]),
        "change_speed": [factor for _, factor in ranks],
        "changing": changing,
        "detours": len(avoided),
        "change_detour": [avoided.index(change.avoided) for change in changes],
        "avoided_begin": begins(map(len, avoided)),
        "avoided_link": [link for links in avoided for link in sorted(links)],
    }
