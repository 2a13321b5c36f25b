"""Simulates a collective outside any scenario, with arrays that the check chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.basics import dtypes
from simulator.basics.arrays import Array
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.collective_plan import Plan, Task, plan
from simulator.collectives.payload import inputs
from simulator.collectives.payload.carry import Payload, ended_order
from simulator.collectives.payload.judge import Numbers, Verdict, judge
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective
from simulator.records.timeline import Timeline
from simulator.records.transfers import Transfers
from simulator.testing.arrays import starts
from simulator.testing.engines import same_in_both_engines


@dataclass(frozen=True, slots=True)
class PlayedCollective:
    """A simulated collective with its plan, times and arrays."""

    plan: Plan
    op: Collective
    transfers: Transfers
    timeline: Timeline
    inputs: list[Array]
    buffers: list[Array]
    numbers: Numbers

    @property
    def time(self) -> float:
        """Time at which the last rank ends [s]."""
        return self.timeline.end

    @property
    def results(self) -> list[Array]:
        """Result of the operation for each rank."""
        return [inputs.result(self.op.schedule, b, r, self.op.elements) for r, b in enumerate(self.buffers)]

    @property
    def verdict(self) -> Verdict:
        """Number of wrong elements, and the errors of the sums."""
        order = ended_order(self.transfers, self.timeline.logs[0].end)
        return judge(self.op.schedule, self.transfers, order, self.numbers, self.inputs, self.buffers)


def planned(cluster: Cluster, algorithm: str | Algorithm, request: CollectiveRequest, **facts: Any) -> Plan:
    """Return the plan of a collective over the first ranks, or over `group`; `facts` are further fields of the task."""
    group = facts.pop("group", tuple(range(request.world_size)))
    name, record = (algorithm, None) if isinstance(algorithm, str) else ("own", algorithm)
    return plan(cluster, Task(request, name, group, own=record, **facts))


def played(
    cluster: Cluster,
    algorithm: str | Algorithm,
    request: CollectiveRequest,
    *,
    start: Sequence[Array] | None = None,
    jitter: Jitter | None = None,
    tamper: dict[int, Callable[[Array], Array]] | None = None,
    **facts: Any,
) -> PlayedCollective:
    """Simulate a collective with arrays; `start` has the whole buffer of every rank, drawn numbers if omitted.

    `tamper` gives transfers, by number, a function from the array that is sent to the one that arrives; `facts` are
    further fields of the task.
    """
    task_plan = planned(cluster, algorithm, request, **facts)
    (op,) = task_plan.program.collectives().values()
    dtype = dtypes.find(op.dtype)
    before = [a.copy() for a in (start if start is not None else starts(request, op.dtype))]
    after = [a.copy() for a in before]
    accumulate = dtypes.find(op.accumulate).numpy
    payload = Payload(after, dtype, op.reduction, accumulate, tamper or {})
    timeline = execute(task_plan.program, cluster, jitter=jitter, payloads={op.name: payload})
    log = timeline.logs[0]
    return PlayedCollective(
        task_plan, op, log.transfers, timeline, before, after, Numbers(dtype, op.reduction, accumulate)
    )


def time_of(cluster: Cluster, algorithm: str | Algorithm, request: CollectiveRequest, **facts: Any) -> float:
    """Return the simulated time without arrays [s]."""
    return execute(planned(cluster, algorithm, request, **facts).program, cluster).end


def takes_as_long_in_both_engines(cluster: Cluster, algorithm: str | Algorithm, request: CollectiveRequest) -> bool:
    """Check that both engines simulate a collective in the same time; return False if there is no compiled core."""
    return same_in_both_engines(planned(cluster, algorithm, request).program, cluster)
