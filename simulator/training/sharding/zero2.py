"""ZeRO stage 2: gradients are sharded too: every micro-batch reduces them (DeepSpeed), and a rank keeps its part."""

from __future__ import annotations

from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.sharding.ddp import Bucket, bucketed
from simulator.training.sharding.zero1 import scatter


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches; a bucket of whole gradients lives until it has been reduced and scattered."""

    def scattered(bucket: Bucket) -> str:
        buffer = passes.pack(bucket.name, bucket.units, bucket.micro, copies=False)
        reduced = scatter(score, passes, bucket)
        passes.unpack(buffer, bucket.units, bucket.micro, reduced, reduced)
        return reduced

    bucketed(passes, scattered, each=True)
