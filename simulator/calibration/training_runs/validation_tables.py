"""Which tables make up the validation of training steps? Errors by group, worst rows, choices, memory.

Figures come from simulated rows; this module only formats them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.calibration.table import Table
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.ranking import choices, said
from simulator.calibration.training_runs.summary import Errors, SourceErrors, by_group, of_memory, worst


def groups(outcomes: Sequence[PlayedRow]) -> Table:
    """Return a table with tokens/s errors for each group of rows."""
    head = ("tokens/s", "rows", "median", "90 % below", "bias", "middle")
    return Table(
        "error of tokens/s by group (simulated / measured - 1)", head, tuple(map(error_cells, by_group(outcomes)))
    )


def sources(errors: Sequence[SourceErrors], title: str = "source") -> Table:
    """Return a table with errors in step time and peak memory, with a line for each source (or other group)."""
    head = (title, "rows", "median", "90 % below", "bias", "with memory", "median", "90 % below", "bias", "do not fit")
    caption = f"error of a step's time, then of peak memory, by {title} (simulated / measured - 1)"
    return Table(caption, head, tuple(map(_source, errors)))


def _source(errors: SourceErrors) -> tuple[str, ...]:
    name, *time, _ = error_cells(errors.time)
    _, *memory, _ = ("", "", "", "", "", "") if errors.memory is None else error_cells(errors.memory)
    return (name, *time, *memory, str(errors.refused))


def error_cells(summary: Errors) -> tuple[str, ...]:
    """Return the cells of a table for errors: name, number of rows, median, 90 % quantile, bias, middle."""
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
    rankings = choices(outcomes)
    rows = tuple(
        (row.name, str(row.runs), f"{row.behind:.1%}", "" if row.agreement is None else f"{row.agreement:.3f}")
        for row in rankings
    )
    head = ("runs with equal tokens per step", "runs", "behind the fastest", "rank correlation")
    return Table(f"predicted choice among measured runs: {said(rankings)}", head, rows) if rankings else None


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
