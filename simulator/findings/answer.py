"""What is the answer to a scenario's question: the sentences, the numbers behind them, and the points they speak of?

Rule: sentence, table, picture and page take theirs from here, so that all speak of the same points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.units import format_memory
from simulator.findings import budget
from simulator.findings.caveats import Caveat, caveats
from simulator.findings.comparison import Comparison
from simulator.findings.found import FINDING_KINDS, Found
from simulator.findings.front import front
from simulator.findings.why import Why, why
from simulator.scenario.answer_spec import FindingSpec


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a scenario's question.

    Attributes
    ----------
    question : str
    sentences : tuple of str
        What was found, whole sentences, the answer first.
    why : str
        One sentence; empty where there is nothing to explain.
    findings : tuple of Found
    spoken : tuple of int
        Points that the sentences speak of: the best, and what it is compared with.
    front : list of dict
        Of time and memory.
    budget : list of dict
        Of each point that fits.
    further : int
        Points between the scenario's own that were played to find thresholds.
    reasons : mapping
        Numbers behind `why`.
    caveats : tuple of Caveat
        What must be known to trust the answer.
    """

    question: str
    sentences: tuple[str, ...]
    why: str
    findings: tuple[Found, ...]
    spoken: tuple[int, ...]
    front: list[dict[str, Any]]
    budget: list[dict[str, Any]]
    further: int
    reasons: Mapping[str, Any]
    caveats: tuple[Caveat, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for report.json."""
        return {
            "question": self.question,
            "sentences": list(self.sentences),
            "why": self.why,
            "points": list(self.spoken),
            "findings": [found.to_dict() for found in self.findings],
            "reasons": dict(self.reasons),
            "front": self.front,
            "budget": self.budget,
            "points_played_between": self.further,
            "caveats": [{"topic": one.topic, "text": one.text} for one in self.caveats],
        }

    @property
    def text(self) -> str:
        """All sentences, a line each."""
        trust = [f"Trust: {one.text}." for one in self.caveats]
        return "\n".join([*self.sentences, *([f"Why: {self.why}"] if self.why else []), *trust])


def answer(compared: Comparison) -> Answer:
    """Answer a scenario's question; points between its own may be played, to find out where a lead changes."""
    scenario, outcomes = compared.scenario, compared.outcomes
    if not any(row.report is not None for row in compared.rows):
        error = f"No point could be played: {outcomes[0].error}." if outcomes else "No point was played."
        return Answer(scenario.question, (error,), "", (), (), [], [], 0, {})
    asked = scenario.answer or _usual(compared)
    tried = [(entry, FINDING_KINDS.find(entry.finding).find(compared, entry)) for entry in asked]
    found = tuple(one for _, one in tried if one is not None)
    untold = [_untold(entry) for entry, one in tried if one is None and scenario.answer]
    spoken = tuple(dict.fromkeys(index for one in found[:1] for index in one.spoken)) or _first_that_fits(compared)
    reason = why(compared, spoken, asked[0].of[0] if asked[0].of else "") or Why("", {})
    budgets = budget.budgets(compared)
    sentences = [f"{_upper(sentence)}." for one in found for sentence in one.sentences]
    # What does not fit is the first that "fit" tells.
    sentences = [*([] if asked[0].finding == "fit" else _nothing_fits(compared)), *sentences]
    sentences = list(dict.fromkeys([*sentences, *untold]))
    cost = budget.sentence(compared, budgets, spoken[0]) if budgets else ""
    return Answer(
        question=scenario.question,
        sentences=(*sentences, *([f"{_upper(cost)}."] if cost else [])) or (f"{_upper(reason.sentence)}.",),
        why=f"{_upper(reason.sentence)}." if reason.sentence and sentences else "",
        findings=found,
        spoken=spoken,
        front=front(compared),
        budget=budgets,
        further=compared.played_further,
        reasons=reason.numbers,
        caveats=caveats(compared),
    )


def _nothing_fits(compared: Comparison) -> list[str]:
    """That no point fits into memory, and which lacks least: speeds of such points are those of no real run."""
    rows = [row for row in compared.rows if row.report is not None]
    if any(row.fits for row in rows):
        return []
    closest = min(rows, key=lambda row: (row.report or {})["shortfall_bytes"])
    report = closest.report or {}
    name = compared.name({**closest.setting, **closest.condition})
    needs = format_memory(report["capacity_bytes"] + report["shortfall_bytes"])
    which = f"; closest is {name}, which needs {needs}" if len(rows) > 1 else f": it needs {needs}"
    return [f"Nothing fits into {format_memory(report['capacity_bytes'])}{which}."]


def _untold(asked: FindingSpec) -> str:
    """That something was asked for, and the points that were played do not tell."""
    along = f" along {asked.along}" if asked.along else ""
    of = f" of {', '.join(asked.of)}" if asked.of else ""
    return f"Not told: {asked.finding}{of}{along}, for the points that could be played do not tell it."


def _usual(compared: Comparison) -> tuple[FindingSpec, ...]:
    """What suits the axes where a scenario does not say what it wants told."""
    scenario = compared.scenario
    if scenario.training is not None and scenario.training.numerics:
        return (FindingSpec(finding="learned"),)
    if scenario.compare and len(compared.settings) > 1:
        swept = scenario.training is None or len(compared.conditions) > 1
        return (FindingSpec(finding="best" if swept else "change"),)
    if scenario.sweep and len(compared.conditions) > 1:
        return (FindingSpec(finding="effect"),)
    return (FindingSpec(finding="value"),)


def _first_that_fits(compared: Comparison) -> tuple[int, ...]:
    fitting = [row.index for row in compared.rows if row.fits]
    played = [row.index for row in compared.rows if row.report is not None]
    return tuple((fitting or played)[:1])


def _upper(sentence: str) -> str:
    """With a capital letter where it begins with a plain word, not with a name such as zero3."""
    return sentence[:1].upper() + sentence[1:] if sentence.partition(" ")[0] in _PLAIN else sentence


_PLAIN: Final = frozenset(("against", "all", "auto", "checks", "with", "over", "nothing", "no", "the"))
