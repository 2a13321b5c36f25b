"""How do real trainings differ: their last losses, their ends, and the findings of their checks?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.findings.comparison import Comparison, Row
from simulator.findings.found import Finding, FindingResult
from simulator.findings.text import clause, join_list, joined
from simulator.scenario.answer_spec import FindingSpec

# Last losses that differ by more than 0.5 % are visible on a curve.
_SHOWS = 0.005


def find(compared: Comparison, request: FindingSpec) -> FindingResult | None:
    """Return the finding on real trainings (losses, ends, detected faults); None if no point trained."""
    rows = [row for row in compared.rows if row.report is not None and row.report.get("learning")]
    if not rows:
        return None
    facts = [_facts(row, rows[0]) for row in rows]
    lowest = _lowest(rows, facts)
    sentences = [_losses(compared, rows, facts)]
    if lowest is not None:
        loss = compared.measure("loss").value(lowest.report or {}) or 0.0
        sentences.insert(0, clause(compared.name(lowest.setting), f"has the lowest last loss ({loss:.4g})"))
    if any(fact["seen"] for fact in facts):
        sentences.append(_detected(compared, rows, facts))
    times = _times(compared, rows, facts)
    if times:
        sentences.append(times)
    gap = max((fact["apart"] or 0.0 for fact in facts if not fact["shows"]), default=0.0)
    numbers = {"runs": facts, "most_apart": gap}
    # Pictures show the lowest loss and the fastest run first.
    leading = [row for row in (lowest, _first(rows, facts)) if row is not None]
    return FindingResult(
        "learned", tuple(sentences), numbers, tuple(dict.fromkeys(row.index for row in [*leading, *rows]))
    )


def _lowest(rows: list[Row], facts: list[dict[str, Any]]) -> Row | None:
    """Return the run with the lowest last loss; None if completed runs do not visibly differ."""
    # A stopped run's loss belongs to an earlier step, hence is not comparable.
    ends = [(fact["last_loss"], row) for row, fact in zip(rows, facts, strict=True) if _ended(fact)]
    if len(ends) < 2:
        return None
    (least, lowest), (most, _) = min(ends, key=lambda end: end[0]), max(ends, key=lambda end: end[0])
    return lowest if most - least > _SHOWS * abs(least) else None


def _first(rows: list[Row], facts: list[dict[str, Any]]) -> Row | None:
    """Return the run that completes its steps first in simulated time; None if no run does."""
    ends = [(fact["ended_s"], row) for row, fact in zip(rows, facts, strict=True) if _ended(fact) and fact["ended_s"]]
    return min(ends, key=lambda end: end[0])[1] if ends else None


def _ended(fact: Mapping[str, Any]) -> bool:
    """Return True if a run, given by its facts, took all its steps and ends at a finite loss."""
    return not fact["stopped"] and fact["last_loss"] is not None


def _facts(row: Row, first: Row) -> dict[str, Any]:
    """Return a training run's results and their difference from the first run's, as plain data."""
    learning, baseline = (point.report or {} for point in (row, first))
    run, other = learning["learning"], baseline["learning"]
    losses = run["losses"]
    # A run stopped in its first step has no loss at all.
    last = losses[-1] if losses else None
    first_last = other["losses"][-1] if other["losses"] else None
    gap = abs(last - first_last) if last is not None and first_last is not None else None
    return {
        "setting": dict(row.setting), "point": row.index, "steps": len(losses), "last_loss": last,
        "apart": gap if row is not first else 0.0, "skipped": len(run["skipped"]), "seen": dict(run["seen"]),
        "stopped": bool(run["stopped"]), "ended_s": run["ended_s"][-1] if run["ended_s"] else None,
        "shows": row is not first and _shows(gap, first_last, last, stopped=bool(run["stopped"])),
    }  # fmt: skip


def _shows(gap: float | None, first_last: float | None, last: float | None, *, stopped: bool) -> bool:
    """Return True if a run ends early, has no `last` loss, or one `gap` > 0.5 % away from the first run's last loss."""
    if stopped or last is None or gap is None or not first_last:
        return True
    return gap > _SHOWS * abs(first_last)


def _losses(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence with the runs' last losses; runs that end at the same loss as the first are listed together."""
    texts = []
    for row, fact in zip(rows, facts, strict=True):
        texts.append((compared.name(row.setting), _end(fact)))
    different = [text for text, fact in zip(texts, facts, strict=True) if fact["shows"]]
    equal = [name for (name, _), fact in zip(texts[1:], facts[1:], strict=True) if not fact["shows"]]
    parts = [joined([texts[0], *different], " ")]
    if equal:
        most = max(fact["apart"] or 0.0 for fact in facts if not fact["shows"])
        same = "exactly" if most == 0 else f"within {most:.2g}"
        parts.append(f"{_few(equal)} equal to {texts[0][0]} {same}")
    return f"Last loss: {'; '.join(parts)}"


def _end(fact: Mapping[str, Any]) -> str:
    """Return a text on how a training run ends: its last loss, NaN, or where it stopped."""
    if fact["stopped"]:
        return f"none (stopped before step {fact['steps']})"
    if fact["last_loss"] is None:
        return "NaN"
    skipped = f" ({fact['skipped']} steps skipped)" if fact["skipped"] else ""
    return f"{fact['last_loss']:.4g}{skipped}"


def _few(names: list[str]) -> str:
    """Return up to five names as a list 'a, b and c', else only their number."""
    return join_list(names) if len(names) <= 5 else f"the other {len(names)} runs"


def _detected(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence on the faults that checks detected in each run, and the runs without detected faults."""
    texts = [
        (compared.name(row.setting), join_list([f"{check} (step {step})" for check, step in fact["seen"].items()]))
        for row, fact in zip(rows, facts, strict=True)
        if fact["seen"]
    ]
    unseen = [compared.name(r.setting) for r, fact in zip(rows[1:], facts[1:], strict=True) if not fact["seen"]]
    nobody = f"; no check detected {join_list(unseen)}" if unseen else ""
    return f"Detected faults: {joined(texts, ' by ')}{nobody}"


def _times(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence on the first and the last run to complete; "" if their times are equal."""
    ends = [
        (fact["ended_s"], row) for row, fact in zip(rows, facts, strict=True) if fact["ended_s"] and not fact["stopped"]
    ]
    if len(ends) < 2:
        return ""
    (soonest, first), (latest, last) = min(ends, key=lambda w: w[0]), max(ends, key=lambda w: w[0])
    # Times within 0.1 % are not worth a sentence.
    if latest - soonest <= 1e-3 * latest:
        return ""
    measure = compared.measure("time")
    steps = next(fact["steps"] for row, fact in zip(rows, facts, strict=True) if row is first)
    return (
        f"{clause(compared.name(first.setting), f'completes {steps} steps first')}, after {measure.text(soonest)}; "
        f"{clause(compared.name(last.setting), 'completes last')}, after {measure.text(latest)}"
    )


FINDING = Finding("learned", find)
