"""Which residuals do a machine's constants have on measurements outside the fit?

No size or sweep checked here was used by the fit.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from simulator.basics.dtypes import find
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.measured_sweep import SweepTimes
from simulator.calibration.machines.records import FitRow
from simulator.calibration.machines.time_model import played
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.cluster.library import Library
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute

Rows = tuple[FitRow, ...]


def left_out(sweep: SweepTimes, topology: str, algorithm: str | None = None) -> tuple[Rows, Rows]:
    """Cross-validate a fit to a measured sweep: fit every other size, and simulate the sizes between.

    Returns
    -------
    tuple of two Rows
        The fitted sizes (including the largest), and the sizes left out of the fit.
    """
    # Counted from the largest size, because the cap is determined there.
    fit_rows, between = sweep.rows[::-1][::2][::-1], sweep.rows[::-1][1::2][::-1]
    fitted = fit_sweep(replace(sweep, rows=fit_rows), topology=topology, algorithm=algorithm)
    cluster = build(topology, sweep.world_size)
    return fitted.rows, machine_rows(cluster, replace(sweep, rows=between), fitted.machine)


def machine_rows(cluster: Cluster, sweep: SweepTimes, machine: MachineCollective) -> Rows:
    """Return the measured and the simulated time of each size in a sweep, simulated with a machine's constants."""
    return tuple(
        FitRow(size, time, played(cluster, sweep.operation, machine, size, sweep.dtype).end)
        for size, time in sweep.rows
    )


def shipped_rows(
    sweep: SweepTimes, topology: str, *, operations: Collection[str] | None = None, library: Library | None = None
) -> tuple[str, Rows]:
    """Return measured and simulated times of a sweep on a shipped topology, with the topology's algorithm for the
    largest size.

    Parameters
    ----------
    sweep : SweepTimes
        The measured sweep.
    topology : str
        Name or path.
    operations : collection of str, optional
        Operations that keep their constants in the topology; every operation by default.
    library : Library, optional
        Model for the other operations; by default the links' ratings alone.

    Returns
    -------
    tuple of str and Rows
        Algorithm, and the rows.
    """
    cluster = build(topology, sweep.world_size)
    if operations is not None:
        collectives = {name: machine for name, machine in cluster.collectives.items() if name in operations}
        cluster = replace(cluster, collectives=collectives, in_node={}, library=library)
    itemsize = find(sweep.dtype).itemsize
    everyone = tuple(range(sweep.world_size))
    rows, name = [], ""
    for size, time in sweep.rows:
        request = CollectiveRequest(sweep.operation, sweep.world_size, size // itemsize)
        planned = plan(cluster, Task(request, "auto", everyone, sweep.dtype))
        name = planned.algorithm
        rows.append(FitRow(size, time, execute(planned.program, cluster).end))
    return name, tuple(rows)
