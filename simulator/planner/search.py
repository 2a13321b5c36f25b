"""Which settings are the fastest? A branch-and-bound search with the same result as simulating every setting.

Settings are pruned if they are infeasible, do not fit into memory, or cannot be among the best. The last is a proof:
the lower bound on step time never exceeds the simulated time, and the lower bound on memory never exceeds the simulated
peak. Settings are simulated by ascending bound, until every remaining bound is above the slowest of the best.

Bounds are refined in steps (`_sieve`), from cheap to tight, and after each step a setting goes back into the heap::

    busy bound -> schedule bound -> recorded operations of stage 0 -> recorded operations of all stages -> simulated

Example with `best=1`: bounds A 10 ms, B 11 ms, C 14 ms. A is simulated and takes 12 ms. B's bound is below 12 ms, hence
B is simulated and takes 13 ms. C is pruned, because 14 ms exceed 12 ms. A is the best.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError
from simulator.basics.garbage import collected_later
from simulator.cluster.cluster import Cluster
from simulator.model.load import load_model
from simulator.planner.bound import BoundCalculator, StepBound
from simulator.planner.setting import PlanSetting, scenario_of
from simulator.planner.space import Choices, InfeasibleCounts, default_choices, gpus_per_node, settings
from simulator.planner.trace_bound import RankBound, bound_from_ranks, rank_bound
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.plan_rules import not_planned
from simulator.scenario.plan_spec import BEST
from simulator.scenario.records import Point, Scenario
from simulator.step.plan import few_micro_batches
from simulator.step.spec import TrainingStep
from simulator.step.stage_memory import memory_of_notes
from simulator.sweeps.player import Player, open_player
from simulator.sweeps.sweep import Backend

if TYPE_CHECKING:
    import pandas as pd

# Settings submitted ahead of outcomes to a Dask cluster, whose number of workers is unknown.
_AHEAD_OF_A_CLUSTER: Final = 32
# Refinements: the pipeline's schedule, recorded operations of the first stage, then of every stage.
_SIEVES: Final = 3
# A bound adds durations in another order than the engine, and may exceed the simulated time by rounding.
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PlayedSetting:
    """A setting with the report on a simulated step."""

    setting: PlanSetting
    # Place in the enumeration of settings; ties go to the lowest number.
    number: int
    bound: float  # tightest computed lower bound on step time [s]
    report: dict[str, Any]  # the simulated step's report, as plain data

    @property
    def fits(self) -> bool:
        """True if the step fits into the GPU's memory."""
        return bool(self.report["fits"])

    @property
    def step_time(self) -> float:
        """Simulated step time [s]; comparable, because settings share the global batch."""
        return float(self.report["step_time_s"])


@dataclass(frozen=True, slots=True)
class FastestOfKind:
    """The fastest setting that the search found for a kind of layout, such as "HSDP, tp" (`PlanSetting.kind`)."""

    # The setting of this kind with the lowest step time, where a lower bound counts as a step time.
    setting: PlanSetting
    step_time: float  # simulated step time, or a lower bound for a setting that was not simulated [s]
    # Whether `step_time` is a lower bound; the memory of such a setting may not have been checked.
    is_bound: bool


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Outcome of a plan's search, complete or partial."""

    base: Scenario  # keys shared by every setting
    choices: Choices  # searched values for each dimension
    sequences: int  # global batch [sequences per step]
    best: tuple[PlayedSetting, ...]  # the fastest settings that fit into memory, fastest first
    played: tuple[PlayedSetting, ...]  # simulated settings
    considered: int  # number of settings in the search space, infeasible settings included
    refused: InfeasibleCounts  # number of infeasible settings, by reason
    # Number of settings that do not fit into memory. Memory is checked only if the bound is low enough to matter.
    do_not_fit: int
    # Number of settings pruned because their bound exceeds the slowest of the best; 0 before the search is complete.
    slower: int
    # Number of settings that the search has not decided yet, including running simulations; 0 if it is complete.
    pending: int
    left: int  # number of the `pending` settings that may still be among the best, judged by their lower bounds so far
    # Number of places in `best`, from the first, that no pending setting can take: every bound of a pending setting is
    # above their times. The length of `best` if the search is complete.
    certain: int
    failed: dict[str, int]  # number of settings that ended in an error, by message
    ended: bool  # whether the search is complete
    # The fastest setting of each kind of layout, fastest first; empty before the search is complete.
    kinds: tuple[FastestOfKind, ...] = ()

    def frame(self) -> pd.DataFrame:
        """Return the best settings as a pandas table: a column for each dimension, then a column for each
        report field.
        """
        import pandas as pd

        rows = [setting.setting.values() | {"bound_s": setting.bound} | dict(setting.report) for setting in self.best]
        return pd.DataFrame(rows, index=pd.RangeIndex(1, len(rows) + 1))


