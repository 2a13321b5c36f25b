"""How does a scenario's question get its answer: sentences, the numbers behind them, and the points they mention?

Terminal, table, pictures and page use this answer and thus mention the same points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.basics.sentence import started
from simulator.basics.units import format_memory
from simulator.findings import budget
from simulator.findings.algorithm_terms import algorithm_terms, terms_text
from simulator.findings.caveats import Caveat, caveats
from simulator.findings.comparison import Comparison
from simulator.findings.found import FINDING_KINDS, FindingResult
from simulator.findings.pareto_front import pareto_front
from simulator.findings.why import Cause, why
from simulator.records.measures import for_reports
from simulator.records.memory_margin import margin_of
from simulator.scenario.answer_spec import FindingSpec


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a scenario's question.

    Attributes
    ----------
    question : str
        The scenario's question.
    sentences : tuple of str
        Whole sentences, the answer first.
    why : str
        A sentence with the reason; empty if there is nothing to explain.
    findings : tuple of FindingResult
        Results of each finding.
    spoken : tuple of int
        Points mentioned by the sentences: the best point, and the points it is compared with.
    front : list of dict
        Pareto front of time and memory.
    budget : list of dict
        Budget of each point that fits.
    further : int
        Number of points simulated between the scenario's own to find thresholds.
    reasons : mapping
        Numbers behind `why`.
    caveats : tuple of Caveat
        Facts to know before trusting the answer.
    algorithms : mapping of str to str
        Summary of each collective algorithm that the texts name.
    """

    question: str
    sentences: tuple[str, ...]
    why: str
    findings: tuple[FindingResult, ...]
    spoken: tuple[int, ...]
    front: list[dict[str, Any]]
    budget: list[dict[str, Any]]
    further: int
    reasons: Mapping[str, Any]
    caveats: tuple[Caveat, ...] = ()
    algorithms: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data for report.json."""
        return {
            "question": self.question,
            "sentences": list(self.sentences),
            "why": self.why,
            "points": list(self.spoken),
            "findings": [finding.to_dict() for finding in self.findings],
            "reasons": dict(self.reasons),
            "front": self.front,
            "budget": self.budget,
            "points_played_between": self.further,
            "caveats": [{"topic": caveat.topic, "text": caveat.text} for caveat in self.caveats],
            "algorithms": dict(self.algorithms),
        }

    @property
    def text(self) -> str:
        """All sentences of the answer, the reason, the caveats and the named algorithms, a line each; for the terminal.

        The assumed framework stands in the report and on the page: all points share it.
        """
        trust = [f"Trust: {caveat.text}." for caveat in self.caveats if caveat.topic != "framework"]
        terms = [f"Algorithms: {terms_text(self.algorithms)}."] if self.algorithms else []
        return "\n".join([*self.sentences, *([f"Why: {self.why}"] if self.why else []), *trust, *terms])


def answer(compared: Comparison) -> Answer:
    """Return the answer to a scenario's question; points between its own may be simulated to find crossovers."""
    scenario, outcomes = compared.scenario, compared.outcomes
    # Nothing to compare: report the first failure instead.
    if not any(row.report is not None for row in compared.rows):
        error = f"No point could be simulated: {outcomes[0].error}." if outcomes else "No point was simulated."
        return Answer(scenario.question, (error,), "", (), (), [], [], 0, {})
    # Explicit requests, else findings that suit the axes.
    requests = scenario.answer or _usual(compared)
    pairs = [(entry, FINDING_KINDS.find(entry.finding, scenario.base).find(compared, entry)) for entry in requests]
    findings = tuple(finding for _, finding in pairs if finding is not None)
    # Report an explicit request without an answer; stay silent about findings chosen automatically.
    missing = [_no_result(entry) for entry, finding in pairs if finding is None and scenario.answer]
    # The first finding decides the points for pictures and tables.
    spoken = _runnable_first(compared, [index for finding in findings[:1] for index in finding.spoken], requests[0])
    # Whether something fits is a question of memory.
    first = requests[0].of[0] if requests[0].of else "memory" if requests[0].finding == "fit" else ""
    reason = why(compared, spoken, first) or Cause("", {})
    budgets = budget.budgets(compared)
    sentences = [f"{started(sentence)}." for finding in findings for sentence in finding.sentences]
    # The finding "fit" says this itself of a single point.
    fit_says_so = requests[0].finding == "fit" and len(compared.rows) == 1
    sentences = [*([] if fit_says_so else _nothing_fits(compared)), *sentences]
    # Two findings may say the same sentence; keep the first.
    sentences = list(dict.fromkeys([*sentences, *missing]))
    cost = budget.sentence(compared, budgets, spoken[0]) if budgets else ""
    # Without any finding, the reason is the only sentence.
    texts = (*sentences, *([f"{started(cost)}."] if cost else [])) or (f"{started(reason.sentence)}.",)
    because = f"{started(reason.sentence)}." if reason.sentence and sentences else ""
    limits = caveats(compared)
    return Answer(
        question=scenario.question,
        sentences=texts,
        why=because,
        findings=findings,
        spoken=spoken,
        front=pareto_front(compared),
        budget=budgets,
        further=compared.played_further,
        reasons=reason.numbers,
        caveats=limits,
        algorithms=algorithm_terms(compared, [scenario.question, *texts, because, *(caveat.text for caveat in limits)]),
    )


