"""How fast is a training step, and which part limits it: step time, tokens/s, MFU, exposed communication, peak memory?

Reads the timeline and the plan, never a model or an engine. Only report keys carry units. A rank's time splits as
follows:

    time            0123456789
    compute         ####..##..      compute_time_s = 6
    communication   ..###..##.      comm_time_s = 5
    exposed         ....#...#.      exposed_comm_time_s = 2: communication without compute
    idle            .....#...#      bubble_time_s = 2: neither
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.basics import registry
from simulator.basics.arrays import Floats
from simulator.basics.dtypes import is_narrow
from simulator.basics.intervals import as_array, length, outside, union
from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import TOKEN, USEFUL_TOKEN, rate_name
from simulator.cluster.cluster import Cluster
from simulator.cluster.library import MODELLED
from simulator.records.learning import Learning
from simulator.records.measures import HOST_WAIT, share_text
from simulator.records.memory_margin import MemoryMargin, margin_of_timeline
from simulator.records.operation import HOST, ISSUE
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck
from simulator.report.numbers.headline import HasHeadline
from simulator.report.numbers.prediction_intervals import (
    HOST_RATE,
    LAUNCH_TIME,
    CarriedKernels,
    HostWork,
    PartError,
    Traits,
    UnmeasuredNetwork,
    has_measured_adapters,
    is_measured_dtype,
    measured_framework,
    prediction_interval,
    unmeasured_parallelism,
    unpredictable,
)
from simulator.report.numbers.summary import BETWEEN
from simulator.step.streams import HOST_COPIES, dimension_of

if TYPE_CHECKING:
    from simulator.records.operation import KernelParts
    from simulator.step.parallelism import Parallelism
    from simulator.step.plan import StepPlan

# With less than this share of the collectives' bytes in simulated transfers, the most used link is no bottleneck: a
# step with closed forms may simulate nothing but the sum of the gradient's norm, a few bytes.
_LEAST_SIMULATED: Final = 0.01
# Share of a step's time spent waiting for the host from which the step is called host-bound.
_HOST_BOUND: Final = 0.1


@dataclass(frozen=True, slots=True, repr=False)
class TrainingReport(HasHeadline):
    """Report of a training step.

    Attributes
    ----------
    step_time_s : float
        Time of the rank that ends last [s].
    tokens_per_s, tokens_per_s_per_gpu : float
        Throughput of all GPUs, and per GPU, in the unit `work_unit` [1/s]. Padding counts, as in most logs.
    useful_tokens_per_s : float
        Throughput of all GPUs without padding, `tokens_used` x `tokens_per_s` [1/s].
    mfu, hfu : float
        Model FLOPs utilisation, and hardware FLOPs utilisation, which also counts recompute: FLOPs over the dense peak
        of all GPUs, with full attention (PaLM, appendix B).
    model_flops_per_s_per_gpu : float
        Numerator of `mfu`, for comparing steps with different matmul precision [FLOP/s].
    compute_time_s, comm_time_s, exposed_comm_time_s, bubble_time_s : float
        Unions of spans: kernels and the host's computing; collectives and copies; collectives and copies without
        concurrent compute; neither (idle) [s]. All on the rank that ends last. With a pipeline, whose stages end at
        different times and wait for each other, the mean over the first rank of each stage.
    host_wait_time_s : float
        Time in which nothing runs because the host has not launched the next kernel yet; bubble_time_s excludes it [s].
    recompute_time_s, optimizer_time_s : float
        Parts of compute_time_s; for the optimizer, which may run on the host, the part not hidden by kernels of the
        passes [s].
    peak_memory_bytes : int
        On the rank with most [B].
    peak_memory_by_category : dict of str to int
        Its categories [B].
    peak_reserved_bytes : int
        Most bytes that an allocator holds from the device, including fragments and cached segments [B].
    fits : bool
        True if the step fits in memory: process_bytes is at most capacity_bytes.
    shortfall_bytes : int
        Missing memory, process_bytes - capacity_bytes; 0 if the step fits [B].
    context_bytes, nccl_bytes : int
        Memory of the process beside PyTorch's allocator: CUDA context, and NCCL buffers [B].
    process_bytes : int
        Memory that nvidia-smi prints: peak_reserved_bytes, context_bytes and nccl_bytes [B].
    closed_form_collectives, played_collectives : int
        Collectives timed by a closed form; collectives whose transfers were simulated.
    bottleneck : Bottleneck or None
        The most used link. None if no link is recorded, or if the simulated transfers carry less than 1 % of the
        collectives' bytes, because closed forms fill no link.
    because : str
        A sentence about the limiting part.
    exposed_comm_time_by_kind : dict of str to float
        Parts of exposed_comm_time_s by kind; overlapping kinds count for the kind that is exposed longest [s]. A
        collective counts from the rank's own start, and so includes the time until the last rank starts. With simulated
        transfers, a rank that ends one collective early waits in the next one; the ranks of a closed form end together.
        The parts of both may therefore differ, but not their sum.
    comm_time_by_dimension, exposed_comm_time_by_dimension : dict of str to float
        Communication by dimension of parallelism (tp, cp, ep, pp, dp, and copies to the host): all of it, hidden or
        exposed; and parts of exposed_comm_time_s [s].
    host_memory_bytes, host_activation_bytes : int
        Model states and saved activations of a rank in its host's memory at most, and the saved activations among them
        [B].
    capacity_bytes : int
        Memory of the GPU with the least free memory [B].
    peak_memory_by_stage : tuple of int
        Peak of each pipeline stage, on its first recorded rank, in order; empty without a pipeline [B].
    idle_time_by_stage : tuple of float
        Idle time of the first rank of each pipeline stage, in order: the stage's bubble, of which bubble_time_s is the
        mean; empty without a pipeline [s].
    intervals : dict of str to float
        Prediction intervals of step_time_s, tokens_per_s and peak_memory_bytes: step_time_s_80_low,
        step_time_s_80_high, step_time_s_95_low, ...; see `prediction_intervals`.
    carried_over : bool
        True if no run of this framework, chip or matmul dtype was measured; the intervals are wider then.
    unmeasured_dtype : str or None
        The matmul dtype, if no training run with this dtype was measured.
    work_unit : str
        Unit of the throughput: "token"; "sample" for a list of layers whose samples are no sequences: `tokens_per_s`
        of ResNet-50 then means images per second.
    tokens_used : float
        Share of the batch's tokens that are not padding, above 0 to 1.
    step_times_s : tuple of float
        Times of several different steps, of which this is the median step's report; empty for a single step [s].
    even_work_time_s : float or None
        Time of the step if each rank had the mean of the ranks' work; None unless documents differ in length [s].
    learning : Learning or None
        Results of a real training.
    algorithms : dict of str to str
        Algorithms of each operation by dimension of parallelism: {"dp all_gather": "multi_ring"}.
    constants : str or None
        Sources of the machine's constants, separated by " | "; "library model: ..." on nodes without measurements. None
        on other networks: links then carry their full rating, start-up is free, and the intervals are wider.
    constants_by_operation : dict of str to tuple of str
        The same sources for each operation of a collective: {"all_gather": ("fitted to 8 H100: ...",)}.
    time_by_evidence : dict of str to float
        Time of kernels and exposed communication by the evidence behind it: "measured" on this GPU and machine,
        "other_gpu", "data_sheet" and "assumed"; see `numbers.evidence` [s].
    unpredictable : str
        Why no interval is given for the step's time; empty if there is one.
    """

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    useful_tokens_per_s: float
    mfu: float
    hfu: float
    model_flops_per_s_per_gpu: float
    compute_time_s: float
    comm_time_s: float
    exposed_comm_time_s: float
    bubble_time_s: float
    host_wait_time_s: float
    recompute_time_s: float
    optimizer_time_s: float
    peak_memory_bytes: int
    peak_memory_by_category: dict[str, int]
    peak_reserved_bytes: int
    fits: bool
    shortfall_bytes: int
    closed_form_collectives: int
    played_collectives: int
    bottleneck: Bottleneck | None
    because: str
    exposed_comm_time_by_kind: dict[str, float]
    comm_time_by_dimension: dict[str, float]
    exposed_comm_time_by_dimension: dict[str, float]
    host_memory_bytes: int
    host_activation_bytes: int
    capacity_bytes: int
    context_bytes: int = 0
    nccl_bytes: int = 0
    process_bytes: int = 0
    peak_memory_by_stage: tuple[int, ...] = ()
    idle_time_by_stage: tuple[float, ...] = ()
    intervals: dict[str, float] = field(default_factory=dict)
    carried_over: bool = False
    unmeasured_dtype: str | None = None
    work_unit: str = TOKEN
    tokens_used: float = 1.0
    step_times_s: tuple[float, ...] = ()
    even_work_time_s: float | None = None
    learning: Learning | None = None
    algorithms: dict[str, str] = field(default_factory=dict)
    constants: str | None = None
    constants_by_operation: dict[str, tuple[str, ...]] = field(default_factory=dict)
    time_by_evidence: dict[str, float] = field(default_factory=dict)
    unpredictable: str = ""

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """(name, text) pairs of the main figures: step time, speed, MFU, peak memory, fits, limiting part."""
        padded = self.tokens_used < 1.0
        useful = [(rate_name(USEFUL_TOKEN), f"{self.useful_tokens_per_s:,.0f}")] if padded else []
        return (
            ("step", format_time(self.step_time_s)),
            (rate_name(self.work_unit), f"{self.tokens_per_s:,.0f}"),
            *useful,
            ("MFU", f"{100 * self.mfu:.1f} %"),
            ("peak memory", format_memory(self.peak_memory_bytes)),
            ("fits", "yes" if self.fits else f"lacks {format_memory(self.shortfall_bytes)}"),
            ("because", self.because),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON, with None for infinite and NaN losses and gradient norms."""
        document = asdict(self)
        learning = document["learning"] or {}
        # Losses and norms are infinite or NaN after an overflow.
        for key in ("losses", "gradient_norms"):
            if key in learning:
                learning[key] = _finite(learning[key])
        if "losses_by_rank" in learning:
            learning["losses_by_rank"] = tuple(map(_finite, learning["losses_by_rank"]))
        return document


