"""How does a scenario's collective become a report? It is planned, simulated with or without arrays, and judged.

Arrays are drawn before the simulation and judged afterwards; times depend on none of their values.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find as find_dtype
from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.basics.progress import stage
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.collective_plan import Plan, Task, packed, plan
from simulator.collectives.payload import inputs
from simulator.collectives.payload.carry import Payload, Tamper, ended_order
from simulator.collectives.payload.judge import Numbers, Verdict, judge
from simulator.engine.jitter import Jitter
from simulator.engine.play import play, refuse_too_many, whose
from simulator.engine.traffic import Traffic
from simulator.records.timeline import Timeline
from simulator.report.numbers.summary import summarize, with_link_use
from simulator.run.point_result import PointResult
from simulator.scenario.payload import carries_payload, itemsize_of, ranks_of, request_of
from simulator.scenario.records import BUFFER, CYCLE, CollectiveSpec, Scenario

# PyTorch's DistributedDataParallel keeps its first bucket at 1 MiB to start communication early
# (torch/nn/parallel/distributed.py, _DEFAULT_FIRST_BUCKET_BYTES).
_FIRST_BUCKET = 2**20


def play_collective(
    cluster: Cluster,
    scenario: Scenario,
    jitter: Jitter,
    *,
    tamper: Tamper,
    keep: Collection[int] | None,
    algorithm: Algorithm | None = None,
) -> PointResult:
    """Simulate a scenario's collective, and return its plan, timeline, report and arrays.

    Parameters
    ----------
    cluster : Cluster
        The scenario's cluster.
    scenario : Scenario
        A single point with a `collective:`.
    jitter : Jitter
        Noise on kernels and latencies.
    tamper : mapping of transfer number to function
        Faults injected into the payload.
    keep : collection of int, optional
        Ranks whose operations are kept, in addition to the rank that ends last. If omitted: all ranks, or rank 0 in a
        large job.
    algorithm : Algorithm, optional
        Algorithm in place of the scenario's.
    """
    planned = plan_collective(scenario, cluster, algorithm)
    payloads = _payloads(scenario, planned, tamper)
    # Inputs must be kept before the simulation, because buffers change in place.
    random_inputs = _drawn(planned, payloads)
    ranks = whose(keep, planned.program, len(planned.ops) * len(planned.ops[0].group))
    timeline = play(scenario.engine, planned.program, cluster, jitter=jitter, payloads=payloads, keep=ranks)
    timeline = with_link_use(timeline)
    verdict = _verdict(planned, timeline, payloads, random_inputs) if payloads else None
    report = summarize(
        planned, cluster, timeline, verdict, exact_form=jitter.latency == 0 and not _changes(cluster, planned)
    )
    return PointResult(planned, timeline, report, _results(planned, payloads) if payloads else None)


def _changes(cluster: Cluster, planned: Plan) -> bool:
    """Return True if a link or a GPU's memory that the collective may use changes its rate during the simulation."""
    hbm = len(cluster.router.bandwidth)
    if any(link < hbm for link in cluster.changing_links):
        return True
    # The memory of a GPU counts only where the GPU adds.
    return bool(cluster.changing_links) and any(
        bool(((reduce == 1) & (dst < len(op.group))).any())
        for op in planned.ops
        for _, dst, reduce in [Traffic(op.schedule, op.elements, op.sizes).route_keys.T]
    )


def plan_collective(scenario: Scenario, cluster: Cluster, algorithm: Algorithm | None = None) -> Plan:
    """Return the plan (program of transfers) of the scenario's collective on this cluster, with the
    given `algorithm` if there is one.
    """
    spec = scenario.collective
    if spec is None:
        raise ScenarioError(f"{scenario.source}: has no key `collective`")
    stage("planning")
    request = request_of(spec, scenario.cluster.world_size)
    group = spec.group or tuple(range(scenario.cluster.world_size))
    messages, wait = _messages(spec, itemsize_of(spec))
    name = spec.algorithm if algorithm is None else "own"
    if algorithm is None:
        algorithm = None if name == "auto" else find_algorithm(name, scenario.base)
    elif spec.operation not in algorithm.plans:
        raise ScenarioError(f"algorithm: has no {spec.operation}; its operations are {', '.join(algorithm.operations)}")
    task = Task(request, name, group, spec.dtype, spec.reduction, spec.accumulate, messages, wait, algorithm)
    return plan(cluster, task)


