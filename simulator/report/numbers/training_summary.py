"""How fast was a training step, and what held it up: step time, tokens/s, MFU, exposed communication, peak memory.

Rule: reads the timeline and the plan, never asks a model or an engine. Report keys, and only they, carry units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from simulator.basics.intervals import Interval, length, outside
from simulator.basics.units import format_memory, format_time
from simulator.cluster.cluster import Cluster
from simulator.records.learning import Learning
from simulator.records.measures import share_text
from simulator.records.operation import HOST, ISSUE
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck
from simulator.report.numbers.prediction_intervals import Traits, UnmeasuredNetwork, prediction_interval
from simulator.report.numbers.shown import Shown
from simulator.report.numbers.summary import BETWEEN
from simulator.step.kernel_timer import is_eight_bit
from simulator.step.plan import StepPlan
from simulator.step.streams import HOST_COPIES, dimension_of


@dataclass(frozen=True, slots=True, repr=False)
class TrainingReport(Shown):
    """What came out of a training step.

    Attributes
    ----------
    step_time_s : float
        Of the rank that ends last [s].
    tokens_per_s, tokens_per_s_per_gpu : float
    mfu, hfu : float
        Model FLOPs utilization, and hardware FLOPs utilization, which counts recomputation too: FLOPs over what all
        GPUs could have done at their dense peak; full attention counted (PaLM, appendix B).
    model_flops_per_s_per_gpu : float
        What `mfu` is a share of a GPU's dense peak of; to be compared where matmuls are of unlike precision [FLOP/s].
    compute_time_s, comm_time_s, exposed_comm_time_s, bubble_time_s : float
        Unions of spans: kernels, and what the host's processors compute; collectives and copies; collectives and copies
        during which nothing was computed; neither, which is idle time [s]. All are of the rank that ends last; of a
        pipeline, whose stages end at different times and wait for each other, they are the mean over the first rank of
        each stage.
    recompute_time_s, optimizer_time_s : float
        Parts of compute_time_s; of the optimizer's, which may run on the host, what no kernel of the passes hides [s].
    peak_memory_bytes : int
        Of the rank that needs most [B].
    peak_memory_by_category : dict of str to int
        What it was made of [B].
    peak_reserved_bytes : int
        Most that an allocator held from the device, fragments and cached segments included [B].
    fits : bool
    shortfall_bytes : int
        What is missing; 0 where it fits [B].
    closed_form_collectives, played_collectives : int
    bottleneck : Bottleneck or None
    because : str
    exposed_comm_time_by_kind : dict of str to float
        Parts of exposed_comm_time_s by what ran; where several did, the one that is exposed longest [s].
    comm_time_by_dimension, exposed_comm_time_by_dimension : dict of str to float
        Communication by what it is for (tp, cp, ep, pp, dp, and copies to the host): all of each, hidden or not; and
        parts of exposed_comm_time_s [s].
    host_memory_bytes : int
        Model states that a rank keeps in its host's memory [B].
    capacity_bytes : int
        Of the GPU that needs most [B].
    peak_memory_by_stage : tuple of int
        Most that each pipeline stage holds, its first rank followed, in order; empty without a pipeline [B].
    idle_time_by_stage : tuple of float
        How long the first rank of each pipeline stage computes and communicates nothing, in order: the stage's bubble,
        of which bubble_time_s is the mean; empty without a pipeline [s].
    intervals : dict of str to float
        Of step_time_s, tokens_per_s and peak_memory_bytes the ends between which so many per cent of measured runs
        like this one lie: step_time_s_80_low, step_time_s_80_high, step_time_s_95_low, ...; see `prediction_intervals`.
    carried_over : bool
        Whether no run of this framework, or of this chip, was measured: the intervals are wider then.
    learning : Learning or None
        Of a real training.
    algorithms : dict of str to str
        Algorithms of each operation, by the dimension of parallelism that it is for: {"dp all_gather": "multi_ring"}.
    constants : str or None
        Where the machine's constants of these collectives were measured, with " | " between several. None where there
        are none: then links carry all that they are rated at and nothing is paid to start, which is a best case, and
        the intervals are wider by what that share of the step owes to it.
    """

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
    model_flops_per_s_per_gpu: float
    compute_time_s: float
    comm_time_s: float
    exposed_comm_time_s: float
    bubble_time_s: float
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
    capacity_bytes: int
    peak_memory_by_stage: tuple[int, ...] = ()
    idle_time_by_stage: tuple[float, ...] = ()
    intervals: dict[str, float] = field(default_factory=dict)
    carried_over: bool = False
    learning: Learning | None = None
    algorithms: dict[str, str] = field(default_factory=dict)
    constants: str | None = None

    @property
    def headline(self) -> tuple[tuple[str, str], ...]:
        """The figures that are looked at first, in words."""
        return (
            ("step", format_time(self.step_time_s)),
            ("tokens/s", f"{self.tokens_per_s:,.0f}"),
            ("MFU", f"{100 * self.mfu:.1f} %"),
            ("peak memory", format_memory(self.peak_memory_bytes)),
            ("fits", "yes" if self.fits else f"lacks {format_memory(self.shortfall_bytes)}"),
            ("because", self.because),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON, which has no infinity and no nan: they become None."""
        document = asdict(self)
        learning = document["learning"] or {}
        for key in ("losses", "gradient_norms"):
            if key in learning:
                learning[key] = _finite(learning[key])
        if "losses_by_rank" in learning:
            learning["losses_by_rank"] = tuple(map(_finite, learning["losses_by_rank"]))
        return document


