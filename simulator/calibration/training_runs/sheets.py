"""Tables of the validation, for a terminal and for a page.

Rule: words and figures only; the same sheet is written both ways.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from simulator.calibration.training_runs.checks import drift, left_out, without_any
from simulator.calibration.training_runs.constants import counted
from simulator.calibration.training_runs.fitting import Linear
from simulator.calibration.training_runs.kernel_checks import without_kernel_constants
from simulator.calibration.training_runs.playing import Outcome
from simulator.calibration.training_runs.rows import cluster_of
from simulator.calibration.training_runs.summary import Errors, by_group, of_memory, worst
from simulator.step.framework import Framework


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table with a title; the first column is text, the others are figures unless they are text too."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Aligned with spaces."""
        lines = [self.head, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        left = [i == 0 or self.head[i].startswith("likely") for i in range(len(self.head))]
        told = [
            "  ".join(c.ljust(w) if at else c.rjust(w) for c, w, at in zip(line, widths, left, strict=True))
            for line in lines
        ]
        return "\n".join([self.title, *(f"  {line.rstrip()}" for line in told)])

    def markdown(self) -> str:
        """With pipes."""
        lines = ["| " + " | ".join(self.head) + " |", "|" + "---|" * len(self.head)]
        return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in self.rows)]) + "\n"


def groups(outcomes: Sequence[Outcome]) -> Sheet:
    """Errors of tokens/s by group."""
    head = ("tokens/s", "rows", "median", "90 % below", "bias", "middle")
    return Sheet("error of tokens/s by group (simulated / measured - 1)", head, tuple(map(_row, by_group(outcomes))))


def _row(found: Errors) -> tuple[str, ...]:
    return (
        found.name,
        str(found.count),
        f"{found.median:.1%}",
        f"{found.most:.1%}",
        f"{found.bias:+.1%}",
        f"{found.middle:+.1%}",
    )


def memory(outcomes: Sequence[Outcome], table: str) -> Sheet | None:
    """Peak memory where a part of the table has it."""
    summary = of_memory(outcomes, table)
    if summary is None:
        return None
    rows = [
        (o.row.name, f"{o.row.peak / 2**30:.1f} GiB", f"{o.peak / 2**30:.1f} GiB", f"{o.memory_error:+.1%}")
        for o in outcomes
        if o.row.table == table and o.row.peak is not None and o.memory_error is not None
    ]
    return Sheet(
        f"peak memory under {table}: bias {summary.bias:+.1%}", ("row", "measured", "simulated", "error"), tuple(rows)
    )


def steps(outcomes: Sequence[Outcome], table: str) -> Sheet:
    """Every row of a part of the table."""
    rows = [
        (o.row.name, f"{o.row.tokens_per_s:,.0f}", f"{o.tokens_per_s:,.0f}", f"{o.error:+.1%}")
        for o in outcomes
        if o.row.table == table
    ]
    return Sheet(f"tokens/s under {table}", ("row", "measured", "simulated", "error"), tuple(rows))


def worst_rows(outcomes: Sequence[Outcome]) -> Sheet:
    """The ten rows that are farthest off, with reasons."""
    rows = [(o.row.name, f"{o.error:+.1%}", why) for o, why in worst(outcomes)]
    return Sheet("the ten worst rows", ("row", "error", "likely reason"), tuple(rows))


def constants(known: Mapping[str, Framework], held: Linear | None) -> Sheet:
    """The frameworks' constants, and what fitting again would give."""
    again = drift(held, known["llm_foundry"]) if held is not None else {}
    rows = []
    for name, framework in known.items():
        numbers = {
            **{f"sustained.{chip}": kept.time for chip, kept in framework.sustained.items()},
            **{n: getattr(framework, n) for n in ("attention_masked", "elementwise", "parameter_bytes", "compiled")},
        }
        for constant, number in numbers.items():
            fitted = again.get(constant) if name == "llm_foundry" else None
            rows.append((f"{name} {constant}", f"{number:.4g}", "" if fitted is None else f"{fitted[1]:.4g}"))
    return Sheet("constants of frameworks", ("constant", "shipped", "fitted again"), tuple(rows))


def counts(known: Mapping[str, Framework]) -> Sheet:
    """How many constants stand behind a row, by origin, for the dtypes that rows of a GPU use."""
    rows = []
    for gpu, dtypes in (
        ("h100_sxm", ("bfloat16",)),
        ("h100_sxm", ("bfloat16", "float8_e4m3fn")),
        ("a100_sxm_80gb", ("bfloat16",)),
    ):
        found = counted(known["llm_foundry"], cluster_of(gpu, 8), dtypes)
        numbers = (*(str(len(names)) for names in found.values()), str(sum(map(len, found.values()))))
        rows.append((gpu, ", ".join(dtypes), *numbers))
    head = ("GPU", "dtypes", "training rows", "matmul table", "published", "guessed", "collectives", "together")
    return Sheet("number of constants behind a row", head, tuple(rows))


def kernels_removed(outcomes: Sequence[Outcome], framework: Framework, jobs: int = 2) -> Sheet:
    """One constant of the kernels taken away at a time: errors of the matmul table, and of training rows."""
    rows = []
    for found in without_kernel_constants(outcomes, framework, jobs):
        tables = tuple(f"{100 * one.median:.1f}, {100 * one.most:.1f}" for one in found.tables.values())
        rows.append((found.name, *tables, f"{100 * found.rows.median:.1f}, {100 * found.rows.most:.1f}"))
    head = ("constants of kernels", "table, bfloat16", "table, tf32", "table, fp8", "training rows")
    return Sheet("each constant of the kernels taken away: median and 90 % of errors, per cent", head, tuple(rows))


def kept_back(held: Linear) -> Sheet:
    """One model size left out of the fit at a time."""
    rows = [
        (one.name, str(one.count), f"{one.median:.1%}", f"{other.median:.1%}", f"{other.median - one.median:+.1%}")
        for one, other in left_out(held)
    ]
    head = ("model left out", "rows", "median, fitted", "median, kept back", "difference")
    return Sheet("each model size kept back from the fit", head, tuple(rows))


def removed(held: Linear, outcomes: Sequence[Outcome], framework: Framework) -> Sheet:
    """One constant or fact taken away at a time."""
    head = ("constants", "rows", "median", "90 % below", "bias", "middle")
    found = without_any(held, outcomes, framework)
    return Sheet("each constant or fact taken away, the others fitted again", head, tuple(map(_row, found)))
