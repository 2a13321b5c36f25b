"""The whole product in one function: build the cluster, plan the program, execute it, summarise the timeline.

Rule: this is the way of a scenario, one direction, and nothing is decided here that a stop on the way can decide.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.basics.dtypes import find as find_dtype
from simulator.basics.this_machine import lacking
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives import inputs
from simulator.collectives.algorithm import Request
from simulator.collectives.expected import Numbers, Verdict, judge
from simulator.collectives.plan import Plan, Task, packed, plan
from simulator.collectives.reduction import Array
from simulator.engine.jitter import Jitter
from simulator.engine.payload import Payload, Tamper, ended_order
from simulator.engine.play import play, refuse_too_many, whose
from simulator.errors import ScenarioError, ScenarioWarning, SimulationError
from simulator.playing.training import play_step
from simulator.report.numbers.summary import CollectiveReport, summarize, with_link_use
from simulator.report.numbers.training_summary import TrainingReport
from simulator.scenario.payload import carries_payload
from simulator.scenario.records import BucketFusion, BufferFusion, CollectiveSpec, Scenario
from simulator.scenario.training_making import to_step
from simulator.step.plan import StepPlan
from simulator.step.strategies import catalog as strategies

if TYPE_CHECKING:
    from simulator.records.timeline import Timeline

# PyTorch's DistributedDataParallel keeps its first bucket at 1 MiB, so that communication starts early
# (torch/nn/parallel/distributed.py, _DEFAULT_FIRST_BUCKET_BYTES).
_FIRST_BUCKET = 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """A played scenario.

    Attributes
    ----------
    scenario : Scenario
    plan : Plan or StepPlan
        Of a collective, or of a training step.
    timeline : Timeline
    report : CollectiveReport or TrainingReport
    results : tuple of array, or None
        By place in the group what the operation gives each rank (one after the other where tensors make several
        messages); None without payload.
    parameters : mapping of PyTorch's name to array, or None
        Of a real training after its last step: whole, gathered over all ranks, in the dtype in which they are updated.
    """

    scenario: Scenario
    plan: Plan | StepPlan
    timeline: Timeline
    report: CollectiveReport | TrainingReport
    results: tuple[Array, ...] | None
    parameters: Mapping[str, Array] | None = None


def simulate(
    scenario: Scenario,
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
) -> Run:
    """Play one scenario.

    Parameters
    ----------
    scenario : Scenario
        A single point; one with `compare` or `sweep` is for `simulator.sweep`.
    tamper : mapping of transfer number to function, optional
        Faults put into the payload, to see that they show.
    limit_memory : bool
        Whether a training step ends where a GPU's memory does; otherwise its report says what is missing.
    keep : collection of int, optional
        Ranks whose operations the timeline is to tell, beside those of the one that ends last; where it is left out
        all, or in a large job those of rank 0.

    Raises
    ------
    ScenarioError
        The scenario is no single point, or asks for what cannot be; `keep` names ranks that are not there.
    SimulationError
        The run cannot go on.

    Warns
    -----
    ScenarioWarning
        A key of the scenario changes no number.
    """
    check_ranks(scenario, keep or ())
    if scenario.compare or scenario.sweep:
        raise ScenarioError(
            f"{scenario.source}: has {'compare' if scenario.compare else 'sweep'}, so it is many points; "
            "use simulator.sweep(scenario), or `simulator run`"
        )
    warn_of(scenario)
    cluster = build_cluster(scenario)
    luck = Jitter(scenario.cluster.jitter.compute, scenario.cluster.jitter.latency, scenario.seed)
    if scenario.training is not None:
        step = to_step(scenario.training, scenario.cluster.world_size, scenario.base)
        planned_step, timeline, told, parameters = play_step(
            cluster, step, luck, limit_memory=limit_memory, engine=scenario.engine, keep=keep
        )
        return Run(scenario, planned_step, timeline, told, None, parameters)
    planned = plan_scenario(scenario, cluster)
    payloads = _payloads(scenario, planned, tamper or {})
    drawn = _copies(planned, payloads)
    keep = whose(keep, len(planned.ops) * len(planned.ops[0].group))
    timeline = play(scenario.engine, planned.program, cluster, jitter=luck, payloads=payloads, keep=keep)
    timeline = with_link_use(timeline)
    verdict = _verdict(planned, timeline, payloads, drawn) if payloads else None
    report = summarize(planned, timeline, verdict, exact_form=luck.latency == 0)
    return Run(scenario, planned, timeline, report, _results(planned, payloads) if payloads else None)


def warn_of(scenario: Scenario) -> None:
    """Warn the caller's caller of keys that change nothing, once a scenario: its points have no warnings."""
    for line in scenario.warnings:
        warnings.warn(line, ScenarioWarning, stacklevel=3)


def check_ranks(scenario: Scenario, ranks: Collection[int]) -> None:
    """ScenarioError where a rank is not there."""
    absent = [rank for rank in ranks if not 0 <= rank < scenario.cluster.world_size]
    if absent:
        raise ScenarioError(
            f"{scenario.source}: operations of rank {absent[0]} cannot be kept; "
            f"ranks are 0 .. {scenario.cluster.world_size - 1}"
        )


