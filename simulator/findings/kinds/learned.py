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


def find(compared: Comparison, asked: FindingSpec) -> FindingResult | None:
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
    if any(one["seen"] for one in facts):
        sentences.append(_seen(compared, rows, facts))
    times = _times(compared, rows, facts)
    if times:
        sentences.append(times)
    apart = max((one["apart"] or 0.0 for one in facts if not one["shows"]), default=0.0)
    numbers = {"runs": facts, "most_apart": apart}
    # Pictures show the lowest loss and the fastest run first.
    leading = [row for row in (lowest, _first(rows, facts)) if row is not None]
    return FindingResult(
        "learned", tuple(sentences), numbers, tuple(dict.fromkeys(row.index for row in [*leading, *rows]))
    )


def _lowest(rows: list[Row], facts: list[dict[str, Any]]) -> Row | None:
    """Return the run with the lowest last loss; None if completed runs do not visibly differ."""
    # A stopped run's loss belongs to an earlier step, hence is not comparable.
    known = [(one["last_loss"], row) for row, one in zip(rows, facts, strict=True) if _ended(one)]
    if len(known) < 2:
        return None
    (least, lowest), (most, _) = min(known, key=lambda one: one[0]), max(known, key=lambda one: one[0])
    return lowest if most - least > _SHOWS * abs(least) else None


def _first(rows: list[Row], facts: list[dict[str, Any]]) -> Row | None:
    """Return the run that completes its steps first in simulated time; None if no run does."""
    known = [(one["ended_s"], row) for row, one in zip(rows, facts, strict=True) if _ended(one) and one["ended_s"]]
    return min(known, key=lambda one: one[0])[1] if known else None


def _ended(one: Mapping[str, Any]) -> bool:
    """Return True if a run, given by its facts, took all its steps and ends at a finite loss."""
    return not one["stopped"] and one["last_loss"] is not None


def _facts(row: Row, first: Row) -> dict[str, Any]:
    """Return a training run's results and their difference from the first run's, as plain data."""
    learning, baseline = (one.report or {} for one in (row, first))
    own, other = learning["learning"], baseline["learning"]
    losses = own["losses"]
    # A run stopped in its first step has no loss at all.
    last = losses[-1] if losses else None
    first_last = other["losses"][-1] if other["losses"] else None
    apart = abs(last - first_last) if last is not None and first_last is not None else None
    return {
        "setting": dict(row.setting), "point": row.index, "steps": len(losses), "last_loss": last,
        "apart": apart if row is not first else 0.0, "skipped": len(own["skipped"]), "seen": dict(own["seen"]),
        "stopped": bool(own["stopped"]), "ended_s": own["ended_s"][-1] if own["ended_s"] else None,
        "shows": row is not first and _shows(apart, first_last, last, stopped=bool(own["stopped"])),
    }  # fmt: skip


def _shows(apart: float | None, first_last: float | None, last: float | None, *, stopped: bool) -> bool:
    """Return True if a run visibly differs from the first: an early end, NaN, or another last loss."""
    if stopped or last is None or apart is None or not first_last:
        return True
    return apart > _SHOWS * abs(first_last)


def _losses(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence with the runs' last losses; runs that end at the same loss as the first are listed together."""
    texts = []
    for row, one in zip(rows, facts, strict=True):
        texts.append((compared.name(row.setting), _end(one)))
    shown = [text for text, one in zip(texts, facts, strict=True) if one["shows"]]
    alike = [name for (name, _), one in zip(texts[1:], facts[1:], strict=True) if not one["shows"]]
    parts = [joined([texts[0], *shown], " ")]
    if alike:
        most = max(one["apart"] or 0.0 for one in facts if not one["shows"])
        same = "exactly" if most == 0 else f"within {most:.2g}"
        parts.append(f"{_few(alike)} equal to {texts[0][0]} {same}")
    return f"Last loss: {'; '.join(parts)}"


def _end(one: Mapping[str, Any]) -> str:
    """Return a text on how a training run ends: its last loss, NaN, or where it stopped."""
    if one["stopped"]:
        return f"none (stopped before step {one['steps']})"
    if one["last_loss"] is None:
        return "NaN"
    skipped = f" ({one['skipped']} steps skipped)" if one["skipped"] else ""
    return f"{one['last_loss']:.4g}{skipped}"


def _few(names: list[str]) -> str:
    """Return up to five names as a list 'a, b and c', else only their number."""
    return join_list(names) if len(names) <= 5 else f"the other {len(names)} runs"


def _seen(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence on the faults that checks detected in each run, and the runs without detected faults."""
    texts = [
        (compared.name(row.setting), join_list([f"{check} (step {step})" for check, step in one["seen"].items()]))
        for row, one in zip(rows, facts, strict=True)
        if one["seen"]
    ]
    unseen = [compared.name(r.setting) for r, one in zip(rows[1:], facts[1:], strict=True) if not one["seen"]]
    nobody = f"; no check detected {join_list(unseen)}" if unseen else ""
    return f"Detected faults: {joined(texts, ' by ')}{nobody}"


def _times(compared: Comparison, rows: list[Row], facts: list[dict[str, Any]]) -> str:
    """Return a sentence on the first and the last run to complete; "" if their times are equal."""
    whole = [
        (one["ended_s"], row) for row, one in zip(rows, facts, strict=True) if one["ended_s"] and not one["stopped"]
    ]
    if len(whole) < 2:
        return ""
    (soonest, first), (latest, last) = min(whole, key=lambda w: w[0]), max(whole, key=lambda w: w[0])
    # Times within 0.1 % are not worth a sentence.
    if latest - soonest <= 1e-3 * latest:
        return ""
    measure = compared.measure("time")
    steps = next(one["steps"] for row, one in zip(rows, facts, strict=True) if row is first)
    return (
        f"{clause(compared.name(first.setting), f'completes {steps} steps first')}, after {measure.text(soonest)}; "
        f"{clause(compared.name(last.setting), 'completes last')}, after {measure.text(latest)}"
    )


FINDING = Finding("learned", find)