def _nothing_fits(compared: Comparison) -> list[str]:
    """Return a sentence that no point fits in memory and which point lacks least, in a list; empty if any fits.

    Speeds of points that do not fit belong to no real run, so the answer must start with this sentence.
    """
    rows = [row for row in compared.rows if row.report is not None]
    if any(row.fits for row in rows):
        return []
    closest = compared.closest
    name = compared.name({**closest.setting, **closest.condition})
    margin = margin_of(closest.report or {})
    if len(rows) == 1:
        return [f"The job {margin.verdict}."]
    return [f"No setting fits in {format_memory(margin.capacity)}; the closest setting is {name} ({margin.text})."]


def _no_result(request: FindingSpec) -> str:
    """Return the sentence for a requested finding that the simulated points do not give."""
    along = f" along {request.along}" if request.along else ""
    of = f" of {', '.join(request.of)}" if request.of else ""
    return f"No result for {request.finding}{of}{along}: the simulated points do not determine the answer."


def _usual(compared: Comparison) -> tuple[FindingSpec, ...]:
    """Return the findings that suit the comparison's axes, for a scenario that requests none."""
    scenario = compared.scenario
    if scenario.training is not None and scenario.training.numerics:
        return (FindingSpec(finding="learned"),)
    if scenario.compare and len(compared.settings) > 1:
        # Collectives always ask for the best. A training step has a winner only over several conditions; else changes
        # from the baseline say more.
        swept = scenario.training is None or len(compared.conditions) > 1
        return (FindingSpec(finding="best" if swept else "change"),)
    if scenario.sweep and len(compared.conditions) > 1:
        return (FindingSpec(finding="effect"),)
    return (FindingSpec(finding="value"),)


def _runnable_first(compared: Comparison, spoken: Sequence[int], request: FindingSpec) -> tuple[int, ...]:
    """Return the points of the first finding, led by a point that fits in memory: pictures and page begin with it.

    The point is the first of `spoken`, if it fits. Else it is the best that fits among `spoken`, else among all points;
    if no point fits, it is the closest.
    """
    rows = compared.rows
    if spoken and rows[spoken[0]].fits:
        return tuple(dict.fromkeys(spoken))
    fitting = [rows[index] for index in spoken if rows[index].fits] or [row for row in rows if row.fits]
    reports = [row.report for row in fitting if row.report is not None]
    measure = for_reports(compared.measure(request.of[0] if request.of else "time"), reports)
    first = min(fitting, key=lambda row: measure.rank(row.report or {}), default=compared.closest)
    return tuple(dict.fromkeys((first.index, *spoken)))
