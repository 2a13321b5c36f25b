"""Which constants give the simulated kernels of a GPU the times of measured kernels?

The laws are fixed (`simulator.step.kernels`); only their constants are fitted, each kind of kernel to measured kernels
of its kind. This is the only module that needs scipy.

    tables -> measured rows -> fit() -> constants -> errors
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final, Protocol

from simulator.cluster.cluster import Gpu

# Bounds of constants by the end of their names: times [s], shares, an exponent, times of an exponential, and the
# decimal logarithm of a rate [B/s].
BOUNDS: Final[Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "prologue": (0.0, 3e-5),
        "efficiency": (0.1, 1.0),
        "overlap": (1.0, 8.0),
        "operand_rate": (12.5, 14.5),
        "softmax": (0.0, 4.0),
        "row": (0.0, 60e-9),
        "elementwise": (0.1, 1.0),
    }
)
_LOGARITHM: Final = "operand_rate"
# Weight of the 90 % quantile beside the median: most rows fit well, the odd choices of a library have no influence.
_WEIGHT: Final = 0.8
# Rounds of the search, and points in a round for each constant.
ROUNDS: Final = 40
_POINTS: Final = 8


class Timed(Protocol):
    """A measured kernel: its time, and its simulated time on a GPU."""

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        ...

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time [s]."""
        ...


def fit(
    tables: Sequence[Sequence[Timed]],
    gpu: Gpu,
    names: Sequence[str],
    *,
    bounds: Mapping[str, tuple[float, float]] = BOUNDS,
    rounds: int = ROUNDS,
    seed: int = 3,
    advance: Callable[[], None] | None = None,
) -> dict[str, float]:
    """Return the constants with which simulated times are closest to measured times.

    Parameters
    ----------
    tables : sequence of tables
        Measured kernels. Each table counts alike, whatever its number of rows.
    gpu : Gpu
        GPU with every other constant.
    names : sequence of str
        Constants to fit; the last word of a name determines its bounds.
    bounds : mapping, optional
        Least and largest value of each kind of constant.
    rounds, seed : int
        Rounds and seed of the search (differential evolution, Storn & Price 1997).
    advance : function, optional
        Called after each round; there are at most `rounds` of them.

    Notes
    -----
    The search minimises the sum over tables of median + 0.8 x 90 % quantile of |ln(simulated / measured)|.
    """
    import numpy as np
    from scipy.optimize import differential_evolution  # type: ignore[import-untyped]

    kinds = [next(kind for kind in bounds if name.endswith(kind)) for name in names]
    measured = [np.array([row.seconds for row in rows]) for rows in tables]

    def constants(values: Sequence[float]) -> dict[str, float]:
        return {
            name: float(10**value if kind == _LOGARITHM else value)
            for name, kind, value in zip(names, kinds, values, strict=True)
        }

    def loss(values: Sequence[float]) -> float:
        changed = with_constants(gpu, constants(values))
        total = 0.0
        for rows, seconds in zip(tables, measured, strict=True):
            off = np.abs(np.log(np.array([row.simulated(changed) for row in rows]) / seconds))
            total += float(np.median(off) + _WEIGHT * np.quantile(off, 0.9))
        return total

    callback = advance and (lambda *_, **__: advance())
    # No polishing: the loss has medians and is not smooth.
    best = differential_evolution(
        loss, [bounds[kind] for kind in kinds], maxiter=rounds, popsize=_POINTS, seed=seed, polish=False, tol=1e-6,
        callback=callback,
    )  # fmt: skip
    return constants(best.x)


def with_constants(gpu: Gpu, constants: Mapping[str, float]) -> Gpu:
    """Return a copy of a GPU in which kernel constants have other values."""
    return replace(gpu, facts={**gpu.facts, "constants": {**gpu.facts.get("constants", {}), **constants}})
