"""Which tables stand in docs/validation.md alone? Errors beside rules of thumb, and frameworks.

Tables that `simulator validate` prints too are in simulator/calibration/training_runs/validation_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from simulator.calibration.table import Table
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.summary import errors
from simulator.calibration.training_runs.validation_tables import error_cells
from simulator.step.framework import BARE, Framework
from tools.validation.rules_of_thumb import by_median, said

# Numbers and facts are told apart by type; a new constant of Framework is therefore included automatically.
_NUMBERS: Final = tuple(name for name, value in BARE.constants.items() if isinstance(value, float))
_FACTS: Final = tuple(name for name, value in BARE.constants.items() if name == "loss" or isinstance(value, bool))


def overview(
    outcomes: Sequence[PlayedRow],
    unseen: Sequence[PlayedRow],
    title: str,
    key: Callable[[PlayedRow], str],
) -> Table:
    """Return a table with step-time errors by `key`: as fitted, with the source unseen (cross-validation), by two rules
    of thumb.
    """
    # Needs every row at once: each row's rule is the median over its peers.
    median_rule = by_median(outcomes)
    parts: dict[str, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        parts.setdefault(key(outcome), []).append(place)
    rows = []
    for name, places in parts.items():
        found = error_cells(errors(name, [outcomes[place].time_error for place in places]))
        others = (
            [unseen[place].time_error for place in places],
            [said(outcomes[place].row) for place in places],
            [median_rule[place] for place in places],
        )
        rows.append((*found[:4], found[5], *(f"{errors(name, other).median:.1%}" for other in others)))
    head = (title, "rows", "median", "90 % below", "middle", "source unseen", "MFU as said", "MFU of such runs")
    return Table(f"error of a step's time by {title}, compared with rules of thumb", head, tuple(rows))


def of_frameworks(known: Mapping[str, Framework]) -> Table:
    """Return a table with each framework's own constants, how many were fitted to the framework's rows, and facts."""
    rows = []
    for name, framework in known.items():
        found = {n: framework.constants[n] for n in _NUMBERS if framework.constants[n]}
        sources = {key.rpartition(".")[2]: source for key, source in framework.facts.get("sources", {}).items()}
        # "as ..." marks a number taken over from another framework.
        fitted = sum("fitted to" in sources.get(n, "") and not sources[n].startswith("as ") for n in found)
        differing = {n: framework.constants[n] for n in _FACTS if framework.constants[n] != BARE.constants[n]}
        # A fact that bare kernels have and the framework lacks is named "not ...".
        facts = [f"{n} {fact}" if n == "loss" else n if fact else f"not {n}" for n, fact in differing.items()]
        rows.append(
            (name, ", ".join(f"`{n}` {value:.4g}" for n, value in found.items()), str(fitted), ", ".join(facts))
        )
    return Table("frameworks", ("framework", "numbers", "fitted to its rows", "facts"), tuple(rows))
