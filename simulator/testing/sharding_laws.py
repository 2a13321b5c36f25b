"""Laws of sharding strategies; each function raises BrokenLawError if a strategy breaks its law.

The strategy is compared with ddp, whose ranks all hold every state, and with its own declarations. `options` are fields
of `Sharding`, each other than its default.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.engine.events import execute_until_stuck
from simulator.engine.jitter import Jitter
from simulator.learning.learn import learn
from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.records.operation import Collective, Computation, Compute, Exchange
from simulator.step.precision import Precision
from simulator.step.spec import Gathering, GradientSync, State, Updater
from simulator.step.states import even_part, states
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.units import units
from simulator.testing.law import require
from simulator.testing.steps import PlayedStep, play, step, takes_as_long_in_both_engines

RANKS: Final = 4
# The parameters of every module can be cut into four parts, so that padding adds nothing.
EVEN: Final = Transformer("even", 6, 16, 2, 2, 8, 64, 32, 8)
_SHALLOW: Final = replace(EVEN, num_layers=3)
_DOUBLE: Final = Precision(params="float64").resolved()
_HALF: Final = Precision(reduce="bfloat16").resolved()
# Options that change the communication, with the values of the check.
VARIED: Final[Mapping[str, tuple[Any, ...]]] = {
    "reshard_after_forward": (False, 2),
    "prefetch": (0, 3),
    "layers_per_unit": (4,),
    "keep_below": (100,),
    "gradient_sync": ("last",),
    "servers": (2,),
    "servers_on": ("workers",),
    "bucket_size": (2**10,),
}
# A slow rank separates the ranks' micro-batches: the other ranks begin the next.
SLOW: Final[Mapping[int, float]] = {1: 4.0}
# Largest relative difference of two losses, and largest difference of two parameters, after two steps in float64.
_SAME_LOSS: Final = 1e-12
_SAME_PARAMETER: Final = 1e-9


def settings_of(name: str) -> list[dict[str, Any]]:
    """Return the settings of the check: the defaults, and each option that the strategy reads."""
    options = STRATEGIES.find(name).options
    return [{}, *({option: value} for option in sorted(options & set(VARIED)) for value in VARIED[option])]


def learns_what_ddp_learns(
    name: str, options: Mapping[str, Any], stragglers: Mapping[int, float] | None = None
) -> bool:
    """Check losses and parameters of a real training in float64; return False if no real training has the options.

    Slow ranks (`stragglers`, by rank their factor) change no number.
    """
    # Real training carries no tensors that stay whole.
    if "keep_below" in options:
        return False
    losses, parameters = _trained(name, options, stragglers)
    reference_losses, reference = _reference()
    off = max(abs(a - b) / abs(b) for a, b in zip(losses, reference_losses, strict=True))
    require(off <= _SAME_LOSS, f"the loss of a training differs from ddp's by {off:.2g}")
    require(set(parameters) == set(reference), "the training has other parameters than ddp's")
    for parameter, value in reference.items():
        # The key bias has a gradient of zero, whose rounding Adam turns into moves.
        keep = np.s_[: EVEN.hidden_size] if parameter.endswith("qkv.bias") else np.s_[:]
        away = float(np.max(np.abs(parameters[parameter][keep] - value[keep])))
        require(away <= _SAME_PARAMETER, f"{parameter} differs from ddp's by {away:.2g} after two steps")
    return True


@cache
def _reference() -> tuple[list[float], dict[str, Array]]:
    return _trained("ddp", {})


def _trained(
    name: str, options: Mapping[str, Any], stragglers: Mapping[int, float] | None = None
) -> tuple[list[float], dict[str, Array]]:
    """Return the losses and the parameters of two steps of a real training in float64."""
    settings = {"seq_len": 8, "gradient_accumulation_steps": 3, "algorithm": "direct", "steps": 2}
    job = step(name, _SHALLOW, precision=_DOUBLE, **settings, **options)
    run = play(job, RANKS, stragglers=stragglers)
    learned = learn(run.plan, run.timeline, 0, partial(execute_until_stuck, cluster=run.cluster, jitter=Jitter()))
    return list(learned.learning.losses), learned.parameters


def sends_its_volume(name: str, options: Mapping[str, Any], accumulation: int) -> bool:
    """Check the elements on the wire; return False if a rank's shard would be padded."""
    strategy = STRATEGIES.find(name)
    job = step(name, EVEN, precision=_HALF, gradient_accumulation_steps=accumulation, **options)
    run = play(job, RANKS)
    parts = units(job, run.cluster.gpus[0], RANKS, sharded=strategy.shards_parameters)
    if any(part.elements % RANKS or part.resident % RANKS for part in parts):
        return False
    logs = [log for log in run.timeline.logs if not log.collective.startswith("sum gradient norm")]
    # Each element has two bytes.
    volume = sum(float(log.nbytes.sum()) for log in logs) / 2
    declared = strategy.volume(parts, job.sharding, accumulation, RANKS)
    require(abs(volume - declared) <= 1e-12 * declared, f"sends {volume:.0f} elements, and declares {declared:.0f}")
    return True


def returns_to_its_states(name: str, options: Mapping[str, Any]) -> None:
    """Check that after a step each rank holds exactly the states that follow from `shards` and `updater`."""
    strategy, job = STRATEGIES.find(name), step(name, EVEN, gradient_accumulation_steps=2, **options)
    run = play(job, RANKS)
    parts = units(job, run.cluster.gpus[0], RANKS, sharded=strategy.shards_parameters)
    elements, resident = sum(module.elements for module in modules(EVEN)), sum(part.resident for part in parts)
    size = states(job, strategy.shards, strategy.updater, [even_part(elements, RANKS)], resident)
    declared = {"parameters": size.parameters, "optimizer": size.optimizer}
    last = {sample.rank: dict(sample.by_category) for sample in run.timeline.memory}
    for rank, categories in last.items():
        actual = {category: nbytes for category, nbytes in categories.items() if nbytes}
        expected = {category: nbytes for category, nbytes in declared.items() if nbytes}
        require(actual == expected, f"rank {rank} holds {_bytes(actual)} after the step; must hold {_bytes(expected)}")


