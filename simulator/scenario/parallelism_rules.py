"""Rules for `training.parallelism`: sizes that multiply out, and limits from the model, the schedule and the strategy.

Same form as training_rules.py. Every message names a number that would fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd
from typing import TYPE_CHECKING

from simulator.model.layer_list import LayerList
from simulator.model.model import refusals
from simulator.model.partition import context_refusal, divisors, expert_tensor_refusal, experts_refusal, refusal
from simulator.scenario.rule_violation import RuleViolation
from simulator.step.checkpointing import policies_in
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.spec import Updater
from simulator.step.stages import layers_of_stages, refusal_of_deferral, refusal_of_layers
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec

if TYPE_CHECKING:
    from simulator.model.model import Model
    from simulator.model.shape import Transformer


def _conflict(name: str, message: str, *involved: str) -> RuleViolation:
    dotted = f"training.parallelism.{name}"
    return RuleViolation(tuple(dotted.split(".")), message, (dotted, *involved))


def sizes(shape: TrainingSpec, world_size: int) -> Iterator[RuleViolation]:
    """Yield a violation if the sizes of the parallel groups (dp, tp, pp, cp) do not multiply out to world_size."""
    layout = shape.parallelism
    rest, rule = layout.tp * layout.pp * layout.cp, "dp x tp x pp x cp must be world_size"
    involved = (*(f"training.parallelism.{kind}" for kind in ("tp", "pp", "cp")), "cluster.world_size")
    if world_size % rest:
        # Report the first size at which the running product stops dividing world_size: tp, then tp x pp, then all.
        bad = (("tp", layout.tp), ("pp", layout.tp * layout.pp), ("cp", rest))
        key = next(kind for kind, ranks in bad if world_size % ranks)
        size = getattr(layout, key)
        others = rest // size
        # Counting up to a million takes a moment; larger clusters get the rule instead of a list.
        fits = [n for n in range(1, world_size + 1) if world_size % (n * others) == 0] if world_size <= 10**6 else []
        hint = (
            (f"; {key} may be {', '.join(map(str, fits[:12]))}")
            if fits
            else f"; {others} x {key} must divide world_size"
        )
        yield _conflict(key, f"got {size}; {rule} {world_size}{hint}", *involved)
    elif layout.dp is not None and layout.dp * rest != world_size:
        message = f"got {layout.dp}; {rule} {world_size}; omit dp, or write {world_size // rest}"
        yield _conflict("dp", message, *involved)


def conflicts(shape: TrainingSpec, model: Model | None, world_size: int | None) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule of `training.parallelism`.

    `model` is None if the model is invalid, `world_size` is None if the groups' sizes are.
    """
    ways = shape.parallelism.context
    if isinstance(ways, Mapping) and ways["ulysses"] * ways["ring"] != shape.parallelism.cp:
        product = ways["ulysses"] * ways["ring"]
        message = f"got {ways['ulysses']} x {ways['ring']} = {product}; must be cp {shape.parallelism.cp}"
        yield _conflict("context", message, "training.parallelism.cp")
        # `parallelism` below needs a valid product.
        return
    layout = shape.parallelism
    transformer = None if model is None or isinstance(model, LayerList) else model
    if isinstance(model, LayerList):
        for key, reason in refusals(model, layout.cut(), shape.seq_len):
            yield _conflict(key, reason, "training.model")
    elif model is not None:
        yield from _experts(shape, model, world_size)
    if shape.numerics and max(layout.size, layout.ep) > 1:
        yield from _numbers(shape, transformer)
    # With a single rank per model copy, the remaining rules do not apply.
    if layout.size == 1:
        return
    if transformer is not None:
        yield from _tensor(shape, transformer)
        yield from _context(shape, transformer)
    if layout.pp > 1:
        yield from _pipeline(shape, model)
    # Reported at the first kind of parallelism in use.
    kinds = (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp))
    key, size = next(kind for kind in kinds if kind[1] > 1)
    if STRATEGIES.find(shape.sharding.strategy).updater is Updater.SERVERS:
        message = f"got {size}, but workers of a parameter server hold a whole model; write sharding: ddp or zero3"
        yield _conflict(key, message, "training.sharding.strategy")


def _unsharded(shape: TrainingSpec) -> bool:
    """Return True if each rank updates every parameter that it computes with, i.e. nothing is sharded."""
    return STRATEGIES.find(shape.sharding.strategy).updater is Updater.EVERY_RANK


