"""What would make a step fit: no holes, the next stage, checkpointing, a smaller micro-batch, the host's memory.

Rule: names changes; whether one helps is found out by playing it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from simulator.training.spec import Offload, Strategy, TrainingStep

_NEXT: Final[dict[Strategy, Strategy]] = {"ddp": "zero1", "zero1": "zero2", "zero2": "zero3"}


def alternatives(step: TrainingStep, ranks: int) -> Iterator[tuple[str, TrainingStep]]:
    """Changes of one setting each that need less memory, as text for a user and as a step."""
    if step.allocator != "expandable_segments":
        yield "allocator: expandable_segments", replace(step, allocator="expandable_segments")
    following = _NEXT.get(step.sharding.strategy)
    while following is not None and ranks > 1:
        yield f"sharding: {following}", replace(step, sharding=replace(step.sharding, strategy=following))
        following = _NEXT.get(following)
    if step.checkpointing != "full":
        yield "activation_checkpointing: full", replace(step, checkpointing="full")
    smaller = step.micro_batch_size // 2
    while smaller:
        times = step.micro_batch_size // smaller
        changed = replace(step, micro_batch_size=smaller, accumulation=step.accumulation * times)
        yield f"micro_batch_size: {smaller} with gradient_accumulation_steps: {changed.accumulation}", changed
        smaller //= 2
    if step.offload is None and step.sharding.strategy in ("zero1", "zero2", "zero3"):
        yield "offload: optimizer", replace(step, offload=Offload())
