"""ZeRO stage 1: optimizer states are sharded.

Gradients are reduce-scattered in the last micro-batch, and updated parameters are all-gathered.
"""

from __future__ import annotations

from simulator.records.operation import Exchange, NumericAction
from simulator.step.passes import Passes
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, GradientSync, Sharding, State, Updater
from simulator.step.states import shard
from simulator.step.strategies.ddp import Bucket, Bucketing
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner writing a rank's passes under ZeRO-1; only the last micro-batch communicates gradients."""

    def scattered(bucket: Bucket) -> str:
        """Write a bucket's reduce-scatter, and a copy of the rank's shard to the host under offload; return the
        reduce-scatter's name.
        """
        reduced = scatter(builder, passes, bucket)
        if passes.step.offload is not None:
            nbytes = shard(bucket.elements, passes.ranks_of(bucket.units[0])) * passes.gradient_itemsize
            # Gradients were accumulated on the GPU, hence the host adds nothing.
            copied = passes.offload_copy(bucket.name, nbytes, reduced, add=False)
            passes.drop_gradients(bucket.units, bucket.micro, "copy to host", [copied])
        return reduced

    return Bucketing(passes, scattered)


def scatter(builder: ProgramBuilder, passes: Passes, bucket: Bucket) -> str:
    """Append a bucket's reduce-scatter; return the operation after which the rank's shard is complete."""
    name, dtype = f"scatter {bucket.name}", passes.step.precision.reduce
    # The all-gather after the update needs the same padded shards.
    if bucket.units not in passes.parts:
        passes.parts.append(bucket.units)
    act = NumericAction(Exchange.REDUCE_SCATTER, bucket.names, bucket.micro)
    elements, scope = bucket.elements, bucket.scope
    return builder.communicate(name, "reduce_scatter", elements, dtype, [bucket.done], scope, act) or bucket.done


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by all N ranks together: (N - 1) times the gradients, then (N - 1) times the
    parameters.
    """
    return 2 * (ranks - 1) * sum(unit.elements for unit in units)


STRATEGY = Strategy(
    name="zero1",
    shards=frozenset({State.OPTIMIZER}),
    updater=Updater.OWNERS,
    gathering=Gathering.AFTER_UPDATE,
    sending=GradientSync.LAST,
    options=frozenset({"bucket_size"}),
    operations=("all_reduce", "reduce_scatter", "all_gather"),
    volume=_volume,
    plan=plan,
)
