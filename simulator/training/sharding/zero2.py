"""ZeRO stage 2: gradients are sharded too: every micro-batch reduces them (DeepSpeed), and a rank keeps its part."""

from __future__ import annotations

from simulator.training.passes import Passes
from simulator.training.score import Score


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches; a bucket of whole gradients lives until it has been reduced and scattered."""
    for micro in range(passes.step.accumulation):
        for unit in passes.units:
            passes.forward(micro, unit, [])
        waiting: list[str] = []
        elements, number = 0, 0
        for unit in reversed(passes.units):
            done = passes.backward(micro, unit, [])
            waiting.append(unit.name)
            elements += unit.elements
            full = elements * passes.gradient_itemsize >= passes.step.sharding.bucket_size
            if full or unit is passes.units[0]:
                dtype = passes.step.precision.reduce
                name = f"scatter bucket {number} {micro}"
                reduced = score.communicate(name, "reduce_scatter", elements, dtype, after=[done]) or done
                for name in waiting:
                    passes.keep_gradient_shard(passes.unit(name), reduced)
                    score.free(f"{name} gradients {micro}", stream="communication", after=[reduced])
                waiting, elements, number = [], 0, number + 1