@dataclass(order=True)
class _Entry:
    """A setting in the search's heap, ordered by its lower bound on step time, then by number."""

    bound: float
    number: int
    sieved: int = field(compare=False)
    setting: PlanSetting = field(compare=False)
    passing: StepBound = field(compare=False)
    step: TrainingStep = field(compare=False)
    # Bounds of the first stage, from the sieve that records this stage alone.
    first: list[RankBound] = field(default_factory=list, compare=False)


def search(
    base: Scenario, sequences: int, choices: Choices | None = None, *, best: int = BEST, backend: Backend | int = 1
) -> Iterator[SearchResult]:
    """Find the fastest settings for a training step on a cluster, and yield the result so far after each simulation.

    Parameters
    ----------
    base : Scenario
        A single training step; the search replaces the searched dimensions.
    sequences : int
        Global batch [sequences per step].
    choices : Choices, optional
        Values for each dimension; defaults for the model and the machine if omitted.
    best : int
        Number of settings to find.
    backend : Backend or int
        Processes or cluster for simulations.

    Yields
    ------
    SearchResult
        The result so far, after each simulated setting; the last result is complete.

    Raises
    ------
    ScenarioError
        The scenario has axes, or a key without valid bounds (jitter, numerics).
    """
    if base.training is None:
        raise TypeError("a plan is of a training step")
    _refuse(base)
    clusters = Clusters()
    cluster = clusters.of(base)
    model = load_model(base.training.model, base.training.seq_len, base.base)
    choices = choices or default_choices(base, model, gpus_per_node(cluster), sequences)
    refused = InfeasibleCounts()
    bounds = _calculators(choices, base, clusters)
    waiting = _bounded(choices, base, sequences, refused, bounds)
    heapq.heapify(waiting)
    under_way = _SearchState(base, cluster, bounds, best, waiting)
    # Every enumerated setting is either waiting or refused.
    considered = len(waiting) + sum(refused.counts.values())
    backend = Backend(backend) if isinstance(backend, int) else backend

    def result(*, ended: bool) -> SearchResult:
        """Return the search result so far, marked complete if `ended`."""
        decided = sum(refused.counts.values()) + under_way.do_not_fit + len(under_way.played) + under_way.failures
        # Only the complete search proves that the remaining settings are slower.
        slower, pending = (considered - decided, 0) if ended else (0, considered - decided)
        return SearchResult(
            base, choices, sequences, tuple(under_way.ranked()), tuple(under_way.played), considered, refused,
            under_way.do_not_fit, slower, pending, under_way.left(), under_way.certain(), under_way.failed,
            ended=ended, kinds=under_way.kinds() if ended else (),
        )  # fmt: skip

    with open_player(backend, (0, Point({}, base))) as player:
        for _ in under_way.through(player, _ahead(backend)):
            # An interrupted search still has the best settings so far.
            yield result(ended=False)
    yield result(ended=True)


def _ahead(backend: Backend) -> int:
    """Return the number of settings to submit for simulation ahead of outcomes: enough to keep every process busy."""
    if backend.scheduler is not None:
        return _AHEAD_OF_A_CLUSTER
    return 0 if backend.jobs in (None, 1) else (backend.jobs or 1) + 1


