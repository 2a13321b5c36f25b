"""How is a machine fitted to a measured sweep: which algorithm does the machine run, and with which constants?

Every plausible algorithm is solved for, the best ones are simulated, and a single one is chosen. Constants are rounded
before the last simulation; reported times therefore belong to the constants as written.

    trials       every algorithm, by predicted times        say ring 2.5 %, nvls 2.6 %, tree 9 %
    refine       the best 4, simulated at every size        ring 2.5 %, nvls 2.4 %
    _best        losses within 20 % count as equal          nvls: libraries prefer it
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.calibration.machines.candidate_fits import CandidateFit, candidate_fits
from simulator.calibration.machines.measured_sweep import SweepTimes, read_sweep
from simulator.calibration.machines.records import Fit
from simulator.calibration.machines.refine import Refinement, refine
from simulator.calibration.machines.solve import FREE, CapModel
from simulator.calibration.machines.sweep_cluster import cluster_for

# Most trials simulated at every size, and their largest loss relative to the best.
_FINALISTS: Final = 4
_NEAR: Final = 1.5
# Some twenty rows cannot distinguish losses closer than this share; the algorithm preferred by libraries is chosen.
_EQUAL: Final = 0.2
# The same for the number of pieces in an algorithm; 8 is preferred.
_EQUAL_PIECES: Final = 0.05


def fit(
    path: Path | str,
    *,
    topology: str | None = None,
    world_size: int | None = None,
    operation: str | None = None,
    algorithm: str | None = None,
) -> Fit:
    """Fit algorithm and constants of a machine's collective to times printed by nccl-tests, or to a CSV file with sizes
    and times.

    Parameters
    ----------
    path : path
        File with the sweep.
    topology : str, optional
        The measured machine, a shipped name or a path. By default, links that bound nothing are assumed.
    world_size, operation : optional
        Facts missing in the file.
    algorithm : str, optional
        The machine's algorithm; by default, plausible algorithms are tried and the best is chosen.

    Returns
    -------
    Fit
        The fit, with times simulated by the events engine.

    Raises
    ------
    ScenarioError
        A missing or contradictory fact, or an algorithm that cannot perform the operation.

    Notes
    -----
    time(S) = startup + simulation with caps x 1 / (1 + (half_size / S)^exponent): a start-up, a rate for large arrays,
    and its decrease for smaller arrays. At most five constants: these four and `chunks`.
    """
    sweep = read_sweep(path, world_size=world_size, operation=operation)
    return fit_sweep(sweep, topology=topology, algorithm=algorithm)


def fit_sweep(
    sweep: SweepTimes, *, topology: str | None = None, algorithm: str | None = None, fading: CapModel = FREE
) -> Fit:
    """Fit algorithm and constants of a machine's collective to a measured sweep; see `fit`. `fading` limits the number
    of constants.
    """
    played_on = cluster_for(sweep, topology)
    able, too_slow = candidate_fits(played_on.cluster, sweep, algorithm, fading)
    if not able:
        raise ScenarioError(_none(sweep, played_on.cluster.name, algorithm, [slow.text for slow in too_slow]))
    # A stable sort keeps the order of preference among equal losses.
    by_loss = sorted(able, key=lambda trial: trial.summary.loss)
    near = [trial for trial in by_loss if trial.summary.loss <= _NEAR * by_loss[0].summary.loss][:_FINALISTS]
    finalists = [(trial, refine(trial, sweep)) for trial in near]
    best, refinement = _best(finalists, able)
    rivals = [other.summary for trial, other in finalists if trial is not best]
    rivals += [trial.summary for trial in by_loss[len(near) :]]
    return Fit(
        operation=sweep.operation,
        world_size=sweep.world_size,
        nodes=max(1, len(played_on.cluster.nodes)),
        topology=played_on.cluster.name,
        base=played_on.base,
        machine=refinement.machine,
        rows=refinement.rows,
        tried=(refinement.summary, *sorted(rivals, key=lambda tried: tried.loss), *too_slow),
        assumed=sweep.assumed + played_on.assumed,
        source=sweep.source,
    )


def _best(
    finalists: list[tuple[CandidateFit, Refinement]], preferred: list[CandidateFit]
) -> tuple[CandidateFit, Refinement]:
    """Return the finalist to use: among nearly equal losses, the first in the order of preference `preferred`."""
    least = min(refinement.summary.loss for _, refinement in finalists)
    equal = [pair for pair in finalists if pair[1].summary.loss <= least * (1.0 + _EQUAL)]
    first = min(preferred.index(trial) for trial, _ in equal)
    name = preferred[first].response.algorithm
    # The algorithm is chosen; now choose its number of pieces in the same way.
    same = [pair for pair in finalists if pair[0].response.algorithm == name]
    bound = min(refinement.summary.loss for _, refinement in same) * (1.0 + _EQUAL_PIECES)
    return min((pair for pair in same if pair[1].summary.loss <= bound), key=lambda pair: preferred.index(pair[0]))


def _none(sweep: SweepTimes, topology: str, algorithm: str | None, slow: list[str]) -> str:
    what = f"got {algorithm!r}, which cannot" if algorithm else "no known algorithm can"
    why = f" in the measured time (without any cap {', '.join(slow)})" if slow else ""
    return (
        f"{sweep.source}: algorithm: {what} carry out {sweep.operation} on {topology}{why}; "
        "give another topology or algorithm"
    )