def _finite(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(value if isfinite(value) else None for value in values)


@dataclass(frozen=True, slots=True)
class _Work:
    """What one rank did, and when: its spans by where they ran.

    Attributes
    ----------
    kernels, host : tuple of Span
        On the GPU's compute stream; on its host's processors.
    communication : tuple of Span
        Collectives and copies.
    """

    kernels: tuple[Span, ...]
    host: tuple[Span, ...]
    communication: tuple[Span, ...]

    @property
    def compute(self) -> list[Interval]:
        """When something was computed, by the GPU or for it."""
        return [*_times(self.kernels), *_times(self.host)]

    @property
    def passes(self) -> list[Interval]:
        """When the forward or the backward pass ran."""
        return _times(span for span in self.kernels if span.kind != "optimizer")

    def of_kind(self, kind: str) -> list[Interval]:
        """When a kind of work ran, on whatever stream."""
        return _of((*self.kernels, *self.host, *self.communication), kind)


def first_of_stages(plan: StepPlan, known: Iterable[int] | None = None) -> list[int]:
    """The first rank of each pipeline stage, of all ranks or of those that are known; none without a pipeline."""
    cut, ranks = plan.step.parallelism, len(plan.program.ranks)
    if cut.pp < 2:
        return []
    place = cut.grid(ranks).coordinate("pp")
    firsts: dict[int, int] = {}
    for rank in range(ranks) if known is None else sorted(known):
        firsts.setdefault(int(place[rank]), rank)
    return [firsts[stage] for stage in sorted(firsts)]


def _works(plan: StepPlan, timeline: Timeline) -> list[_Work]:
    """Work of the ranks whose mean is reported: the first rank of each pipeline stage, or the rank that ends last."""
    spans = by_rank(timeline.spans)
    told = first_of_stages(plan) or ([] if timeline.last_rank is None else [timeline.last_rank])
    return [_work_of(spans[rank]) for rank in told] or [_work_of(())]


def _work_of(spans: Sequence[Span]) -> _Work:
    return _Work(
        kernels=tuple(span for span in spans if span.stream == "compute"),
        host=tuple(span for span in spans if span.stream == HOST),
        communication=tuple(span for span in spans if span.stream not in ("compute", HOST, ISSUE)),
    )


def summarize_step(plan: StepPlan, cluster: Cluster, timeline: Timeline) -> TrainingReport:
    """Compute the report of a played step."""
    # Where workers do not wait for each other several steps were played: what is reported is one step's share.
    time, ranks, rounds = timeline.end, cluster.world_size, plan.step.rounds
    works = _works(plan, timeline)
    parts = _means([_parts(work, time) for work in works])
    peak = timeline.peak
    if peak is None:
        raise ValueError("the timeline holds no memory, so it is not a training step's")
    capacity = cluster.gpus[peak.rank].hbm_bytes
    available = ranks * cluster.gpus[0].peak_flops[plan.step.precision.matmul]
    steps = _steps_per_s(timeline, ranks, rounds)
    traits = _traits(plan, cluster)
    exposed_by = [_exposed(work, _dimension) for work in works]
    times = prediction_interval(traits, network=_unmeasured(plan, works, _means(exposed_by), time))
    return TrainingReport(
        step_time_s=time / rounds,
        tokens_per_s=steps * plan.tokens,
        tokens_per_s_per_gpu=steps * plan.tokens / ranks,
        mfu=steps * plan.model_flops / available,
        hfu=steps * plan.hardware_flops / available,
        model_flops_per_s_per_gpu=steps * plan.model_flops / ranks,
        compute_time_s=parts["compute"] / rounds,
        comm_time_s=parts["communication"] / rounds,
        exposed_comm_time_s=parts["exposed communication"] / rounds,
        bubble_time_s=parts["idle"] / rounds,
        recompute_time_s=parts["recompute"] / rounds,
        optimizer_time_s=parts["optimizer"] / rounds,
        peak_memory_bytes=peak.nbytes,
        peak_memory_by_category=dict(peak.by_category),
        peak_reserved_bytes=max(timeline.reserved.values(), default=peak.nbytes),
        fits=not timeline.short_of_memory,
        shortfall_bytes=_shortfall(timeline, peak.nbytes, capacity),
        closed_form_collectives=plan.closed_forms,
        played_collectives=plan.played,
        bottleneck=bottleneck(timeline),
        because=_because(time, parts, _room(timeline, peak.nbytes / capacity)),
        exposed_comm_time_by_kind=_shared([_exposed(work, lambda span: span.kind) for work in works], rounds),
        comm_time_by_dimension=_shared([_by_dimension(work) for work in works], rounds),
        exposed_comm_time_by_dimension=_shared(exposed_by, rounds),
        host_memory_bytes=plan.host_bytes,
        capacity_bytes=capacity,
        peak_memory_by_stage=_peak_by_stage(plan, timeline),
        idle_time_by_stage=_idle_by_stage(plan, timeline),
        intervals=times.around("step_time_s", time / rounds)
        | times.around("tokens_per_s", steps * plan.tokens)
        | prediction_interval(traits, "memory").around("peak_memory_bytes", float(peak.nbytes)),
        carried_over=times.carried_over,
        algorithms=dict(plan.algorithms),
        constants=BETWEEN.join(plan.constants) or None,
    )


def _unmeasured(
    plan: StepPlan, works: Sequence[_Work], exposed: Mapping[str, float], time: float
) -> UnmeasuredNetwork | None:
    """What the step owes to collectives that nobody has measured; None where some were, or there are none."""
    lengths = [
        span.end - span.start
        for work in works
        for span in work.communication
        if _dimension(span) != HOST_COPIES and span.kind != "server update" and span.end > span.start
    ]
    if plan.constants or not lengths:
        return None
    share = sum(seconds for dimension, seconds in exposed.items() if dimension != HOST_COPIES) / time
    return UnmeasuredNetwork(min(share, 1.0), sum(one * one for one in lengths) / sum(lengths))


def _peak_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[int, ...]:
    """Peak memory of each pipeline stage: of its first rank whose memory was followed [B]."""
    samples = by_rank(timeline.memory)
    return tuple(max(sample.nbytes for sample in samples[rank]) for rank in first_of_stages(plan, samples))


def _idle_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[float, ...]:
    """How long the first rank of each pipeline stage does nothing [s]."""
    return tuple(max(timeline.end - timeline.at_work[rank], 0.0) for rank in first_of_stages(plan))


def _parts(work: _Work, time: float) -> dict[str, float]:
    """Times of one rank's work in a step of so many seconds, by what it does [s]."""
    compute, comm, kernels = work.compute, _times(work.communication), _times(work.kernels)
    return {
        "compute": length(compute),
        "communication": length(comm),
        "exposed communication": outside(comm, compute),
        "idle": max(time - length([*compute, *comm]), 0.0),
        "recompute": length(work.of_kind("recompute")),
        "optimizer": outside(work.of_kind("optimizer"), work.passes),
        "kernels": length(kernels),
        "the host's update": outside(compute, kernels),
    }


def _means(of_ranks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each time over ranks; a rank that does not name one has none of it."""
    names = dict.fromkeys(name for own in of_ranks for name in own)
    return {name: sum(own.get(name, 0.0) for own in of_ranks) / len(of_ranks) for name in names}


def _traits(plan: StepPlan, cluster: Cluster) -> Traits:
    """What makes measured runs like this one."""
    step, cut = plan.step, plan.step.parallelism
    return Traits(
        framework=step.framework.name,
        chip=cluster.gpus[0].name.split("_")[0],
        eight_bit=is_eight_bit(step.precision.matmul),
        cut=cut.size > 1 or cut.experts.ranks > 1,
        nodes=len(cluster.nodes) > 1,
    )


def _steps_per_s(timeline: Timeline, ranks: int, rounds: int) -> float:
    """Steps of all ranks together [1/s]; ranks that do not wait for each other go each at a pace of their own."""
    if rounds == 1:
        return 1 / timeline.end
    ends: dict[int, float] = {}
    for span in timeline.spans:
        ends[span.rank] = max(ends.get(span.rank, 0.0), span.end)
    return sum(rounds / end for end in ends.values()) / ranks


def _exposed(work: _Work, kind_of: Callable[[Span], str]) -> dict[str, float]:
    """Exposed time of each kind of communication, longest first; where two overlap it counts for the longer [s]."""
    covered, kinds = work.compute, _sorted_out(work.communication, kind_of)
    alone = {kind: outside(times, covered) for kind, times in kinds.items()}
    exposed: dict[str, float] = {}
    for kind in sorted(alone, key=lambda kind: (-alone[kind], kind)):
        exposed[kind] = outside(kinds[kind], covered)
        covered += kinds[kind]
    return exposed


def _by_dimension(work: _Work) -> dict[str, float]:
    """Time in which something was under way for each dimension of parallelism [s]."""
    return {name: length(own) for name, own in _sorted_out(work.communication, _dimension).items()}


def _dimension(span: Span) -> str:
    return dimension_of(span.stream)


def _sorted_out(spans: Iterable[Span], kind_of: Callable[[Span], str]) -> dict[str, list[Interval]]:
    kinds: dict[str, list[Interval]] = {}
    for span in spans:
        kinds.setdefault(kind_of(span), []).append((span.start, span.end))
    return kinds


def _shared(of_ranks: Sequence[Mapping[str, float]], rounds: int) -> dict[str, float]:
    """One step's share of the ranks' mean times, longest first [s]."""
    means = _means(of_ranks)
    return {kind: means[kind] / rounds for kind in sorted(means, key=lambda kind: (-means[kind], kind))}


def _shortfall(timeline: Timeline, peak: int, capacity: int) -> int:
    """How much memory is missing [B]: for the allocations, or, where only fragments are too much, for the segments."""
    if not timeline.short_of_memory:
        return 0
    if peak > capacity:
        return peak - capacity
    return max(1, max(timeline.reserved.values(), default=capacity) - capacity)


def _times(spans: Iterable[Span]) -> list[Interval]:
    return [(span.start, span.end) for span in spans]


def _of(spans: Iterable[Span], kind: str) -> list[Interval]:
    return _times(span for span in spans if span.kind == kind)


def _because(time: float, parts: Mapping[str, float], room: str) -> str:
    names = ("kernels", "the host's update", "exposed communication", "idle")
    texts = {name: share_text(parts[name] / time) for name in names}
    told = ", ".join(f"{text} {name}" for name, text in texts.items() if text != share_text(0.0))
    return f"{told}; {room}"


def _room(timeline: Timeline, share: float) -> str:
    """Say how full the GPU's memory is; allocations that fit may still not fit with the fragments between them."""
    peak = f"memory peaks at {100 * share:.0f} % of the GPU's"
    if not timeline.short_of_memory:
        return peak
    return f"{peak}, so it does not fit" if share > 1 else f"{peak} and fragments take the rest, so it does not fit"