def _refuse(base: Scenario) -> None:
    """Raise ScenarioError if a plan's scenario has axes, or keys for which no valid bounds exist."""
    if base.compare or base.sweep:
        raise ScenarioError(f"{', '.join([*base.compare, *base.sweep])}: a plan takes a single value of each key")
    for key, why in not_planned(base):
        raise ScenarioError(f"{'.'.join(map(str, key))}: {why}")


def _calculators(choices: Choices, base: Scenario, clusters: Clusters) -> dict[str | None, BoundCalculator]:
    """Return the calculator of lower bounds for each framework of a search space.

    A framework has its own factor on the time of transfers (`network_time`), and therefore a cluster of its own.
    Frameworks with the same factor share a calculator.
    """
    training = base.training
    if training is None:
        raise TypeError("a plan is of a training step")
    by_cluster: dict[int, BoundCalculator] = {}
    by_framework: dict[str | None, BoundCalculator] = {}
    for name in choices.values["framework"]:
        scenario = base if name is None else base.replaced(training=training.replaced(framework=name))
        cluster = clusters.of(scenario)
        by_framework[name] = by_cluster.setdefault(id(cluster), BoundCalculator(cluster))
    return by_framework


@collected_later()
def _bounded(
    choices: Choices,
    base: Scenario,
    sequences: int,
    refused: InfeasibleCounts,
    bounds: Mapping[str | None, BoundCalculator],
) -> list[_Entry]:
    """Return the feasible settings with their busy bounds; count the others in `refused` by reason."""
    entries = []
    for number, (setting, step) in enumerate(settings(choices, base, sequences, refused)):
        try:
            passing = bounds[setting.framework].of(setting, step)
        except ValueError as error:
            refused.count_error(error)
            continue
        entries.append(_Entry(passing.busy_bound(), number, 0, setting, passing, step))
    return entries


