"""Do a framework's constants hold for rows outside the fit (cross-validation), and is each needed (ablation)?

Fits again without a model size, or without a constant, and reports the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from simulator.calibration.training_runs.fitting import LinearSystem, fit, kernel_time, linear, value
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.summary import Errors, errors, is_fitted
from simulator.step.framework import Framework

Fact = Literal["loss", "stops_early"]
FACTS: Final[tuple[Fact, ...]] = get_args(Fact)


def fitted_system(outcomes: Sequence[PlayedRow], framework: Framework) -> LinearSystem:
    """Return a linear system with the simulated rows used for fitting constants; raise ValueError without such rows."""
    fitted = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    if not fitted:
        raise ValueError("no simulated row belongs to the fit of the constants; simulate the foundry table")
    return linear(fitted, framework)


def left_out(system: LinearSystem) -> tuple[tuple[Errors, Errors], ...]:
    """Return for each model size the errors of its rows, with and without these rows in the fit (cross-validation)."""
    everything = fit(system)
    pairs = []
    for model in dict.fromkeys(row.model for row in system.rows):
        mask = [row.model == model for row in system.rows]
        # Rows with the same model size are similar: leaving out single rows would test too little.
        others = fit(system.where([not mine for mine in mask]))
        rows = system.where(mask)
        pairs.append((errors(model, rows.errors(everything)), errors(model, rows.errors(others))))
    return tuple(pairs)


def without_each(system: LinearSystem) -> tuple[Errors, ...]:
    """Return errors with every constant fitted, then without each constant, the rest fitted again."""
    summaries = [errors("all constants", system.errors(fit(system)))]
    summaries += [errors(f"without {name}", system.errors(fit(system, name))) for name in system.names]
    return tuple(summaries)


def without_facts(outcomes: Sequence[PlayedRow], framework: Framework) -> tuple[Errors, ...]:
    """Return errors without each known fact about the framework's computation, its constants fitted again."""
    runs = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    summaries = []
    for name in FACTS:
        other = with_fact(framework, name)
        # A fact changes kernel times only; moving each row by the change avoids simulating it again.
        longer = [kernel_time(o.row, other) - kernel_time(o.row, framework) for o in runs]
        moved = [replace(o, step_time=o.step_time + more) for o, more in zip(runs, longer, strict=True)]
        system = linear(moved, other)
        summaries.append(errors(f"without {name}", system.errors(fit(system))))
    return tuple(summaries)


def without_any(system: LinearSystem, outcomes: Sequence[PlayedRow], framework: Framework) -> tuple[Errors, ...]:
    """Return errors with every constant fitted, then without each constant, then without each fact."""
    return (*without_each(system), *without_facts(outcomes, framework))


def with_fact(framework: Framework, name: Fact) -> Framework:
    """Return the framework with PyTorch's loss, or with recompute that does not stop early."""
    return replace(framework, loss="separate") if name == "loss" else framework.with_constants(stops_early=False)


def drift(system: LinearSystem, framework: Framework) -> dict[str, tuple[float, float]]:
    """Return the shipped value and the refitted value of each constant in a linear system."""
    refitted = fit(system)
    return {name: (value(framework, name), refitted[name]) for name in system.names}
