"""Which single changes may make a step fit into memory: allocator, ZeRO stage, checkpointing, micro-batch, offload.

Rule: names changes; the caller plays each to see whether it helps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from simulator.step.spec import Offload, TrainingStep
from simulator.step.strategies import catalog
from simulator.step.strategies.strategy import Strategy, Updater


def alternatives(step: TrainingStep, ranks: int) -> Iterator[tuple[str, TrainingStep]]:
    """Changes of one setting each that need less memory, as text for a user and as a step."""
    if step.allocator != "expandable_segments":
        yield "allocator: expandable_segments", replace(step, allocator="expandable_segments")
    strategy = catalog.find(step.sharding.strategy)
    for name in _sharding_more(strategy) if ranks > 1 else ():
        yield f"sharding: {name}", replace(step, sharding=replace(step.sharding, strategy=name))
    if step.checkpointing != "full":
        yield "activation_checkpointing: full", replace(step, checkpointing="full")
    smaller = step.micro_batch_size // 2
    while smaller:
        times = step.micro_batch_size // smaller
        changed = replace(step, micro_batch_size=smaller, accumulation=step.accumulation * times)
        yield f"micro_batch_size: {smaller} with gradient_accumulation_steps: {changed.accumulation}", changed
        smaller //= 2
    if step.offload is None and strategy.updater is Updater.OWNERS:
        yield "offload: optimizer", replace(step, offload=Offload())


def _sharding_more(strategy: Strategy) -> list[str]:
    """Names of strategies that shard what this one does and more, the least first; servers keep to themselves."""
    if strategy.updater is Updater.SERVERS:
        return []
    others = [catalog.find(name) for name in catalog.names()]
    more = [other for other in others if other.shards > strategy.shards and other.updater is Updater.OWNERS]
    return [other.name for other in sorted(more, key=lambda other: len(other.shards))]
