"""Which three constants make a framework predict a user's own measured runs?

A framework that was measured elsewhere, on other machines and versions, is off by much the same factors in all runs of
one cluster. Three numbers are fitted, each with a prior at the shipped value:

    kernel_time     factor on every kernel's duration            prior: a factor of 1.15 up or down (one sigma)
    network_time    factor on every transfer's duration          prior: a factor of 1.5 up or down
    issue           the host's time to launch a kernel           prior: a factor of 2 up or down

The numbers minimise the sum of squares of ln(measured / simulated) / s over the runs, and of the distances from the
priors in sigmas (maximum a posteriori, for normal errors): a single run cannot move three numbers far, and many runs
outweigh the priors. Derivatives come from differences at the shipped values, because times are nearly linear in the
constants; each later trial corrects the derivatives (Broyden) [1]_. The trial for the host is half as slow again, since
a step shows no host that is ahead of its GPU.

A run's own error s is 2 to 50 %: the value under which the measured runs are most probable, whatever the constants
(evidence) [2]_. Runs that the three numbers explain give a small s, and move the constants; runs that contradict each
other give a large s, and leave the constants near the priors. Each run is also predicted by a calibration to the other
runs, with the same s. If these predictions are worse than those of the shipped constants, the shipped constants stay.

Example: one run without exposed communication, measured 10 % slower than simulated. With s = 0.02, ln 1.1 = 0.095 is
split between `kernel_time` (sigma 0.14) and the run's own error as 0.14^2 to 0.02^2: `kernel_time` becomes
exp(0.095 x 0.0196 / 0.0200) = 1.098.

References
----------
.. [1] Broyden, "A class of methods for solving nonlinear simultaneous equations", 1965.
.. [2] MacKay, "Bayesian interpolation", Neural Computation 4, 1992, section 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.arrays import Floats
from simulator.basics.errors import ScenarioError
from simulator.calibration.training_runs.playing import play_rows
from simulator.calibration.training_runs.rows import Changes, MeasuredRow
from simulator.step.framework import Framework

# Relative errors of a run besides the constants that are tried. Repeated runs of one setting spread by 1 to 3 % in most
# sources; settings that are simulated differently well spread by up to 50 %.
_OWN_ERRORS: Final = (0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3, 0.5)
# Sigmas of the priors: of the logarithms of three factors, the last on the host's time (as in prediction_intervals.py).
_PRIOR: Final = (math.log(1.15), math.log(1.5), math.log(2.0))
# Distance of the trials for derivatives, in the same units.
_TRIAL: Final = (0.02, 0.05, math.log(1.5))
_ROUNDS: Final = 4
# A round that moves every constant by less than this many sigmas is the last.
_SETTLED: Final = 0.02
# Smallest and largest factors: a calibration beyond them would hide a wrong setting.
_MOST: Final = math.log(4.0)
# A run that is off by more than this after the calibration is unexplained.
UNEXPLAINED: Final = 0.1


@dataclass(frozen=True, slots=True)
class OwnFramework:
    """A framework calibrated to measured runs."""

    framework: Framework  # the framework with the fitted constants
    # `before`, `after`: ln(measured / simulated) of each run's step time, with the shipped constants and with the
    # fitted constants.
    before: tuple[float, ...]
    after: tuple[float, ...]
    # The same errors, each run predicted by a calibration to the other runs; empty for a single run
    without: tuple[float, ...]


def calibrated(
    rows: Sequence[MeasuredRow],
    framework: Framework,
    jobs: int = 1,
    advance: Callable[[], None] | None = None,
    changes: Changes = (),
) -> OwnFramework:
    """Return a framework calibrated to measured runs.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        The runs; all of one framework.
    framework : Framework
        The framework with its shipped constants.
    jobs : int
        Number of processes.
    advance : function, optional
        Called after each simulated step; there are at most `steps_simulated(len(rows))` of them.
    changes : Changes
        Changed constants of the GPUs.

    Raises
    ------
    ScenarioError
        The runs name several frameworks.
    """
    import numpy as np

    names = sorted({row.framework for row in rows})
    if len(names) != 1:
        raise ScenarioError(f"framework: got runs of {', '.join(names)}; calibrate one framework at a time")

    def errors(at: Floats) -> Floats:
        """Return ln(measured / simulated) of each run with constants at a distance `at` from the shipped values."""
        outcomes = play_rows(rows, {names[0]: _moved(framework, at)}, jobs, advance, changes)
        return np.log([outcome.row.step_time / outcome.step_time for outcome in outcomes])

    at = np.zeros(3)
    before = left = errors(at)
    trials = np.diag(_TRIAL)
    slopes = np.stack([(errors(trial) - left) / trial.sum() for trial in trials], axis=1)
    sigma = own_error(slopes, before)
    for _ in range(_ROUNDS):
        target = _within(_least(slopes, left - slopes @ at, sigma))
        moved = errors(target)
        # A step too far is halved once: times are convex in the constants.
        if _misfit(moved, target, sigma) > _misfit(left, at, sigma):
            target = _within((at + target) / 2)
            moved = errors(target)
        if _misfit(moved, target, sigma) > _misfit(left, at, sigma):
            break
        way = (target - at) / np.array(_PRIOR)
        settled = bool(np.all(np.abs(way) < _SETTLED))
        # Broyden: the smallest change of the slopes, in sigmas, that explains the errors found.
        if not settled:
            slopes += np.outer(moved - left - slopes @ (target - at), way / (way @ way) / np.array(_PRIOR))
        at, left = target, moved
        if settled:
            break
    # Linear around the solution, without each run in turn.
    without = _without(slopes, left - slopes @ at, sigma)
    if len(rows) > 1 and float(np.sum(without**2)) > float(np.sum(before**2)):
        at, left, without = np.zeros(3), before, before
    return OwnFramework(_moved(framework, at), tuple(before.tolist()), tuple(left.tolist()), tuple(without.tolist()))


def own_error(slopes: Floats, errors: Floats) -> float:
    """Return the standard deviation s of measured runs' errors that the three constants cannot explain.

    The errors are modelled as normal with mean 0 and covariance S P S^T + s^2 I: the constants, unknown with the
    priors' variances P (diagonal), act on the runs through the slopes S, and each run deviates by s besides. Of the
    values in `_OWN_ERRORS`, the one with the largest likelihood counts.

    Parameters
    ----------
    slopes : float array, shape (runs, 3)
        Derivatives of `errors` by the constants, in the units of `_PRIOR`.
    errors : float array, shape (runs,)
        ln(measured / simulated) of each run's step time, simulated with the framework's shipped constants.
    """
    import numpy as np

    by_constants = (slopes * np.array(_PRIOR) ** 2) @ slopes.T

    def evidence(sigma: float) -> float:
        """Return the logarithm of the errors' probability, up to a constant."""
        covariance = by_constants + sigma**2 * np.eye(len(errors))
        return -float(np.linalg.slogdet(covariance)[1] + errors @ np.linalg.solve(covariance, errors)) / 2

    return max(_OWN_ERRORS, key=evidence)


