"""Which start-up, cap, half size and exponent fit measured times best? A robust least-squares fit of logarithms.

numpy only, and reproducible to the bit. A few outliers (sizes where a library changes its protocol) have little
influence.

The residual of a row is r = ln((startup + t(size, cap(size))) / measured), with cap(size) = cap / (1 +
(half_size / size)^exponent). The loss of a row is soft-L1: r^2 for small r, |r| for outliers. A weak prior decides
constants left open by the rows.

References
----------
.. [1] Levenberg, "A method for the solution of certain non-linear problems in least squares", 1944; Marquardt 1963.
.. [2] Holland & Welsch, "Robust regression using iteratively reweighted least-squares", 1977.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.cluster.library import PACKET

# Errors beyond this relative size count linearly instead of by their square: the majority decides, not the outliers.
_OUTLIER: Final = 0.02
# Weight of the prior, in units of a row with an error of _OUTLIER. It decides constants left open by the rows.
_PRIOR_WEIGHT: Final = 0.3
# Most iterations per starting point.
_STEPS: Final = 120


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants for a machine's collective, fitted to measured times."""

    startup: float  # start-up [s]
    cap: float  # rate for large arrays [B/s]
    half_size: float  # size at which the rate has dropped to half [B]; 0 if the cap does not depend on size
    exponent: float  # how steeply the rate drops

    def caps(self, sizes: Floats) -> Floats:
        """Return the rate cap at each array size [B/s], as in MachineCollective.factor."""
        if self.half_size == 0.0:
            return np.full_like(sizes, self.cap)
        return np.asarray(self.cap / (1.0 + (self.half_size / np.maximum(sizes, PACKET)) ** self.exponent))


@dataclass(frozen=True, slots=True)
class CapModel:
    """Ways in which the rate cap may depend on array size; determines the number of constants to fit."""

    allowed: bool = True  # whether the cap may depend on size; otherwise 2 constants are solved for
    # A given exponent (3 constants are solved for), or None to solve for the exponent too (4)
    exponent: float | None = None
    like: Constants | None = None  # constants with a given start-up and half size; only the cap is solved for (1)


FREE: Final = CapModel()

Times = Callable[[Floats, Floats], Floats]
"""Sizes [B] and caps [B/s] to times without start-up [s]."""


@dataclass(frozen=True, slots=True)
class Data:
    """Measured array sizes [B], times [s], and weights of a sweep."""

    sizes: Floats
    times: Floats
    weights: Floats


def solve(
    data: Data, times: Times, fastest: float, *, fading: CapModel = FREE, start: Constants | None = None
) -> tuple[Constants, float]:
    """Return the constants with which predicted times are closest to measured times, and the loss.

    Parameters
    ----------
    data : Data
        The measured sweep.
    times : function
        Predicted times.
    fastest : float
        Cap above which nothing changes any more [B/s].
    fading : CapModel
        Dependence of the cap on size.
    start : Constants, optional
        The only starting point; by default several are tried.

    Returns
    -------
    tuple of Constants and float
        The constants, and the loss: a weighted mean of errors, squared up to 2 % and linear beyond.
    """
    # Four constants need more than four rows; with few rows the cap is constant.
    if len(data.sizes) < 6:
        fading = CapModel(allowed=False)
    firsts = [_packed(start, data, fastest)] if start else _starts(data, fastest)

    def constants(theta: Floats) -> Constants:
        return _unpacked(theta, data, fastest, fading)

    def residuals(theta: Floats) -> Floats:
        candidate = constants(theta)
        return np.log((candidate.startup + times(data.sizes, candidate.caps(data.sizes))) / data.times)

    # The loss has several local minima; the margin makes ties go to the first starting point.
    best: tuple[float, Floats] | None = None
    for first in firsts:
        theta, cost = _descend(residuals, data.weights, first)
        if best is None or cost < best[0] - 1e-12:
            best = cost, theta
    if best is None:
        raise ValueError("nowhere to start")
    return constants(best[1]), loss(residuals(best[1]), data.weights)


def loss(residuals: Floats, weights: Floats) -> float:
    """Return the weighted mean of the soft-L1 loss over rows, from residuals ln(simulated / measured)."""
    return _loss(residuals, weights) / float(weights.sum())


