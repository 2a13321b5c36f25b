"""How is a machine fitted to several sweeps: several operations, within a node and over nodes?

A sweep has the times of one operation over array sizes. For each operation within a node, and for each over nodes, the
sweep with most ranks is fitted. Sweeps on fewer ranks of a node determine `own_part`, by their largest size alone: the
time of a rank for its own part of the array, relative to the time for a part that it sends. At all sizes they check
the fit. `MachineFit.untold` names the operations, start-up times and rates that no sweep determines.

    all_gather on 8, 4 and 2 ranks of a node    ->   fit on 8; own_part from 4 and 2; checks on 4 and 2
    all_reduce on 16 ranks over two nodes       ->   another fit
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_bytes
from simulator.calibration.machines.check import machine_rows
from simulator.calibration.machines.fitting import fit_sweep
from simulator.calibration.machines.measured_sweep import SweepTimes, read_sweeps
from simulator.calibration.machines.records import LARGE, Check, Fit, MachineFit
from simulator.cluster.build import build
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.library import own_share
from simulator.cluster.topology_file import load_topology
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, Auxiliary

# A sweep without rows this large does not determine a rate [B].
_TELLS_A_RATE: Final = 64 * LARGE
# Values of `own_part` to choose from: measured machines have 0.1 to 0.7 (docs/measured.md).
_OWN_PARTS: Final = tuple(step / 100 for step in range(151))
# Operations needed by a sharded training step.
_WANTED: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def fit_all(
    paths: Sequence[Path | str],
    *,
    topology: str | None = None,
    world_size: int | None = None,
    operation: str | None = None,
    algorithm: str | None = None,
) -> MachineFit:
    """Fit a machine's collectives to every measured sweep in several files.

    Parameters
    ----------
    paths : sequence of path
        Files as in `read_sweeps`.
    topology : str, optional
        The machine; required for several sweeps.
    world_size, operation, algorithm : optional
        As in `fit`; used for every sweep.

    Raises
    ------
    ScenarioError
        As in `fit`; several sweeps without topology; two sweeps with equal operation and ranks.
    """
    sweeps = [sweep for path in paths for sweep in read_sweeps(path, world_size=world_size, operation=operation)]
    if len(sweeps) > 1 and topology is None:
        names = ", ".join(sorted({f"{sweep.operation} of {sweep.world_size} ranks" for sweep in sweeps}))
        raise ScenarioError(f"topology: missing; {len(sweeps)} sweeps ({names}) of one machine need a topology")
    # A place is (operation, over several nodes or not).
    by_place: dict[tuple[str, bool], list[SweepTimes]] = {}
    for sweep in sweeps:
        by_place.setdefault((sweep.operation, _over_nodes(sweep, topology)), []).append(sweep)
    fits, checks = list[Fit](), list[Check]()
    for place in by_place.values():
        # A stable sort: equal numbers of ranks are refused below.
        first, *others = sorted(place, key=lambda sweep: -sweep.world_size)
        twins = [sweep for sweep in others if sweep.world_size == first.world_size]
        if twins:
            raise ScenarioError(
                f"{twins[0].source}: a second sweep of {first.operation} over {first.world_size} ranks, after "
                f"{first.source}; keep one"
            )
        # The sweep with most ranks: constants of few ranks say little about many.
        fit = fit_sweep(first, topology=topology, algorithm=algorithm)
        fits.append(fit if fit.nodes > 1 else replace(fit, machine=_of_fewer(fit, first, others)))
        checks += [_check(sweep, topology, fits[-1]) for sweep in others]
    return MachineFit(tuple(fits), tuple(checks), tuple(_untold(fits, topology)))


def _of_fewer(fit: Fit, most: SweepTimes, fewer: Sequence[SweepTimes]) -> MachineCollective:
    """Return a fit's constants with the `own_part` that explains best the rates of sweeps on fewer ranks, each at the
    largest size that it shares with the fitted sweep. The constants of sums in switches (NVLS) stay as they are: ranks
    then handle no part of their own.
    """
    if ALGORITHMS.find(fit.machine.algorithm).auxiliary is Auxiliary.SWITCHES:
        return fit.machine
    ratios = list[tuple[int, float]]()
    for sweep in fewer:
        times, of_most = dict(sweep.rows), dict(most.rows)
        size = max(times.keys() & of_most.keys(), default=0)
        if size >= _TELLS_A_RATE:
            # A rank of n sends (n - 1) / n of the array, once or twice.
            sent = (1 - 1 / sweep.world_size) / (1 - 1 / most.world_size)
            ratios.append((sweep.world_size, sent * of_most[size] / times[size]))

    if not ratios:
        return fit.machine

    def off(own_part: float) -> float:
        full = own_share(fit.operation, most.world_size, own_part)
        return sum(abs(log(own_share(fit.operation, ranks, own_part) / full / ratio)) for ranks, ratio in ratios)

    return with_own_part(fit.machine, fit.operation, most.world_size, min(_OWN_PARTS, key=off))


def with_own_part(machine: MachineCollective, operation: str, ranks: int, own_part: float) -> MachineCollective:
    """Return constants with another `own_part`, and a rate with which the times on `ranks` ranks stay the same."""
    cap = machine.rate_cap * own_share(operation, ranks, machine.own_part) / own_share(operation, ranks, own_part)
    return replace(machine, rate_cap=float(f"{cap:.4g}"), own_part=own_part)


def _over_nodes(sweep: SweepTimes, topology: str | None) -> bool:
    return (sweep.nodes or 1) > 1 if topology is None else len(build(topology, sweep.world_size).nodes) > 1


def _check(sweep: SweepTimes, topology: str | None, fitted: Fit) -> Check:
    cluster = build(topology or fitted.base, sweep.world_size)
    rows = machine_rows(cluster, sweep, fitted.machine)
    return Check(f"{sweep.operation} on {sweep.world_size} ranks, {sweep.source}", rows)


def _untold(fits: Sequence[Fit], topology: str | None) -> list[str]:
    """Return a text line for each machine constant not determined by any fitted sweep."""
    lines, over_nodes = [], any(fit.nodes > 1 for fit in fits)
    before = {} if topology is None else load_topology(topology).collectives
    for fit in fits:
        where = _where(fit.nodes > 1)
        if fit.rows[-1].size < _TELLS_A_RATE:
            lines.append(f"{fit.operation} {where}: the rate, because no array has {format_bytes(_TELLS_A_RATE)}")
        if fit.rows[0].size > LARGE:
            lines.append(
                f"{fit.operation} {where}: the start-up time, because no array is smaller than {format_bytes(LARGE)}"
            )
    # Without a fit over nodes, nothing is claimed about several nodes.
    for across in (False, True) if over_nodes else (False,):
        fitted = {fit.operation for fit in fits if (fit.nodes > 1) is across}
        place = "nodes" if across else "one_node"
        stored = {name for name, measured in before.items() if getattr(measured, place) is not None}
        missing = [name for name in _WANTED if name not in fitted]
        lines += [f"{name} {_where(across)}: {_stands_for(name, fitted, stored, across=across)}" for name in missing]
    if over_nodes:
        most = max(fit.nodes for fit in fits)
        lines.append(
            f"more than {most} nodes: reductions use the steps of trees and gathers the steps of rings, at the same "
            "rates"
        )
    return lines


def _where(across: bool) -> str:
    return "over nodes" if across else "in one node"


def _stands_for(operation: str, fitted: set[str], stored: set[str], *, across: bool) -> str:
    if operation in stored:
        return "the constants of the topology file remain"
    # Sums resemble the all-reduce; over nodes, gathers and exchanges resemble the gather more.
    nearest = ["all_reduce", "all_gather"] if operation in REDUCING or not across else ["all_gather", "all_reduce"]
    able = [name for name in nearest if name in fitted | stored]
    return f"the constants of {able[0]} apply" if able else "only links limit the rate"
