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
from simulator.records.operation import HOST, ISSUE
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck
from simulator.report.numbers.prediction_intervals import Traits, prediction_interval
from simulator.report.numbers.shown import Shown
from simulator.step.kernel_timer import is_eight_bit
from simulator.step.plan import StepPlan
from simulator.step.streams import dimension_of


@dataclass(frozen=True, slots=True)
class Learning:
    """What a real training measured of itself, one number for each step.

    Attributes
    ----------
    losses, gradient_norms, loss_scales : tuple of float
        Norms before they are clipped.
    skipped : tuple of int
        Steps that were not taken for an overflow, by one rank at least.
    ended_s : tuple of float
        When a step was over, on average over ranks [s].
    staleness : tuple of float
        Updates by others between a gradient's parameters and its own update, on average; 0 where all wait.
    seen : dict of check to step
        Checks that found something wrong, with the first step in which they did.
    stopped : str
        Why there are fewer steps than were asked for, and which rank waits for which; empty otherwise.
    losses_by_rank : tuple of tuple of float
        A row a step, a column a rank: the mean over its micro-batches; not a number for a worker that waits for nobody
        and was at none in that step.
    optimizer_steps : tuple of int
        How many the optimizer had taken when a step was over: those that were skipped do not count, and a server that
        waits for nobody takes one for each worker's gradient.
    """

    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]
    loss_scales: tuple[float, ...]
    skipped: tuple[int, ...]
    ended_s: tuple[float, ...] = ()
    staleness: tuple[float, ...] = ()
    seen: dict[str, int] = field(default_factory=dict)
    stopped: str = ""
    losses_by_rank: tuple[tuple[float, ...], ...] = ()
    optimizer_steps: tuple[int, ...] = ()


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
        Unions of spans of the rank that ends last: kernels, and what the host's processors compute for it;
        collectives and copies; those during which nothing was computed; neither [s].
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
        How long the first rank of each pipeline stage computes and communicates nothing, in order: the stage's bubble;
        empty without a pipeline [s].
    intervals : dict of str to float
        Of step_time_s, tokens_per_s and peak_memory_bytes the ends between which so many per cent of measured runs
        like this one lie: step_time_s_80_low, step_time_s_80_high, step_time_s_95_low, ...; see `prediction_intervals`.
    carried_over : bool
        Whether no run of this framework, or of this chip, was measured: the intervals are wider then.
    learning : Learning or None
        Of a real training.
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


def _work_of_last_rank(timeline: Timeline) -> _Work:
    """The work of the rank that ends last."""
    return _work_of(() if timeline.last_rank is None else by_rank(timeline.spans)[timeline.last_rank])


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
    work = _work_of_last_rank(timeline)
    compute, comm = work.compute, _times(work.communication)
    exposed, bubble = outside(comm, compute), time - length([*compute, *comm])
    peak = timeline.peak
    if peak is None:
        raise ValueError("the timeline holds no memory, so it is not a training step's")
    capacity = cluster.gpus[peak.rank].hbm_bytes
    available = ranks * cluster.gpus[0].peak_flops[plan.step.precision.matmul]
    steps = _steps_per_s(timeline, ranks, rounds)
    traits = _traits(plan, cluster)
    times = prediction_interval(traits, network_stated=bool(cluster.collectives))
    return TrainingReport(
        step_time_s=time / rounds,
        tokens_per_s=steps * plan.tokens,
        tokens_per_s_per_gpu=steps * plan.tokens / ranks,
        mfu=steps * plan.model_flops / available,
        hfu=steps * plan.hardware_flops / available,
        model_flops_per_s_per_gpu=steps * plan.model_flops / ranks,
        compute_time_s=length(compute) / rounds,
        comm_time_s=length(comm) / rounds,
        exposed_comm_time_s=exposed / rounds,
        bubble_time_s=max(bubble, 0.0) / rounds,
        recompute_time_s=length(work.of_kind("recompute")) / rounds,
        optimizer_time_s=outside(work.of_kind("optimizer"), work.passes) / rounds,
        peak_memory_bytes=peak.nbytes,
        peak_memory_by_category=dict(peak.by_category),
        peak_reserved_bytes=max(timeline.reserved.values(), default=peak.nbytes),
        fits=not timeline.short_of_memory,
        shortfall_bytes=_shortfall(timeline, peak.nbytes, capacity),
        closed_form_collectives=plan.closed_forms,
        played_collectives=plan.played,
        bottleneck=bottleneck(timeline),
        because=_because(time, work, exposed, bubble, _room(timeline, peak.nbytes / capacity)),
        exposed_comm_time_by_kind=_shared(_exposed(work, lambda span: span.kind), rounds),
        comm_time_by_dimension=_shared(_by_dimension(work), rounds),
        exposed_comm_time_by_dimension=_shared(_exposed(work, _dimension), rounds),
        host_memory_bytes=plan.host_bytes,
        capacity_bytes=capacity,
        peak_memory_by_stage=_peak_by_stage(plan, timeline),
        idle_time_by_stage=_idle_by_stage(plan, timeline),
        intervals=times.around("step_time_s", time / rounds)
        | times.around("tokens_per_s", steps * plan.tokens)
        | prediction_interval(traits, "memory").around("peak_memory_bytes", float(peak.nbytes)),
        carried_over=times.carried_over,
    )


