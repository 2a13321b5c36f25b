"""Distributed data parallel: every rank holds everything; gradients are summed in buckets while the backward pass runs.

Like colleagues who each do their own reckoning and compare notes a page at a time. With accumulation only the last
micro-batch communicates.

References
----------
.. [1] Li et al., "PyTorch distributed: experiences on accelerating data parallel training", VLDB 2020.
"""

from __future__ import annotations

from simulator.training.passes import Passes
from simulator.training.score import Score


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches."""
    bucketed(score, passes, "all_reduce", each=False)


def bucketed(score: Score, passes: Passes, operation: str, *, each: bool) -> None:
    """Whole gradients on every rank, communicated in buckets: in each micro-batch, or in the last one alone."""
    for micro in range(passes.step.accumulation):
        for unit in passes.units:
            passes.forward(micro, unit, [])
        last = micro == passes.step.accumulation - 1
        bucket, number = 0, 0
        done: str | None = None
        for unit in reversed(passes.units):
            done = passes.backward(micro, unit, [])
            bucket += unit.elements
            full = bucket * passes.gradient_itemsize >= passes.step.sharding.bucket_size
            if (last or each) and (full or unit is passes.units[0]):
                dtype = passes.step.precision.reduce
                score.communicate(f"{operation} bucket {number} {micro}", operation, bucket, dtype, after=[done])
                bucket, number = 0, number + 1
