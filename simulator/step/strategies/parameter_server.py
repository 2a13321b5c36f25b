"""Parameter server: servers hold the optimizer's states; workers push gradients and pull parameters, in buckets.

A bucket is updated when all workers
have pushed it, while others are still on their way; without a global norm, so gradients are not clipped.

Asynchronous servers wait for nobody [2]_: a gradient is applied as it arrives, and its worker goes on with what is
there then. Nobody knows where one step of all ends, so all steps are planned at once. With a bound s on staleness [3]_
a worker first waits until all have made their updates of step n - s - 1, and then pulls for its step n: what it reads
holds every update up to that step.

References
----------
.. [1] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
.. [2] Dean et al., "Large scale distributed deep networks", NIPS 2012: Downpour SGD.
.. [3] Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.records.operation import Act, Computation, Exchange
from simulator.step.passes import Passes
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, Offload, Sending, Sharding, State, TrainingStep, Updater
from simulator.step.strategies.ddp import Bucket, Bucketing
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit

# Servers are nodes of processors, like the hosts of offloaded optimizers.
_RATE = Offload().host_rate


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """All micro-batches; only the last one of a step communicates."""
    return _asynchronous(builder, passes) if passes.step.sharding.asynchronous else _synchronous(builder, passes)


def _synchronous(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    def exchanged(bucket: Bucket) -> str | None:
        pushed = _push(builder, passes, bucket)
        # Stands on every rank's own list, but a pull starts when the last rank is there: that is when all have pushed.
        new = builder.at_server(f"update {bucket.name}", _seconds(passes.step, bucket), after=[pushed or bucket.done])
        _pull(builder, passes, bucket, [new])
        return pushed

    return Bucketing(passes, exchanged)


def _asynchronous(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Step after step; a unit starts when its parameters of the step before are there."""
    sharding = passes.step.sharding
    fetched: dict[str, list[str | None]] = {}
    clocks: list[str | None] = []
    served: list[tuple[Bucket, str]] = []

    def exchanged(bucket: Bucket) -> str | None:
        pushed = _push(builder, passes, bucket)
        act = Act(Computation.SERVE, bucket.names, bucket.micro)
        new = builder.at_server(f"update {bucket.name}", _seconds(passes.step, bucket), [pushed or bucket.done], act)
        served.append((bucket, new))
        if passes.units[0] in bucket.units:
            ended(bucket.micro // passes.step.accumulation)
        return pushed

    def ended(number: int) -> None:
        """All buckets of a step are on their way: fetch what the next one starts with."""
        until: list[str | None] = []
        if sharding.staleness is not None:
            # A worker's step has ended when its updates are made. These pulls are for the next step, number + 1.
            clocks.append(builder.serve(f"clock {number}", "clock", 1, "int64", sharding, [new for _, new in served]))
            if number >= sharding.staleness:
                until.append(clocks[number - sharding.staleness])
        for bucket, new in served:
            pulled = _pull(builder, passes, bucket, [new, *until])
            fetched.update((name, [pulled]) for name in bucket.names)
        served.clear()

    return Bucketing(passes, exchanged, after=fetched)


def _push(builder: ProgramBuilder, passes: Passes, bucket: Bucket) -> str | None:
    step, act = passes.step, Act(Exchange.PUSH, bucket.names, bucket.micro)
    to = (step.precision.reduce, step.sharding)
    pushed = builder.serve(f"push {bucket.name}", "push", bucket.elements, *to, [bucket.done], act)
    passes.drop_gradients(bucket.units, bucket.micro, "communication push", [pushed or bucket.done])
    return pushed


def _pull(builder: ProgramBuilder, passes: Passes, bucket: Bucket, after: list[str | None]) -> str | None:
    step, act = passes.step, Act(Exchange.PULL, bucket.names, bucket.micro)
    return builder.serve(
        f"pull {bucket.name}", "pull", bucket.elements, step.precision.params, step.sharding, after, act
    )


def _seconds(step: TrainingStep, bucket: Bucket) -> float:
    """Of a bucket's update at the servers [s]."""
    return bucket.elements / step.sharding.servers * traffic_per_parameter(step) / _RATE


def traffic_per_parameter(step: TrainingStep) -> int:
    """Bytes that a server reads and writes to update a parameter: sum of gradients, states, master copy [B]."""
    states = 4 * step.optimizer.states
    gradient, working = find(step.precision.reduce).itemsize, find(step.precision.params).itemsize
    master = working if step.precision.master is None else find(step.precision.master).itemsize
    return gradient + 2 * (states + master) + (0 if step.precision.master is None else working)


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """A worker that is a server's host too keeps that part to itself."""
    travelling = ranks - (sharding.servers_on == "workers")
    return 2 * travelling * sum(unit.elements for unit in units)


STRATEGY = Strategy(
    name="parameter_server",
    shards=frozenset({State.OPTIMIZER}),
    updater=Updater.SERVERS,
    gathering=Gathering.PULLED,
    sending=Sending.LAST,
    options=frozenset({"bucket_size", "servers", "servers_on", "asynchronous", "staleness"}),
    operations=("all_reduce",),
    volume=_volume,
    plan=plan,
)
