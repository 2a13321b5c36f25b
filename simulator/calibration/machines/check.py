"""How far off are a machine's constants on measurements that they were not fitted to?

Rule: no size or sweep that is checked here was used by the fit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.basics.dtypes import find
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.records import FitRow
from simulator.calibration.machines.response import played
from simulator.calibration.machines.sweep import Sweep
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.engine.events import execute

Rows = tuple[FitRow, ...]


def left_out(sweep: Sweep, topology: str, algorithm: str | None = None) -> tuple[Rows, Rows]:
    """Fit on every other size, and play the sizes between.

    Returns
    -------
    tuple of two Rows
        The sizes that were fitted (the largest is one of them), and those that were left out.
    """
    kept, between = sweep.rows[::-1][::2][::-1], sweep.rows[::-1][1::2][::-1]
    fitted = fit_sweep(replace(sweep, rows=kept), topology=topology, algorithm=algorithm)
    cluster = build(topology, sweep.world_size)
    return fitted.rows, machine_rows(cluster, replace(sweep, rows=between), fitted.machine)


def machine_rows(cluster: Cluster, sweep: Sweep, machine: MachineCollective) -> Rows:
    """Play a sweep with given constants."""
    return tuple(
        FitRow(size, time, played(cluster, sweep.operation, machine, size, sweep.dtype).end)
        for size, time in sweep.rows
    )


def shipped_rows(sweep: Sweep, topology: str, *, known: Collection[str] | None = None) -> tuple[str, Rows]:
    """Play a sweep on a shipped topology as it is, with the algorithm that it chooses at the largest size.

    Parameters
    ----------
    sweep : Sweep
    topology : str
    known : collection of str, optional
        Operations whose constants are left in the topology; all where it is not given.

    Returns
    -------
    tuple of str and Rows
        The algorithm first.
    """
    cluster = build(topology, sweep.world_size)
    if known is not None:
        left = {name: machine for name, machine in cluster.collectives.items() if name in known}
        cluster = replace(cluster, collectives=left, in_node={})
    itemsize = find(sweep.dtype).itemsize
    everyone = tuple(range(sweep.world_size))
    rows, name = [], ""
    for size, time in sweep.rows:
        request = Request(sweep.operation, sweep.world_size, size // itemsize)
        planned = plan(cluster, Task(request, "auto", everyone, sweep.dtype))
        name = planned.algorithm
        rows.append(FitRow(size, time, execute(planned.program, cluster).end))
    return name, tuple(rows)