@dataclass
class _SearchState:
    """State of a search: simulated settings, failures, and the heap of settings with lower bounds.

    The heap rises by bound, hence the first place is proved before the second place is searched.
    """

    base: Scenario
    cluster: Cluster
    bounds: Mapping[str | None, BoundCalculator]
    best: int
    waiting: list[_Entry]
    submitted: list[_Entry] = field(default_factory=list)
    played: list[PlayedSetting] = field(default_factory=list)
    do_not_fit: int = 0
    failed: dict[str, int] = field(default_factory=dict)

    def ranked(self) -> list[PlayedSetting]:
        """Return the fastest simulated settings that fit into memory; ties go to the setting enumerated first."""
        fitting = [setting for setting in self.played if setting.fits]
        return sorted(fitting, key=lambda setting: (setting.step_time, setting.number))[: self.best]

    def kinds(self) -> tuple[FastestOfKind, ...]:
        """Return the fastest setting of each kind of layout, fastest first: simulated, or known by its lower bound."""
        fastest_settings = [
            FastestOfKind(setting.setting, setting.step_time, is_bound=False) for setting in self.played if setting.fits
        ]
        hbm = self.cluster.gpus[0].hbm_bytes
        # A setting that waits was pruned: its bound exceeds the best settings' times.
        fastest_settings += [
            FastestOfKind(setting.setting, setting.bound, is_bound=True)
            for setting in self.waiting
            if setting.passing.memory <= hbm
        ]
        fastest: dict[str, FastestOfKind] = {}
        for setting in sorted(fastest_settings, key=lambda setting: setting.step_time):
            fastest.setdefault(setting.setting.kind, setting)
        return tuple(fastest.values())

    def last_of_best(self) -> float:
        """Return the largest lower bound worth simulating: the slowest best setting's step time [s]."""
        # Fewer settings than requested: any setting may still be among the best.
        ranked = self.ranked()
        return (1 + _ROUNDING) * ranked[-1].step_time if len(ranked) == self.best else float("inf")

    def _running(self) -> list[_Entry]:
        """Return the settings submitted for simulation whose outcomes are not recorded yet."""
        return self.submitted[len(self.played) + self.failures :]

    def left(self) -> int:
        """Return the number of settings that may still be among the best: running, or waiting with a low bound."""
        limit = self.last_of_best()
        return len(self._running()) + sum(entry.bound <= limit for entry in self.waiting)

    def certain(self) -> int:
        """Return how many best settings, from the first, are faster than every undecided setting's bound."""
        undecided = [*self.waiting[:1], *self._running()]
        lowest = min((entry.bound for entry in undecided), default=float("inf"))
        return sum((1 + _ROUNDING) * setting.step_time < lowest for setting in self.ranked())

    def through(self, player: Player, ahead: int) -> Iterator[None]:
        """Simulate the settings that may be among the best; yield after each outcome.

        The next setting is chosen from every earlier outcome except the last `ahead`. Outcomes are taken in order of
        submission. Therefore a given number of processes always simulates the same settings, however long each takes.
        """
        entries, outcomes = self.submitted, dict[int, PointOutcome]()
        while True:
            # Outcomes of parallel processes may arrive out of order: take the next in order of submission.
            while len(self.played) + self.failures < len(entries) - ahead:
                if (number := len(self.played) + self.failures) in outcomes:
                    self._note(entries[number], outcomes.pop(number))
                    yield
                else:
                    outcome = player.outcome()
                    outcomes[outcome.index] = outcome
            entry = self._next()
            if entry is not None:
                player.submit((len(entries), Point({}, scenario_of(self.base, entry.setting), report_alone=True)))
                entries.append(entry)
            elif ahead:
                # No further setting may be among the best: wait for outcomes of running settings.
                ahead = 0
            else:
                return

    @property
    def failures(self) -> int:
        """Number of settings that failed in simulation."""
        return sum(self.failed.values())

    @collected_later()
    def _next(self) -> _Entry | None:
        """Return the setting with the lowest fully refined bound, if it may be among the best; otherwise None."""
        limit = self.last_of_best()
        while self.waiting and self.waiting[0].bound <= limit:
            entry = heapq.heappop(self.waiting)
            if entry.sieved == _SIEVES:
                return entry
            # A refined setting may no longer be the heap's smallest.
            if self._sieve(entry):
                heapq.heappush(self.waiting, entry)
            else:
                self.do_not_fit += 1
        return None

    def _sieve(self, entry: _Entry) -> bool:
        """Replace a setting's bound by the next tighter one; return False if the setting does not fit into memory."""
        hbm = self.cluster.gpus[0].hbm_bytes
        # Pages of a paged optimizer leave a full GPU: only a simulation tells whether the rest fits.
        bounded = not entry.step.optimizer.paged
        # The cheap bound on memory comes first.
        if bounded and entry.passing.memory > hbm:
            return False
        entry.sieved += 1
        if entry.sieved == 1:
            bound = entry.passing.schedule_bound()
        else:
            # Recording the first stage alone costs less, and may already prune the setting. The last sieve records the
            # other stages.
            stages = [0] if entry.sieved == 2 else range(1, entry.setting.pp)
            calculator = self.bounds[entry.setting.framework]
            noted = few_micro_batches(
                calculator.cluster, entry.step, entry.setting.gpus, closed_forms=True, stages=stages
            )
            # The same recorded operations give a tighter bound on memory.
            if bounded and max(stage.nbytes for stage in memory_of_notes(noted)) + entry.passing.beside > hbm:
                return False
            ranks = [*entry.first, *(rank_bound(notes, calculator.durations) for notes in noted)]
            bound = bound_from_ranks(entry.passing, ranks)
            entry.first = ranks if entry.sieved == 2 else []
            # The first stage is the only stage.
            if entry.setting.pp == 1:
                entry.sieved = _SIEVES
        # A refinement may be looser than the present bound: the tightest counts.
        entry.bound = max(entry.bound, bound)
        return True

    def _note(self, entry: _Entry, outcome: PointOutcome) -> None:
        """Record the outcome of a simulation: the setting with its report, or an error."""
        if outcome.report is None:
            self.failed[outcome.error or ""] = self.failed.get(outcome.error or "", 0) + 1
        else:
            self.played.append(PlayedSetting(entry.setting, entry.number, entry.bound, dict(outcome.report)))
