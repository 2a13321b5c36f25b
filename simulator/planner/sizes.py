"""What do other numbers of GPUs give: those that somebody names, or those by which a deadline is met?

Rule: each number is planned by itself, as the first one was. For a deadline there are halves of it as long as the
deadline is met, or twice as many until it is, each for its fastest setting alone; numbers in between are not tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.findings.budget import amounts
from simulator.planner.asked import Question
from simulator.planner.search import Plan, Played, search
from simulator.sweeps.sweep import Backend

# How many times the asked number is tried at most.
_MOST_TIMES: Final = 16


@dataclass(frozen=True, slots=True)
class Size:
    """A number of GPUs.

    Attributes
    ----------
    gpus : int
    plan : Plan or None
        None where there is no such cluster.
    takes : mapping
        What the training takes (`budget.amounts`); empty without a setting, or where nobody says how long it is.
    meets : bool or None
        Whether that is before the deadline; None without one.
    missing : str
        Why there is no setting.
    """

    gpus: int
    plan: Plan | None
    takes: Mapping[str, Any]
    meets: bool | None
    missing: str = ""

    @property
    def best(self) -> Played | None:
        """Its fastest setting; None where nothing fits, or no setting can be."""
        return self.plan.best[0] if self.plan is not None and self.plan.best else None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        best, told = self.best, {"gpus": self.gpus, "meets": self.meets, **self.takes}
        if best is None:
            return told | {"setting": None, "missing": self.missing}
        rate = best.report["tokens_per_s_per_gpu"]
        return told | {"setting": best.setting.text, "step_time_s": best.step_time, "tokens_per_s_per_gpu": rate}


def sizes(plan: Plan, question: Question, backend: Backend) -> Iterator[Size]:
    """The number that was planned, then others, each as soon as it is; nothing where no others are asked for.

    Parameters
    ----------
    plan : Plan
        Of the asked number.
    question : Question
        Which other numbers, and how long the training is and may take.
    backend : Backend
        What plays.
    """
    if not question.numbers and question.deadline is None:
        return
    gpus = plan.base.cluster.world_size
    first = _size(gpus, plan, question)
    yield first
    if question.numbers:
        for number in question.numbers:
            yield _planned(number, question, question.best, backend)
        return
    for number in _halves_or_doubles(gpus, down=bool(first.meets)):
        one = _planned(number, question, 1, backend)
        yield one
        if one.meets != first.meets:
            return


def _halves_or_doubles(gpus: int, *, down: bool) -> Iterator[int]:
    if not down:
        times = 2
        while times <= _MOST_TIMES:
            yield times * gpus
            times *= 2
        return
    while gpus % 2 == 0:
        gpus //= 2
        yield gpus


def _planned(gpus: int, question: Question, best: int, backend: Backend) -> Size:
    """The plan of so many GPUs; without one where there is no such cluster, with the reason."""
    base = question.base.replaced(cluster=question.base.cluster.replaced(world_size=gpus))
    try:
        *_, found = search(base, question.sequences, question.choices(base), best=best, backend=backend)
    except (ScenarioError, TooLargeError) as error:
        return Size(gpus, None, {}, None if question.deadline is None else False, str(error))
    return _size(gpus, found, question)


def _size(gpus: int, plan: Plan, question: Question) -> Size:
    if not plan.best:
        (most, _), *_ = plan.refused.counts.most_common(1) or [("", 0)]
        missing = "nothing fits" if plan.do_not_fit or plan.played else f"no setting can be: {most}"
        return Size(gpus, plan, {}, None if question.deadline is None else False, missing)
    budget, deadline = question.budget, question.deadline
    takes = {} if budget is None else amounts(plan.best[0].report, gpus, budget)
    return Size(gpus, plan, takes, None if deadline is None else takes["days"] <= deadline)