def _numbers(shape: TrainingSpec, model: Transformer | None) -> Iterator[RuleViolation]:
    """Yield violations for parallelism features that real training lacks, if several ranks compute a model together."""
    layout, without = shape.parallelism, "or write numerics: false"
    sizes = {key: getattr(layout, key) for key in ("tp", "cp", "pp")} | {"ep": layout.ep}
    key, size = next((key, size) for key, size in sizes.items() if size > 1)
    # Each rule below names a feature whose arithmetic `simulator.learning` does not implement yet.
    if layout.tp_overlap == "ring_exchange" and layout.tp > 1:
        message = f"got 'ring_exchange', which real training does not support; write none, {without}"
        yield _conflict("tp_overlap", message, "training.parallelism.tp", "training.numerics")
    if model is not None and model.num_experts and layout.tp > 1:
        message = f"got {layout.tp}; real training does not split the matrices of {model.name}'s experts; write 1"
        yield _conflict("tp", f"{message}, {without}", "training.model", "training.numerics")
    if layout.deferred_head_gradients and layout.pp > 1:
        message = f"got {layout.deferred_head_gradients}, which real training does not support; write 0"
        yield _conflict("deferred_head_gradients", f"{message}, {without}", "training.numerics")
    if layout.experts.dispatch != "all_to_all":
        message = f"got {layout.experts.dispatch!r}, which real training does not support; write all_to_all"
        yield _conflict("experts.dispatch", f"{message}, {without}", "training.numerics")
    if layout.ulysses > 1:
        message = f"got {layout.ulysses} ulysses ranks, which real training does not support; write ring"
        yield _conflict("context", f"{message}, {without}", "training.numerics")
    if shape.dropout:
        message = (
            f"got {size}, but real training of a partitioned model has no dropout; write dropout: false, {without}"
        )
        yield _conflict(key, message, "training.dropout", "training.numerics")
    if shape.faults:
        message = f"got {size}, but faults need pure data parallelism; omit faults, {without}"
        yield _conflict(key, message, "training.faults", "training.numerics")
    # These policies recompute a part of a layer; real training recomputes the layer with all its exchanges.
    parts = policies_in(shape.activation_checkpointing) - {"full", "sqrt", "attention"}
    inside = next(((name, ranks) for name, ranks in sizes.items() if name != "pp" and ranks > 1), None)
    if parts and inside is not None:
        message = (
            f"got {inside[1]}, but real training of a partitioned model does not support {min(parts)}; write full or "
            f"attention, {without}"
        )
        yield _conflict(inside[0], message, "training.activation_checkpointing", "training.numerics")
    if model is not None and model.tied and layout.apart and not _unsharded(shape):
        message = (
            f"got {layout.pp}; {model.name} shares one table between embedding and head, and only sharding: ddp sums "
            f"the gradients of the first and the last stage; write ddp, {without}"
        )
        yield _conflict("pp", message, "training.model", "training.sharding.strategy", "training.numerics")


def _tensor(shape: TrainingSpec, model: Transformer) -> Iterator[RuleViolation]:
    layout = shape.parallelism
    involved = ("training.model", "training.seq_len", "training.parallelism.sequence_parallel")
    refused = refusal(model, layout.cut(), shape.seq_len)
    if refused:
        yield _conflict("tp", refused, *involved)
    if layout.tp > 1 and model.num_experts and not layout.sequence_parallel:
        message = (
            f"got false, which sends every token of {model.name}'s experts to each of {layout.tp} tensor-parallel "
            "ranks; write true"
        )
        yield _conflict("sequence_parallel", message, *involved[:1], "training.parallelism.tp")


