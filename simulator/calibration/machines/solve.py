"""Which start-up, cap, half size and exponent come nearest to measured times: a robust least-squares fit of logarithms.

Rule: numpy alone, and the same figures every time. A few outliers (sizes at which a library changes its protocol) have
little influence.

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
from simulator.cluster.cluster import PACKET

# Errors beyond this count by their size and no longer by its square, so that most rows decide and not the outliers.
_OUTLIER: Final = 0.02
# Weight of the prior, which decides where the rows leave a constant open; in rows that are off by an outlier's width.
_PRIOR_WEIGHT: Final = 0.3
_STEPS: Final = 120


@dataclass(frozen=True, slots=True)
class Constants:
    """What is solved for.

    Attributes
    ----------
    startup : float
        [s]
    cap : float
        [B/s]
    half_size : float
        [B]; 0: the cap does not depend on size.
    exponent : float
    """

    startup: float
    cap: float
    half_size: float
    exponent: float

    def caps(self, sizes: Floats) -> Floats:
        """The cap at each size [B/s]; as MachineCollective.factor says."""
        if self.half_size == 0.0:
            return np.full_like(sizes, self.cap)
        return np.asarray(self.cap / (1.0 + (self.half_size / np.maximum(sizes, PACKET)) ** self.exponent))


@dataclass(frozen=True, slots=True)
class Fading:
    """How the cap may depend on the size, and what is given: so how many constants there are to solve for.

    Attributes
    ----------
    allowed : bool
        Whether it may depend on it at all; without, 2 constants are solved for.
    exponent : float or None
        A given exponent (3 constants are solved for), or None to solve for it too (4).
    like : Constants or None
        Constants whose start-up and half size are taken: only the cap is solved for.
    """

    allowed: bool = True
    exponent: float | None = None
    like: Constants | None = None


FREE: Final = Fading()

Times = Callable[[Floats, Floats], Floats]
"""Sizes [B] and caps [B/s] to times without start-up [s]."""


@dataclass(frozen=True, slots=True)
class Data:
    """Measured sizes [B], times [s], and how much each counts."""

    sizes: Floats
    times: Floats
    weights: Floats


def solve(
    data: Data, times: Times, fastest: float, *, fading: Fading = FREE, start: Constants | None = None
) -> tuple[Constants, float]:
    """Find the constants that come nearest to the measured times.

    Parameters
    ----------
    data : Data
    times : function
    fastest : float
        The cap above which nothing changes any more [B/s].
    fading : Fading
    start : Constants, optional
        The only starting point; several are tried where it is left out.

    Returns
    -------
    tuple of Constants and float
        The loss is for comparing: the weighted mean of the errors, squared up to 2 % and straight beyond.
    """
    if len(data.sizes) < 6:  # four constants need some rows more than constants
        fading = Fading(allowed=False)
    firsts = [_packed(start, data, fastest)] if start else _starts(data, fastest)

    def constants(theta: Floats) -> Constants:
        return _unpacked(theta, data, fastest, fading)

    def residuals(theta: Floats) -> Floats:
        candidate = constants(theta)
        return np.log((candidate.startup + times(data.sizes, candidate.caps(data.sizes))) / data.times)

    best: tuple[float, Floats] | None = None
    for first in firsts:
        theta, cost = _descend(residuals, data.weights, first)
        if best is None or cost < best[0] - 1e-12:
            best = cost, theta
    if best is None:
        raise ValueError("nowhere to start")
    return constants(best[1]), loss(residuals(best[1]), data.weights)


def loss(residuals: Floats, weights: Floats) -> float:
    """Weighted mean over rows of the loss of log(simulated / measured)."""
    return _loss(residuals, weights) / float(weights.sum())


# theta, the vector that is solved for: startup, cap and half size as logarithms of multiples of what the data suggest,
# and the exponent, shifted and scaled. 0 is the centre of the prior.
def _unpacked(theta: Floats, data: Data, fastest: float, fading: Fading) -> Constants:
    exponent = float(np.clip(0.6 + 0.15 * theta[3], 0.2, 1.0)) if fading.exponent is None else fading.exponent
    if fading.like is not None:
        return Constants(fading.like.startup, _cap(theta, fastest), fading.like.half_size, exponent)
    startup = 0.5 * data.times.min() * float(np.exp(np.clip(theta[0], -12, 12)))
    half = 4e6 * float(np.exp(np.clip(theta[2], -20, 20))) if fading.allowed else 0.0
    return Constants(startup, _cap(theta, fastest), half, exponent)


def _cap(theta: Floats, fastest: float) -> float:
    return fastest / (1.0 + float(np.exp(np.clip(-theta[1], -30, 30))))


def _packed(constants: Constants, data: Data, fastest: float) -> Floats:
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


# Width of the prior for each theta: factors of e^0.7 around half of the shortest time for the start-up (sweeps that
# begin at large arrays leave it open), of e^2 for the cap, of e^3 for the half size; 0.15 for the exponent.
_WIDTH: Final = np.array([0.7, 2.0, 3.0, 1.0])


def _loss(residuals: Floats, weights: Floats) -> float:
    """Soft-L1: z^2 near 0, 2 |z| far off, z in outlier widths."""
    return float((weights * 2.0 * (np.sqrt(1.0 + (residuals / _OUTLIER) ** 2) - 1.0)).sum())


def _prior(theta: Floats) -> float:
    return float(_PRIOR_WEIGHT * ((theta / _WIDTH) ** 2).sum())


def _descend(residuals: Callable[[Floats], Floats], weights: Floats, first: Floats) -> tuple[Floats, float]:
    """Levenberg-Marquardt [1]_ on reweighted squares [2]_."""
    theta, damping = first.copy(), 1e-2
    now = residuals(theta)
    cost = _loss(now, weights) + _prior(theta)
    for _ in range(_STEPS):
        rows = _slopes(residuals, theta, now)
        scaled = now / _OUTLIER
        pull = weights / np.sqrt(1.0 + scaled**2)
        gradient = rows.T @ (pull * scaled) / _OUTLIER + _PRIOR_WEIGHT * theta / _WIDTH**2
        curvature = (rows.T * pull) @ rows / _OUTLIER**2 + np.diag(_PRIOR_WEIGHT / _WIDTH**2)
        step = np.linalg.solve(curvature + damping * np.diag(np.diag(curvature)), gradient)
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
    step = 1e-5
    columns = []
    for i in range(len(theta)):
        moved = theta.copy()
        moved[i] += step
        columns.append((residuals(moved) - now) / step)
    return np.stack(columns, axis=1)