# The solver works on a vector theta without bounds; the centre of the prior is theta = 0:
#
#     theta[0]   ln(startup / half of the shortest time)        startup > 0
#     theta[1]   ln(cap / (fastest - cap))                      0 < cap < fastest
#     theta[2]   ln(half_size / 4 MB)                           half_size > 0
#     theta[3]   (exponent - 0.6) / 0.15                        clipped to 0.2 .. 1
#
# Example: shortest time 20 us, fastest 450 GB/s. theta = (0, 0, 0, 0) is a start-up of 10 us, a cap of 225 GB/s, a half
# size of 4 MB and an exponent of 0.6.
def _unpacked(theta: Floats, data: Data, fastest: float, fading: CapModel) -> Constants:
    exponent = float(np.clip(0.6 + 0.15 * theta[3], 0.2, 1.0)) if fading.exponent is None else fading.exponent
    if fading.like is not None:
        return Constants(fading.like.startup, _cap(theta, fastest), fading.like.half_size, exponent)
    startup = 0.5 * data.times.min() * float(np.exp(np.clip(theta[0], -12, 12)))
    half = 4e6 * float(np.exp(np.clip(theta[2], -20, 20))) if fading.allowed else 0.0
    return Constants(startup, _cap(theta, fastest), half, exponent)


def _cap(theta: Floats, fastest: float) -> float:
    return fastest / (1.0 + float(np.exp(np.clip(-theta[1], -30, 30))))


def _packed(constants: Constants, data: Data, fastest: float) -> Floats:
    # Constants at a bound have no finite theta; they are moved inside a little.
    share = min(constants.cap / fastest, 1 - 1e-9)
    return np.array([
        np.log(max(constants.startup, 1e-12) / (0.5 * data.times.min())),
        np.log(share / (1.0 - share)),
        np.log(max(constants.half_size, 1e-2) / 4e6),
        (constants.exponent - 0.6) / 0.15,
    ])  # fmt: skip


def _starts(data: Data, fastest: float) -> list[Floats]:
    return [
        _packed(Constants(share * data.times.min(), cap * fastest, half, exponent), data, fastest)
        for share, cap in ((0.4, 0.7), (0.9, 0.3))
        for half, exponent in ((1e6, 0.5), (1e7, 0.6), (1e8, 0.8))
    ]


# Width of the prior for each theta: a factor e^0.7 for the start-up (sweeps with large arrays leave the start-up open),
# odds of e^2 for the cap, a factor e^3 for the half size, and 0.15 for the exponent.
_WIDTH: Final = np.array([0.7, 2.0, 3.0, 1.0])


def _loss(residuals: Floats, weights: Floats) -> float:
    """Return the weighted sum of the soft-L1 loss: z^2 near 0 and 2 |z| far away, with z in units of _OUTLIER."""
    return float((weights * 2.0 * (np.sqrt(1.0 + (residuals / _OUTLIER) ** 2) - 1.0)).sum())


def _prior(theta: Floats) -> float:
    return float(_PRIOR_WEIGHT * ((theta / _WIDTH) ** 2).sum())


def _descend(residuals: Callable[[Floats], Floats], weights: Floats, first: Floats) -> tuple[Floats, float]:
    """Return the parameters that minimise loss and prior from the start `first`, and the minimum.

    The method is Levenberg-Marquardt [1]_ on iteratively reweighted squares [2]_.
    """
    theta, damping = first.copy(), 1e-2
    now = residuals(theta)
    cost = _loss(now, weights) + _prior(theta)
    for _ in range(_STEPS):
        rows = _slopes(residuals, theta, now)
        scaled = now / _OUTLIER
        # Derivative of soft-L1: outliers get the weight 1 / sqrt(1 + z^2). Gradient and curvature are both halved.
        pull = weights / np.sqrt(1.0 + scaled**2)
        gradient = rows.T @ (pull * scaled) / _OUTLIER + _PRIOR_WEIGHT * theta / _WIDTH**2
        curvature = (rows.T * pull) @ rows / _OUTLIER**2 + np.diag(_PRIOR_WEIGHT / _WIDTH**2)
        # Damping turns the Newton step into a short gradient step where the quadratic model fails.
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
        # Accept the step only if the loss with prior falls; then trust the quadratic model more.
        tried = theta - step
        then = residuals(tried)
        gained = cost - (_loss(then, weights) + _prior(tried))
        if gained > 0:
            theta, now, cost, damping = tried, then, cost - gained, max(damping / 3, 1e-9)
            if gained < 1e-7 * cost:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return theta, cost


def _slopes(residuals: Callable[[Floats], Floats], theta: Floats, now: Floats) -> Floats:
    # Forward differences with a fixed step, because every theta has a similar scale.
    step = 1e-5
    columns = []
    for i in range(len(theta)):
        moved = theta.copy()
        moved[i] += step
        columns.append((residuals(moved) - now) / step)
    return np.stack(columns, axis=1)
