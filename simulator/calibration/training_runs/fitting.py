"""Which constants make a framework's simulated training steps as fast as measured?

Kernel time is linear in the constants, therefore each row is an equation of a linear system. The system is solved in
relative errors, with little weight on outliers. Effects beyond kernels (communication, overlap, shared SMs) are taken
from the simulated outcome, and confirmed by simulating again.

    row i:    offset[i] + sum_j slopes[i, j] x constant[j]  =  1        (step time / measured step time)

Example: a step measured at 1.00 s is simulated at 1.10 s with `elementwise` 1.2; elementwise kernels take 0.36 s of
this. The slope is 0.36 / 1.2 = 0.3, the offset 1.10 - 0.36 = 0.74, and 0.74 + 0.3 x gives 1 for x = 0.87.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.arrays import Floats
from simulator.basics.dtypes import find
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import Changes, MeasuredRow, cluster_of, step_of
from simulator.step.framework import Framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import update_cost
from simulator.step.states import even_part, states
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.units import units

# Value without effect for each constant, and largest allowed value.
NEUTRAL: Final[Mapping[str, float]] = {
    "sustained.H100": 1.0,
    "sustained.A100": 1.0,
    "attention_masked": 0.0,
    "elementwise": 1.0,
    "parameter_bytes": 0.0,
}
_MOST: Final[Mapping[str, float]] = {"attention_masked": 1.0}
# Relative errors below this count by their square, larger errors by their size.
_KNEE: Final = 0.02
_ROUNDS: Final = 40


def value(framework: Framework, name: str) -> float:
    """Return the value of a framework's constant; "sustained.H100" names the slowdown of a chip."""
    head, _, chip = name.partition(".")
    return framework.sustained[chip].time if chip else float(framework.constants[head])


def with_values(framework: Framework, values: Mapping[str, float]) -> Framework:
    """Return a copy of a framework in which the named constants have new values."""
    loads = framework.sustained.items()
    sustained = {chip: replace(load, time=values.get(f"sustained.{chip}", load.time)) for chip, load in loads}
    plain = {name: number for name, number in values.items() if "." not in name}
    return framework.with_constants(sustained=sustained, **plain)


def kernel_time(row: MeasuredRow, framework: Framework, changes: Changes = ()) -> float:
    """Return a measured row's simulated kernel time in sequence, without communication [s]."""
    step = step_of(row, framework)
    gpu = cluster_of(row.gpu, row.gpus, changes, row.topology).gpus[0]
    parts = units(step, gpu, row.gpus)
    kinds = [span for unit in parts for span in (unit.forward, unit.backward, unit.recompute, unit.copies)]
    spans = [span for span in kinds if span is not None]
    elements = sum(unit.elements for unit in parts)
    # The update depends on the states that a rank owns.
    strategy = STRATEGIES.find(step.sharding.strategy)
    size = states(step, strategy.shards, strategy.updater, [even_part(elements, row.gpus)])
    timer = KernelTimer(gpu, step)
    # The gradient norm reads each updated gradient once.
    norm = timer.one_pass("norm", size.updated * find(step.precision.grads).itemsize, 0)
    update = update_cost(timer, size, sum(unit.tensors for unit in parts))
    micro = sum(span.alone for span in spans)
    return micro * row.accumulation + norm.alone + update.alone


@dataclass(frozen=True, slots=True)
class LinearSystem:
    """Measured rows as a linear system in the constants: relative time = offset + slopes x constants.

    Attributes
    ----------
    slopes : float array, shape (rows, names)
        Derivative of the relative time by each constant.
    offset : float array, shape (rows,)
        Relative time with every constant at 0.
    """

    rows: tuple[MeasuredRow, ...]  # measured rows
    names: tuple[str, ...]  # names of the constants
    slopes: Floats
    offset: Floats

    def errors(self, values: Mapping[str, float]) -> Floats:
        """Return each row's relative error in tokens/s under these constants: simulated / measured - 1."""
        import numpy as np

        # Relative time 1.1 means a tenth too slow, thus tokens/s of 1 / 1.1.
        times = self.offset + self.slopes @ np.array([values[name] for name in self.names])
        errors: Floats = 1.0 / times - 1.0
        return errors

    def where(self, selection: Sequence[bool]) -> LinearSystem:
        """Return the linear system for the rows selected by a boolean mask."""
        import numpy as np

        mask = np.array(selection)
        rows = tuple(row for row, keep in zip(self.rows, selection, strict=True) if keep)
        return replace(self, rows=rows, slopes=self.slopes[mask], offset=self.offset[mask])


