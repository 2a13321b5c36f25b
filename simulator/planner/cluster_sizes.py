"""How does a plan change on other numbers of GPUs, named by the user or needed for a deadline? Each is planned alone.

For a deadline, the number is halved as long as the deadline is met, or doubled until it is met, and only each number's
fastest setting is searched. Numbers in between are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.findings.budget import amounts
from simulator.planner.plan_question import PlanQuestion
from simulator.planner.search import PlayedSetting, SearchResult, search
from simulator.sweeps.sweep import Backend

# Largest multiple of the requested number to try for a deadline.
_MOST_TIMES: Final = 16


@dataclass(frozen=True, slots=True)
class ClusterSizeResult:
    """The plan for a given number of GPUs: settings, the training's cost, and whether a deadline is met."""

    gpus: int
    plan: SearchResult | None  # None if the topology has no cluster with this number
    # The training's days, GPU hours and cost (`budget.amounts`); empty without a setting or without a budget
    takes: Mapping[str, Any]
    meets: bool | None  # whether the training ends before the deadline; None without a deadline
    missing: str = ""  # reason for a missing setting; empty if there is a setting

    @property
    def best(self) -> PlayedSetting | None:
        """The fastest setting for this number of GPUs; None if no setting is feasible and fits."""
        return self.plan.best[0] if self.plan is not None and self.plan.best else None

    def to_dict(self) -> dict[str, Any]:
        """Return the plan for this number of GPUs as a plain dict: fastest setting, times and cost, or the reason for
        none.
        """
        best, data = self.best, {"gpus": self.gpus, "meets": self.meets, **self.takes}
        if best is None:
            return data | {"setting": None, "missing": self.missing}
        rates = {key: best.report[key] for key in ("tokens_per_s_per_gpu", "work_unit")}
        return data | {"setting": best.setting.text, "step_time_s": best.step_time, **rates}


def sizes(plan: SearchResult, question: PlanQuestion, backend: Backend) -> Iterator[ClusterSizeResult]:
    """Yield the plan for the requested number of GPUs, then plans for other numbers; nothing if no other numbers are
    requested.

    Parameters
    ----------
    plan : SearchResult
        The plan for the requested number.
    question : PlanQuestion
        The other numbers, or the deadline, and the training's length.
    backend : Backend
        Processes or cluster for simulations.
    """
    if not question.numbers and question.plan.deadline is None:
        return
    gpus = plan.base.cluster.world_size
    first = _size(gpus, plan, question)
    yield first
    if question.numbers:
        for number in question.numbers:
            yield _planned(number, question, question.plan.best, backend)
        return
    for number in _halves_or_doubles(gpus, down=bool(first.meets)):
        size = _planned(number, question, 1, backend)
        yield size
        # The deadline lies between this number and the last.
        if size.meets != first.meets:
            return


def _halves_or_doubles(gpus: int, *, down: bool) -> Iterator[int]:
    """Yield gpus / 2, gpus / 4, ... while the number is even (`down`), or 2 gpus, 4 gpus, ... up to a limit."""
    if not down:
        times = 2
        while times <= _MOST_TIMES:
            yield times * gpus
            times *= 2
        return
    while gpus % 2 == 0:
        gpus //= 2
        yield gpus


def _planned(gpus: int, question: PlanQuestion, best: int, backend: Backend) -> ClusterSizeResult:
    """Search the plan for another number of GPUs, with `best` settings; return its result, or the reason for its
    absence.
    """
    base = question.base.replaced(cluster=question.base.cluster.replaced(world_size=gpus))
    try:
        *_, result = search(base, question.sequences, question.choices(base), best=best, backend=backend)
    except (ScenarioError, TooLargeError) as error:
        return ClusterSizeResult(gpus, None, {}, None if question.plan.deadline is None else False, str(error))
    return _size(gpus, result, question)


def _size(gpus: int, plan: SearchResult, question: PlanQuestion) -> ClusterSizeResult:
    """Return the result for a number of GPUs from its complete plan, with the training's cost and the deadline."""
    if not plan.best:
        (most, _), *_ = plan.refused.counts.most_common(1) or [("", 0)]
        missing = "no setting fits" if plan.do_not_fit or plan.played else f"no setting is possible: {most}"
        return ClusterSizeResult(gpus, plan, {}, None if question.plan.deadline is None else False, missing)
    budget, deadline = question.budget, question.plan.deadline
    takes = {} if budget is None else amounts(plan.best[0].report, gpus, budget)
    return ClusterSizeResult(gpus, plan, takes, None if deadline is None else takes["days"] <= deadline)
