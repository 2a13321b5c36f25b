"""Parameter server: servers hold the optimizer states; workers push gradients and pull parameters, in buckets.

A bucket is updated after every worker's push, while other buckets are still in flight. There is no global norm, hence
gradients are not clipped.

Asynchronous servers wait for no worker [2]_: a gradient is applied on arrival, and its worker continues with the
parameters at that time. Steps of different workers then overlap, therefore all steps are planned in one program. With a
staleness bound s [3]_, a worker waits until every worker's updates of step n - s - 1 are done, and then pulls for its
step n: the pulled parameters contain every update up to step n - s - 1.

Example: two workers with staleness 1. Before its step 2, a worker waits for every update of step 0.

References
----------
.. [1] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
.. [2] Dean et al., "Large scale distributed deep networks", NIPS 2012: Downpour SGD.
.. [3] Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server", NIPS 2013.
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.records.operation import Computation, Exchange, NumericAction
from simulator.step.passes import Passes
from simulator.step.program_builder import ProgramBuilder
from simulator.step.sharding import Sharding
from simulator.step.spec import Gathering, GradientSync, State, TrainingStep, Updater
from simulator.step.strategies.ddp import Bucket, Bucketing
from simulator.step.strategies.strategy import Strategy
from simulator.step.training_spec import Offload
from simulator.step.units import Unit

# Servers are nodes of processors, like the hosts of offloaded optimizers.
_RATE = Offload().host_rate


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner writing a rank's passes with parameter servers; only the last micro-batch of a step
    communicates.
    """
    return _asynchronous(builder, passes) if passes.step.sharding.asynchronous else _synchronous(builder, passes)


def _synchronous(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner of a rank's passes for servers that wait for every worker's gradients before an update."""

    def exchanged(bucket: Bucket) -> str | None:
        """Write a bucket's push, the servers' update, and the pull; return the push's name, None for one worker."""
        pushed = _push(builder, passes, bucket)
        # The update is in every rank's list, but a pull starts only when the last rank arrives: after every push and
        # update.
        new = builder.at_server(f"update {bucket.name}", _seconds(passes.step, bucket), after=[pushed or bucket.done])
        _pull(builder, passes, bucket, [new])
        return pushed

    return Bucketing(passes, exchanged)


def _asynchronous(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner of a rank's passes over several steps, for servers that wait for no worker.

    A unit starts when its parameters of the preceding step have arrived.
    """
    sharding = passes.step.sharding
    fetched: dict[str, list[str | None]] = {}
    clocks: list[str | None] = []
    served: list[tuple[Bucket, str]] = []

    def exchanged(bucket: Bucket) -> str | None:
        """Write a bucket's push and update, and pulls after the first unit's bucket; return the push's name."""
        pushed = _push(builder, passes, bucket)
        act = NumericAction(Computation.SERVE, bucket.names, bucket.micro)
        new = builder.at_server(f"update {bucket.name}", _seconds(passes.step, bucket), [pushed or bucket.done], act)
        served.append((bucket, new))
        # Backward passes end with the first unit.
        if passes.units[0] in bucket.units:
            ended(bucket.micro // passes.step.accumulation)
        return pushed

    def ended(number: int) -> None:
        """Write the pulls of every bucket at the end of step `number`, after the wait for the staleness bound."""
        until: list[str | None] = []
        if sharding.staleness is not None:
            # A worker's step ends with its updates. These pulls are for step number + 1.
            clocks.append(builder.serve(f"clock {number}", "clock", 1, "int64", sharding, [new for _, new in served]))
            if number >= sharding.staleness:
                until.append(clocks[number - sharding.staleness])
        for bucket, new in served:
            pulled = _pull(builder, passes, bucket, [new, *until])
            fetched.update((name, [pulled]) for name in bucket.names)
        served.clear()

    return Bucketing(passes, exchanged, after=fetched)


def _push(builder: ProgramBuilder, passes: Passes, bucket: Bucket) -> str | None:
    """Write a bucket's push to the servers and free its gradients; return the push, or None for one worker."""
    step, act = passes.step, NumericAction(Exchange.PUSH, bucket.names, bucket.micro)
    to = (step.precision.reduce, step.sharding)
    pushed = builder.serve(f"push {bucket.name}", "push", bucket.elements, *to, [bucket.done], act)
    passes.drop_gradients(bucket.units, bucket.micro, "communication push", [pushed or bucket.done])
    return pushed


def _pull(builder: ProgramBuilder, passes: Passes, bucket: Bucket, after: list[str | None]) -> str | None:
    """Write a bucket's pull from the servers after `after`; return its name, or None for one worker."""
    step, act = passes.step, NumericAction(Exchange.PULL, bucket.names, bucket.micro)
    return builder.serve(
        f"pull {bucket.name}", "pull", bucket.elements, step.precision.params, step.sharding, after, act
    )


def _seconds(step: TrainingStep, bucket: Bucket) -> float:
    """Return the duration of a bucket's update on the parameter servers [s]."""
    # Servers update equal parts of the bucket in parallel.
    return bucket.elements / step.sharding.server_count * traffic_per_parameter(step) / _RATE


def traffic_per_parameter(step: TrainingStep) -> float:
    """Return the bytes that a parameter server reads and writes to update one parameter: summed gradient, states,
    master copy [B].
    """
    # Each state and the master copy is read and written; a working copy is only written.
    states = step.optimizer.state_itemsize * step.optimizer.states
    gradient, working = find(step.precision.reduce).itemsize, find(step.precision.params).itemsize
    master = working if step.precision.master is None else find(step.precision.master).itemsize
    return gradient + 2 * (states + master) + (0 if step.precision.master is None else working)


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by workers and servers together: N pushes and N pulls of the parameters, for N
    workers.

    A worker that hosts a server keeps the server's part off the wire.
    """
    travelling = ranks - (sharding.servers_on == "workers")
    return 2 * travelling * sum(unit.trained for unit in units)


STRATEGY = Strategy(
    name="parameter_server",
    shards=frozenset({State.OPTIMIZER}),
    updater=Updater.SERVERS,
    gathering=Gathering.PULLED,
    sending=GradientSync.LAST,
    options=frozenset({"bucket_size", "servers", "servers_on", "asynchronous", "staleness"}),
    operations=("all_reduce",),
    volume=_volume,
    plan=plan,
)