def _experts(shape: TrainingSpec, model: Transformer, world_size: int | None) -> Iterator[RuleViolation]:
    layout = shape.parallelism
    e, etp = layout.ep, layout.expert_tensor
    # If the number of ranks per stage is unknown, assume as many as the experts need; no rule is broken then.
    ranks = e * etp if world_size is None else world_size // layout.pp
    involved = ("training.model", "training.parallelism.tp", "training.parallelism.pp", "cluster.world_size")
    if shape.parallelism.etp is not None and not model.num_experts:
        message = f"got {etp}; {model.name} has no experts; omit the key"
        yield _conflict("etp", message, "training.model")
    elif refused := expert_tensor_refusal(model, layout.cut()):
        yield _conflict("etp", refused, *involved)
    elif model.num_experts and ranks % etp:
        # Suggest common divisors of the ranks and the experts' width.
        fits = divisors(gcd(ranks, model.ffn_size))
        message = f"got {etp}; must divide the {ranks} ranks of a stage (dp x cp x tp): {fits}"
        yield _conflict("etp", message, *involved)
    elif refused := experts_refusal(model, layout.cut(), None if world_size is None else ranks // etp):
        yield _conflict("ep", refused, *involved)
    elif model.num_experts and ranks % (e * etp):
        # Suggest common divisors of the ranks and the number of experts.
        fits = divisors(gcd(ranks // etp, model.num_experts), e)
        each = f" / etp {etp}" if etp > 1 else ""
        message = f"got {e}; must divide the {ranks // etp} ranks of a stage (dp x cp x tp{each}): {fits}"
        yield _conflict("ep", message, *involved)
    # The remaining rules concern experts held by different ranks.
    if not (model.num_experts and layout.cut().experts_apart):
        return
    sharding = shape.sharding
    if sharding.shard_size is not None or not isinstance(sharding.reshard_after_forward, bool):
        key = "reshard_after_forward" if sharding.shard_size is None else "shard_size"
        message = (
            f"got {e} with {key} {getattr(sharding, key)}; states of experts are sharded over all ranks that hold the "
            f"same experts, and smaller groups are not simulated; omit {key}, or write ep: 1"
        )
        yield _conflict("ep", message, "training.sharding.shard_size", "training.sharding.reshard_after_forward")
    if STRATEGIES.find(sharding.strategy).updater is Updater.SERVERS:
        message = f"got {e}, but workers of a parameter server hold a whole model; write sharding: ddp or zero3"
        yield _conflict("ep", message, "training.sharding.strategy")


def _context(shape: TrainingSpec, model: Transformer) -> Iterator[RuleViolation]:
    layout = shape.parallelism
    if layout.cp == 1:
        return
    involved = ("training.model", "training.seq_len", "training.parallelism.context", "training.parallelism.tp")
    refused = context_refusal(model, layout.cut(), shape.seq_len)
    if refused:
        yield _conflict("cp", refused, *involved)
    if shape.attention != "flash":
        message = f"got {layout.cp}, but {shape.attention} attention needs every score on a single rank; write flash"
        yield _conflict("cp", message, "training.attention")


def _pipeline(shape: TrainingSpec, model: Model | None) -> Iterator[RuleViolation]:
    layout = shape.parallelism
    schedule = SCHEDULES.find(layout.schedule)
    chunks = schedule.chunks or layout.virtual_stages
    involved = ("training.parallelism.pp", "training.gradient_accumulation_steps", "training.global_batch")
    refused = schedule.refusal(layout.pipeline(shape.gradient_accumulation_steps))
    if refused:
        message = f"{layout.schedule} {refused} (gradient_accumulation_steps)"
        yield _conflict("schedule", message, *involved, "training.parallelism.microbatch_group")
    if layout.experts.overlap and layout.ep > 1 and layout.schedule != "interleaved":
        alone = f"{layout.schedule} runs no forward pass beside another micro-batch's backward pass"
        does = f"{layout.schedule} overlaps exchanges by itself" if schedule.pairs else alone
        message = f"got true, but {does}; write false{'' if schedule.pairs else ', or schedule: interleaved'}"
        yield _conflict("experts.overlap", message, "training.parallelism.schedule", "training.parallelism.pp")
    refused = refusal_of_deferral(layout.schedule, shape.sharding.strategy, chunked=shape.loss == "chunked")
    if layout.deferred_head_gradients and refused:
        keys = ("training.parallelism.schedule", "training.sharding.strategy", "training.loss")
        yield _conflict("deferred_head_gradients", f"got {layout.deferred_head_gradients}; {refused}", *keys)
    if shape.activation_checkpointing == "sqrt":
        message = f"got {layout.pp}, but the segments of sqrt cross stages; write full, or every: 2"
        yield _conflict("pp", message, "training.activation_checkpointing")
    if model is None:
        return
    # DualPipe places each stage on two ranks; half as many distinct stages exist.
    stages = layout.pp * chunks // (2 if layout.mirrored else 1)
    if layout.layers_of_stages:
        refused = refusal_of_layers(layout.layers_of_stages, stages, model.num_layers, model.name)
        if refused:
            yield _conflict("stages", refused, "training.model", "training.parallelism.schedule", *involved)
        return
    try:
        layers_of_stages(model.num_layers, stages, *layout.less, model.mtp_layers)
    except ValueError as error:
        yield _conflict("pp", str(error), "training.model", "training.parallelism.virtual_stages")
