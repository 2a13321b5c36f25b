"""Which changes may make a step fit into memory: recomputing, micro-batch, ZeRO stage, parallelism, offload, ...?

This module lists changes, the mildest first, and applies several changes together; the caller tests whether they help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final, Literal

from simulator.basics.spec import Frozen
from simulator.model.model import refusals
from simulator.step.parallelism import Parallelism
from simulator.step.pipeline import Pipeline
from simulator.step.spec import TrainingStep, Updater
from simulator.step.strategies.strategy import STRATEGIES, Strategy
from simulator.step.training_spec import Offload

# Numbers of ranks that cut a model or its sequences, tried in this order.
_CUTS: Final = (2, 4, 8)
# Layers less on the fullest stage at an end of the pipeline, tried in this order.
_LESS: Final = (1, 2)


@dataclass(frozen=True, slots=True)
class StepChange:
    """A changed setting of a training step, tried if the step does not fit into memory."""

    kind: str  # changed key; changes of one key are never combined
    text: str  # the change in a scenario's notation, without the number of micro-batches
    # Return the changed step; None if the change does not apply.
    made: Callable[[TrainingStep], TrainingStep | None]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A training step with changed settings, and the changes in words."""

    kinds: tuple[str, ...]  # changed keys
    text: str
    step: TrainingStep


def changed(step: TrainingStep, changes: Sequence[StepChange]) -> Alternative | None:
    """Return a training step after all of the given changes; None if one of the changes does not apply.

    >>> from simulator.model.load import load_model
    >>> from simulator.step.sharding import Sharding
    >>> from simulator.step.spec import bare_step
    >>> ddp = bare_step(load_model("gpt2"), 1024, 2, sharding=Sharding(strategy="ddp"))
    >>> changed(ddp, [*mild_changes(ddp, 8)[1:3], *partitions(ddp, 8, 8)[:1]]).text
    'activation_checkpointing: full, micro_batch_size: 1 and parallelism: {tp: 2} with gradient_accumulation_steps: 4'
    """
    variant: TrainingStep | None = step
    for change in changes:
        # Each change applies to the changed step: offload, for example, needs a sharded optimizer.
        variant = None if variant is None else change.made(variant)
    if variant is None:
        return None
    *most, last = (change.text for change in changes)
    text = f"{', '.join(most)} and {last}" if most else last
    if variant.accumulation != step.accumulation:
        text += f" with gradient_accumulation_steps: {variant.accumulation}"
    return Alternative(tuple(change.kind for change in changes), text, variant)


def single_changes(step: TrainingStep, changes: Sequence[StepChange]) -> list[Alternative]:
    """Return variants of a training step, each with a single one of the given changes."""
    return [alternative for change in changes if (alternative := changed(step, [change])) is not None]


def double_changes(step: TrainingStep, changes: Sequence[StepChange]) -> list[Alternative]:
    """Return variants of a training step, each with two of the given changes, of different kinds.

    >>> from simulator.model.load import load_model
    >>> from simulator.step.sharding import Sharding
    >>> from simulator.step.spec import bare_step
    >>> ddp = bare_step(load_model("gpt2"), 1024, 1, sharding=Sharding(strategy="ddp"))
    >>> double_changes(ddp, [*mild_changes(ddp, 8), *offloading(ddp)])[-1].text
    'sharding: zero3 and offload: optimizer'
    """
    pairs = (pair for pair in combinations(changes, 2) if pair[0].kind != pair[1].kind)
    return [alternative for pair in pairs if (alternative := changed(step, pair)) is not None]


def mild_changes(step: TrainingStep, ranks: int, fullest: Literal["first", "last"] | None = None) -> list[StepChange]:
    """Return changes that may save memory of a training step on `ranks` ranks and cost little time, mildest first.

    `fullest` is the end of the pipeline whose stage needs most memory: it may have fewer layers.
    """
    return list(_mild(step, ranks, fullest))


def partitions(step: TrainingStep, ranks: int, ranks_per_node: int) -> list[StepChange]:
    """Return changes from data parallelism alone to tensor parallelism inside nodes, or to context parallelism.

    The list begins with the smallest numbers of ranks. It is empty if the step has another kind of parallelism already.
    The micro-batches of a rank grow in number by as much as the data-parallel ranks shrink: the global batch stays.
    """
    now = step.parallelism
    servers = STRATEGIES.find(step.sharding.strategy).updater is Updater.SERVERS
    # Real training refuses several settings of a partitioned model.
    if servers or step.lesson is not None or max(now.size, now.ep, now.expert_tensor) > 1:
        return []
    candidates = []
    for size in _CUTS:
        if ranks_per_node % size == 0:
            cut = Parallelism(tp=size, order=now.order, experts=now.experts)
            candidates.append(("tp", size, cut))
        candidates.append(("cp", size, Parallelism(cp=size, order=now.order, experts=now.experts)))
    return [
        StepChange(f"parallelism.{kind}", f"parallelism: {{{kind}: {size}}}", _partitioned(parallelism))
        for kind, size, parallelism in candidates
        if ranks % size == 0 and _possible(step, parallelism)
    ]


