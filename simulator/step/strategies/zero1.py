"""ZeRO stage 1: optimizer states are sharded.

Gradients are reduce-scattered in the last micro-batch, and updated parameters are all-gathered. With `shard_size`, each
group of ranks holds a copy of the optimizer states, and gradients are also summed over the copies (Megatron-Core's
`num_distributed_optimizer_instances`, InternEvo's `zero1` size, DeepSpeed's MiCS).
"""

from __future__ import annotations

from simulator.records.operation import Exchange, NumericAction
from simulator.step.passes import Passes
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.sharding import Sharding
from simulator.step.spec import Gathering, GradientSync, State, Updater
from simulator.step.states import shard
from simulator.step.strategies import ddp
from simulator.step.strategies.ddp import Bucket, Bucketing
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner writing a rank's passes under ZeRO-1; only the last micro-batch communicates gradients."""

    if passes.step.optimizer.owns_whole_tensors:
        # A reduce-scatter needs equal parts of every bucket.
        return ddp.plan(builder, passes, sharded=True)

    def scattered(bucket: Bucket) -> str:
        """Write a bucket's reduce-scatter, and a copy of the rank's shard to the host under offload; return the name of
        the operation after which the shard is complete.
        """
        _, reduced = scatter(builder, passes, bucket)
        if passes.step.gradients_leave:
            nbytes = shard(bucket.elements, passes.ranks_of(bucket.units[0])) * passes.gradient_itemsize
            # Gradients were accumulated on the GPU, hence the host adds nothing.
            copied = passes.offload_copy(bucket.name, nbytes, reduced, add=False)
            passes.drop_gradients(bucket.units, bucket.micro, "copy to host", [copied])
        return reduced

    return Bucketing(passes, scattered)


def scatter(builder: ProgramBuilder, passes: Passes, bucket: Bucket) -> tuple[str, str]:
    """Append a bucket's reduce-scatter over the ranks that share a copy of the states, and the sum of the rank's shard
    over the copies; return the operations after which each is complete.
    """
    name, dtype = f"scatter {bucket.name}", passes.step.precision.reduce
    # The all-gather after the update needs the same padded shards.
    if bucket.units not in passes.parts:
        passes.parts.append(bucket.units)
    act = NumericAction(Exchange.REDUCE_SCATTER, bucket.names, bucket.micro)
    scope: Scope = "shard" if passes.copies and bucket.scope == "all" else bucket.scope
    # A bucket holds the tensors of a share of the owners.
    ranks, total = passes.ranks_of(bucket.units[0]), sum(unit.trained for unit in passes.units)
    owners = max(1, round(ranks * bucket.elements / total))
    reduced = builder.communicate(
        name, "reduce_scatter", bucket.elements, dtype, [bucket.done], scope, act, owners=owners
    )
    scattered = reduced or bucket.done
    summed = passes.sum_copies(f"sum {bucket.name} over copies", bucket.units, bucket.micro, scattered)
    return scattered, summed or scattered


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by all N ranks: (N - 1) times the gradients and the parameters."""
    return 2 * (ranks - 1) * sum(unit.trained for unit in units)


STRATEGY = Strategy(
    name="zero1",
    shards=frozenset({State.OPTIMIZER}),
    updater=Updater.OWNERS,
    gathering=Gathering.AFTER_UPDATE,
    sending=GradientSync.LAST,
    options=frozenset({"bucket_size", "shard_size"}),
    operations=("all_reduce", "reduce_scatter", "all_gather"),
    volume=_volume,
    plan=plan,
)
