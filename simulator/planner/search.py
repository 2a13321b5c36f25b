"""Which settings are the fastest? Rules out what cannot be, what does not fit and what cannot win, and plays the rest.

Rule: what is left out is proven to be slower than the last of the best: bounds are never above the played time, memory
never above the played one, and points are played by rising bound until no bound is below the last of the best. So the
best are those that playing everything would find.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError
from simulator.basics.garbage import collected_later
from simulator.cluster.cluster import Cluster
from simulator.model.load import load_model
from simulator.planner.bound import Bounds, LeastDurations, Passing
from simulator.planner.noted import least_by_notes
from simulator.planner.setting import Setting, scenario_of
from simulator.planner.space import Choices, Refused, default_choices, gpus_per_node, settings
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.plan_rules import not_planned
from simulator.scenario.plan_spec import BEST
from simulator.scenario.records import Point, Scenario
from simulator.step.plan import few_micro_batches
from simulator.step.spec import TrainingStep
from simulator.step.stage_memory import memory_of_notes
from simulator.sweeps.one_by_one import Player, playing
from simulator.sweeps.sweep import Backend

if TYPE_CHECKING:
    import pandas as pd

# Points that are chosen ahead of outcomes where nobody knows how many workers there are.
_AHEAD_OF_A_CLUSTER: Final = 32
# Finer bounds after the first: along the pipeline's order, by what its first stage does, by what all stages do.
_SIEVES: Final = 3
# A bound adds up in another order than the engine, which is as exact against closed forms.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Played:
    """A setting that was played.

    Attributes
    ----------
    setting : Setting
    number : int
        Its place among all settings, as they are written down.
    bound : float
        The least step time that it could have [s].
    report : dict
        Of the step.
    """

    setting: Setting
    number: int
    bound: float
    report: dict[str, Any]

    @property
    def fits(self) -> bool:
        """Whether it fits into memory."""
        return bool(self.report["fits"])

    @property
    def step_time(self) -> float:
        """What settings are compared by: their steps learn from as many tokens [s]."""
        return float(self.report["step_time_s"])


@dataclass(frozen=True, slots=True)
class Plan:
    """What a search found.

    Attributes
    ----------
    base : Scenario
        What all settings have in common.
    choices : Choices
    sequences : int
        Of a step.
    best : tuple of Played
        The fastest that fit, the fastest first.
    played : tuple of Played
        All that were played.
    considered : int
        Settings that could be written down.
    refused : mapping of str to int
        How many cannot be, by reason.
    do_not_fit : int
        Of those whose bound is low enough to matter.
    slower : int
        Whose bound is above the last of the best, so that they were not played.
    failed : mapping of str to int
        How many could not be played, by error.
    ended : bool
        Whether nothing that might be among the best is left.
    """

    base: Scenario
    choices: Choices
    sequences: int
    best: tuple[Played, ...]
    played: tuple[Played, ...]
    considered: int
    refused: Refused
    do_not_fit: int
    slower: int
    failed: dict[str, int]
    ended: bool

    def frame(self) -> pd.DataFrame:
        """The best as a table: a column for each choice, then one for each number of a step's report."""
        import pandas as pd

        rows = [one.setting.values() | {"bound_s": one.bound} | dict(one.report) for one in self.best]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1))


@dataclass(order=True)
class _Entry:
    bound: float
    number: int
    sieved: int = field(compare=False)
    setting: Setting = field(compare=False)
    passing: Passing = field(compare=False)
    step: TrainingStep = field(compare=False)


def search(
    base: Scenario, sequences: int, choices: Choices | None = None, *, best: int = BEST, backend: Backend | int = 1
) -> Iterator[Plan]:
    """Find the fastest settings of a training.

    Parameters
    ----------
    base : Scenario
        One point of a training step; what is chosen here replaces what it says.
    sequences : int
        Of a step, all ranks together.
    choices : Choices, optional
        What may be chosen; by model and machine where it is left out.
    best : int
        How many are wanted.
    backend : Backend or int
        What plays.

    Yields
    ------
    Plan
        What is known after every few points that were played; the last one is the answer.

    Raises
    ------
    ScenarioError
        The scenario has what no bound holds for, or is no single point.
    """
    if base.training is None:
        raise TypeError("a plan is of a training step")
    _refuse(base)
    cluster = Clusters().of(base)
    model = load_model(base.training.model, base.training.seq_len, base.base)
    choices = choices or default_choices(base, model, gpus_per_node(cluster), sequences)
    refused = Refused()
    bounds = Bounds(cluster)
    waiting = _bounded(choices, base, sequences, refused, bounds)
    heapq.heapify(waiting)
    under_way = _Search(base, cluster, bounds.durations, best, waiting)
    considered = len(waiting) + sum(refused.counts.values())
    backend = Backend(backend) if isinstance(backend, int) else backend

    def found(*, ended: bool) -> Plan:
        return Plan(
            base, choices, sequences, tuple(under_way.ranked()), tuple(under_way.played), considered, refused,
            under_way.do_not_fit, len(waiting), under_way.failed, ended=ended,
        )  # fmt: skip

    with playing(backend, (0, Point({}, base))) as player:
        for _ in under_way.through(player, _ahead(backend)):
            yield found(ended=False)
    yield found(ended=True)


