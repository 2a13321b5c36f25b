"""Which values does each setting reach, under the shown condition?"""

from __future__ import annotations

from simulator.findings.comparison import Comparison
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import joined
from simulator.records.measures import for_reports
from simulator.records.setting_text import labelled
from simulator.scenario.answer_spec import FindingSpec

_USUAL = {"collective": ("time", "busbw"), "training": ("speed", "mfu")}


def find(compared: Comparison, asked: FindingSpec) -> FindingResult | None:
    """Report values; None if nothing was simulated."""
    condition = compared.shown_condition
    rows = compared.under(condition)
    reports = [row.report for row in rows if row.report is not None]
    measures = [for_reports(compared.measure(name), reports) for name in asked.of or _USUAL[compared.kind]]
    texts, numbers = [], []
    for row in rows:
        report = row.report or {}
        values = {measure.name: measure.value(report) for measure in measures}
        told = [measure.text(value) for measure in measures if (value := values[measure.name]) is not None]
        lacks = "" if row.fits else ", does not fit"
        texts.append((compared.name(row.setting), ", ".join(told) + lacks))
        numbers.append({"setting": dict(row.setting), "point": row.index, "fits": row.fits, **values})
    if not texts:
        return None
    where = labelled(condition)
    prefix = f"{where}: " if where else ""
    # A single unnamed setting: the values alone, without "reaches".
    alone = len(texts) == 1 and not rows[0].setting
    sentence = prefix + (texts[0][1] if alone else joined(texts, " reaches "))
    return FindingResult(
        "value", (sentence,), {"condition": dict(condition), "values": numbers}, tuple(r.index for r in rows)
    )


FINDING = Finding("value", find)
