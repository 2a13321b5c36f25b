"""How do constants that fit predicted times come to fit played ones?

By turns: play every size, correct the prediction by what was played, solve again.

Rule: the errors that count are those of played times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.calibration.machines.records import FitRow, TrialSummary
from simulator.calibration.machines.response import played
from simulator.calibration.machines.solve import Constants, Data, loss, solve
from simulator.calibration.machines.sweep import Sweep
from simulator.calibration.machines.trials import Trial, data, summarize_trial
from simulator.cluster.cluster import MachineCollective

_ROUNDS: Final = 5
# A round that changes the loss by less than this share is the last.
_SETTLED: Final = 0.01
# At most so many transfers are played in one round; of an algorithm with many only some sizes are played, the others
# predicted.
_MOST_TRANSFERS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Refinement:
    """Rounded constants and what they give when played."""

    machine: MachineCollective
    rows: tuple[FitRow, ...]
    summary: TrialSummary


def refine(trial: Trial, sweep: Sweep) -> Refinement:
    """Play a trial's constants, correct them by what was played, and repeat; the best of a few rounds."""
    measured, constants = data(sweep), trial.constants
    factor = np.ones_like(measured.sizes)
    rounds: list[Refinement] = []
    for number in range(_ROUNDS):
        if number:
            constants, _ = solve(
                measured, _Corrected(trial, factor), trial.response.fastest, fading=trial.fading, start=constants
            )
        machine = _machine(trial, constants, sweep)
        bare = trial.response.times(measured.sizes, constants.caps(measured.sizes), trial.chunks)
        rows = _play(trial, machine, sweep, machine.startup + factor * bare)
        factor = np.array([row.simulated - machine.startup for row in rows]) / bare
        rounds.append(
            Refinement(machine, rows, summarize_trial(machine.algorithm, trial.chunks, rows, _loss_of(rows, measured)))
        )
        if number and abs(rounds[-1].summary.loss / rounds[-2].summary.loss - 1.0) < _SETTLED:
            break
    return min(rounds, key=lambda refinement: refinement.summary.loss)


@dataclass(frozen=True, slots=True)
class _Corrected:
    """Predicted times, each size's multiplied by its last played over its last predicted time."""

    trial: Trial
    factor: Floats

    def __call__(self, sizes: Floats, caps: Floats) -> Floats:
        return self.factor * self.trial.response.times(sizes, caps, self.trial.chunks)


def _loss_of(rows: tuple[FitRow, ...], measured: Data) -> float:
    return loss(np.log([row.simulated / row.measured for row in rows]), measured.weights)


def _play(trial: Trial, machine: MachineCollective, sweep: Sweep, predicted: Floats) -> tuple[FitRow, ...]:
    """Play every size; where that costs too much, the largest, the smallest and some between."""
    response, count = trial.response, len(sweep.rows)
    rows: dict[int, FitRow] = {}
    chosen = [count - 1]
    for number in chosen:
        size, time = sweep.rows[number]
        timeline = played(response.cluster, sweep.operation, machine, size, sweep.dtype)
        rows[number] = FitRow(size, time, timeline.end)
        if number == count - 1:
            able = min(count, max(3, _MOST_TRANSFERS // max(1, len(timeline.logs[0]))))
            chosen += sorted({round(i * (count - 1) / (able - 1)) for i in range(able - 1)})
    unplayed = (number for number in range(count) if number not in rows)
    for number in unplayed:
        size, time = sweep.rows[number]
        rows[number] = FitRow(size, time, float(predicted[number]), False)
    return tuple(rows[number] for number in range(count))


def _machine(trial: Trial, constants: Constants, sweep: Sweep) -> MachineCollective:
    """The constants with four digits, as they go into a file."""
    return replace(
        trial.response.machine(_rounded(constants.cap), trial.chunks),
        startup=_rounded(constants.startup),
        half_size=_rounded(constants.half_size),
        exponent=_rounded(constants.exponent),
        source=f"fitted to {sweep.source}",
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