def _ahead(backend: Backend) -> int:
    """Points that are chosen before the outcome of the first of them is known: enough that no process waits."""
    if backend.scheduler is not None:
        return _AHEAD_OF_A_CLUSTER
    return 0 if backend.jobs in (None, 1) else (backend.jobs or 1) + 1


def _refuse(base: Scenario) -> None:
    """Raise ScenarioError for what a bound does not hold for."""
    if base.compare or base.sweep:
        raise ScenarioError(f"{', '.join([*base.compare, *base.sweep])}: a plan is of one value of each key")
    for key, why in not_planned(base):
        raise ScenarioError(f"{'.'.join(map(str, key))}: {why}")


@collected_later()
def _bounded(choices: Choices, base: Scenario, sequences: int, refused: Refused, bounds: Bounds) -> list[_Entry]:
    entries = []
    for number, (setting, step) in enumerate(settings(choices, base, sequences, refused)):
        try:
            passing = bounds.of(setting, step)
        except ValueError as error:
            refused.note_error(error)
            continue
        entries.append(_Entry(passing.quick(), number, 0, setting, passing, step))
    return entries


@dataclass
class _Search:
    base: Scenario
    cluster: Cluster
    durations: LeastDurations
    best: int
    waiting: list[_Entry]
    played: list[Played] = field(default_factory=list)
    do_not_fit: int = 0
    failed: dict[str, int] = field(default_factory=dict)

    def ranked(self) -> list[Played]:
        """The best of those that fit; of equal ones the one that was written down first."""
        fitting = [one for one in self.played if one.fits]
        return sorted(fitting, key=lambda one: (one.step_time, one.number))[: self.best]

    def last_of_best(self) -> float:
        """Step time that a setting's bound must not exceed for it to be among the best [s]."""
        ranked = self.ranked()
        return (1 + _ROUNDING) * ranked[-1].step_time if len(ranked) == self.best else float("inf")

    def through(self, player: Player, ahead: int) -> Iterator[None]:
        """Play what may be among the best; yields after each outcome.

        Which point is next follows from the outcomes of all but the last `ahead` points before it, so that with as many
        processes the same points are played, however long each takes.
        """
        chosen, outcomes = list[_Entry](), dict[int, PointOutcome]()
        while True:
            while len(self.played) + self.failures < len(chosen) - ahead:
                if (number := len(self.played) + self.failures) in outcomes:
                    self._note(chosen[number], outcomes.pop(number))
                    yield
                else:
                    outcome = player.outcome()
                    outcomes[outcome.index] = outcome
            entry = self._next()
            if entry is not None:
                player.submit((len(chosen), Point({}, scenario_of(self.base, entry.setting))))
                chosen.append(entry)
            elif ahead:
                ahead = 0  # what was chosen is all that may be among the best; its outcomes are waited for
            else:
                return

    @property
    def failures(self) -> int:
        """How many could not be played."""
        return sum(self.failed.values())

    @collected_later()
    def _next(self) -> _Entry | None:
        """The setting to play next: of those that may be among the best and may fit the one with the lowest bound."""
        limit = self.last_of_best()
        while self.waiting and self.waiting[0].bound <= limit:
            entry = heapq.heappop(self.waiting)
            if entry.sieved == _SIEVES:
                return entry
            if self._sieve(entry):
                heapq.heappush(self.waiting, entry)
            else:
                self.do_not_fit += 1
        return None

    def _sieve(self, entry: _Entry) -> bool:
        """Raise an entry's bound by the next finer one; False where it does not fit."""
        hbm = self.cluster.gpus[0].hbm_bytes
        if entry.passing.memory > hbm:
            return False
        entry.sieved += 1
        if entry.sieved == 1:
            bound = entry.passing.along_order()
        else:
            first_alone = entry.sieved == 2
            noted = few_micro_batches(
                self.cluster, entry.step, entry.setting.gpus, closed_forms=True, stages=[0] if first_alone else None
            )
            if max(stage.nbytes for stage in memory_of_notes(noted)) > hbm:
                return False
            bound = least_by_notes(entry.passing, noted, self.durations)
            if entry.setting.pp == 1:
                entry.sieved = _SIEVES
        entry.bound = max(entry.bound, bound)
        return True

    def _note(self, entry: _Entry, outcome: PointOutcome) -> None:
        if outcome.report is None:
            self.failed[outcome.error or ""] = self.failed.get(outcome.error or "", 0) + 1
        else:
            self.played.append(Played(entry.setting, entry.number, entry.bound, dict(outcome.report)))