def build_cluster(scenario: Scenario) -> Cluster:
    """The scenario's cluster, with a server's port for each parameter server that stands on its own."""
    spec, collective, training = scenario.cluster, scenario.collective, scenario.training
    servers = 0
    if training is not None:
        servers = strategies.find(training.sharding.strategy).servers(training.sharding)
    if collective is not None and collective.servers is not None and collective.servers.on == "own":
        servers = collective.servers.count
    return build(
        spec.topology,
        spec.world_size,
        gpu=spec.gpu,
        servers=servers,
        stragglers=spec.stragglers,
        link_factors=spec.link_factors,
        placement=spec.placement,
        ecmp_seed=spec.ecmp.hash if spec.ecmp else None,
        base=scenario.base,
    )


def plan_scenario(scenario: Scenario, cluster: Cluster) -> Plan:
    """The scenario's program on this cluster."""
    spec = scenario.collective
    if spec is None:
        raise ScenarioError(f"{scenario.source}: has no `collective:` to be planned")
    itemsize = find_dtype(spec.dtype).itemsize
    group = spec.group or tuple(range(scenario.cluster.world_size))
    count, on = _servers(spec)
    size = spec.group_size
    boxes = tuple(tuple(range(b, b + size)) for b in range(0, len(group), size)) if size else ()
    request = Request(
        operation=spec.operation,
        world_size=len(group),
        elements=spec.size // itemsize,
        root=spec.root,
        rank_order=spec.rank_order or (),
        chunks=spec.chunks,
        servers=count,
        servers_on=on,
        boxes=boxes,
    )
    messages, wait = _messages(spec, itemsize)
    task = Task(request, spec.algorithm, group, spec.dtype, spec.reduction, spec.accumulate, messages, wait)
    return plan(cluster, task)


def _servers(spec: CollectiveSpec) -> tuple[int, Any]:
    return (spec.servers.count, spec.servers.on) if spec.servers else (1, "own")


def _messages(spec: CollectiveSpec, itemsize: int) -> tuple[tuple[int, ...], float]:
    """Elements of each message that tensors are sent in, and the time before the first."""
    if not spec.tensors:
        return (), 0.0
    tensors = tuple(nbytes // itemsize for nbytes in spec.tensors)
    if isinstance(spec.fusion, BufferFusion):
        return packed(tensors, spec.fusion.buffer // itemsize), spec.fusion.cycle
    if isinstance(spec.fusion, BucketFusion):
        bucket = spec.fusion.buckets
        return packed(tensors, bucket // itemsize, min(_FIRST_BUCKET, bucket) // itemsize), 0.0
    return tensors, 0.0


def _payloads(scenario: Scenario, planned: Plan, tamper: Tamper) -> dict[str, Payload]:
    spec = scenario.collective
    if spec is None:
        return {}
    ranks = len(spec.group or range(scenario.cluster.world_size))
    if not carries_payload(spec.payload, ranks * spec.size):
        return {}
    _refuse_too_large(scenario, spec)
    refuse_too_many(scenario.engine, planned.program, payload=True)
    payloads = {}
    for name, op in planned.program.collectives().items():
        dtype = find_dtype(op.dtype)
        buffers = inputs.buffers(op.schedule, op.elements, dtype, scenario.seed)
        payloads[name] = Payload(buffers, dtype, op.reduction, find_dtype(op.accumulate).numpy, tamper)
    return payloads


def _refuse_too_large(scenario: Scenario, spec: CollectiveSpec) -> None:
    """Real arrays and a copy for the judge must fit into this machine, or the system ends the process wordlessly."""
    ranks = len(spec.group or range(scenario.cluster.world_size))
    told = lacking(2 * ranks * spec.size)
    if told:
        raise SimulationError(
            f"collective.payload: got {str(spec.payload).lower()}; real arrays of {ranks} ranks and a copy take "
            f"{told}; write payload: auto"
        )


def _copies(planned: Plan, payloads: dict[str, Payload]) -> dict[str, list[Array]]:
    """What the payload began as, for the judge."""
    ops = planned.program.collectives()
    return {
        name: inputs.copies(ops[name].schedule, ops[name].elements, payload.buffers, payload.dtype)
        for name, payload in payloads.items()
    }


def _verdict(planned: Plan, timeline: Timeline, payloads: dict[str, Payload], drawn: dict[str, list[Array]]) -> Verdict:
    verdicts = []
    for log in timeline.logs:
        payload, op = payloads[log.collective], planned.program.collectives()[log.collective]
        numbers = Numbers(payload.dtype, payload.reduction, payload.accumulate)
        order = ended_order(log.transfers, log.end)
        verdicts.append(judge(op.schedule, log.transfers, order, numbers, drawn[op.name], payload.buffers))
    return Verdict(
        wrong=sum(v.wrong for v in verdicts),
        max_abs_error=max(v.max_abs_error for v in verdicts),
        overflowed=sum(v.overflowed for v in verdicts),
    )


def _results(planned: Plan, payloads: dict[str, Payload]) -> tuple[Array, ...]:
    ops = list(planned.program.collectives().values())
    results = []
    for place in range(len(ops[0].group)):
        parts = [inputs.result(op.schedule, payloads[op.name].buffers[place], place, op.elements) for op in ops]
        if len(parts) == 1:
            results.append(parts[0])
            continue
        import numpy as np

        results.append(np.concatenate(parts))
    return tuple(results)
