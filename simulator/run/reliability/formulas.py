"""How often should a training save, and how long does it take if machines fail? Formulas of Young and Daly.

The simulated answer is in renewal.py; the formulas stand beside it. They assume exponential failures, a save that stops
the work, and enough spare nodes.

Example: a failure in 24 hours, saves of 5 minutes, restarts of 10 minutes. Young: a save every 120 minutes; Daly: every
116.7 minutes; 91 % of the time is useful.

References
----------
.. [1] Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974.
.. [2] Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006.
"""

from __future__ import annotations

from math import exp, expm1, sqrt


def young_interval(save: float, between_failures: float) -> float:
    """Return Young's interval of work between saves, sqrt(2 save x between_failures) [s] [1]_.

    Parameters
    ----------
    save : float
        Time that a save stops the work [s].
    between_failures : float
        Mean time between failures of the job [s].

    Examples
    --------
    >>> round(young_interval(300, 24 * 3600) / 60, 1)
    120.0
    """
    return sqrt(2.0 * save * between_failures)


def daly_interval(save: float, between_failures: float) -> float:
    """Return Daly's interval of work between saves [s] [2]_, equation 37; see `young_interval`.

    >>> [round(daly_interval(300, hours * 3600) / 60, 1) for hours in (24, 6, 0.25)]
    [116.7, 56.7, 9.1]
    """
    if save >= 2.0 * between_failures:
        return between_failures
    ratio = save / (2.0 * between_failures)
    return young_interval(save, between_failures) * (1.0 + sqrt(ratio) / 3.0 + ratio / 9.0) - save


def wall_time(work: float, interval: float, save: float, between_failures: float, restart: float) -> float:
    """Return the expected time of `work` seconds of work with failures, saves and restarts [s] [2]_, equation 20.

    Failures are exponential and also strike during saves and restarts.

    Parameters
    ----------
    interval : float
        Work between saves [s].
    restart : float
        Time from a failure until the work goes on [s].

    Examples
    --------
    A failure in 24 hours, saves of 5 minutes every 120, restarts of 10: 91.3 % of the time is work.

    >>> round(1 / wall_time(1.0, 7200, 300, 24 * 3600, 600), 4)
    0.9126
    """
    mean = between_failures
    return mean * exp(restart / mean) * expm1((interval + save) / mean) * work / interval