def _finite(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return the values with None in place of infinity and NaN."""
    return tuple(value if isfinite(value) else None for value in values)


@dataclass(frozen=True)
class RankWork:
    """Spans (timed pieces of work) of a rank, sorted into GPU, host and network."""

    # `kernels`, `host`: On the GPU's compute stream; on the host's processors.
    kernels: tuple[Span, ...]
    host: tuple[Span, ...]
    communication: tuple[Span, ...]  # collectives and copies
    waited: float = 0.0  # time in which nothing runs because the host has not launched the next kernel yet [s]

    @cached_property
    def compute(self) -> Floats:
        """Union of the spans with compute on the GPU or the host: (start, end), shape (n, 2) [s]."""
        return union(_times((*self.kernels, *self.host)))

    @property
    def passes(self) -> Floats:
        """(start, end) for each kernel in forward and backward passes, i.e. except the optimizer's, shape (n, 2)
        [s].
        """
        return _times(span for span in self.kernels if span.kind != "optimizer")

    def of_kind(self, kind: str) -> Floats:
        """Return (start, end) for each span with this kind of work ("recompute") on any stream, shape (n, 2) [s]."""
        return _times(span for span in (*self.kernels, *self.host, *self.communication) if span.kind == kind)


def first_of_stages(plan: StepPlan, subset: Iterable[int] | None = None) -> list[int]:
    """Return each pipeline stage's first rank, among the ranks `subset` (or all ranks); empty without a pipeline."""
    return first_ranks(plan.step.parallelism, len(plan.program.ranks), subset)


def first_ranks(cut: Parallelism, ranks: int, subset: Iterable[int] | None = None) -> list[int]:
    """Return each pipeline stage's first of `ranks` ranks, among the ranks `subset` (or all); empty without a
    pipeline.
    """
    if cut.pp < 2:
        return []
    place = cut.grid(ranks).coordinate("pp")
    firsts: dict[int, int] = {}
    for rank in range(ranks) if subset is None else sorted(subset):
        firsts.setdefault(int(place[rank]), rank)
    return [firsts[stage] for stage in sorted(firsts)]


def works_of(plan: StepPlan, timeline: Timeline) -> list[RankWork]:
    """Return the work (sorted spans) of each pipeline stage's first rank; without a pipeline, of the slowest rank or
    the one with the most work.
    """
    spans = by_rank(timeline.spans)
    # With work of their own, all ranks end together: with the busiest one.
    last = timeline.last_rank if plan.busiest is None else plan.busiest
    ranks = first_of_stages(plan) or ([] if last is None else [last])
    # A timeline without spans counts as a rank without work.
    return [_work_of(spans[rank]) for rank in ranks] or [_work_of(())]


def _work_of(spans: Sequence[Span]) -> RankWork:
    """Return a rank's spans sorted by stream into kernels, host work and communication; kernel launches are dropped."""
    return RankWork(
        kernels=tuple(span for span in spans if span.stream == "compute"),
        host=tuple(span for span in spans if span.stream == HOST),
        communication=tuple(span for span in spans if span.stream not in ("compute", HOST, ISSUE)),
        waited=_waited(spans),
    )


def _waited(spans: Sequence[Span]) -> float:
    """Return the time in which nothing runs because the host has not launched the next kernel yet [s]: gaps that end
    with the launch of the operation behind them.
    """
    launched = {span.name: span.end for span in spans if span.stream == ISSUE}
    if not launched:
        return 0.0
    waited = busy = 0.0
    for span in sorted((span for span in spans if span.stream != ISSUE), key=lambda span: span.start):
        # A collective's span names the process group, in brackets.
        if span.start > busy and launched.get(f"issue {span.name.rsplit(' (', 1)[0]}") == span.start:
            waited += span.start - busy
        busy = max(busy, span.end)
    return waited


def summarize_step(plan: StepPlan, cluster: Cluster, timeline: Timeline) -> TrainingReport:
    """Return the report of a simulated training step, from the plan, the cluster and the timeline."""
    # Asynchronous workers' steps are simulated together; the report is a single step's share.
    time, ranks, rounds = timeline.end, cluster.world_size, plan.step.rounds
    works = works_of(plan, timeline)
    parts = _means([_parts(work, time) for work in works])
    peak = timeline.peak
    if peak is None:
        raise ValueError("the timeline has no memory samples and is no training step")
    margin = margin_of_timeline(timeline, lambda rank: cluster.gpus[rank].hbm_bytes)
    # MFU compares with the dense peak in the matmuls' dtype.
    available = ranks * cluster.gpus[0].peak_flops[plan.step.precision.matmul]
    steps = _steps_per_s(timeline, ranks, rounds)
    # Computed once, because the prediction interval and the report both need it.
    exposed_by = [_exposed(work, _dimension) for work in works]
    dtype, chip = plan.step.precision.matmul, cluster.gpus[0].chip
    # A collective's report comes from this package, too, and needs no kernels.
    from simulator.report.numbers.evidence import evidence, kernel_grades

    grades = kernel_grades(cluster.gpus[0], plan.step)
    grounds = _means(
        [
            evidence(_kernels(plan, work), grades, sum(by.values()), plan.constants)
            for work, by in zip(works, exposed_by, strict=True)
        ]
    )
    figures = {
        "step_time_s": time / rounds,
        "tokens_per_s": steps * plan.tokens,
        "peak_memory_bytes": float(peak.nbytes),
    }
    intervals, carried_over = step_intervals(
        plan,
        cluster,
        works,
        figures,
        exposed=_means(exposed_by),
        host_update=parts["host update"] / rounds,
        host_wait=parts[HOST_WAIT] / rounds,
        grounds=grounds,
    )
    return TrainingReport(
        step_time_s=time / rounds,
        tokens_per_s=steps * plan.tokens,
        tokens_per_s_per_gpu=steps * plan.tokens / ranks,
        useful_tokens_per_s=steps * plan.tokens * plan.step.tokens_used,
        mfu=steps * plan.model_flops / available,
        hfu=steps * plan.hardware_flops / available,
        model_flops_per_s_per_gpu=steps * plan.model_flops / ranks,
        compute_time_s=parts["compute"] / rounds,
        comm_time_s=parts["communication"] / rounds,
        exposed_comm_time_s=parts["exposed communication"] / rounds,
        bubble_time_s=parts["idle"] / rounds,
        host_wait_time_s=parts[HOST_WAIT] / rounds,
        recompute_time_s=parts["recompute"] / rounds,
        optimizer_time_s=parts["optimizer"] / rounds,
        peak_memory_bytes=peak.nbytes,
        peak_memory_by_category=dict(peak.by_category),
        peak_reserved_bytes=margin.reserved,
        fits=margin.fits,
        shortfall_bytes=margin.missing,
        closed_form_collectives=plan.closed_forms,
        played_collectives=plan.played,
        bottleneck=bottleneck(timeline) if plan.simulated_share >= _LEAST_SIMULATED else None,
        because=limit_text(time, parts, _room(margin, peak.nbytes)),
        exposed_comm_time_by_kind=_shared([_exposed(work, lambda span: span.kind) for work in works], rounds),
        comm_time_by_dimension=_shared([_by_dimension(work) for work in works], rounds),
        exposed_comm_time_by_dimension=_shared(exposed_by, rounds),
        host_memory_bytes=plan.host_bytes,
        host_activation_bytes=plan.host_activation_bytes,
        capacity_bytes=margin.capacity,
        context_bytes=margin.context,
        nccl_bytes=margin.nccl,
        process_bytes=margin.process,
        peak_memory_by_stage=_peak_by_stage(plan, timeline),
        idle_time_by_stage=_idle_by_stage(plan, timeline),
        intervals=intervals,
        carried_over=carried_over,
        unmeasured_dtype=None if is_measured_dtype(dtype, chip) else dtype,
        work_unit=plan.step.model.work_unit,
        tokens_used=plan.step.tokens_used,
        algorithms=dict(plan.algorithms),
        constants=BETWEEN.join(plan.constants) or None,
        constants_by_operation=dict(plan.constants_by_operation),
        time_by_evidence={grade: seconds / rounds for grade, seconds in grounds.items()},
        unpredictable=_unpredictable(plan),
    )


def _kernels(plan: StepPlan, work: RankWork) -> Iterator[tuple[Span, KernelParts]]:
    """Yield the kernels of a rank, with the shares of their kinds."""
    shares = plan.program.kernels(work.kernels[0].rank) if work.kernels else {}
    yield from ((span, shares.get(span.name, ())) for span in work.kernels)


def _unpredictable(plan: StepPlan) -> str:
    """Return why a step's time has no interval; empty if it has one."""
    framework = plan.step.framework
    origin = str(framework.facts.get("based_on", ""))
    return unpredictable(measured_framework(framework.name, origin), plan.step.model.num_experts)


def step_intervals(
    plan: StepPlan,
    cluster: Cluster,
    works: Sequence[RankWork],
    figures: Mapping[str, float],
    *,
    exposed: Mapping[str, float],
    host_update: float,
    host_wait: float,
    grounds: Mapping[str, float],
) -> tuple[dict[str, float], bool]:
    """Return the ends of a training step's prediction intervals, and whether no similar run was measured.

    Parameters
    ----------
    works : sequence of RankWork
        The work of the ranks that the report is about; it gives the length of exposed collectives.
    figures : mapping of str to float
        step_time_s, tokens_per_s and peak_memory_bytes.
    exposed : mapping of str to float
        Exposed communication by dimension of parallelism [s].
    host_update : float
        Time of the update on the host [s].
    host_wait : float
        Time in which kernels wait to be launched [s].
    grounds : mapping of str to float
        Time of kernels and exposed communication by grade of evidence [s].
    """
    # The prediction interval depends on how similar the measured runs are.
    traits, framework = _traits(plan, cluster), plan.step.framework
    calibration = framework.facts.get("calibration") or ()
    # A user's own constants without runs behind them are as uncertain as an unmeasured framework.
    is_own = bool(framework.facts.get("based_on")) and framework.name not in registry.names("framework")
    adapted = plan.step.model.adapters is not None and not has_measured_adapters(framework.name)
    measured = is_measured_dtype(plan.step.precision.matmul, traits.chip)
    cut = plan.step.parallelism
    sizes = {"tp": cut.tp, "pp": cut.pp, "cp": cut.cp, "ep": cut.ep, "experts": plan.step.model.num_experts}
    is_new_cut = bool(unmeasured_parallelism(traits.framework, sizes))
    unseen = not measured or (is_own and not calibration) or adapted or is_new_cut
    time = figures["step_time_s"] * plan.step.rounds
    parts: list[PartError] = []
    if time:
        parts.append(CarriedKernels({grade: min(1.0, seconds / time) for grade, seconds in grounds.items()}))
    if plan.step.keys.offload.states:
        parts.append(HostWork(host_update / figures["step_time_s"], HOST_RATE))
    if host_wait:
        parts.append(HostWork(host_wait / figures["step_time_s"], LAUNCH_TIME))
    if (network := _unmeasured(plan, works, exposed, time)) is not None:
        parts.append(network)
    unlike = plan.step.is_list_of_layers
    # A calibration is of the user's own runs, of whatever model.
    times = prediction_interval(traits, parts=parts, unseen=unseen, unlike=unlike, calibration=calibration)
    memory = prediction_interval(traits, "memory", unseen=unseen, unlike=unlike)
    ends = memory.around("peak_memory_bytes", figures["peak_memory_bytes"])
    if not _unpredictable(plan):
        ends |= {
            key: end
            for name in ("step_time_s", "tokens_per_s")
            for key, end in times.around(name, figures[name]).items()
        }
    return ends, times.carried_over


def _unmeasured(
    plan: StepPlan, works: Sequence[RankWork], exposed: Mapping[str, float], time: float
) -> UnmeasuredNetwork | None:
    """Return the share and mean length of exposed collectives on an unmeasured network; None without such."""
    # Copies to the host and servers' updates are not collectives of the network.
    lengths = [
        span.end - span.start
        for work in works
        for span in work.communication
        if _dimension(span) != HOST_COPIES and span.kind != "server update" and span.end > span.start
    ]
    modelled = bool(plan.constants) and all(source.startswith(MODELLED) for source in plan.constants)
    if (plan.constants and not modelled) or not lengths:
        return None
    share = sum(seconds for dimension, seconds in exposed.items() if dimension != HOST_COPIES) / time
    # Mean duration weighted by duration: long collectives make up most of the exposed time.
    duration = sum(seconds * seconds for seconds in lengths) / sum(lengths)
    return UnmeasuredNetwork(min(share, 1.0), duration, modelled)


def _peak_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[int, ...]:
    """Return the peak memory [B] of each pipeline stage's first recorded rank."""
    peaks = timeline.peak_bytes
    return tuple(peaks[rank] for rank in first_of_stages(plan, peaks))


def _idle_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[float, ...]:
    """Return the idle time [s] of each pipeline stage's first rank."""
    return tuple(max(timeline.end - timeline.at_work[rank], 0.0) for rank in first_of_stages(plan))


def _parts(work: RankWork, time: float) -> dict[str, float]:
    """Return a rank's seconds by part (compute, communication, exposed, idle, recompute ...) in a step of `time` s."""
    compute, comm, kernels = work.compute, union(_times(work.communication)), union(_times(work.kernels))
    return {
        "compute": length(compute),
        "communication": length(comm),
        "exposed communication": outside(comm, compute),
        HOST_WAIT: work.waited,
        # Rounding must not give a negative idle time.
        "idle": max(time - length(np.concatenate([compute, comm])) - work.waited, 0.0),
        "recompute": length(work.of_kind("recompute")),
        # An update on the host may overlap passes; only the rest lengthens the step.
        "optimizer": outside(work.of_kind("optimizer"), work.passes),
        "kernels": length(kernels),
        "host update": outside(compute, kernels),
    }


def _means(of_ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return each named time's mean over ranks; a missing entry counts as 0."""
    names = dict.fromkeys(name for times in of_ranks for name in times)
    return {name: sum(times.get(name, 0.0) for times in of_ranks) / len(of_ranks) for name in names}


def _traits(plan: StepPlan, cluster: Cluster) -> Traits:
    """Return the step's traits (framework, chip, eight-bit, sharded, nodes) for finding similar measured runs."""
    step, cut = plan.step, plan.step.parallelism
    return Traits(
        framework=measured_framework(step.framework.name, step.framework.origin),
        chip=cluster.gpus[0].chip,
        eight_bit=is_narrow(step.precision.matmul),
        cut=cut.size > 1 or cut.ep > 1,
        nodes=len(cluster.nodes) > 1,
        experts=step.model.num_experts > 0,
    )


def _steps_per_s(timeline: Timeline, ranks: int, rounds: int) -> float:
    """Return the steps per second; with asynchronous workers, the mean over ranks of `rounds` / end time."""
    if rounds == 1:
        return 1 / timeline.end
    # Asynchronous workers progress at different speeds: average their rates.
    ends: dict[int, float] = {}
    for span in timeline.spans:
        ends[span.rank] = max(ends.get(span.rank, 0.0), span.end)
    return sum(rounds / end for end in ends.values()) / ranks


def _exposed(work: RankWork, kind_of: Callable[[Span], str]) -> dict[str, float]:
    """Return the exposed seconds of each kind of communication, longest first; overlaps count for the longer kind."""
    covered, kinds = work.compute, _sorted_out(work.communication, kind_of)
    lengths = {kind: outside(times, covered) for kind, times in kinds.items()}
    exposed: dict[str, float] = {}
    # Once a kind is counted, its intervals hide later kinds, so the parts sum to the whole exposed time.
    # Closed forms and simulated transfers give the same times up to rounding: the ninth digit decides no order.
    for kind in sorted(lengths, key=lambda kind: (-float(f"{lengths[kind]:.9g}"), kind)):
        exposed[kind] = outside(kinds[kind], covered)
        covered = union(np.concatenate([covered, kinds[kind]]))
    return exposed


def _by_dimension(work: RankWork) -> dict[str, float]:
    """Return the seconds with communication in flight, by dimension of parallelism (tp, cp, ep, pp, dp, host)."""
    return {name: length(times) for name, times in _sorted_out(work.communication, _dimension).items()}


def _dimension(span: Span) -> str:
    """Return a communication span's dimension of parallelism (tp, pp, dp, ...), read from the stream's name."""
    return dimension_of(span.stream)


def _sorted_out(spans: Iterable[Span], kind_of: Callable[[Span], str]) -> dict[str, Floats]:
    """Return the union of the spans of each kind: (start, end), shape (n, 2) [s]; `kind_of` gives a span's kind."""
    kinds: dict[str, list[Span]] = {}
    for span in spans:
        kinds.setdefault(kind_of(span), []).append(span)
    return {kind: union(_times(group)) for kind, group in kinds.items()}


def _shared(of_ranks: Sequence[Mapping[str, float]], rounds: int) -> dict[str, float]:
    """Return the mean over ranks of each kind's seconds, divided by the number of simulated steps, longest first."""
    means = _means(of_ranks)
    return {kind: means[kind] / rounds for kind in sorted(means, key=lambda kind: (-means[kind], kind))}


def _times(spans: Iterable[Span]) -> Floats:
    """Return the (start, end) interval of each span, shape (n, 2) [s]."""
    return as_array((span.start, span.end) for span in spans)


def limit_text(time: float, parts: Mapping[str, float], room: str) -> str:
    """Return a sentence with each part's share of the step's time, followed by the text `room` on the GPU's memory.

    >>> parts = {"kernels": 1.5, "host update": 0.0, "exposed communication": 0.5, "idle": 0.0}
    >>> limit_text(2.0, parts, "memory peaks at 7 % of the GPU's")
    "Compute 75.0 %, exposed communication 25.0 %; memory peaks at 7 % of the GPU's"
    """
    names = {"kernels": "compute", "host update": "host update", "exposed communication": "exposed communication",
             HOST_WAIT: HOST_WAIT, "idle": "idle"}  # fmt: skip
    shares = {word: share_text(parts.get(name, 0.0) / time) for name, word in names.items()}
    # Parts below 0.05 % are omitted.
    sentence = ", ".join(f"{word} {text}" for word, text in shares.items() if text != share_text(0.0))
    if parts.get(HOST_WAIT, 0.0) > _HOST_BOUND * time:
        sentence += " (host-bound: larger micro-batches, merged kernels or CUDA graphs launch less for the same work)"
    return f"{sentence[:1].upper()}{sentence[1:]}; {room}"


def _room(margin: MemoryMargin, peak: int) -> str:
    """Return a text with the process's memory, its share of the capacity, and whether the step fits in memory."""
    share = f"({100 * margin.process / margin.capacity:.0f} %)"
    used = f"memory of the process {format_memory(margin.process)} of {format_memory(margin.capacity)} {share}"
    if margin.fits:
        return used
    holes = peak + margin.process - margin.reserved <= margin.capacity
    return f"{used}, does not fit because of fragmentation" if holes else f"{used}, does not fit"
