"""Which sentences precede changes from a reference point that does not fit in memory? Fitting points, then the lack."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.basics.counts import number_of
from simulator.findings.comparison import Comparison, Row
from simulator.findings.text import MOST_NAMED, clause, clauses, join_list, predicates
from simulator.records.measures import Measure
from simulator.records.memory_margin import margin_of


def unfit_references(
    compared: Comparison, references: Sequence[Row], rows: Sequence[Row], measures: Sequence[Measure]
) -> list[str]:
    """Return sentences if reference points do not fit in memory: the points that fit, best first; then by how much the
    references, and the other points, do not fit. Return no sentence if every reference fits, or if no point of the
    scenario fits, which the answer says itself.

    Parameters
    ----------
    references : sequence of Row
        Points from which changes are counted.
    rows : sequence of Row
        Points that are compared, the references included.
    measures : sequence of Measure
        Measures of the fitting points; the first decides which point is best.

    Examples
    --------
    "zero3 fits, takes 1.02 s and needs 60.9 GiB of peak memory"
    "ddp does not fit in 79.6 GiB (...): changes vs ddp compare with a step that cannot run"
    """
    lacking = [row for row in references if not row.fits]
    if not lacking or not any(row.fits for row in compared.rows):
        return []
    fitting = sorted((row for row in rows if row.fits), key=lambda row: measures[0].rank(row.report or {}))
    others = [row for row in rows if row.report is not None and not row.fits and row not in lacking]
    reached = [(compared.place(row), _reached(row, measures)) for row in fitting]
    names = join_list([compared.place(row) for row in lacking])
    lack, more = (
        [(compared.place(row), margin_of(row.report or {}).verdict) for row in group] for group in (lacking, others)
    )
    return [
        *([_first_clauses(reached, "fits")] if reached else []),
        f"{_first_clauses(lack, 'does not fit')}: changes vs {names} compare with a step that cannot run",
        *([_first_clauses(more, "does not fit")] if more else []),
    ]


def _first_clauses(texts: Sequence[tuple[str, str]], verb: str) -> str:
    """Return clauses of the first settings, from (name, predicate) pairs, and the number of further settings."""
    # Hiding a single setting would save nothing, hence the + 1.
    first = texts if len(texts) <= MOST_NAMED + 1 else texts[:MOST_NAMED]
    left = len(texts) - len(first)
    return clauses(first) + (f"; {clause(number_of(left, 'further setting'), verb)}" if left else "")


def _reached(row: Row, measures: Sequence[Measure]) -> str:
    """Return a predicate with a fitting point's values: "fits, takes 1.02 s and needs 60.9 GiB of peak memory"."""
    values = [(measure, measure.value(row.report or {})) for measure in measures]
    texts = [predicates([(measure.value_verb, measure.text(value))]) for measure, value in values if value is not None]
    return join_list(["fits", *texts])
