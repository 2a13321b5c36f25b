"""ZeRO stage 1: optimizer states are sharded. Gradients are reduced and scattered, parameters gathered after the
update."""

from __future__ import annotations

from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.sharding.ddp import bucketed


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches; only the last one communicates gradients."""
    bucketed(score, passes, "reduce_scatter", each=False)
