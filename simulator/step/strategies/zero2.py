"""ZeRO stage 2: gradients are sharded too; every micro-batch reduce-scatters gradients and keeps a shard (DeepSpeed).

There are two buckets, as in DeepSpeed: one is filled while the other is reduced (stage_1_and_2.py, `ipg_buffer` and
`overlap_comm`; recalled).
"""

from __future__ import annotations

from simulator.step.passes import Passes
from simulator.step.program_builder import ProgramBuilder
from simulator.step.sharding import Sharding
from simulator.step.spec import Gathering, GradientSync, State, Updater
from simulator.step.strategies.ddp import Bucket, Bucketing
from simulator.step.strategies.strategy import Strategy
from simulator.step.strategies.zero1 import scatter
from simulator.step.units import Unit


def plan(builder: ProgramBuilder, passes: Passes) -> Bucketing:
    """Return the planner writing a rank's passes under ZeRO-2; a bucket of whole gradients lives until its
    reduce-scatter has ended.
    """

    def scattered(bucket: Bucket) -> str:
        """Write the packing and reduce-scatter of a bucket, and keep the rank's shard; return the reduce-scatter's
        name.
        """
        # Gradients are computed in place in the bucket, hence only a cast needs a copy.
        buffer = passes.pack(bucket.name, bucket.units, bucket.micro, copies=False)
        passes.scattered, summed = scatter(builder, passes, bucket)
        passes.unpack(buffer, bucket.units, bucket.micro, passes.scattered, summed)
        return summed

    return Bucketing(passes, scattered, each=True)


def _volume(units: tuple[Unit, ...], sharding: Sharding, accumulation: int, ranks: int) -> int:
    """Return the elements sent per step by all N ranks: (N - 1) times parameters and gradients per micro-batch."""
    return (accumulation + 1) * (ranks - 1) * sum(unit.trained for unit in units)


STRATEGY = Strategy(
    name="zero2",
    shards=frozenset({State.OPTIMIZER, State.GRADIENTS}),
    updater=Updater.OWNERS,
    gathering=Gathering.AFTER_UPDATE,
    sending=GradientSync.EVERY,
    options=frozenset({"bucket_size", "shard_size"}),
    operations=("all_reduce", "reduce_scatter", "all_gather"),
    volume=_volume,
    plan=plan,
)
