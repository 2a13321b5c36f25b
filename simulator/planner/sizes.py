"""How many GPUs does a deadline ask for: halves of them as long as it is met, or twice as many until it is?

Rule: each number is planned as the first one was, for its fastest setting alone; numbers in between are not tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.errors import ScenarioError
from simulator.findings.budget import amounts
from simulator.planner.search import Plan, Played, search
from simulator.planner.space import Choices
from simulator.scenario.records import Budget, Scenario
from simulator.sweeps.sweep import Backend

# How many times the asked number is tried at most.
_MOST_TIMES: Final = 16


@dataclass(frozen=True, slots=True)
class Size:
    """A number of GPUs.

    Attributes
    ----------
    gpus : int
    best : Played or None
        Its fastest setting; None where nothing fits, or no setting can be.
    takes : mapping
        What the training takes; empty without a setting.
    meets : bool
        Whether that is before the deadline.
    """

    gpus: int
    best: Played | None
    takes: Mapping[str, Any]
    meets: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        setting, step = (None, None) if self.best is None else (self.best.setting.text, self.best.step_time)
        return {"gpus": self.gpus, "setting": setting, "step_time_s": step, "meets": self.meets, **self.takes}


def sizes(
    plan: Plan, choose: Callable[[Scenario], Choices], budget: Budget, deadline: float, backend: Backend
) -> Iterator[Size]:
    """The asked number, then those that are tried after it, in that order.

    Parameters
    ----------
    plan : Plan
        Of the asked number.
    choose : callable (Scenario) -> Choices
        What may be chosen on another number of GPUs.
    budget : Budget
        Of the whole training.
    deadline : float
        [days]
    backend : Backend
        What plays.
    """
    gpus = plan.base.cluster.world_size
    first = _size(gpus, plan.best[0] if plan.best else None, budget, deadline)
    yield first
    for number in _numbers(gpus, down=first.meets):
        one = _size(number, _fastest(plan, number, choose, backend), budget, deadline)
        yield one
        if one.meets != first.meets:
            return


def _numbers(gpus: int, *, down: bool) -> Iterator[int]:
    if not down:
        times = 2
        while times <= _MOST_TIMES:
            yield times * gpus
            times *= 2
        return
    while gpus % 2 == 0:
        gpus //= 2
        yield gpus


def _size(gpus: int, best: Played | None, budget: Budget, deadline: float) -> Size:
    takes = {} if best is None else amounts(best.report, gpus, budget)
    return Size(gpus, best, takes, best is not None and takes["days"] <= deadline)


def _fastest(plan: Plan, gpus: int, choose: Callable[[Scenario], Choices], backend: Backend) -> Played | None:
    """The fastest setting on so many GPUs; None where there is none, or no such cluster."""
    base = replace(plan.base, cluster=replace(plan.base.cluster, world_size=gpus))
    try:
        *_, found = search(base, plan.sequences, choose(base), best=1, backend=backend)
    except ScenarioError:
        return None
    return found.best[0] if found.best else None
