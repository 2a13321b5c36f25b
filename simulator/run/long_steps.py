"""Which report has a step with hundreds of micro-batches? Two short steps tell, if their middle repeats itself.

After the pipeline has filled, each further group of micro-batches takes the same time as the group before, on every
stream of every stage. Two steps that differ by one group show this: the spans in the middle of the longer step return
after exactly the time by which the step became longer. Every further group then adds the same times again.

Example: four stages, 256 micro-batches. Steps with 28 and 32 micro-batches take 3.1 and 3.5 s, and in the middle of the
longer step each stream's spans repeat every 0.4 s. The other 224 micro-batches are 56 groups: 3.5 + 56 x 0.4 = 25.9 s.
If one stream were slower, and only hidden so far, its spans would lie further apart than 0.4 s: then the whole step is
simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.records.measures import HOST_WAIT
from simulator.records.operation import ISSUE
from simulator.records.timeline import Span, Timeline
from simulator.report.numbers.training_summary import TrainingReport, first_ranks, limit_text, step_intervals, works_of
from simulator.run.point_result import PointResult
from simulator.run.scenario_cluster import Clusters
from simulator.run.training import play_step
from simulator.scenario.build_training import to_step
from simulator.scenario.records import Scenario
from simulator.step.plan import StepPlan
from simulator.step.spec import TrainingStep

# Groups of micro-batches in the shorter step: some fill and empty the pipeline, and some are in between. If the first
# number is too small for a schedule to settle, the second is tried.
_GROUPS: Final = (7, 12)
# The whole step is simulated unless it has this many times the micro-batches of both short steps.
_WORTH: Final = 1.5
# Rounding of times, relative to the time of a group.
_ROUNDING: Final = 1e-9
_JITTER: Final = Jitter(0.0, 0.0, 0)


def long_step_report(scenario: Scenario, clusters: Clusters) -> tuple[TrainingReport, str] | None:
    """Return the report of a training step, extrapolated from simulations of two shortened versions of the step, and
    the engine of these simulations; None if the step has few micro-batches, or if the shortened steps repeat no
    pattern.

    Times are equal to those of a full simulation up to rounding. The report's bottleneck link is left unset.

    Parameters
    ----------
    scenario : Scenario
        The training step, a single point.
    clusters : Clusters
        Cache of clusters.
    """
    spec, machine = scenario.training, scenario.cluster
    uneven = machine.stragglers or machine.events or machine.jitter.compute or machine.jitter.latency
    if spec is None or spec.numerics or uneven:
        return None
    step = to_step(spec, machine.world_size, scenario.base)
    # With an update on the host, no figure of a report tells kernels from the host's work.
    if step.rounds > 1 or step.copies_to_host:
        return None
    group, cluster = _group(step), clusters.of(scenario)
    stages = first_ranks(step.parallelism, machine.world_size)

    def run(micro_batches: int) -> PointResult:
        changed = step.with_keys(gradient_accumulation_steps=micro_batches)
        return play_step(cluster, changed, _JITTER, limit_memory=False, engine=scenario.engine, keep=stages)

    for groups in _GROUPS:
        short = groups * group + step.accumulation % group
        if step.accumulation < _WORTH * (2 * short + group):
            return None
        short_run, longer_run = run(short), run(short + group)
        # Schedules that hold every micro-batch's activations have no steady state.
        if _peaks(short_run) != _peaks(longer_run):
            return None
        if repeats(short_run.timeline, longer_run.timeline):
            return _told(short_run, longer_run, cluster, step.accumulation, short, group), longer_run.timeline.engine
    return None


def _peaks(result: PointResult) -> tuple[int, tuple[int, ...]]:
    """Return the peak memory of a step and of its pipeline stages [B]."""
    return _report(result).peak_memory_bytes, _report(result).peak_memory_by_stage


def _report(result: PointResult) -> TrainingReport:
    if not isinstance(result.report, TrainingReport):
        raise TypeError("a training step has the report of a training step")
    return result.report


def _told(
    short_run: PointResult, other: PointResult, cluster: Cluster, micro_batches: int, short: int, group: int
) -> TrainingReport:
    """Return the report of a step with `micro_batches`, from the steps with `short` and `short + group`."""
    if not isinstance(other.plan, StepPlan):
        raise TypeError("a training step has the plan of a training step")
    report = _extrapolated(_report(short_run), _report(other), micro_batches, short, group)
    intervals, _ = step_intervals(
        other.plan,
        cluster,
        works_of(other.plan, other.timeline),
        {name: float(getattr(report, name)) for name in ("step_time_s", "tokens_per_s", "peak_memory_bytes")},
        exposed=report.exposed_comm_time_by_dimension,
        host_update=0.0,
        host_wait=report.host_wait_time_s,
        grounds=report.time_by_evidence,
    )
    return replace(report, intervals=intervals)


def _group(step: TrainingStep) -> int:
    """Return the number of micro-batches after which a schedule repeats itself, or a multiple."""
    cut = step.parallelism
    return max(1, cut.pp, cut.microbatch_group or 0)


def repeats(short: Timeline, longer: Timeline) -> bool:
    """Return True if the spans in the middle of every stream of the longer step come again after the time by which this
    step is longer, and last as long.

    A host that issues kernels ahead of the GPU may be faster: nothing waits for it any more.
    """
    period = longer.end - short.end
    tolerance = _ROUNDING * longer.end
    before, after = _streams(short), _streams(longer)
    if before.keys() != after.keys() or period <= 0.0:
        return False
    for (rank, stream), spans in after.items():
        count = len(spans) - len(before[rank, stream])
        first = (len(spans) - 2 * count) // 2
        # A stream without a span in each group, such as the optimizer's, does not repeat.
        if count == 0:
            continue
        if count < 0 or first < 0:
            return False
        for span, next_one in zip(spans[first : first + count], spans[first + count : first + 2 * count], strict=True):
            distance = next_one.start - span.start
            longer_by = (next_one.end - next_one.start) - (span.end - span.start)
            ahead = stream == ISSUE and distance < period
            if (
                span.kind != next_one.kind
                or abs(longer_by) > tolerance
                or not (ahead or abs(distance - period) <= tolerance)
            ):
                return False
    return True


def _streams(timeline: Timeline) -> dict[tuple[int, str], list[Span]]:
    """Return the spans of each stream of each recorded rank, in order of their start."""
    spans_of: dict[tuple[int, str], list[Span]] = {}
    for span in timeline.spans:
        spans_of.setdefault((span.rank, span.stream), []).append(span)
    return {key: sorted(spans, key=lambda span: (span.start, span.end)) for key, spans in spans_of.items()}


def _extrapolated(
    first: TrainingReport, other: TrainingReport, micro_batches: int, short: int, group: int
) -> TrainingReport:
    """Return the report of a step with `micro_batches`, from the reports with `short` and `short + group`."""
    groups = (micro_batches - short - group) // group

    def further(before: float, after: float) -> float:
        """Return a figure that grows by the same amount with every group."""
        return after + groups * (after - before)

    def each(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
        return {name: further(before.get(name, 0.0), value) for name, value in after.items()}

    def all_of(before: Sequence[float], after: Sequence[float]) -> tuple[float, ...]:
        return tuple(further(*pair) for pair in zip(before, after, strict=True))

    time = further(first.step_time_s, other.step_time_s)
    # Work per time: micro-batches grow in proportion, the time does not quite.
    faster = micro_batches / (short + group) * other.step_time_s / time
    compute, idle, waited = (
        further(getattr(first, name), getattr(other, name))
        for name in ("compute_time_s", "bubble_time_s", "host_wait_time_s")
    )
    exposed = further(first.exposed_comm_time_s, other.exposed_comm_time_s)
    parts = {"kernels": compute, "host update": 0.0, "exposed communication": exposed}
    parts |= {"idle": idle, HOST_WAIT: waited}
    return replace(
        other,
        step_time_s=time,
        tokens_per_s=other.tokens_per_s * faster,
        tokens_per_s_per_gpu=other.tokens_per_s_per_gpu * faster,
        useful_tokens_per_s=other.useful_tokens_per_s * faster,
        mfu=other.mfu * faster,
        hfu=further(first.hfu * first.step_time_s, other.hfu * other.step_time_s) / time,
        model_flops_per_s_per_gpu=other.model_flops_per_s_per_gpu * faster,
        compute_time_s=compute,
        comm_time_s=further(first.comm_time_s, other.comm_time_s),
        exposed_comm_time_s=exposed,
        bubble_time_s=idle,
        host_wait_time_s=waited,
        recompute_time_s=further(first.recompute_time_s, other.recompute_time_s),
        optimizer_time_s=further(first.optimizer_time_s, other.optimizer_time_s),
        closed_form_collectives=int(further(first.closed_form_collectives, other.closed_form_collectives)),
        played_collectives=int(further(first.played_collectives, other.played_collectives)),
        bottleneck=None,
        because=limit_text(time, parts, other.because.partition("; ")[2]),
        exposed_comm_time_by_kind=each(first.exposed_comm_time_by_kind, other.exposed_comm_time_by_kind),
        comm_time_by_dimension=each(first.comm_time_by_dimension, other.comm_time_by_dimension),
        exposed_comm_time_by_dimension=each(first.exposed_comm_time_by_dimension, other.exposed_comm_time_by_dimension),
        time_by_evidence=each(first.time_by_evidence, other.time_by_evidence),
        idle_time_by_stage=all_of(first.idle_time_by_stage, other.idle_time_by_stage),
    )