def linear(
    outcomes: Sequence[PlayedRow],
    framework: Framework,
    names: Sequence[str] = tuple(NEUTRAL),
    changes: Changes = (),
) -> LinearSystem:
    """Return the linear system of measured rows that were simulated with this framework, in the constants `names`."""
    import numpy as np

    slopes = np.zeros((len(outcomes), len(names)))
    offset = np.zeros(len(outcomes))
    at = [value(framework, name) for name in names]
    for i, outcome in enumerate(outcomes):
        base = kernel_time(outcome.row, framework, changes)
        for j, name in enumerate(names):
            # Time is linear in the constant: the slope over any distance is exact except for rounding. The distance is
            # half of the constant's value.
            moved = with_values(framework, {name: at[j] * 0.5})
            slopes[i, j] = (base - kernel_time(outcome.row, moved, changes)) / (at[j] * 0.5) if at[j] else 0.0
        slopes[i] /= outcome.row.step_time
        offset[i] = outcome.step_time / outcome.row.step_time - slopes[i] @ np.array(at)
    return LinearSystem(tuple(outcome.row for outcome in outcomes), tuple(names), slopes, offset)


def fit(system: LinearSystem, removed: str | None = None) -> dict[str, float]:
    """Return the values of the constants that solve a linear system best: least squares with little weight on outliers,
    within bounds.

    Parameters
    ----------
    system : LinearSystem
        The rows.
    removed : str, optional
        Constant fixed at its neutral value.

    Returns
    -------
    dict of str to float
        Value of each constant.
    """
    import numpy as np

    fixed = {} if removed is None else {removed: NEUTRAL[removed]}
    for j, name in enumerate(system.names):
        if not np.any(system.slopes[:, j]):
            # No row has this chip.
            fixed[name] = NEUTRAL[name]
    # A constant beyond its bound is fixed at the bound, and the rest is solved again. Each round fixes at least one
    # constant, therefore the loop ends.
    while True:
        free = [name for name in system.names if name not in fixed]
        constants = fixed | _solved(system, free, fixed)
        bounded = {name: _bounded(name, constants[name]) for name in free}
        beyond = {name: number for name, number in bounded.items() if number != constants[name]}
        if not beyond:
            return {name: constants[name] for name in system.names}
        fixed |= beyond


def _bounded(name: str, number: float) -> float:
    # Factors on kernel times never speed kernels up.
    least = 1.0 if name.startswith("sustained") or name == "elementwise" else 0.0
    return min(max(number, least), _MOST.get(name, number if number > least else least))


def _solved(system: LinearSystem, free: Sequence[str], fixed: Mapping[str, float]) -> dict[str, float]:
    import numpy as np

    columns = [system.names.index(name) for name in free]
    explained = sum((system.slopes[:, system.names.index(n)] * v for n, v in fixed.items()), np.zeros(len(system.rows)))
    # Fixed constants move to the right-hand side.
    target = 1.0 - system.offset - explained
    matrix = system.slopes[:, columns]
    weights: Floats = np.ones(len(target))
    solution: Floats = np.zeros(len(free))
    for _ in range(_ROUNDS):
        solution = np.asarray(np.linalg.lstsq(matrix * weights[:, None], target * weights, rcond=None)[0], np.float64)
        # Weights (knee^2 + r^2)^(-1/4), applied to both sides: squares near 0, absolute errors beyond the knee.
        weights = (_KNEE**2 + (matrix @ solution - target) ** 2) ** -0.25
    return dict(zip(free, map(float, solution), strict=True))
