"""Which values does each setting reach, under the shown condition?"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.basics.counts import number_of
from simulator.findings.comparison import Comparison, Row
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import MOST_NAMED, clause, clauses, predicates
from simulator.records.measures import Measure, for_reports
from simulator.scenario.answer_spec import FindingSpec

_NOUNS = {"collective": "collective", "training": "job"}
# With more settings than this, or more values in all, only the best settings are named.
_MOST_LISTED = 4
_MOST_VALUES = 12
_USUAL = {"collective": ("time", "busbw"), "training": ("speed", "mfu", "time")}
# What stands behind a value: what a time is the time of.
_BEHIND = {("training", "time"): " a step"}


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on each setting's values of the measures; None if nothing was simulated."""
    condition = compared.shown_condition
    rows: Sequence[Row] = compared.under(condition)
    reports = [row.report for row in rows if row.report is not None]
    measures = [for_reports(compared.measure(name), reports) for name in request.of or _USUAL[compared.kind]]
    # Settings that do not fit come last, behind the best settings.
    if not all(row.fits for row in rows):
        rows = sorted(rows, key=lambda row: (not row.fits, measures[0].rank(row.report or {})))
    texts, numbers, ranked = [], [], []
    for row in rows:
        report = row.report or {}
        values = {measure.name: measure.value(report) for measure in measures}
        pairs = [
            (measure.value_verb, measure.text(value) + _BEHIND.get((compared.kind, measure.name), ""))
            for measure in measures
            if (value := values[measure.name]) is not None
        ]
        lacks = "" if row.fits else ", but does not fit in memory"
        if pairs:
            texts.append((compared.name(row.setting), predicates(pairs) + lacks))
            ranked.append((row.fits, values[measures[0].name], texts[-1]))
        numbers.append({"setting": dict(row.setting), "point": row.index, "fits": row.fits, **values})
    if not texts:
        return None
    where = compared.where(condition)
    prefix = f"With {where}, " if where else ""
    # A single unnamed setting is called by its kind.
    if not rows[0].setting:
        texts = [(f"{'the' if where else 'The'} {_NOUNS[compared.kind]}", texts[0][1])]
    different = len({text for _, text in texts})
    short = different <= _MOST_LISTED and different * len(measures) <= _MOST_VALUES
    sentence = prefix + (clauses(texts) if short else _best_few(measures[0], ranked))
    return FindingResult(
        "value", (sentence,), {"condition": dict(condition), "values": numbers}, tuple(r.index for r in rows)
    )


def _best_few(measure: Measure, ranked: Sequence[tuple[bool, float | None, tuple[str, str]]]) -> str:
    """Return clauses of the best settings by a measure, and the range of the other settings' values.

    Parameters
    ----------
    ranked : sequence of (fits, value of the measure or None, (name, predicate))
        The settings; settings that do not fit in memory, or have no value, come last.
    """
    sign = 1 if measure.best == "least" else -1
    order = sorted(ranked, key=lambda entry: (not entry[0], entry[1] is None, sign * (entry[1] or 0.0)))
    best = clauses([text for *_, text in order[:MOST_NAMED]])
    behind = [value for _, value, _ in order[MOST_NAMED:] if value is not None]
    short = sum(not fits for fits, *_ in order[MOST_NAMED:])
    if not behind:
        return best
    ends = " to ".join(measure.amount_text(pick(behind)) for pick in (min, max))
    others = clause(f"{number_of(len(behind), 'further setting')}", f"{measure.value_verb} {ends}")
    return f"{best}; {others}" + (
        f" ({short} of them {'does' if short == 1 else 'do'} not fit in memory)" if short else ""
    )


FINDING = Finding("value", find)
