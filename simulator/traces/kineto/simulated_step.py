"""A simulated rank's GPU work in a step, in the terms of a measured trace."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.records.operation import HOST, ISSUE
from simulator.records.program import Program
from simulator.records.timeline import Timeline, by_rank
from simulator.report.traces.kineto_names import collective_args, kernel_name
from simulator.traces.gpu_work import COPIES, GpuStep, GpuWork
from simulator.traces.kineto.kernel_names import kind_of_collective
from simulator.traces.kineto.measured_step import shares_of_simulated


def simulated_steps(program: Program, timeline: Timeline, ranks: Sequence[int]) -> list[GpuStep]:
    """Return the step of each rank; `timeline` has the operations of these ranks."""
    spans, end = by_rank(timeline.spans), round(timeline.end * 1e9)
    collectives = program.collectives()
    steps = []
    for rank in ranks:
        kernels = program.kernels(rank)
        work = []
        for span in spans.get(rank, ()):
            # The host's processors are not part of a GPU's work.
            if span.stream in (HOST, ISSUE):
                continue
            times = round(span.start * 1e9), round(span.end * 1e9)
            collective = collectives.get(span.name)
            if span.stream.startswith("copy "):
                work.append(GpuWork(span.name, *times, ((COPIES, 1.0),), with_host=True))
            elif collective is not None:
                operation = collective_args(collective, "", rank)["Collective name"]
                kind = kind_of_collective(operation, kernel_name(collective))
                work.append(GpuWork(span.name, *times, ((kind, 1.0),), communicates=True, nbytes=collective.nbytes))
            else:
                shares = shares_of_simulated(span.kind, kernels.get(span.name, ()))
                work.append(GpuWork(span.name, *times, shares, communicates=shares[0][0] == "server update"))
        steps.append(GpuStep.of(rank, end, work))
    return steps
