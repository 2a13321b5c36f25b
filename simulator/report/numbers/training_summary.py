"""The numbers of a played training step: one record, and one sentence that says what held it up.

Rule: reads the timeline and the plan, never asks a model or an engine. Report keys, and only they, carry units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

from simulator.cluster.cluster import Cluster
from simulator.records.program import HOST
from simulator.records.timeline import Span, Timeline
from simulator.report.numbers.intervals import Interval, length, outside
from simulator.report.numbers.summary import Bottleneck, bottleneck
from simulator.step.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Learning:
    """What a real training told, a number a step.

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
        Checks that something is wrong, with the first step in which they told.
    stopped : str
        Why there are fewer steps than were asked for, and who waits for whom; empty otherwise.
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


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """What came out of a training step.

    Attributes
    ----------
    step_time_s : float
        Of the rank that ends last [s].
    tokens_per_s, tokens_per_s_per_gpu : float
    mfu, hfu : float
        FLOPs of the model, and those with recomputation, over what all GPUs could have done at their dense peak; full
        attention counted (PaLM, appendix B).
    compute_time_s, comm_time_s, exposed_comm_time_s, bubble_time_s : float
        Unions of spans of the rank that ends last: kernels, and what the host's processors compute for it;
        collectives and copies; those with no computing beside them; neither [s].
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
    host_memory_bytes : int
        Model states that a rank keeps in its host's memory [B].
    capacity_bytes : int
        Of the GPU that needs most [B].
    learning : Learning or None
        Of a real training.
    """

    step_time_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float
    hfu: float
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
    host_memory_bytes: int
    capacity_bytes: int
    learning: Learning | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON, which has no infinity: what is no finite number is None."""
        found = asdict(self)
        learning = found["learning"] or {}
        for key in ("losses", "gradient_norms"):
            if key in learning:
                learning[key] = _finite(learning[key])
        if "losses_by_rank" in learning:
            learning["losses_by_rank"] = tuple(map(_finite, learning["losses_by_rank"]))
        return found


def _finite(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(value if isfinite(value) else None for value in values)


def summarize_step(plan: StepPlan, cluster: Cluster, timeline: Timeline) -> TrainingReport:
    """Put the numbers of a played step together."""
    # Where workers do not wait for each other several steps were played: what is told is one's share.
    time, ranks, rounds = timeline.end, cluster.world_size, plan.step.rounds
    last = min((s for s in timeline.spans if s.end == time), key=lambda s: s.rank).rank
    spans = [span for span in timeline.spans if span.rank == last]
    kernels = [(s.start, s.end) for s in spans if s.stream == "compute"]
    passes = [(s.start, s.end) for s in spans if s.stream == "compute" and s.kind != "optimizer"]
    compute = [*kernels, *((s.start, s.end) for s in spans if s.stream == HOST)]
    moving = [s for s in spans if s.stream not in ("compute", HOST)]
    comm = [(s.start, s.end) for s in moving]
    peak = max(timeline.memory, key=lambda sample: sample.nbytes)
    capacity = cluster.gpus[peak.rank].hbm_bytes
    peak_flops = cluster.gpus[0].peak_flops[plan.step.precision.matmul]
    available = ranks * peak_flops
    steps = _steps_per_s(timeline, ranks, rounds)
    exposed = outside(comm, compute)
    bubble = time - length([*compute, *comm])
    return TrainingReport(
        step_time_s=time / rounds,
        tokens_per_s=steps * plan.tokens,
        tokens_per_s_per_gpu=steps * plan.tokens / ranks,
        mfu=steps * plan.model_flops / available,
        hfu=steps * plan.hardware_flops / available,
        compute_time_s=length(compute) / rounds,
        comm_time_s=length(comm) / rounds,
        exposed_comm_time_s=exposed / rounds,
        bubble_time_s=max(bubble, 0.0) / rounds,
        recompute_time_s=length(_of(spans, "recompute")) / rounds,
        optimizer_time_s=outside(_of(spans, "optimizer"), passes) / rounds,
        peak_memory_bytes=peak.nbytes,
        peak_memory_by_category=dict(peak.by_category),
        peak_reserved_bytes=max(timeline.reserved.values(), default=peak.nbytes),
        fits=not timeline.short_of_memory,
        shortfall_bytes=_shortfall(timeline, peak.nbytes, capacity),
        closed_form_collectives=plan.closed_forms,
        played_collectives=plan.played,
        bottleneck=bottleneck(timeline),
        because=_because(time, kernels, compute, exposed, bubble, _room(timeline, peak.nbytes / capacity)),
        exposed_comm_time_by_kind={kind: found / rounds for kind, found in _by_kind(moving, compute).items()},
        host_memory_bytes=plan.host_bytes,
        capacity_bytes=capacity,
    )


def _steps_per_s(timeline: Timeline, ranks: int, rounds: int) -> float:
    """All ranks' steps [1/s]; where they do not wait for each other each goes at its own pace."""
    if rounds == 1:
        return 1 / timeline.end
    ends: dict[int, float] = {}
    for span in timeline.spans:
        ends[span.rank] = max(ends.get(span.rank, 0.0), span.end)
    return sum(rounds / end for end in ends.values()) / ranks


def _by_kind(moving: list[Span], compute: list[Interval]) -> dict[str, float]:
    """Exposed time of each kind, longest first, none of it counted twice."""
    alone = {kind: outside(_of(moving, kind), compute) for kind in {span.kind for span in moving}}
    found: dict[str, float] = {}
    covered = list(compute)
    for kind in sorted(alone, key=lambda kind: (-alone[kind], kind)):
        found[kind] = outside(_of(moving, kind), covered)
        covered += _of(moving, kind)
    return found


def _shortfall(timeline: Timeline, peak: int, capacity: int) -> int:
    """What is missing [B]: of the bytes themselves, or, where only fragments are in the way, of what is reserved."""
    if not timeline.short_of_memory:
        return 0
    if peak > capacity:
        return peak - capacity
    return max(1, max(timeline.reserved.values(), default=capacity) - capacity)


def _of(spans: Iterable[Span], kind: str) -> list[Interval]:
    return [(s.start, s.end) for s in spans if s.kind == kind]


def _because(
    time: float, kernels: list[Interval], compute: list[Interval], exposed: float, bubble: float, room: str
) -> str:
    shares = {
        "kernels": length(kernels) / time,
        "the host's update": outside(compute, kernels) / time,
        "communication that nothing hides": exposed / time,
        "idle": bubble / time,
    }
    told = ", ".join(f"{share:.0%} {name}" for name, share in shares.items() if share >= 0.005)
    return f"{told}; {room}"


def _room(timeline: Timeline, share: float) -> str:
    """Say how full the GPU is; fragments alone can be too much for it."""
    told = f"memory peaks at {share:.0%} of the GPU's"
    if not timeline.short_of_memory:
        return told
    return f"{told}, so it does not fit" if share > 1 else f"{told} and fragments take the rest, so it does not fit"
