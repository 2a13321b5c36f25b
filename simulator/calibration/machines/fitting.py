"""How is a machine fitted to a measured sweep: which algorithm does it run, and with which constants?

Rule: every sensible algorithm is solved for, the best are played, and one is kept. Constants are rounded before the
last play, so that reported times are those of the constants as written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.calibration.machines.records import Fit
from simulator.calibration.machines.refine import Refinement, refine
from simulator.calibration.machines.solve import FREE, Fading
from simulator.calibration.machines.sweep import Sweep, read_sweep
from simulator.calibration.machines.sweep_cluster import cluster_for
from simulator.calibration.machines.trials import Trial, trials

# At most so many of the trials are played at every size, and only those whose loss is at most so many times the best.
_FINALISTS: Final = 4
_NEAR: Final = 1.5
# Some twenty rows cannot distinguish losses that differ by less than this share; of such algorithms the one that
# communication libraries prefer is taken.
_EQUAL: Final = 0.2
# The same for one algorithm's numbers of pieces, where 8 are preferred.
_EQUAL_PIECES: Final = 0.05


def fit(
    path: Path | str,
    *,
    topology: str | None = None,
    world_size: int | None = None,
    operation: str | None = None,
    algorithm: str | None = None,
) -> Fit:
    """Fit a machine to a sweep that an nccl-tests program printed, or to a CSV file with a size and a time.

    Parameters
    ----------
    path : path
    topology : str, optional
        The machine it was measured on: a shipped name or a path. Without it links are assumed that bound nothing.
    world_size, operation : optional
        Where the file does not say.
    algorithm : str, optional
        What the machine ran; without it the sensible ones are tried and the best is kept.

    Returns
    -------
    Fit
        With its times played by the events engine.

    Raises
    ------
    ScenarioError
        Something is missing in the file or does not agree with it; no algorithm can do this there.

    Notes
    -----
    time(S) = startup + the play with caps x 1 / (1 + (half_size / S)^exponent): a start-up, a rate for large arrays,
    and how it fades for smaller ones. At most five constants: these four and `chunks`.
    """
    sweep = read_sweep(path, world_size=world_size, operation=operation)
    return fit_sweep(sweep, topology=topology, algorithm=algorithm)


def fit_sweep(sweep: Sweep, *, topology: str | None = None, algorithm: str | None = None, fading: Fading = FREE) -> Fit:
    """Fit a machine to a sweep; see `fit`. `fading` bounds how many constants it gets."""
    played_on = cluster_for(sweep, topology)
    able, too_slow = trials(played_on.cluster, sweep, algorithm, fading)
    if not able:
        raise ScenarioError(_none(sweep, played_on.cluster.name, algorithm, [slow.text for slow in too_slow]))
    # Sorting keeps the order of preference among equals.
    by_loss = sorted(able, key=lambda trial: trial.summary.loss)
    near = [trial for trial in by_loss if trial.summary.loss <= _NEAR * by_loss[0].summary.loss][:_FINALISTS]
    finalists = [(trial, refine(trial, sweep)) for trial in near]
    chosen, refinement = _best(finalists, able)
    rivals = [other.summary for trial, other in finalists if trial is not chosen]
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


def _best(finalists: list[tuple[Trial, Refinement]], preferred: list[Trial]) -> tuple[Trial, Refinement]:
    """Of finalists whose losses are about equal, the one that stands first in the order of preference."""
    least = min(refinement.summary.loss for _, refinement in finalists)
    equal = [pair for pair in finalists if pair[1].summary.loss <= least * (1.0 + _EQUAL)]
    first = min(preferred.index(trial) for trial, _ in equal)
    name = preferred[first].response.algorithm
    same = [pair for pair in finalists if pair[0].response.algorithm == name]
    bound = min(refinement.summary.loss for _, refinement in same) * (1.0 + _EQUAL_PIECES)
    return min((pair for pair in same if pair[1].summary.loss <= bound), key=lambda pair: preferred.index(pair[0]))


def _none(sweep: Sweep, topology: str, algorithm: str | None, slow: list[str]) -> str:
    what = f"got {algorithm!r}; it cannot" if algorithm else "none of the known ones can"
    why = f" in the measured time (without any cap {', '.join(slow)})" if slow else ""
    return (
        f"{sweep.source}: algorithm: {what} carry out {sweep.operation} on {topology}{why}; "
        "give another topology or algorithm"
    )
