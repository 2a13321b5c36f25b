"""Do a framework's constants hold for rows that they were not fitted to, and is each of them needed?

Rule: fits again without some rows, or without one constant, and reports the errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from simulator.calibration.training_runs.fitting import LinearSystem, fit, kernel_time, linear, value
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.summary import Errors, errors, is_fitted
from simulator.step.framework import Framework

Fact = Literal["fused_loss", "stops_early"]
FACTS: Final[tuple[Fact, ...]] = get_args(Fact)


def fitted_system(outcomes: Sequence[PlayedRow], framework: Framework) -> LinearSystem:
    """The fitted rows among the outcomes as a linear system; raises ValueError where there are none."""
    fitted = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    if not fitted:
        raise ValueError("no row that constants are fitted to was played; play the foundry table")
    return linear(fitted, framework)


def left_out(system: LinearSystem) -> tuple[tuple[Errors, Errors], ...]:
    """For each model size, the errors of its rows when they are fitted with all others, and when they are kept back."""
    everything = fit(system)
    pairs = []
    for model in dict.fromkeys(row.model for row in system.rows):
        own = [row.model == model for row in system.rows]
        others = fit(system.where([not mine for mine in own]))
        rows = system.where(own)
        pairs.append((errors(model, rows.errors(everything)), errors(model, rows.errors(others))))
    return tuple(pairs)


def without_each(system: LinearSystem) -> tuple[Errors, ...]:
    """Errors with all constants, then without each, the others fitted again."""
    summaries = [errors("all constants", system.errors(fit(system)))]
    summaries += [errors(f"without {name}", system.errors(fit(system, name))) for name in system.names]
    return tuple(summaries)


def without_facts(outcomes: Sequence[PlayedRow], framework: Framework) -> tuple[Errors, ...]:
    """Errors without each known fact about how the framework computes, the constants fitted again."""
    played = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    summaries = []
    for name in FACTS:
        other = with_fact(framework, name)
        longer = [kernel_time(o.row, other) - kernel_time(o.row, framework) for o in played]
        moved = [replace(o, step_time=o.step_time + more) for o, more in zip(played, longer, strict=True)]
        system = linear(moved, other)
        summaries.append(errors(f"without {name}", system.errors(fit(system))))
    return tuple(summaries)


def without_any(system: LinearSystem, outcomes: Sequence[PlayedRow], framework: Framework) -> tuple[Errors, ...]:
    """Errors with all constants, then without each constant, then without each fact."""
    return (*without_each(system), *without_facts(outcomes, framework))


def with_fact(framework: Framework, name: Fact) -> Framework:
    """The framework as if a fact about it were not true."""
    return replace(framework, fused_loss=False) if name == "fused_loss" else replace(framework, stops_early=False)


def drift(system: LinearSystem, framework: Framework) -> dict[str, tuple[float, float]]:
    """Each constant as shipped, and as fitting again would give it."""
    refitted = fit(system)
    return {name: (value(framework, name), refitted[name]) for name in system.names}
