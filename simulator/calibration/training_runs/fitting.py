"""Which constants of a framework make played training steps as fast as measured ones?

Rule: the time of kernels is linear in the constants, so that each row is one equation of a linear system, solved in
relative errors with little weight on rows that are far off. What playing adds to kernels (communication, overlap,
shared SMs) is taken from the played outcome and confirmed by playing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.arrays import Floats
from simulator.basics.dtypes import find
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import Changes, MeasuredRow, cluster_of, step_of
from simulator.step.framework import Framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import update_cost
from simulator.step.states import states
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.units import units

if TYPE_CHECKING:
    pass


# The value at which a constant has no effect, and the largest that it may have.
NEUTRAL: Final[Mapping[str, float]] = {
    "sustained.H100": 1.0,
    "sustained.A100": 1.0,
    "attention_masked": 0.0,
    "elementwise": 1.0,
    "parameter_bytes": 0.0,
}
_MOST: Final[Mapping[str, float]] = {"attention_masked": 1.0}
# Errors below this count by their square, larger ones by their size [relative].
_KNEE: Final = 0.02
_ROUNDS: Final = 40


def value(framework: Framework, name: str) -> float:
    """A constant's number."""
    head, _, chip = name.partition(".")
    return framework.sustained[chip].time if chip else float(getattr(framework, head))


def with_values(framework: Framework, values: Mapping[str, float]) -> Framework:
    """A framework with other numbers."""
    sustained = dict(framework.sustained)
    plain: dict[str, Any] = {}
    for name, number in values.items():
        head, _, chip = name.partition(".")
        if chip:
            sustained[chip] = replace(sustained[chip], time=number)
        else:
            plain[head] = number
    return replace(framework, sustained=sustained, **plain)


def kernel_time(row: MeasuredRow, framework: Framework, changes: Changes = ()) -> float:
    """Time of a row's kernels one after the other, no communication [s]."""
    step = step_of(row, framework)
    gpu = cluster_of(row.gpu, row.gpus, changes, row.topology).gpus[0]
    parts = units(step, gpu, row.gpus)
    kinds = [span for unit in parts for span in (unit.forward, unit.backward, unit.recompute, unit.copies)]
    spans = [span for span in kinds if span is not None]
    elements = sum(unit.elements for unit in parts)
    strategy = STRATEGIES.find(step.sharding.strategy)
    held = states(step, strategy.shards, strategy.updater, [(elements, row.gpus)])
    timer = KernelTimer(gpu, step)
    norm = timer.one_pass("norm", held.updated * find(step.precision.grads).itemsize, 0)
    update = update_cost(timer, held, sum(unit.tensors for unit in parts))
    micro = sum(span.alone for span in spans)
    return micro * row.accumulation + norm.alone + update.alone


@dataclass(frozen=True, slots=True)
class LinearSystem:
    """Rows as a linear system: relative time = offset + slopes x constants.

    Attributes
    ----------
    rows : tuple of MeasuredRow
    names : tuple of str
    slopes : float array, shape (rows, names)
    offset : float array, shape (rows,)
    """

    rows: tuple[MeasuredRow, ...]
    names: tuple[str, ...]
    slopes: Floats
    offset: Floats

    def errors(self, values: Mapping[str, float]) -> Floats:
        """Errors of tokens/s: simulated / measured - 1."""
        import numpy as np

        times = self.offset + self.slopes @ np.array([values[name] for name in self.names])
        errors: Floats = 1.0 / times - 1.0
        return errors

    def where(self, chosen: Sequence[bool]) -> LinearSystem:
        """Some of the rows."""
        import numpy as np

        mask = np.array(chosen)
        rows = tuple(row for row, keep in zip(self.rows, chosen, strict=True) if keep)
        return replace(self, rows=rows, slopes=self.slopes[mask], offset=self.offset[mask])


def linear(
    outcomes: Sequence[PlayedRow],
    framework: Framework,
    names: Sequence[str] = tuple(NEUTRAL),
    changes: Changes = (),
) -> LinearSystem:
    """Make the system from rows that were played with this framework."""
    import numpy as np

    slopes = np.zeros((len(outcomes), len(names)))
    offset = np.zeros(len(outcomes))
    at = [value(framework, name) for name in names]
    for i, outcome in enumerate(outcomes):
        base = kernel_time(outcome.row, framework, changes)
        for j, name in enumerate(names):
            # Time is linear in the constant, so the slope over any distance is exact but for rounding; here over half
            # of the constant's value.
            moved = with_values(framework, {name: at[j] * 0.5})
            slopes[i, j] = (base - kernel_time(outcome.row, moved, changes)) / (at[j] * 0.5) if at[j] else 0.0
        slopes[i] /= outcome.row.step_time
        offset[i] = outcome.step_time / outcome.row.step_time - slopes[i] @ np.array(at)
    return LinearSystem(tuple(outcome.row for outcome in outcomes), tuple(names), slopes, offset)


def fit(system: LinearSystem, removed: str | None = None) -> dict[str, float]:
    """The constants with the smallest errors: least squares with less weight on rows that are far off, within bounds.

    Parameters
    ----------
    system : LinearSystem
    removed : str, optional
        A constant that stays at its neutral value.

    Returns
    -------
    dict of str to float
    """
    import numpy as np

    fixed = {} if removed is None else {removed: NEUTRAL[removed]}
    for j, name in enumerate(system.names):
        if not np.any(system.slopes[:, j]):
            fixed[name] = NEUTRAL[name]  # a chip that no row has
    # A constant that comes out beyond its bound is fixed there and the others are solved again. Each round fixes one at
    # least, so this ends.
    while True:
        free = [name for name in system.names if name not in fixed]
        constants = fixed | _solved(system, free, fixed)
        bounded = {name: _bounded(name, constants[name]) for name in free}
        beyond = {name: number for name, number in bounded.items() if number != constants[name]}
        if not beyond:
            return {name: constants[name] for name in system.names}
        fixed |= beyond


def _bounded(name: str, number: float) -> float:
    least = 1.0 if name.startswith("sustained") or name == "elementwise" else 0.0
    return min(max(number, least), _MOST.get(name, number if number > least else least))


def _solved(system: LinearSystem, free: Sequence[str], fixed: Mapping[str, float]) -> dict[str, float]:
    import numpy as np

    columns = [system.names.index(name) for name in free]
    explained = sum((system.slopes[:, system.names.index(n)] * v for n, v in fixed.items()), np.zeros(len(system.rows)))
    wanted = 1.0 - system.offset - explained
    matrix = system.slopes[:, columns]
    weights: Floats = np.ones(len(wanted))
    solution: Floats = np.zeros(len(free))
    for _ in range(_ROUNDS):
        solution = np.asarray(np.linalg.lstsq(matrix * weights[:, None], wanted * weights, rcond=None)[0], np.float64)
        weights = (_KNEE**2 + (matrix @ solution - wanted) ** 2) ** -0.25
    return dict(zip(free, map(float, solution), strict=True))
