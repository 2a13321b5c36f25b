"""Which changes may make a step fit into memory: allocator, attention, ZeRO stage, checkpointing, micro-batch, offload?

Rule: names changes, one or two at a time, the least one first; the caller finds out whether they help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from simulator.step.spec import Offload, TrainingStep, Updater
from simulator.step.strategies.strategy import STRATEGIES, Strategy


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one setting.

    Attributes
    ----------
    kind : str
        The key that it changes; of each key one change goes with those of others.
    text : str
        As a scenario has it.
    made : function (step) -> TrainingStep or None
        The changed step; None where the step cannot be changed so.
    """

    kind: str
    text: str
    made: Callable[[TrainingStep], TrainingStep | None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A step that is changed in one or two settings.

    Attributes
    ----------
    kinds : tuple of str
        Keys that are changed.
    text : str
    step : TrainingStep
    """

    kinds: tuple[str, ...]
    text: str
    step: TrainingStep


def single_changes(step: TrainingStep, ranks: int) -> list[Alternative]:
    """Steps with one setting changed."""
    tried = ((change, change.made(step)) for change in _changes(step, ranks))
    return [Alternative((change.kind,), change.text, made) for change, made in tried if made is not None]


def double_changes(step: TrainingStep, ranks: int) -> list[Alternative]:
    """Steps with two settings changed.

    Examples
    --------
    >>> from simulator.model.load import load_model
    >>> from simulator.step.spec import Sharding
    >>> ddp = TrainingStep(load_model("gpt2"), 1024, 1, sharding=Sharding("ddp"))
    >>> double_changes(ddp, 8)[-1].text
    'sharding: zero3 and offload: optimizer'
    """
    found = []
    for one, other in combinations(_changes(step, ranks), 2):
        made = None if one.kind == other.kind else one.made(step)
        both = None if made is None else other.made(made)
        if both is not None:
            found.append(Alternative((one.kind, other.kind), f"{one.text} and {other.text}", both))
    return found


def _changes(step: TrainingStep, ranks: int) -> Iterator[Change]:
    if step.allocator != "expandable_segments":
        text = "allocator: expandable_segments"
        yield Change("allocator", text, lambda old: replace(old, allocator="expandable_segments"))
    if step.attention != "flash":
        yield Change("attention", "attention: flash", lambda old: replace(old, attention="flash"))
    if step.checkpointing != "full":
        text = "activation_checkpointing: full"
        yield Change("checkpointing", text, lambda old: replace(old, checkpointing="full"))
    smaller = step.micro_batch_size // 2
    while smaller:
        times = step.micro_batch_size // smaller
        text = f"micro_batch_size: {smaller} with gradient_accumulation_steps: {step.accumulation * times}"
        yield Change("micro_batch_size", text, _micro_batch(smaller, step.accumulation * times))
        smaller //= 2
    if step.parallelism.holders(ranks) > 1:
        yield from _shardings(step)
    if step.offload is None:
        yield Change("offload", "offload: optimizer", _offloaded)


def _micro_batch(size: int, accumulation: int) -> Callable[[TrainingStep], TrainingStep]:
    return lambda old: replace(old, micro_batch_size=size, accumulation=accumulation)


def _shardings(step: TrainingStep) -> Iterator[Change]:
    sharding, strategy = step.sharding, STRATEGIES.find(step.sharding.strategy)
    for name in _sharding_more(strategy):
        yield Change("sharding", f"sharding: {name}", _sharded(strategy=name))
    if strategy.shards_parameters and sharding.reshard_after_forward is False:
        yield Change("sharding", "sharding.reshard_after_forward: true", _sharded(reshard_after_forward=True))
    if strategy.shards_parameters and sharding.shard_size is not None:
        yield Change("sharding", "sharding without shard_size", _sharded(shard_size=None))


def _sharded(**keys: object) -> Callable[[TrainingStep], TrainingStep]:
    return lambda old: replace(old, sharding=replace(old.sharding, **keys))  # type: ignore[arg-type]


def _offloaded(old: TrainingStep) -> TrainingStep | None:
    """The optimizer with the host; None where ranks update other parts than those that they own."""
    able = STRATEGIES.find(old.sharding.strategy).updater is Updater.OWNERS
    return replace(old, offload=Offload()) if able else None


def _sharding_more(strategy: Strategy) -> list[str]:
    """Names of strategies that shard what this one does and more, the least first; servers keep to themselves."""
    if strategy.updater is Updater.SERVERS:
        return []
    others = [STRATEGIES.find(name) for name in STRATEGIES.names()]
    more = [other for other in others if other.shards > strategy.shards and other.updater is Updater.OWNERS]
    return [other.name for other in sorted(more, key=lambda other: len(other.shards))]
