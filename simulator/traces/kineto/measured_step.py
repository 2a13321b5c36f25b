"""Which work of a profiler's trace belongs to a step, and how long does the step take?

Work belongs to the step in whose `ProfilerStep#N` the host launched it. If the work ends within the annotation, the
step takes the annotation's time. If the GPU lags behind the host, the step lasts from its first operation to the first
operation of the next step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.errors import ScenarioError, few
from simulator.records.operation import KernelParts
from simulator.traces.gpu_work import COPIES, OTHER, GpuStep, GpuWork
from simulator.traces.kineto.kernel_names import (
    is_collective,
    is_send_of_any_purpose,
    kind_of_collective,
    kind_of_kernel,
    partners_of_copy,
)
from simulator.traces.kineto.profile_reader import KinetoTrace, TracedWork

_MOST_NAMED: Final = 8
# Kinds of this simulator's operations whose kernels are known, or of a kind of their own.
_OWN_KINDS: Final = {
    "optimizer": "optimizer",
    "copies": "elementwise",
    "accumulate": "elementwise",
    "server update": "server update",
}


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A step of a trace."""

    number: int | None  # N of `ProfilerStep#N`; None for the whole trace
    step: GpuStep
    # True if a kernel of sends and receives does not say whether it is an exchange, a gather or a send
    ambiguous_sends: bool


def measured_step(trace: KinetoTrace, rank: int, number: int | None) -> MeasuredStep:
    """Return a step of a trace: `number`, or the one of median duration; the whole trace if it has no steps.

    Raises
    ------
    ScenarioError
        The trace has no such step, or no GPU operation belongs to it.
    """
    if not trace.steps:
        if number is not None:
            raise ScenarioError(
                f"--step: got {number}, but {trace.source} has no ProfilerStep annotations; leave out --step to take "
                "the whole trace, or call profiler.step() after each step"
            )
        begin, end = trace.work[0].start, max(op.end for op in trace.work)
        return _cut(trace, rank, None, trace.work, begin, end)
    if number is not None and number not in trace.steps:
        names = few([str(step) for step in sorted(trace.steps)], _MOST_NAMED)
        raise ScenarioError(f"--step: got {number}; {trace.source} has the steps {names}")
    by_step = _by_step(trace)
    step = _median(trace, by_step) if number is None else number
    work = by_step.get(step)
    if not work:
        raise ScenarioError(f"{trace.source}: no GPU operation belongs to ProfilerStep#{step}; choose another --step")
    begin, end = trace.steps[step]
    if work[0].start < begin or max(op.end for op in work) > end:
        later = [work[0].start for other, work in by_step.items() if other > step and work]
        begin, end = work[0].start, max(min(later, default=0), max(op.end for op in work))
    return _cut(trace, rank, step, work, begin, end)


def shares_of_simulated(kind: str, parts: KernelParts) -> KernelParts:
    """Return the kinds of kernels of a simulated operation with their shares, from its kind and its known kernels.

    >>> shares_of_simulated("forward", (("matmul", 0.7), ("elementwise", 0.3))), shares_of_simulated("forward", ())
    ((('matmul', 0.7), ('elementwise', 0.3)), (('other kernels', 1.0),))
    """
    if kind in _OWN_KINDS:
        return ((_OWN_KINDS[kind], 1.0),)
    return parts or ((OTHER, 1.0),)


def _by_step(trace: KinetoTrace) -> dict[int, list[TracedWork]]:
    """Return the GPU operations that the host launched in each step; without a launch, those that began in it."""
    numbers = sorted(trace.steps, key=lambda number: trace.steps[number])
    begins = [trace.steps[number][0] for number in numbers]
    by_step: dict[int, list[TracedWork]] = {number: [] for number in numbers}
    for work in trace.work:
        issued = work.start if work.launch is None else trace.launches.get(work.launch, work.start)
        place = bisect_right(begins, issued) - 1
        if place >= 0 and issued <= trace.steps[numbers[place]][1]:
            by_step[numbers[place]].append(work)
    return by_step


def _median(trace: KinetoTrace, by_step: dict[int, list[TracedWork]]) -> int:
    """Return the step of median duration among those with GPU operations: warm-up and cut steps are at the ends."""
    with_work = [number for number in trace.steps if by_step[number]] or list(trace.steps)
    ordered = sorted(with_work, key=lambda number: (trace.steps[number][1] - trace.steps[number][0], number))
    return ordered[(len(ordered) - 1) // 2]


def _cut(
    trace: KinetoTrace, rank: int, number: int | None, trace_work: Sequence[TracedWork], begin: int, end: int
) -> MeasuredStep:
    """Return operations as a step that lasts from `begin` to `end` [ns]."""
    optimizer = sorted(trace.optimizer)
    starts = [start for start, _ in optimizer]
    ambiguous = False
    parts = []
    for work in trace_work:
        launched = trace.launches.get(work.launch, -1) if work.launch is not None else -1
        place = bisect_right(starts, launched) - 1
        updates = place >= 0 and launched <= optimizer[place][1]
        collective = not work.copies and (bool(work.operation) or is_collective(work.name))
        ambiguous |= collective and is_send_of_any_purpose(work.operation, work.name)
        shares, communicates = _kinds(work, collective=collective, updates=updates)
        nbytes, with_host = work.nbytes if collective else None, False
        if work.copies:
            communicates, with_host = partners_of_copy(work.name)
        parts.append(GpuWork(work.name, work.start - begin, work.end - begin, shares, communicates, nbytes, with_host))
    return MeasuredStep(number, GpuStep.of(rank, end - begin, parts), ambiguous)


def _kinds(work: TracedWork, *, collective: bool, updates: bool) -> tuple[KernelParts, bool]:
    """Return the kinds of an operation with their shares, and whether it communicates."""
    if collective:
        return ((kind_of_collective(work.operation, work.name), 1.0),), True
    if work.copies:
        return ((COPIES, 1.0),), False
    if work.simulated is not None:
        shares = shares_of_simulated(*work.simulated)
        return shares, shares[0][0] == "server update"
    kind = kind_of_kernel(work.name)
    # Elementwise kernels of the optimizer's step are the optimizer; matmuls of its rule for matrices, too.
    return (("optimizer" if updates else kind, 1.0),), False
