"""How are constants, fitted to predicted times, refined to fit simulated times?

Three steps are repeated: simulate every size, correct the prediction by the simulated time, solve again. Only the
errors of simulated times count.

Example: at 1 MiB the prediction without start-up is 20 us, the simulation gives 22 us. The next solve multiplies
predictions for 1 MiB by 1.1, whatever the cap. After two or three rounds the factors no longer change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.calibration.machines.candidate_fits import CandidateFit, data, summarize_trial
from simulator.calibration.machines.measured_sweep import SweepTimes
from simulator.calibration.machines.records import FitRow, TrialSummary
from simulator.calibration.machines.solve import Constants, Data, loss, solve
from simulator.calibration.machines.time_model import played
from simulator.cluster.cluster import MachineCollective

_ROUNDS: Final = 5
# The last round is the first that changes the loss by less than this share.
_SETTLED: Final = 0.01
# Most transfers simulated per round. Algorithms with many transfers are simulated at a few sizes; the remaining sizes
# are predicted.
_MOST_TRANSFERS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Refinement:
    """Rounded constants, and the errors when times are simulated with these constants."""

    machine: MachineCollective
    rows: tuple[FitRow, ...]
    summary: TrialSummary


def refine(trial: CandidateFit, sweep: SweepTimes) -> Refinement:
    """Return a candidate fit's constants, refined until simulated times are as near as possible to a measured sweep.

    Each round simulates the sweep, corrects the predicted times by simulated / predicted, and fits again; the round
    with the smallest error is returned.
    """
    measured, constants = data(sweep), trial.constants
    # Correction per size: simulated / predicted time, without start-up.
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
        # The start-up is exact in both and must not be scaled.
        factor = np.array([row.simulated - machine.startup for row in rows]) / bare
        rounds.append(
            Refinement(machine, rows, summarize_trial(machine.algorithm, trial.chunks, rows, _loss_of(rows, measured)))
        )
        if number and abs(rounds[-1].summary.loss / rounds[-2].summary.loss - 1.0) < _SETTLED:
            break
    return min(rounds, key=lambda refinement: refinement.summary.loss)


@dataclass(frozen=True, slots=True)
class _Corrected:
    """A function from rate caps to predicted times, each multiplied by a correction factor for the size."""

    trial: CandidateFit
    factor: Floats

    def __call__(self, sizes: Floats, caps: Floats) -> Floats:
        return self.factor * self.trial.response.times(sizes, caps, self.trial.chunks)


def _loss_of(rows: tuple[FitRow, ...], measured: Data) -> float:
    return loss(np.log([row.simulated / row.measured for row in rows]), measured.weights)


def _play(trial: CandidateFit, machine: MachineCollective, sweep: SweepTimes, predicted: Floats) -> tuple[FitRow, ...]:
    """Return measured and simulated times of a sweep; if too costly, most sizes take the `predicted` times [s]."""
    response, count = trial.response, len(sweep.rows)
    rows: dict[int, FitRow] = {}
    # `numbers` grows during the loop: the largest size comes first, and its number of transfers decides how many
    # further sizes can be simulated.
    numbers = [count - 1]
    for number in numbers:
        size, time = sweep.rows[number]
        timeline = played(response.cluster, sweep.operation, machine, size, sweep.dtype)
        rows[number] = FitRow(size, time, timeline.end)
        if number == count - 1:
            able = min(count, max(3, _MOST_TRANSFERS // max(1, len(timeline.logs[0]))))
            numbers += sorted({round(i * (count - 1) / (able - 1)) for i in range(able - 1)})
    unplayed = (number for number in range(count) if number not in rows)
    for number in unplayed:
        size, time = sweep.rows[number]
        rows[number] = FitRow(size, time, float(predicted[number]), False)
    return tuple(rows[number] for number in range(count))


def _machine(trial: CandidateFit, constants: Constants, sweep: SweepTimes) -> MachineCollective:
    """Return a trial's constants, rounded to four digits like in a topology file."""
    return replace(
        trial.response.machine(_rounded(constants.cap), trial.chunks),
        startup=_rounded(constants.startup),
        half_size=_rounded(constants.half_size),
        exponent=_rounded(constants.exponent),
        source=f"fitted to {sweep.source}",
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