def _bytes(sizes: Mapping[str, float]) -> str:
    return ", ".join(f"{category} {nbytes:.0f} B" for category, nbytes in sorted(sizes.items())) or "nothing"


def declares_states_of_its_updater(name: str) -> None:
    """Check that the declared states are those of Adam in mixed precision (Rajbhandari et al., table 1).

    A parameter has 2 bytes, and 12 bytes of optimizer states. If parameters are sharded, their float32 shard is the
    master copy; if servers update, the servers keep the 12 bytes.
    """
    strategy, elements = STRATEGIES.find(name), 4000
    size = states(step(name), strategy.shards, strategy.updater, [even_part(elements, RANKS)])
    before_use = strategy.gathering is Gathering.BEFORE_USE
    sharded = State.PARAMETERS in strategy.shards
    require(sharded == before_use, "parameters are sharded exactly if they are gathered before their use")
    owned = {Updater.EVERY_RANK: 12 * elements, Updater.OWNERS: 12 * elements / RANKS, Updater.SERVERS: 0}
    parameters = 4 * elements / RANKS if sharded else 2 * elements
    together = owned[strategy.updater] + (0 if sharded else 2 * elements)
    nbytes = size.parameters + size.optimizer
    require(size.parameters == parameters, f"a rank holds {size.parameters} B of parameters; must hold {parameters} B")
    require(nbytes == together, f"a rank holds {nbytes} B of states; must hold {together} B")


def runs_the_kernels_of_ddp(name: str, options: Mapping[str, Any]) -> None:
    """Check that a rank runs the kernels that it runs under ddp."""
    kernels = _kernels(
        play(step(name, EVEN, gradient_accumulation_steps=2, activation_checkpointing="full", **options), RANKS)
    )
    ddp = _kernels(play(step("ddp", EVEN, gradient_accumulation_steps=2, activation_checkpointing="full"), RANKS))
    other = next(iter(set(kernels) ^ set(ddp)), ("", 0.0, 0.0))[0]
    require(kernels == ddp, f"runs {len(kernels)} kernels, and ddp {len(ddp)}; the first that differs is {other!r}")


def _kernels(run: PlayedStep) -> list[tuple[str, float, float]]:
    kinds = ("forward", "backward", "recompute")
    return sorted((s.name, s.flops, s.nbytes) for s in run.timeline.spans if s.rank == 0 and s.kind in kinds)


def sends_gradients_as_declared(name: str) -> None:
    """Check that gradients are communicated in every micro-batch, or in the last, as `sending` declares."""
    strategy, accumulation = STRATEGIES.find(name), 3
    run = play(step(name, EVEN, gradient_accumulation_steps=accumulation), RANKS)
    sends = (Exchange.ALL_REDUCE, Exchange.REDUCE_SCATTER, Exchange.PUSH)
    acts = [op.act for op in run.plan.program.collectives().values() if op.act is not None]
    micros = {act.micro for act in acts if act.effect in sends}
    every = strategy.sending is GradientSync.EVERY
    expected = set(range(accumulation)) if every else {accumulation - 1}
    require(micros == expected, f"communicates gradients in micro-batches {sorted(micros)}; must be {sorted(expected)}")


def gathers_ahead(name: str, prefetch: int) -> bool:
    """Check the number of layers that are gathered ahead; return False if parameters are not sharded.

    Counted in the log: at each layer's start, gathers begun, without its own and those of the layers before it. The
    last layer stays for its backward pass, which therefore needs no gather. Gathers follow each other on a stream, so
    the first layer begins while those ahead still wait.
    """
    run = play(step(name, EVEN, prefetch=prefetch), RANKS)
    gathers = _starts(run, Exchange.ALL_GATHER)
    if STRATEGIES.find(name).gathering is not Gathering.BEFORE_USE:
        require(not gathers, f"gathers {len(gathers)} layers before their use; declares no such gather")
        return False
    forward, backward = _starts(run, Computation.FORWARD), _starts(run, Computation.BACKWARD)
    layers = EVEN.num_layers
    ahead = [bisect_right(gathers, t) - (n + 1) for n, t in enumerate(forward[: layers - prefetch])]
    require(ahead[0] <= prefetch, f"gathers {ahead[0]} layers before the first begins; must be at most {prefetch}")
    ahead = ahead[1:] + [bisect_right(gathers, t) - (layers + n) for n, t in enumerate(backward[: layers - prefetch])]
    other = next((number for number in ahead if number != prefetch), prefetch)
    require(other == prefetch, f"has gathered {other} layers ahead; must be {prefetch}")
    return True


def _starts(run: PlayedStep, *effects: Computation | Exchange) -> list[float]:
    """Return the starts of rank 0's operations on layers with these effects, without the ends of the model."""
    acts = {op.name: op.act for op in run.plan.program.ranks[0] if isinstance(op, Compute | Collective)}
    spans = [(span.start, acts[span.name]) for span in run.timeline.spans if span.rank == 0]
    return sorted(t for t, act in spans if act and act.effect in effects and act.units[0].startswith("layer"))


def is_simulated(name: str, options: Mapping[str, Any]) -> bool:
    """Check that a step takes as long in both engines."""
    return takes_as_long_in_both_engines(step(name, EVEN, gradient_accumulation_steps=2, **options), RANKS)
