"""Which tables make up the validation of training steps? Errors by group, worst rows, constants, memory.

Figures come from simulated rows and from the fit; this module only formats them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from simulator.calibration.table import Table
from simulator.calibration.training_runs.ablation import FACTS, NUMBERS, AblationRow, behind
from simulator.calibration.training_runs.checks import drift, left_out, without_any
from simulator.calibration.training_runs.constants import counted
from simulator.calibration.training_runs.fitting import LinearSystem
from simulator.calibration.training_runs.kernel_checks import without_kernel_constants
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.ranking import choices
from simulator.calibration.training_runs.ranking import said as said_of_choices
from simulator.calibration.training_runs.rows import cluster_of
from simulator.calibration.training_runs.rules_of_thumb import by_median, said
from simulator.calibration.training_runs.summary import Errors, SourceErrors, by_group, errors, of_memory, worst
from simulator.step.framework import BARE, Framework

# llm-foundry's rows ran on these chips; refitting says nothing about the sustained load of other chips.
_OF_FOUNDRY: Final = ("sustained.H100", "sustained.A100")
# Rows with at most this many GPUs are simulated quickly; `behind` simulates a row some twenty times.
_FEW: Final = 64


def groups(outcomes: Sequence[PlayedRow]) -> Table:
    """Return a table with tokens/s errors for each group of rows."""
    head = ("tokens/s", "rows", "median", "90 % below", "bias", "middle")
    return Table("error of tokens/s by group (simulated / measured - 1)", head, tuple(map(_row, by_group(outcomes))))


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
        found = _row(errors(name, [outcomes[place].time_error for place in places]))
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
        found = {n: getattr(framework, n) for n in NUMBERS if getattr(framework, n)}
        sources = framework.facts.get("sources", {})
        # "as ..." marks a number taken over from another framework.
        fitted = sum("fitted to" in sources.get(n, "") and not sources[n].startswith("as ") for n in found)
        facts = [n for n in FACTS if getattr(framework, n) != getattr(BARE, n)]
        # A fact that bare kernels have and the framework lacks is named "not ...".
        facts = [n if getattr(framework, n) else f"not {n}" for n in facts]
        rows.append(
            (name, ", ".join(f"`{n}` {value:.4g}" for n, value in found.items()), str(fitted), ", ".join(facts))
        )
    return Table("frameworks", ("framework", "numbers", "fitted to its rows", "facts"), tuple(rows))


def sources(found: Sequence[SourceErrors], title: str = "source") -> Table:
    """Return a table with errors in step time and peak memory, with a line for each source (or other group)."""
    head = (title, "rows", "median", "90 % below", "bias", "with memory", "median", "90 % below", "bias", "do not fit")
    caption = f"error of a step's time, then of peak memory, by {title} (simulated / measured - 1)"
    return Table(caption, head, tuple(map(_source, found)))


def _source(found: SourceErrors) -> tuple[str, ...]:
    name, *time, _ = _row(found.time)
    _, *memory, _ = ("", "", "", "", "", "") if found.memory is None else _row(found.memory)
    return (name, *time, *memory, str(found.refused))


def _row(summary: Errors) -> tuple[str, ...]:
    return (
        summary.name,
        str(summary.count),
        f"{summary.median:.1%}",
        f"{summary.most:.1%}",
        f"{summary.bias:+.1%}",
        f"{summary.middle:+.1%}",
    )


def of_choices(outcomes: Sequence[PlayedRow]) -> Table | None:
    """Return a table that compares the run predicted to be fastest in each group with the measured fastest; None
    without groups.
    """
    found = choices(outcomes)
    rows = tuple(
        (one.name, str(one.runs), f"{one.behind:.1%}", "" if one.agreement is None else f"{one.agreement:.3f}")
        for one in found
    )
    head = ("runs with equal tokens per step", "runs", "behind the fastest", "rank correlation")
    return Table(f"predicted choice among measured runs: {said_of_choices(found)}", head, rows) if found else None


def memory(outcomes: Sequence[PlayedRow], table: str) -> Table | None:
    """Return a table with measured and simulated peak memory for the rows of a source; None without measured memory."""
    summary = of_memory(outcomes, table)
    if summary is None:
        return None
    rows = [
        (o.row.name, f"{o.row.peak / 2**30:.1f} GiB", f"{o.peak / 2**30:.1f} GiB", f"{o.memory_error:+.1%}")
        for o in outcomes
        if o.row.table == table and o.row.peak is not None and o.memory_error is not None
    ]
    return Table(
        f"peak memory under {table}: bias {summary.bias:+.1%}", ("row", "measured", "simulated", "error"), tuple(rows)
    )


def worst_rows(outcomes: Sequence[PlayedRow]) -> Table:
    """Return a table with ten rows with the largest tokens/s errors, with likely reasons."""
    rows = [(o.row.name, f"{o.error:+.1%}", why) for o, why in worst(outcomes)]
    return Table("the ten worst rows", ("row", "error", "likely reason"), tuple(rows))


def worst_steps(outcomes: Sequence[PlayedRow], count: int = 10) -> Table:
    """Return a table with `count` rows with the largest factor between simulated and measured step time."""
    # The logarithm makes half and twice the measured time count equally.
    ordered = sorted(outcomes, key=lambda o: -abs(math.log(o.step_time / o.row.step_time)))[:count]
    rows = [
        (o.row.name, o.row.table, f"{o.row.step_time:.3g} s", f"{o.step_time:.3g} s", f"{o.time_error:+.1%}")
        for o in ordered
    ]
    return Table(f"the {len(rows)} worst rows", ("row", "source", "measured", "simulated", "error"), tuple(rows))


def constants(known: Mapping[str, Framework], system: LinearSystem | None) -> Table:
    """Return a table with llm-foundry's constants, shipped and refitted; `of_frameworks` returns the remaining
    frameworks'.
    """
    refitted = drift(system, known["llm_foundry"]) if system is not None else {}
    framework, rows = known["llm_foundry"], []
    numbers = {
        **{f"sustained.{chip}": kept.time for chip, kept in framework.sustained.items()},
        **{n: getattr(framework, n) for n in ("attention_masked", "elementwise", "parameter_bytes")},
    }
    for constant, number in numbers.items():
        fitted = refitted.get(constant)
        other = constant.startswith("sustained.") and constant not in _OF_FOUNDRY
        rows.append((constant, f"{number:.4g}", "" if fitted is None or other else f"{fitted[1]:.4g}"))
    return Table("constants of chips, and of llm-foundry", ("constant", "shipped", "fitted again"), tuple(rows))


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
    head = ("source", "GPU", "row", "framework", "matmul table", "published", "guessed", "collectives", "together")
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


def kernels_removed(outcomes: Sequence[PlayedRow], framework: Framework, jobs: int = 2) -> Table:
    """Return a table with errors in the matmul table and in training rows, without each kernel constant."""
    rows = []
    for without in without_kernel_constants(outcomes, framework, jobs):
        tables = tuple(f"{100 * errors.median:.1f}, {100 * errors.most:.1f}" for errors in without.tables.values())
        rows.append((without.name, *tables, f"{100 * without.rows.median:.1f}, {100 * without.rows.most:.1f}"))
    head = ("constants of kernels", "table, bfloat16", "table, tf32", "table, fp8", "training rows")
    return Table("errors without each constant of the kernels: median and 90 % quantile, per cent", head, tuple(rows))


def kept_back(system: LinearSystem) -> Table:
    """Return a table for a cross-validation: errors of each model size, in the fit and excluded from the fit."""
    rows = [
        (one.name, str(one.count), f"{one.median:.1%}", f"{other.median:.1%}", f"{other.median - one.median:+.1%}")
        for one, other in left_out(system)
    ]
    head = ("excluded model", "rows", "median, fitted", "median, excluded", "difference")
    return Table("cross-validation: each model size excluded from the fit", head, tuple(rows))


def removed(system: LinearSystem, outcomes: Sequence[PlayedRow], framework: Framework) -> Table:
    """Return a table with errors without each constant or fact, the remaining constants fitted again."""
    head = ("constants", "rows", "median", "90 % below", "bias", "middle")
    summaries = without_any(system, outcomes, framework)
    return Table(
        "errors without each constant or fact, after a new fit of the remaining constants",
        head,
        tuple(map(_row, summaries)),
    )
