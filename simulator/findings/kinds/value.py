"""Which values does each setting reach, under the shown condition?"""

from __future__ import annotations

from simulator.findings.comparison import Comparison
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import clauses, predicates
from simulator.records.measures import for_reports
from simulator.records.setting_text import labelled
from simulator.scenario.answer_spec import FindingSpec

_NOUNS = {"collective": "collective", "training": "job"}
_USUAL = {"collective": ("time", "busbw"), "training": ("speed", "mfu")}


def find(compared: Comparison, asked: FindingSpec) -> FindingResult | None:
    """Return the finding on each setting's values of the measures; None if nothing was simulated."""
    condition = compared.shown_condition
    rows = compared.under(condition)
    reports = [row.report for row in rows if row.report is not None]
    measures = [for_reports(compared.measure(name), reports) for name in asked.of or _USUAL[compared.kind]]
    texts, numbers = [], []
    for row in rows:
        report = row.report or {}
        values = {measure.name: measure.value(report) for measure in measures}
        told = [
            (measure.verb, measure.text(value)) for measure in measures if (value := values[measure.name]) is not None
        ]
        lacks = "" if row.fits else ", but does not fit in memory"
        if told:
            texts.append((compared.name(row.setting), predicates(told) + lacks))
        numbers.append({"setting": dict(row.setting), "point": row.index, "fits": row.fits, **values})
    if not texts:
        return None
    where = labelled(condition)
    prefix = f"With {where}, " if where else ""
    # A single unnamed setting is called by its kind.
    if not rows[0].setting:
        texts = [(f"{'the' if where else 'The'} {_NOUNS[compared.kind]}", texts[0][1])]
    sentence = prefix + clauses(texts)
    return FindingResult(
        "value", (sentence,), {"condition": dict(condition), "values": numbers}, tuple(r.index for r in rows)
    )


FINDING = Finding("value", find)
