"""Which algorithms may a measured machine have run, and which constants does each need? By predicted times.

Times are predicted from a few simulations (time_model.py); refine.py then simulates the best trials at every size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Final

import numpy as np

from simulator.basics.errors import ScenarioError
from simulator.calibration.machines.limiting_links import bounds
from simulator.calibration.machines.measured_sweep import SweepTimes
from simulator.calibration.machines.records import BEST_SHARE, LARGE, FitRow, TrialSummary, large
from simulator.calibration.machines.solve import FREE, CapModel, Constants, Data, solve
from simulator.calibration.machines.time_model import TimeModel
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS

# Algorithms used by communication libraries, most likely first. Switches add if they can. Over nodes, overlapping
# stages come close to NCCL's trees and rings.
_PREFERRED: Final = ("nvls", "ring", "double_binary_tree", "direct", "tree", "chain", "halving_doubling")
_OVER_NODES: Final = ("nvls", "blueconnect", "multi_ring", "double_binary_tree", "ring", "direct", "tree", "chain")
# Numbers of pieces to try, for algorithms that add up within nodes in stages that can overlap.
_CUTS: Final = (8, 4, 16)
# Algorithms slower than this, relative to the measured time of the largest array and without any cap, were not run by
# the machine.
_TOO_SLOW: Final = 1.1
# Weight of rows below 1 MiB, which determine little except the start-up.
_SMALL_WEIGHT: Final = 0.25


@dataclass(frozen=True, slots=True)
class CandidateFit:
    """An algorithm for a measured collective with a number of pieces, and its fitted constants."""

    response: TimeModel
    chunks: int | None
    constants: Constants
    summary: TrialSummary
    fading: CapModel = FREE


def candidate_fits(
    cluster: Cluster, sweep: SweepTimes, algorithm: str | None, fading: CapModel = FREE
) -> tuple[list[CandidateFit], list[TrialSummary]]:
    """Fit constants to a measured sweep for every algorithm that can perform the operation, by preference.

    Returns
    -------
    list of CandidateFit
        Solved algorithms.
    list of TrialSummary
        Algorithms that are too slow. An algorithm that needs more of a link than any library reaches (BEST_SHARE)
        counts as too slow, unless every algorithm does.

    Raises
    ------
    ScenarioError
        The given algorithm does not have this operation, or cannot perform it here.
    """
    solved: list[CandidateFit] = []
    too_slow: list[TrialSummary] = []
    for name in _names(cluster, sweep, algorithm):
        staged = sweep.operation == "all_reduce" and name in ("nvls", "blueconnect") and len(cluster.nodes) > 1
        cuts: tuple[int | None, ...] = _CUTS if staged else (None,)
        try:
            # With the most pieces, stages overlap best, and the estimate is fastest.
            limits = bounds(cluster, sweep, name, pieces=cuts[-1])
        except ScenarioError:
            # The user's algorithm gets the error; any other algorithm is skipped.
            if algorithm is not None:
                raise
            continue
        if limits.time > _TOO_SLOW * sweep.rows[-1][1]:
            too_slow.append(TrialSummary(name, None, float("inf"), limits.time / sweep.rows[-1][1] - 1.0, float("inf")))
            continue
        # Simulations are cached in the response and shared by every number of pieces.
        response = TimeModel(cluster, sweep.operation, name, sweep.dtype, limits.limit, limits.fastest)
        solved += [_trial(response, sweep, chunks, fading) for chunks in cuts]
    able = [trial for trial in solved if trial.summary.share <= BEST_SHARE]
    return able or solved, too_slow + [trial.summary for trial in solved if able and trial.summary.share > BEST_SHARE]


def data(sweep: SweepTimes) -> Data:
    """Return a measured sweep as arrays: sizes, times and weights; small arrays have little weight."""
    sizes = np.array([size for size, _ in sweep.rows], np.float64)
    times = np.array([time for _, time in sweep.rows])
    # A sweep of small arrays only gets full weights.
    weights = np.where((sizes >= LARGE) | (sizes.max() < LARGE), 1.0, _SMALL_WEIGHT)
    return Data(sizes, times, weights)


def summarize_trial(algorithm: str, chunks: int | None, rows: tuple[FitRow, ...], loss: float) -> TrialSummary:
    """Return the summary of a tried algorithm from its rows: median error from 1 MiB on, and the error at the largest
    size.
    """
    return TrialSummary(algorithm, chunks, median(abs(row.error) for row in large(rows)), rows[-1].error, loss)


def _names(cluster: Cluster, sweep: SweepTimes, algorithm: str | None) -> list[str]:
    if algorithm is not None:
        if sweep.operation not in ALGORITHMS.find(algorithm).plans:
            able = ", ".join(ALGORITHMS.operations(algorithm))
            raise ScenarioError(
                f"algorithm: got {algorithm!r}, which has no {sweep.operation}; its operations are {able}"
            )
        return [algorithm]
    candidates = _PREFERRED if len(cluster.nodes) < 2 else _OVER_NODES
    return [name for name in candidates if sweep.operation in ALGORITHMS.find(name).plans]


def _trial(response: TimeModel, sweep: SweepTimes, chunks: int | None, fading: CapModel) -> CandidateFit:
    measured = data(sweep)
    predicted = partial(response.times, chunks=chunks)
    constants, loss = solve(measured, predicted, response.fastest, fading=fading)
    times = constants.startup + response.times(measured.sizes, constants.caps(measured.sizes), chunks)
    rows = tuple(FitRow(size, time, float(x), False) for (size, time), x in zip(sweep.rows, times, strict=True))
    summary = summarize_trial(response.algorithm, chunks, rows, loss)
    # Cards between nodes do reach nearly all of their rating; only links inside a node have this bound.
    if response.limit == "inside":
        summary = replace(summary, share=constants.cap / response.fastest)
    return CandidateFit(response, chunks, constants, summary, fading)
