"""Which changes may make a step fit into memory: allocator, attention, ZeRO stage, checkpointing, micro-batch, offload?

This module lists changes, one or two at a time, the mildest first; the caller tests whether they help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from simulator.step.spec import Offload, TrainingStep, Updater
from simulator.step.strategies.strategy import STRATEGIES, Strategy


@dataclass(frozen=True, slots=True)
class Change:
    """A changed setting of a training step, tried if the step does not fit into memory.

    Attributes
    ----------
    kind : str
        Changed key; changes of one key are never combined.
    text : str
        The change in a scenario's notation.
    made : function (step) -> TrainingStep or None
        Return the changed step; None if the change does not apply.
    """

    kind: str
    text: str
    made: Callable[[TrainingStep], TrainingStep | None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A training step with one or two changed settings, and the changes in words.

    Attributes
    ----------
    kinds : tuple of str
        Changed keys.
    """

    kinds: tuple[str, ...]
    text: str
    step: TrainingStep


def single_changes(step: TrainingStep, ranks: int) -> list[Alternative]:
    """Return variants of a training step on `ranks` ranks, each with a single changed setting to save memory."""
    tried = ((change, change.made(step)) for change in _changes(step, ranks))
    return [Alternative((change.kind,), change.text, made) for change, made in tried if made is not None]


def double_changes(step: TrainingStep, ranks: int) -> list[Alternative]:
    """Return variants of a training step on `ranks` ranks, each with two changed settings to save memory.

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
        # The second change applies to the changed step: offload, for example, needs a sharded optimizer.
        both = None if made is None else other.made(made)
        if both is not None:
            found.append(Alternative((one.kind, other.kind), f"{one.text} and {other.text}", both))
    return found


def _changes(step: TrainingStep, ranks: int) -> Iterator[Change]:
    """Yield the changes of one setting that apply to a training step on `ranks` ranks and may save memory, mildest
    first.
    """
    if step.allocator != "expandable_segments":
        text = "allocator: expandable_segments"
        yield Change("allocator", text, lambda old: replace(old, allocator="expandable_segments"))
    if step.attention != "flash":
        yield Change("attention", "attention: flash", lambda old: replace(old, attention="flash"))
    if step.checkpointing != "full":
        text = "activation_checkpointing: full"
        yield Change("checkpointing", text, lambda old: replace(old, checkpointing="full"))
    smaller = step.micro_batch_size // 2
    # Halve the micro-batch and double the accumulation: the global batch stays.
    while smaller:
        times = step.micro_batch_size // smaller
        text = f"micro_batch_size: {smaller} with gradient_accumulation_steps: {step.accumulation * times}"
        yield Change("micro_batch_size", text, _micro_batch(smaller, step.accumulation * times))
        smaller //= 2
    # A single data-parallel rank has nothing to shard.
    if step.parallelism.holders(ranks) > 1:
        yield from _shardings(step)
    if step.offload is None:
        yield Change("offload", "offload: optimizer", _offloaded)


def _micro_batch(size: int, accumulation: int) -> Callable[[TrainingStep], TrainingStep]:
    """Return a function from a step to the step with this micro-batch size and gradient accumulation."""
    return lambda old: replace(old, micro_batch_size=size, accumulation=accumulation)


def _shardings(step: TrainingStep) -> Iterator[Change]:
    """Yield changes of a step's sharding that may save memory: a higher ZeRO stage, resharding after the forward pass,
    no smaller shard group.
    """
    sharding, strategy = step.sharding, STRATEGIES.find(step.sharding.strategy)
    for name in _sharding_more(strategy):
        yield Change("sharding", f"sharding: {name}", _sharded(strategy=name))
    if strategy.shards_parameters and sharding.reshard_after_forward is False:
        yield Change("sharding", "sharding.reshard_after_forward: true", _sharded(reshard_after_forward=True))
    if strategy.shards_parameters and sharding.shard_size is not None:
        yield Change("sharding", "sharding: no shard_size", _sharded(shard_size=None))


def _sharded(**keys: object) -> Callable[[TrainingStep], TrainingStep]:
    """Return a function from a step to the step with the given sharding settings replaced."""
    return lambda old: replace(old, sharding=replace(old.sharding, **keys))  # type: ignore[arg-type]


def _offloaded(old: TrainingStep) -> TrainingStep | None:
    """Return a copy of a step with the optimizer offloaded to the host; None if ranks do not update exactly their own
    shards.
    """
    able = STRATEGIES.find(old.sharding.strategy).updater is Updater.OWNERS
    return replace(old, offload=Offload()) if able else None


def _sharding_more(strategy: Strategy) -> list[str]:
    """Return the names of strategies that shard more kinds of model states than the given strategy, fewest kinds first;
    none for parameter servers.
    """
    if strategy.updater is Updater.SERVERS:
        return []
    others = [STRATEGIES.find(name) for name in STRATEGIES.names()]
    more = [other for other in others if other.shards > strategy.shards and other.updater is Updater.OWNERS]
    return [other.name for other in sorted(more, key=lambda other: len(other.shards))]