def offloading(step: TrainingStep) -> list[StepChange]:
    """Return the change that moves the optimizer states of a training step to the hosts; none if they are there."""
    return [StepChange("offload", "offload: optimizer", _offloaded)] if not step.keys.offload.states else []


def _possible(step: TrainingStep, parallelism: Parallelism) -> bool:
    """Return True if the model and the sequences of a training step can be cut this way."""
    return not any(key != "ep" for key, _ in refusals(step.model, parallelism.cut(), step.keys.seq_len))


def _partitioned(parallelism: Parallelism) -> Callable[[TrainingStep], TrainingStep | None]:
    """Return a function from a data-parallel step to the same step, cut this way, with the same global batch."""

    def variant_of(old: TrainingStep) -> TrainingStep | None:
        if old.parallelism.size > 1:
            return None
        return old.with_keys(parallelism=parallelism, gradient_accumulation_steps=old.accumulation * parallelism.size)

    return variant_of


def _mild(step: TrainingStep, ranks: int, fullest: Literal["first", "last"] | None) -> Iterator[StepChange]:
    """Yield changes of one setting that may save memory of a training step on `ranks` ranks, mildest first."""
    if step.keys.allocator != "expandable_segments":
        text = "allocator: expandable_segments"
        yield StepChange("allocator", text, lambda old: old.with_keys(allocator="expandable_segments"))
    if step.keys.attention != "flash":
        yield StepChange("attention", "attention: flash", lambda old: old.with_keys(attention="flash"))
    # Numbers of layers that are written out stay.
    if fullest is not None and not step.parallelism.layers_of_stages:
        yield from (_fewer_layers(step, fullest, less) for less in _LESS)
    if step.keys.activation_checkpointing != "full":
        text = "activation_checkpointing: full"
        yield StepChange("checkpointing", text, lambda old: old.with_keys(activation_checkpointing="full"))
    smaller = step.keys.micro_batch_size // 2
    while smaller:
        yield StepChange("micro_batch_size", f"micro_batch_size: {smaller}", _micro_batch(smaller))
        smaller //= 2
    # A single data-parallel rank has nothing to shard.
    if step.parallelism.holders(ranks) > 1:
        yield from _shardings(step)


def _fewer_layers(step: TrainingStep, end: Literal["first", "last"], less: int) -> StepChange:
    """Return the change that gives the first or the last pipeline stage `less` layers fewer."""
    first, last = step.parallelism.less
    sizes = Frozen(first_less=first + less * (end == "first"), last_less=last + less * (end == "last"))
    text = ", ".join(f"{key}: {size}" for key, size in sizes.items() if size)

    def variant_of(old: TrainingStep) -> TrainingStep | None:
        variant = old.with_keys(parallelism=old.parallelism.replaced(stages=sizes))
        try:
            Pipeline.of(variant).layers()
        except ValueError:
            return None
        return variant

    return StepChange("stages", f"parallelism.stages: {{{text}}}", variant_of)


def _micro_batch(size: int) -> Callable[[TrainingStep], TrainingStep]:
    """Return a function from a step to the step with this micro-batch size and the same global batch."""
    return lambda old: old.with_keys(
        micro_batch_size=size, gradient_accumulation_steps=old.accumulation * (old.keys.micro_batch_size // size)
    )


def _shardings(step: TrainingStep) -> Iterator[StepChange]:
    """Yield changes of the sharding that may save memory: higher ZeRO stage, resharding, no smaller shard group."""
    sharding, strategy = step.sharding, STRATEGIES.find(step.sharding.strategy)
    for name in _sharding_more(strategy):
        yield StepChange("sharding", f"sharding: {name}", _sharded(strategy=name))
    if strategy.shards_parameters and sharding.reshard_after_forward is False:
        yield StepChange("sharding", "sharding.reshard_after_forward: true", _sharded(reshard_after_forward=True))
    if strategy.shards_parameters and sharding.shard_size is not None:
        yield StepChange("sharding", "sharding: no shard_size", _sharded(shard_size=None))


def _sharded(**keys: object) -> Callable[[TrainingStep], TrainingStep]:
    """Return a function from a step to the step with the given sharding settings replaced."""
    return lambda old: old.with_keys(sharding=old.sharding.replaced(**keys))


def _offloaded(old: TrainingStep) -> TrainingStep | None:
    """Return the step with its optimizer on the host; None unless each rank updates exactly its own shards."""
    able = STRATEGIES.find(old.sharding.strategy).updater is Updater.OWNERS
    return old.with_keys(offload=Offload(what="optimizer")) if able else None


def _sharding_more(strategy: Strategy) -> list[str]:
    """Return the strategies that shard more kinds of states, fewest kinds first; none for parameter servers."""
    if strategy.updater is Updater.SERVERS:
        return []
    others = [STRATEGIES.find(name) for name in STRATEGIES.names()]
    more = [other for other in others if other.shards > strategy.shards and other.updater is Updater.OWNERS]
    return [other.name for other in sorted(more, key=lambda other: len(other.shards))]