def _peak_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[int, ...]:
    """Peak memory of each pipeline stage: of its first rank whose memory was followed [B]."""
    samples = by_rank(timeline.memory)
    return tuple(max(sample.nbytes for sample in samples[rank]) for rank in _first_of_stages(plan, samples))


def _idle_by_stage(plan: StepPlan, timeline: Timeline) -> tuple[float, ...]:
    """How long the first rank of each pipeline stage does nothing [s]."""
    firsts = _first_of_stages(plan, timeline.at_work)
    return tuple(max(timeline.end - timeline.at_work[rank], 0.0) for rank in firsts)


def _first_of_stages(plan: StepPlan, known: Iterable[int]) -> list[int]:
    """The first of the known ranks of each pipeline stage, in order; none without a pipeline."""
    cut = plan.step.parallelism
    if cut.pp < 2:
        return []
    place = cut.grid(len(plan.program.ranks)).coordinate("pp")
    firsts: dict[int, int] = {}
    for rank in sorted(known):
        firsts.setdefault(int(place[rank]), rank)
    return [firsts[stage] for stage in sorted(firsts)]


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
    """Time in which something was under way for each dimension of parallelism, longest first [s]."""
    times = {name: length(own) for name, own in _sorted_out(work.communication, _dimension).items()}
    return dict(sorted(times.items(), key=lambda pair: (-pair[1], pair[0])))


def _dimension(span: Span) -> str:
    return dimension_of(span.stream)


def _sorted_out(spans: Iterable[Span], kind_of: Callable[[Span], str]) -> dict[str, list[Interval]]:
    kinds: dict[str, list[Interval]] = {}
    for span in spans:
        kinds.setdefault(kind_of(span), []).append((span.start, span.end))
    return kinds


def _shared(times: Mapping[str, float], rounds: int) -> dict[str, float]:
    return {kind: seconds / rounds for kind, seconds in times.items()}


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


def _because(time: float, work: _Work, exposed: float, bubble: float, room: str) -> str:
    kernels = _times(work.kernels)
    shares = {
        "kernels": length(kernels) / time,
        "the host's update": outside(work.compute, kernels) / time,
        "communication that nothing hides": exposed / time,
        "idle": bubble / time,
    }
    parts = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005)
    return f"{parts}; {room}"


def _room(timeline: Timeline, share: float) -> str:
    """Say how full the GPU's memory is; allocations that fit may still not fit with the fragments between them."""
    peak = f"memory peaks at {share:.0%} of the GPU's"
    if not timeline.short_of_memory:
        return peak
    return f"{peak}, so it does not fit" if share > 1 else f"{peak} and fragments take the rest, so it does not fit"
