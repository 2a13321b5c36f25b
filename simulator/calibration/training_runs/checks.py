"""Do the constants hold where they were not fitted, and is each of them needed?

Rule: fits again with something taken away, and looks at what was kept back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Literal, get_args

from simulator.calibration.training_runs.fitting import Linear, fit, kernel_time, linear, value
from simulator.calibration.training_runs.playing import Outcome
from simulator.calibration.training_runs.summary import Errors, errors, is_fitted
from simulator.step.framework import Framework

Fact = Literal["fused_loss", "stops_early"]
FACTS: Final[tuple[Fact, ...]] = get_args(Fact)


def system(outcomes: Sequence[Outcome], framework: Framework) -> Linear:
    """The fitted rows among the outcomes as a linear system; raises ValueError where there are none."""
    found = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    if not found:
        raise ValueError("no row that constants are fitted to was played; play the foundry table")
    return linear(found, framework)


def left_out(held: Linear) -> tuple[tuple[Errors, Errors], ...]:
    """For each model: its errors when it is fitted with all others, and when it is kept back."""
    everything = fit(held)
    found = []
    for model in dict.fromkeys(row.model for row in held.rows):
        own = [row.model == model for row in held.rows]
        others = fit(held.where([not mine for mine in own]))
        rows = held.where(own)
        found.append((errors(model, rows.errors(everything)), errors(model, rows.errors(others))))
    return tuple(found)


def without_each(held: Linear) -> tuple[Errors, ...]:
    """Errors with all constants, then without each, the others fitted again."""
    found = [errors("all constants", held.errors(fit(held)))]
    found += [errors(f"without {name}", held.errors(fit(held, name))) for name in held.names]
    return tuple(found)


def without_facts(outcomes: Sequence[Outcome], framework: Framework) -> tuple[Errors, ...]:
    """Errors where the framework is taken to compute otherwise than it is known to, the constants fitted again."""
    played = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    found = []
    for name in FACTS:
        other = with_fact(framework, name)
        longer = [kernel_time(o.row, other) - kernel_time(o.row, framework) for o in played]
        moved = [replace(o, step_time=o.step_time + more) for o, more in zip(played, longer, strict=True)]
        held = linear(moved, other)
        found.append(errors(f"without {name}", held.errors(fit(held))))
    return tuple(found)


def without_any(held: Linear, outcomes: Sequence[Outcome], framework: Framework) -> tuple[Errors, ...]:
    """Errors with all constants, then without each constant, then without each fact."""
    return (*without_each(held), *without_facts(outcomes, framework))


def with_fact(framework: Framework, name: Fact) -> Framework:
    """A framework of which a fact is not true."""
    return replace(framework, fused_loss=False) if name == "fused_loss" else replace(framework, stops_early=False)


def drift(held: Linear, framework: Framework) -> dict[str, tuple[float, float]]:
    """Each constant as shipped, and as fitting again would give it."""
    again = fit(held)
    return {name: (value(framework, name), again[name]) for name in held.names}
