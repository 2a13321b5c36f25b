"""Which tables stand in docs/validation.md alone? Rules of thumb, frameworks, constants behind a row, ablations.

Tables that `simulator validate` prints too are in simulator/calibration/training_runs/validation_tables.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from simulator.calibration.table import Table
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.rows import cluster_of
from simulator.calibration.training_runs.summary import errors
from simulator.calibration.training_runs.validation_tables import error_cells
from simulator.step.framework import BARE, Framework
from tools.validation.ablation import FACTS, NUMBERS, AblationRow, behind
from tools.validation.constants import counted
from tools.validation.rules_of_thumb import by_median, said

# Rows with at most this many GPUs are simulated quickly; `behind` simulates a row some twenty times.
_FEW: Final = 64


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
        found = {n: framework.constants[n] for n in NUMBERS if framework.constants[n]}
        sources = {key.rpartition(".")[2]: source for key, source in framework.facts.get("sources", {}).items()}
        # "as ..." marks a number taken over from another framework.
        fitted = sum("fitted to" in sources.get(n, "") and not sources[n].startswith("as ") for n in found)
        differing = {n: framework.constants[n] for n in FACTS if framework.constants[n] != BARE.constants[n]}
        # A fact that bare kernels have and the framework lacks is named "not ...".
        facts = [f"{n} {fact}" if n == "loss" else n if fact else f"not {n}" for n, fact in differing.items()]
        rows.append(
            (name, ", ".join(f"`{n}` {value:.4g}" for n, value in found.items()), str(fitted), ", ".join(facts))
        )
    return Table("frameworks", ("framework", "numbers", "fitted to its rows", "facts"), tuple(rows))


def counts(outcomes: Sequence[PlayedRow], known: Mapping[str, Framework]) -> Table:
    """Return a table with the number of constants on which a row's time depends, by origin; one typical row for each
    source, GPU and precision.
    """
    rows = []
    kinds: dict[tuple[str, str, bool], list[PlayedRow]] = {}
    for outcome in outcomes:
        kinds.setdefault((outcome.row.table, outcome.row.gpu, outcome.row.eight_bit), []).append(outcome)
    for (table, gpu, eight_bit), alike in kinds.items():
        few = [outcome for outcome in alike if outcome.row.gpus <= _FEW]
        few = few or [min(alike, key=lambda outcome: outcome.row.gpus)]
        # The row with the median step time.
        row = sorted(few, key=lambda outcome: outcome.row.step_time)[len(few) // 2].row
        framework = known[row.framework]
        dtypes = ("bfloat16", "float8_e4m3fn") if eight_bit else ("bfloat16",)
        by_origin = counted(*behind(row, framework), cluster_of(row.gpu, 1).gpus[0], dtypes)
        numbers = (*(str(len(names)) for names in by_origin.values()), str(sum(map(len, by_origin.values()))))
        rows.append((f"{table}{', eight bits' * eight_bit}", gpu, row.name, *numbers))
    head = ("source", "GPU", "row", "framework", "kernels", "published", "guessed", "collectives", "together")
    return Table("number of constants behind a row", head, tuple(rows))


def ablated(taken: Iterable[AblationRow]) -> Table:
    """Return a table with errors without each constant and fact of each framework."""
    rows = [
        (
            one.framework if not one.what else "", one.what or "as it is", str(one.time.count),
            f"{one.time.median:.1%}", f"{one.time.most:.1%}", f"{one.time.middle:+.1%}",
            "" if one.memory is None else f"{one.memory.median:.1%}",
        )
        for one in taken
    ]  # fmt: skip
    head = ("framework", "without", "rows", "time: median", "90 % below", "middle", "memory: median")
    return Table("errors without each number and fact of the frameworks", head, tuple(rows))
