"""From foreseen to played: solve, play every size, correct, and solve again.

Rule: the engine has the last word. Like rehearsing with the orchestra after practising alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.calibration.machines.records import FitRow, Tried
from simulator.calibration.machines.response import played
from simulator.calibration.machines.solve import Constants, Data, loss, solve
from simulator.calibration.machines.sweep import Sweep
from simulator.calibration.machines.trials import Trial, data, judged
from simulator.cluster.cluster import MachineCollective

_ROUNDS: Final = 5
# A round that changes the loss by less than this part is the last.
_SETTLED: Final = 0.01
# Transfers that are played in one round; where one size has many, only some sizes are played, the others foreseen.
_MOST_TRANSFERS: Final = 200_000


@dataclass(frozen=True, slots=True)
class Refined:
    """Rounded constants and what they give when played."""

    machine: MachineCollective
    rows: tuple[FitRow, ...]
    tried: Tried


def refined(trial: Trial, sweep: Sweep) -> Refined:
    """Play a trial's constants and mend them; the best of a few rounds."""
    measured, found = data(sweep), trial.constants
    factor = np.ones_like(measured.sizes)
    rounds: list[Refined] = []
    for number in range(_ROUNDS):
        if number:
            found, _ = solve(
                measured, _Corrected(trial, factor), trial.response.fastest, fading=trial.fading, start=found
            )
        machine = _machine(trial, found, sweep)
        bare = trial.response.times(measured.sizes, found.caps(measured.sizes), trial.chunks)
        rows = _play(trial, machine, sweep, machine.startup + factor * bare)
        factor = np.array([row.simulated - machine.startup for row in rows]) / bare
        rounds.append(Refined(machine, rows, judged(machine.algorithm, trial.chunks, rows, _lost(rows, measured))))
        if number and abs(rounds[-1].tried.loss / rounds[-2].tried.loss - 1.0) < _SETTLED:
            break
    return min(rounds, key=lambda one: one.tried.loss)


@dataclass(frozen=True, slots=True)
class _Corrected:
    """Foreseen times, each size corrected by what its last play showed."""

    trial: Trial
    factor: Floats

    def __call__(self, sizes: Floats, caps: Floats) -> Floats:
        return self.factor * self.trial.response.times(sizes, caps, self.trial.chunks)


def _lost(rows: tuple[FitRow, ...], measured: Data) -> float:
    return loss(np.log([row.simulated / row.measured for row in rows]), measured.weights)


def _play(trial: Trial, machine: MachineCollective, sweep: Sweep, foreseen: Floats) -> tuple[FitRow, ...]:
    """Play every size; of a costly play the largest, the smallest and some between."""
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
        rows[number] = FitRow(size, time, float(foreseen[number]), False)
    return tuple(rows[number] for number in range(count))


def _machine(trial: Trial, found: Constants, sweep: Sweep) -> MachineCollective:
    """The constants with four digits, as they go into a file."""
    return replace(
        trial.response.machine(_rounded(found.cap), trial.chunks),
        startup=_rounded(found.startup),
        half_size=_rounded(found.half_size),
        exponent=_rounded(found.exponent),
        source=f"fitted to {sweep.source}",
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
