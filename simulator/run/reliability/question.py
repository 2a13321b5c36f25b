"""How much work does a scenario's training do in days with failures? A simulated step becomes a job of days.

The step is simulated once. Checkpoints have the bytes of the model states: parameters, master copy, optimizer states of
what is trained. Each GPU copies its share to pinned host memory over PCIe, or writes its share itself; all GPUs
share the storage.

Example: Llama 3 405B with Adam has 406e9 x (2 + 4 + 8) = 5.7 TB; 16,384 GPUs with a storage of 2 TB/s write for 2.8 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import exp, hypot, inf, isfinite, log, log1p
from typing import TYPE_CHECKING, Any, Final, get_args

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.sentence import capital
from simulator.basics.units import format_bandwidth, format_duration, format_memory, format_time
from simulator.basics.work_unit import useful_unit
from simulator.records.measures import interval_width
from simulator.report.numbers.headline import HasSentences
from simulator.report.numbers.training_summary import TrainingReport
from simulator.report.tables.answer_table import AnswerTable
from simulator.run.reliability.failures import DAY, FailureKind, FailureProcess
from simulator.run.reliability.goodput_tables import comparison_table, incident_table, interval_table, waterfall_table
from simulator.run.reliability.outlook import IntervalChoice, Job, Outlook, best_interval, outlook, spares_needed
from simulator.run.reliability.renewal import Checkpointing, Recovery
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate_point
from simulator.scenario.days_file import RunOfDays, Save
from simulator.scenario.records import Scenario
from simulator.step.checkpoint_traffic import checkpoint_bytes
from simulator.step.offload import copies
from simulator.step.plan import StepPlan

if TYPE_CHECKING:
    import pandas as pd

# Failures of a node and day that stop a job: Llama 3 405B on 16,384 H100, 419 in 54 days on 2,048 nodes
# (arXiv:2407.21783, table 5).
USUAL_FAILURES: Final = 3.79e-3
# Share of failures that hang instead of ending with an error: 9.9 % of the incidents of ByteRobust (arXiv:2509.16293).
_HANGS: Final = 0.1
# Rate at which the storage takes checkpoints, for each GPU: BLOOM's 2.3 TB in 40 s from 384 processes (bigscience,
# train/tr11-176B-ml/chronicles.md) [B/s].
_STORAGE_OF_GPU: Final = 160e6
_NO_COLLECTIVE: Final = "scenario: a collective has no checkpoints; give the scenario of a training step"
# Runs for the spread, and for each interval that is tried.
_SEEDS: Final = 100
_SEEDS_OF_INTERVALS: Final = 12
# Share of the time that a job may wait for spares before the answer names it.
_WAITS: Final = 0.001


@dataclass(frozen=True, slots=True)
class GoodputQuestion:
    """A training of days."""

    scenario: Scenario  # A single training step
    # Its length, what fails and how it saves; without failures and `mtbf`, a node fails `USUAL_FAILURES` times a day.
    run: RunOfDays

    def __post_init__(self) -> None:
        """Raise ScenarioError for values that no training has."""
        run = self.run
        if several := [*self.scenario.compare, *self.scenario.sweep]:
            raise ScenarioError(
                f"{self.scenario.source}: has several points along {', '.join(several)}; give each a single value, for "
                f"example --set {several[0]}=VALUE"
            )
        if (run.days is None) == (run.tokens is None):
            which = "neither days nor tokens are given" if run.days is None else "days and tokens are given"
            raise ScenarioError(f"days: {which}; give one of the two, which ends the training")
        if run.failures is not None and run.mtbf is not None:
            raise ScenarioError(
                "mtbf: failures and mtbf are given; give one of the two, which is how often the job fails"
            )
        for name in ("days", "tokens", "interval", "storage", "mtbf"):
            value = getattr(run, name)
            if value is not None and not (isfinite(value) and value > 0):
                raise ScenarioError(f"{name}: got {value:g}; must be above 0")
        for name in ("failures", "detection", "watchdog", "restart", "repair"):
            value = getattr(run, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise ScenarioError(f"{name}: got {value:g}; must be at least 0")
        if run.save not in get_args(Save):
            raise ScenarioError(f"save: got {run.save!r}; {one_of(get_args(Save), run.save)}")
        if run.spares is not None and run.spares < 0:
            raise ScenarioError(f"spares: got {run.spares}; must be at least 0")
        if self.scenario.training is None:
            raise ScenarioError(_NO_COLLECTIVE)

    def failures_of_node(self, nodes: int) -> float:
        """Return the failures for each node and day that stop a job on a number of nodes [1/day].

        From `mtbf`, the number is 86,400 / (`mtbf` x `nodes`).
        """
        if self.run.mtbf is not None:
            return DAY / (self.run.mtbf * nodes)
        return USUAL_FAILURES if self.run.failures is None else self.run.failures


@dataclass(frozen=True, slots=True, repr=False)
class Goodput(HasSentences):
    """Answer to a GoodputQuestion.

    Attributes
    ----------
    question : GoodputQuestion
        What was asked.
    step_time : float
        Simulated time of a step [s].
    work_per_step : float
        Tokens without padding, or samples, of a step.
    unit : {"token", "useful token", "sample"}
        Unit of work.
    job : Job
        Nodes, failures, checkpoints and recovery.
    checkpoint_bytes : float
        Bytes of a checkpoint [B].
    outlook : Outlook
        Outcomes on several seeds.
    uncertainty : float
        80 % of measured steps lie within the predicted step time divided and multiplied by 1 + this number.
    intervals : IntervalChoice or None
        Intervals that were tried; None without failures.
    """

    question: GoodputQuestion
    step_time: float
    work_per_step: float
    unit: str
    job: Job
    checkpoint_bytes: float
    outlook: Outlook
    intervals: IntervalChoice | None
    uncertainty: float = 0.0

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table of where the time goes as HTML."""
        return self.question.scenario.question or self.subject, self.frame().to_html()

    @property
    def subject(self) -> str:
        """Name of the scenario, number of nodes, and length or work of the run."""
        run = self.question.run
        length = f"{run.days:g} days" if run.days is not None else f"{run.tokens:,.0f} {self.unit}s"
        return f"{self.question.scenario.name}: {number_of(self.job.nodes, 'node')}, {length}"

    @property
    def spares_needed(self) -> int:
        """Spare nodes with which the job waits for none in 99 % of the time."""
        mean = self.job.process.between_failures(self.job.nodes)
        return 0 if mean == inf else spares_needed(1.0 / mean, self.job.recovery.repair)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        share = self.outlook.goodput
        of_step = f"±{100 * self.uncertainty:.0f} % of the step time"
        causes = " and ".join([of_step] * (self.uncertainty > 0) + ["failures"] * (self.intervals is not None))
        useful = f"; {100 * share:.1f} % of the time is useful."
        if self.question.run.days is not None:
            low, high = map(self._work, self.range(self.outlook.work))
            what = f"In {self.question.run.days:g} days the training does {self.middle}"
        else:
            low, high = (f"{seconds / DAY:.1f}" for seconds in self.range(self.outlook.time))
            what = f"The training takes {self.middle}"
        first = what + (f" (80 %: {low} to {high}, from {causes})" if causes else "") + useful
        return (first, *self._advice(), *self._given())

    def range(self, quantile: Callable[[float], float]) -> tuple[float, float]:
        """Return the ends of the 80 % range of a figure with the given quantiles over runs: failures and the step's
        uncertainty are independent, so that the squares of their logarithms add.
        """
        low, middle, high = map(quantile, (0.1, 0.5, 0.9))
        if middle <= 0.0:
            return low, high
        step = log1p(self.uncertainty)
        below = inf if low <= 0.0 else log(middle / low)
        return middle / exp(hypot(step, below)), middle * exp(hypot(step, log(high / middle)))

    @property
    def _range_of_answer(self) -> dict[str, tuple[float, float]]:
        """The 80 % range of what was asked: work in a given time, or the time until given work is done [s]."""
        if self.question.run.days is None:
            return {"time_80_s": self.range(self.outlook.time)}
        low, high = (done / self.step_time * self.work_per_step for done in self.range(self.outlook.work))
        return {"work_80": (low, high)}

    @property
    def middle(self) -> str:
        """What half of the runs reach: work in a given time, or days until given work is done, in words."""
        if self.question.run.days is not None:
            return self._work(self.outlook.work(0.5))
        return f"{self.outlook.time(0.5) / DAY:.1f} days"

    @property
    def unit_of_work(self) -> tuple[float, str]:
        """Number of tokens or samples in a unit that suits the work of half of the runs, and the unit's name."""
        return self._unit_of(self.outlook.work(0.5) / self.step_time * self.work_per_step)

    def _unit_of(self, amount: float) -> tuple[float, str]:
        for size, name in ((1e12, "trillion "), (1e9, "billion "), (1e6, "million ")):
            if amount >= size:
                return size, f"{name}{self.unit}s"
        return 1.0, f"{self.unit}s"

    def _work(self, seconds: float) -> str:
        """Return work in words, from the seconds that a healthy job needs for it [s]."""
        return self._amount(seconds / self.step_time * self.work_per_step)

    def _amount(self, amount: float) -> str:
        """Return a number of tokens or samples in words."""
        size, name = self._unit_of(amount)
        return f"{amount / size:.3g} {name}" if size > 1.0 else f"{amount:,.0f} {name}"

    def _advice(self) -> tuple[str, ...]:
        """Return sentences on failures, the interval between saves and spares."""
        if self.intervals is None:
            return ("Nothing fails, so that no checkpoint is needed.",)
        mean = self.job.process.between_failures(self.job.nodes)
        stops = sum(len(run.incidents) for run in self.outlook.runs) / len(self.outlook.runs)
        lines = [f"Failures stop the job {stops:.3g} times in the mean, one in {format_duration(mean)}."]
        best, used = self.intervals.best, self.job.checkpointing.interval
        young, daly, shortest = (
            format_duration(seconds) for seconds in (self.intervals.young, self.intervals.daly, best)
        )
        formulas = f"Young: {young}, Daly: {daly}"
        if self.question.run.interval is None:
            lines.append(f"It saves every {shortest} of work, the best interval by simulation ({formulas}).")
        elif abs(used / best - 1.0) > 0.25:
            lines.append(f"A save every {shortest} instead of {format_duration(used)} is best ({formulas}).")
        else:
            lines.append(f"It saves every {format_duration(used)} of work; {shortest} is best ({formulas}).")
        waits = self.outlook.shares["waiting for spares"]
        if waits > _WAITS:
            lines.append(
                f"It waits {100 * waits:.1f} % of the time for spare nodes; {self.spares_needed} spares suffice."
            )
        else:
            lines.append(f"{self.spares_needed} spare nodes suffice in 99 % of the time.")
        return tuple(lines)

    def _given(self) -> tuple[str, ...]:
        """Return sentences on the step and on a checkpoint: model, GPUs, framework, times, bytes."""
        scenario, saves = self.question.scenario, self.job.checkpointing
        spec = scenario.training
        if spec is None:
            raise ScenarioError(_NO_COLLECTIVE)
        model = spec.model if isinstance(spec.model, str) else "the scenario's model"
        step = (
            f"A step of {model} on {number_of(scenario.cluster.world_size, 'GPU')} takes "
            f"{format_time(self.step_time)} for {self._amount(self.work_per_step)} (framework {spec.framework})."
        )
        rate = format_bandwidth(self.checkpoint_bytes / saves.load)
        stop = f"A checkpoint of {format_memory(self.checkpoint_bytes)} stops the work for {format_time(saves.stall)}"
        if self.question.run.save == "synchronous":
            return step, f"{stop}, until the storage has it (synchronous save, {rate} for all GPUs together)."
        return step, (
            f"{stop}, and the storage has it {format_time(saves.write)} later (asynchronous save, {rate} for all GPUs "
            "together)."
        )

    @property
    def tables(self) -> tuple[AnswerTable, ...]:
        """Where the time goes, the failures of the first run, and the intervals between saves that were tried."""
        first = waterfall_table(self.outlook), incident_table(self.outlook.runs[0], self.job.process.kinds)
        return first if self.intervals is None else (*first, interval_table(self.intervals))

    def frame(self) -> pd.DataFrame:
        """Return where the time goes, in the mean of the runs: a row for each part, with its share and its days."""
        return self.tables[0].frame().set_index("part")

    def incidents(self) -> pd.DataFrame:
        """Return the failures of the first run: day, node, kind, lost work [s] and time until work went on [s]."""
        return self.tables[1].frame()

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data, times in seconds and sizes in bytes."""
        return {
            "sentences": list(self.sentences),
            "goodput": self.outlook.goodput,
            "shares": dict(self.outlook.shares),
            "step_time_s": self.step_time,
            "step_uncertainty": self.uncertainty,
            **self._range_of_answer,
            "nodes": self.job.nodes,
            "checkpoint_bytes": self.checkpoint_bytes,
            "checkpoint_stall_s": self.job.checkpointing.stall,
            "checkpoint_write_s": self.job.checkpointing.write,
            "save_interval_s": self.job.checkpointing.interval,
            "young_interval_s": None if self.intervals is None else self.intervals.young,
            "daly_interval_s": None if self.intervals is None else self.intervals.daly,
            "best_interval_s": None if self.intervals is None else self.intervals.best,
            "spares_needed": self.spares_needed,
            "time_s": {f"{part:g}": self.outlook.time(part) for part in (0.05, 0.5, 0.95)},
            "work": {
                f"{part:g}": self.outlook.work(part) / self.step_time * self.work_per_step for part in (0.05, 0.5, 0.95)
            },
        }


@dataclass(frozen=True, slots=True)
class HealthyStep:
    """What days need to know of a simulated step."""

    time: float  # time of the step [s]
    work: float  # tokens or samples of the step
    unit: str  # unit of work
    # `ranks`, `nodes`: GPUs, and machines with GPUs.
    ranks: int
    nodes: int
    nbytes: float  # bytes of a checkpoint [B]
    copied: float  # time in which each GPU copies its share of a checkpoint to host memory [s]
    # Time of a step at whose beginning a checkpoint leaves [s]; equal to `time` unless the scenario simulates one.
    beside_save: float
    uncertainty: float = 0.0  # see `Goodput`

    def lost_beside(self, write: float) -> float:
        """Return the time that a checkpoint costs while the storage takes it for `write` seconds [s].

        The steps of that time take `beside_save` instead of `time`, the last one in part.
        """
        return write * max(0.0, 1.0 - self.time / self.beside_save)


def healthy_step(scenario: Scenario) -> HealthyStep:
    """Simulate the step of a training; also beside a checkpoint in flight, if the scenario has its traffic.

    Raises
    ------
    ScenarioError
        The scenario has several points or is a collective, or the step does not fit into memory.
    """
    beside = simulate_point(scenario)
    run = beside
    if scenario.training is not None and scenario.training.checkpoint_traffic != "none":
        run = simulate_point(scenario.replaced(training=scenario.training.replaced(checkpoint_traffic="none")))
    if not (
        isinstance(run.report, TrainingReport)
        and isinstance(run.plan, StepPlan)
        and isinstance(beside.report, TrainingReport)
    ):
        raise ScenarioError(_NO_COLLECTIVE)
    cluster, report = Clusters().of(scenario), run.report
    ranks, nbytes = len(cluster.ranks), checkpoint_bytes(run.plan.step)
    return HealthyStep(
        report.step_time_s,
        report.useful_tokens_per_s * report.step_time_s,
        useful_unit([report.to_dict()]),
        ranks,
        len(cluster.nodes),
        nbytes,
        copies(cluster, "to host").seconds(nbytes / ranks),
        beside.report.step_time_s,
        interval_width(report.to_dict()) or 0.0,
    )


def goodput(question: GoodputQuestion, step: HealthyStep | None = None) -> Goodput:
    """Return how much work a training does in days with failures.

    `step` is the scenario's step, if it has been simulated already.

    Raises
    ------
    ScenarioError
        As `healthy_step`.
    """
    step, run = step or healthy_step(question.scenario), question.run
    storage = run.storage or question.scenario.cluster.storage or step.ranks * _STORAGE_OF_GPU
    write = step.nbytes / storage
    # A write behind the steps slows them down; what they lose counts as time of the save.
    asynchronous = step.copied + step.lost_beside(write), write
    stall, behind = asynchronous if run.save == "asynchronous" else (write, 0.0)
    saves = Checkpointing(run.interval or 3600.0, stall, behind, write)
    recovery = Recovery(run.detection, run.watchdog, run.restart, run.spares, run.repair)
    rate = question.failures_of_node(step.nodes) / DAY
    kinds = FailureKind("error", rate * (1 - _HANGS)), FailureKind("hang", rate * _HANGS, "hangs")
    job = Job(step.nodes, FailureProcess(kinds if rate else ()), saves, recovery)
    until = DAY * run.days if run.days is not None else inf
    needed = run.tokens / step.work * step.time if run.tokens is not None else inf
    seeds = range(run.seed, run.seed + _SEEDS)
    intervals = None
    if rate:
        mean = job.process.between_failures(step.nodes)
        # So long that every interval meets enough failures to be judged.
        judged = max(min(until, needed), 100 * mean)
        intervals = best_interval(job, seeds[:_SEEDS_OF_INTERVALS], judged)
        if run.interval is None:
            job = replace(job, checkpointing=replace(saves, interval=intervals.best))
    elif run.interval is None:
        # No failure: a save would only cost time.
        job = replace(job, checkpointing=replace(saves, interval=inf))
    outcome = outlook(job, seeds if rate else seeds[:1], until=until, work=needed)
    return Goodput(question, step.time, step.work, step.unit, job, step.nbytes, outcome, intervals, step.uncertainty)


@dataclass(frozen=True, slots=True, repr=False)
class GoodputComparison(HasSentences):
    """Answers for several values of one fact, on the same failures."""

    along: str  # name of the fact
    values: tuple[str, ...]  # its values, as written
    answers: tuple[Goodput, ...]  # answer for each value

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        shares = [answer.outlook.goodput for answer in self.answers]
        best, worst = shares.index(max(shares)), shares.index(min(shares))
        if len(shares) == 1 or shares[best] - shares[worst] < _WAITS:
            return (f"All values of {self.along} leave {100 * shares[best]:.1f} % of the time useful.",)
        # The first of those that differ from the best by less than what is told.
        enough = next(place for place, share in enumerate(shares) if shares[best] - share < _WAITS)
        return (
            f"{capital(self.along)} {self.values[enough]} leaves most of the time useful, "
            f"{100 * shares[enough]:.1f} %; {self.values[worst]} least, {100 * shares[worst]:.1f} %.",
            f"With {self.along} {self.values[enough]}:",
            *self.answers[enough].sentences,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answers as plain data."""
        return {
            "sentences": list(self.sentences),
            "along": self.along,
            "answers": {
                value: answer.to_dict() for value, answer in zip(self.values, self.answers, strict=True)
            },
        }  # fmt: skip

    @property
    def subject(self) -> str:
        """Name of the scenario, number of nodes, length or work of the run, and the values."""
        return f"{self.answers[0].subject}; {self.along}: {', '.join(self.values)}"

    @property
    def tables(self) -> tuple[AnswerTable, ...]:
        """A row for each value."""
        outlooks, results = [answer.outlook for answer in self.answers], [answer.middle for answer in self.answers]
        return (comparison_table(self.along, self.values, outlooks, results),)

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table of the values as HTML."""
        return self.subject, self.frame().to_html()

    def frame(self) -> pd.DataFrame:
        """Return a row for each value: shares of the time, days (5, 50, 95 % of the runs), and the result in words."""
        return self.tables[0].frame().set_index(self.along)


def compared(questions: Mapping[str, GoodputQuestion], along: str) -> GoodputComparison:
    """Return the answers to questions that differ in one fact, `along`; the step is simulated once."""
    step = healthy_step(next(iter(questions.values())).scenario)
    return GoodputComparison(along, tuple(questions), tuple(goodput(question, step) for question in questions.values()))