def _without(slopes: Floats, offset: Floats, sigma: float) -> Floats:
    """Return the error of each run, predicted by a calibration to the other runs; empty for a single run."""
    import numpy as np

    errors = []
    for place in range(len(offset)):
        rest = np.arange(len(offset)) != place
        if rest.any():
            errors.append(offset[place] + slopes[place] @ _within(_least(slopes[rest], offset[rest], sigma)))
    return np.array(errors)


def steps_simulated(rows: int) -> int:
    """Return the largest number of training steps that a calibration to this many runs simulates.

    >>> steps_simulated(10)
    120
    """
    # At the start, for each derivative, and in each round twice at most.
    return rows * (1 + len(_TRIAL) + 2 * _ROUNDS)


def _moved(framework: Framework, at: Floats) -> Framework:
    """Return a framework with its constants moved from the shipped values by the logarithms of three factors."""
    kernels, network, host = map(math.exp, at.tolist())
    return framework.with_constants(
        kernel_time=framework.kernel_time * kernels,
        network_time=framework.network_time * network,
        issue=framework.host.issue * host,
    )


def _within(at: Floats) -> Floats:
    """Return distances from the shipped values within the allowed range."""
    import numpy as np

    return np.clip(at, -_MOST, _MOST)


def _least(slopes: Floats, offset: Floats, sigma: float) -> Floats:
    """Return the x that minimise the squares of (offset + slopes x) / sigma and of x in the priors' sigmas."""
    import numpy as np

    matrix = slopes.T @ slopes / sigma**2 + np.diag(np.array(_PRIOR) ** -2.0)
    return np.asarray(np.linalg.solve(matrix, -(slopes.T @ offset) / sigma**2), np.float64)


def _misfit(errors: Floats, at: Floats, sigma: float) -> float:
    """Return the sum of squares that the calibration minimises: errors over `sigma`, the runs' own relative error, and
    the distances `at` of the constants from the shipped values over the widths of their priors.
    """
    import numpy as np

    return float(np.sum((errors / sigma) ** 2) + np.sum((at / np.array(_PRIOR)) ** 2))
