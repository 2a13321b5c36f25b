"""The fit: try the sensible algorithms, play the best of them, keep one, and report.

Rule: constants are rounded before the last play, so what is told is what was played. Like trying on shoes: walk in them
before paying.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.calibration.machines.ground import ground
from simulator.calibration.machines.records import Fit
from simulator.calibration.machines.refine import Refined, refined
from simulator.calibration.machines.solve import FREE, Fading
from simulator.calibration.machines.sweep import Sweep, read_sweep
from simulator.calibration.machines.trials import Trial, trials
from simulator.errors import ScenarioError

# How many of the tried are played at every size at most, and how much worse than the best they may look.
_FINALISTS: Final = 4
_NEAR: Final = 1.5
# Losses that differ by less than this part are not told apart by some twenty rows; then the nearer to what libraries
# run is taken.
_EQUAL: Final = 0.2
# The same for the pieces of one algorithm, where 8 are preferred.
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
    place = ground(sweep, topology)
    able, too_slow = trials(place.cluster, sweep, algorithm, fading)
    if not able:
        raise ScenarioError(_none(sweep, place.cluster.name, algorithm, [slow.told for slow in too_slow]))
    # Sorting keeps the order of preference among equals.
    by_loss = sorted(able, key=lambda trial: trial.tried.loss)
    near = [trial for trial in by_loss if trial.tried.loss <= _NEAR * by_loss[0].tried.loss][:_FINALISTS]
    finalists = [(trial, refined(trial, sweep)) for trial in near]
    chosen, found = _best(finalists, able)
    rivals = [other.tried for trial, other in finalists if trial is not chosen]
    rivals += [trial.tried for trial in by_loss[len(near) :]]
    return Fit(
        operation=sweep.operation,
        world_size=sweep.world_size,
        nodes=max(1, len(place.cluster.nodes)),
        topology=place.cluster.name,
        base=place.base,
        machine=found.machine,
        rows=found.rows,
        tried=(found.tried, *sorted(rivals, key=lambda tried: tried.loss), *too_slow),
        assumed=sweep.assumed + place.assumed,
        source=sweep.source,
    )


def _best(finalists: list[tuple[Trial, Refined]], preferred: list[Trial]) -> tuple[Trial, Refined]:
    least = min(found.tried.loss for _, found in finalists)
    equal = [pair for pair in finalists if pair[1].tried.loss <= least * (1.0 + _EQUAL)]
    first = min(preferred.index(trial) for trial, _ in equal)
    name = preferred[first].response.algorithm
    same = [pair for pair in finalists if pair[0].response.algorithm == name]
    bound = min(found.tried.loss for _, found in same) * (1.0 + _EQUAL_PIECES)
    return min((pair for pair in same if pair[1].tried.loss <= bound), key=lambda pair: preferred.index(pair[0]))


def _none(sweep: Sweep, topology: str, algorithm: str | None, slow: list[str]) -> str:
    what = f"got {algorithm!r}; it cannot" if algorithm else "none of the known ones can"
    why = f" in the measured time (without any cap {', '.join(slow)})" if slow else ""
    return (
        f"{sweep.source}: algorithm: {what} carry out {sweep.operation} on {topology}{why}; "
        "give another topology or algorithm"
    )