def _messages(spec: CollectiveSpec, itemsize: int) -> tuple[tuple[int, ...], float]:
    """Return the elements in each message of fused tensors, and the time before the first message [s]."""
    if not spec.tensors:
        return (), 0.0
    # Without fusion each tensor is its own message.
    tensors = tuple(nbytes // itemsize for nbytes in spec.tensors)
    fusion = spec.fusion
    if fusion is None:
        return tensors, 0.0
    if fusion.buckets is None:
        return packed(tensors, (fusion.buffer or BUFFER) // itemsize), CYCLE if fusion.cycle is None else fusion.cycle
    bucket = fusion.buckets
    return packed(tensors, bucket // itemsize, min(_FIRST_BUCKET, bucket) // itemsize), 0.0


def _payloads(scenario: Scenario, planned: Plan, tamper: Tamper) -> dict[str, Payload]:
    """Return {collective's name: real arrays}, drawn at random; empty if the scenario asks for none."""
    spec = scenario.collective
    if spec is None:
        return {}
    ranks = ranks_of(spec, scenario.cluster.world_size)
    if not carries_payload(spec.payload, ranks * spec.nbytes):
        return {}
    refuse_too_many(scenario.engine, planned.program, payload=True)
    payloads = {}
    for name, op in planned.program.collectives().items():
        dtype = find_dtype(op.dtype)
        buffers = inputs.buffers(op.schedule, op.elements, dtype, scenario.seed)
        payloads[name] = Payload(buffers, dtype, op.reduction, find_dtype(op.accumulate).numpy, tamper)
    return payloads


def refuse_large_payload(scenario: Scenario) -> None:
    """Raise TooLargeError if this machine cannot hold the scenario's real arrays and their copies for checking."""
    spec = scenario.collective
    if spec is None:
        return
    ranks = ranks_of(spec, scenario.cluster.world_size)
    # Twice: the arrays, and the copies for checking.
    shortage = shortage_text(2 * ranks * spec.nbytes) if carries_payload(spec.payload, ranks * spec.nbytes) else ""
    if shortage:
        raise TooLargeError(
            f"collective.payload: got {str(spec.payload).lower()}; real arrays of {ranks} ranks and their checks "
            f"need {shortage}; write payload: auto"
        )


def _drawn(planned: Plan, payloads: dict[str, Payload]) -> dict[str, list[inputs.RandomInput]]:
    """Return the random initial values of each collective's arrays, for checking the results later."""
    ops = planned.program.collectives()
    return {
        name: inputs.drawn(ops[name].schedule, ops[name].elements, payload.buffers)
        for name, payload in payloads.items()
    }


def _verdict(
    planned: Plan, timeline: Timeline, payloads: dict[str, Payload], random_inputs: dict[str, list[inputs.RandomInput]]
) -> Verdict:
    """Return the verdict (wrong elements, errors, overflows) over every collective's simulated arrays."""
    verdicts = []
    for log in timeline.logs:
        payload, op = payloads[log.collective], planned.program.collectives()[log.collective]
        numbers = Numbers(payload.dtype, payload.reduction, payload.accumulate)
        order = ended_order(log.transfers, log.end)
        verdicts.append(judge(op.schedule, log.transfers, order, numbers, random_inputs[op.name], payload.buffers))
    return Verdict(
        wrong=sum(v.wrong for v in verdicts),
        max_abs_error=max(v.max_abs_error for v in verdicts),
        overflowed=sum(v.overflowed for v in verdicts),
    )


def _results(planned: Plan, payloads: dict[str, Payload]) -> tuple[Array, ...]:
    """Return each rank's result array, concatenated over the messages."""
    ops = list(planned.program.collectives().values())
    results = []
    for place in range(len(ops[0].group)):
        # Several messages carry parts of a single tensor list.
        parts = [inputs.result(op.schedule, payloads[op.name].buffers[place], place, op.elements) for op in ops]
        results.append(parts[0] if len(parts) == 1 else np.concatenate(parts))
    return tuple(results)
