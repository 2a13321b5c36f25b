"""Laws of optimizers; each function raises BrokenLawError if an optimizer breaks its law.

The update's traffic is counted array by array from its kernels (`Kernels`), or from the facts of a paper in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.model.parameters import modules, total
from simulator.step.framework import IMPLEMENTATIONS, Implementation
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import temporary_bytes, update_traffic
from simulator.step.optimizers.optimizer import Distribution, Optimizer, OwnUpdate, UpdateConstants
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import bare_step
from simulator.step.states import even_part, states
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing.law import require
from simulator.testing.steps import TINY, PlayedStep, play, step, takes_as_long_in_both_engines

# Arrays that each kernel of an update reads, and writes; letters as in `Optimizer.update`.
Kernels = Sequence[tuple[str, str]]
RANKS: Final = 4
SHARDINGS: Final = ("ddp", "zero1", "zero3")
# Working parameters and gradients in bfloat16, a master copy in float32 [B].
WHOLE: Final = Precision(params="float32").resolved()
PARAMETER, GRADIENT, MASTER, STATE = 2, 2, 4, 4
_EQUAL: Final = 1e-6


def under(optimizer: Optimizer, strategy: str) -> Optimizer:
    """Return an optimizer as a scenario has it under a strategy: whole matrices come together where states are."""
    if optimizer.of_matrices is None:
        return optimizer
    where: Distribution = "gathered" if STRATEGIES.find(strategy).shards else "replicated"
    return replace(optimizer, of_matrices=replace(optimizer.of_matrices, distribution=where))


def counts_its_update(optimizer: Optimizer, kernels: Kernels) -> bool:
    """Check `states` and `separate` against the arrays of the update's kernels; return False without such kernels."""
    if not kernels or optimizer.separate is None:
        return False
    accesses = "".join(read + written for read, written in kernels)
    letters = sorted(set(accesses) - set("pgd"))
    names = f" ({', '.join(letters)})" if letters else ""
    require(
        optimizer.states == len(letters),
        f"declares {optimizer.states} states for each parameter; its kernels use {len(letters)}{names}",
    )
    counts, separate = _counted(accesses), optimizer.separate
    declared = {"p": separate.parameters, "g": separate.gradients, "other": separate.numbers}
    for array, words in (("p", "the parameter"), ("g", "the gradient"), ("other", "states and temporaries")):
        require(
            declared[array] == counts[array],
            f"declares {declared[array]} accesses to {words}; its kernels have {counts[array]}",
        )
    require(separate.kernels == len(kernels), f"declares {separate.kernels} kernels; its update has {len(kernels)}")
    declares, uses = bool(separate.temporaries), "d" in accesses
    require(
        declares == uses,
        f"declares {'' if declares else 'no '}temporaries; its kernels use {'some' if uses else 'none'}",
    )
    return True


def _counted(accesses: str) -> dict[str, int]:
    counts = {array: accesses.count(array) for array in "pg"}
    return {**counts, "other": len(accesses) - sum(counts.values())}


def holds_its_states(optimizer: Optimizer, strategy: str, each: float) -> None:
    """Check the bytes of the states of a parameter, `each` [B], and that every state is read and written once.

    With a master copy, which zero3 has as its shard of the parameters.
    """
    job = bare_step(TINY, 32, 1, optimizer=optimizer, sharding=Sharding(strategy=strategy))
    sharding, elements = STRATEGIES.find(strategy), 1000 * RANKS
    size = states(job, sharding.shards, sharding.updater, [even_part(elements, RANKS)])
    count = elements // RANKS if sharding.shards else elements
    require(size.updated == count, f"{strategy} updates {size.updated} numbers; must be {count}")
    read, written = count * (each + GRADIENT + MASTER), count * (each + MASTER)
    require(size.update_read >= read, f"{strategy} reads {size.update_read} B; must be {read} B at least")
    require(size.update_written >= written, f"{strategy} writes {size.update_written} B; must be {written} B at least")
    master = 0 if sharding.shards_parameters else MASTER
    nbytes = math.ceil(count * (each + master))
    require(size.optimizer == nbytes, f"{strategy} holds {size.optimizer} B of states; must hold {nbytes} B")


def streamed(optimizer: Optimizer) -> int:
    """Return the number of the tiny model's parameters that are updated number by number.

    These are all, without the matrices of layers if the optimizer has a rule for matrices.
    """
    layers = [module for module in modules(TINY) if module.name.startswith("layer")]
    matrices = sum(tensor.elements for module in layers for tensor in module.parameters if len(tensor.shape) > 1)
    return total(TINY) - (matrices if optimizer.of_matrices is not None else 0)


def takes_its_traffic(optimizer: Optimizer, strategy: str, each: float) -> None:
    """Check that the update takes at least the time of its bytes at the bandwidth of HBM; `each` is as above."""
    run = play(replace(step(strategy, TINY), optimizer=under(optimizer, strategy)), RANKS)
    elements = streamed(optimizer) // (RANKS if STRATEGIES.find(strategy).shards else 1)
    roof = elements * (2 * each + GRADIENT + 2 * MASTER) / run.cluster.gpus[0].hbm_bandwidth
    took = duration(run)
    require(took >= roof, f"{strategy}: the update takes {took:.3g} s; its bytes take {roof:.3g} s")


def duration(run: PlayedStep) -> float:
    """Return the duration of rank 0's kernel, or kernels, that update number by number [s]."""
    (span,) = (span for span in run.timeline.spans if span.rank == 0 and span.name == "optimizer step")
    return span.end - span.start


def moves_its_arrays(optimizer: Optimizer, strategy: str, precision: Precision, kernels: Kernels) -> bool:
    """Check the bytes of an update with a kernel for each operation; return False without such kernels."""
    if not kernels or optimizer.separate is None:
        return False
    separate = replace(under(optimizer, strategy), implementation="foreach")
    job = bare_step(TINY, 32, 1, optimizer=separate, sharding=Sharding(strategy=strategy), precision=precision)
    sharding = STRATEGIES.find(strategy)
    size = states(job, sharding.shards, sharding.updater, [even_part(1000 * RANKS, RANKS)])
    sizes: Mapping[str, int] = {"p": MASTER, "g": GRADIENT if precision.master else MASTER}
    arrays = "".join(read + written for read, written in kernels)
    # A kernel of its own reads the master copy and writes the working copy; zero3 casts when it gathers.
    cast = MASTER + PARAMETER if precision.master and not sharding.shards_parameters else 0
    moved = size.updated * (sum(sizes.get(array, STATE) for array in arrays) + cast)
    traffic = update_traffic(job, size)
    require(traffic == moved, f"{strategy}: the update moves {traffic} B; its kernels move {moved} B")
    peak = size.updated * STATE * ("d" in "".join(written for _, written in kernels))
    temporaries = temporary_bytes(job, size)
    require(temporaries == peak, f"{strategy}: temporaries take {temporaries} B; those of the kernels take {peak} B")
    return True


def differs_by_launches(optimizer: Optimizer) -> bool:
    """Check that a fused update is the fastest, and that kernels for each tensor cost their launches alone.

    Return False if the optimizer has no separate kernels, or a rule for matrices with kernels of its own.
    """
    if optimizer.separate is None or optimizer.of_matrices is not None:
        return False
    able = [name for name in IMPLEMENTATIONS if name != "fused" or optimizer.has_fused]
    runs = {name: _with(optimizer, name) for name in able}
    took = {name: duration(run) for name, run in runs.items()}
    run = runs["foreach"]
    launch = KernelTimer(run.cluster.gpus[0], run.plan.step).launch
    tensors = sum(len(module.parameters) for module in modules(TINY))
    # And the cast of the working copy.
    launches = (optimizer.separate.kernels + 1) * (tensors - 1) * launch
    more = took["for_loop"] - took["foreach"]
    require(
        abs(more - launches) <= _EQUAL * launches, f"for_loop takes {more:.3g} s more; its launches {launches:.3g} s"
    )
    fused = took.get("fused", 0.0)
    require(fused < took["foreach"], f"the fused update takes {fused:.3g} s, and foreach {took['foreach']:.3g} s")
    temporaries = streamed(optimizer) // RANKS * STATE * optimizer.separate.temporaries
    peaks = {name: _temporaries(run) for name, run in runs.items()}
    # Shards are padded.
    near = abs(peaks["foreach"] - temporaries) <= 1e-2 * temporaries
    require(near, f"foreach holds {peaks['foreach']:.0f} B of temporaries; must hold {temporaries} B")
    require(not any(peaks[name] for name in able if name != "foreach"), "another implementation holds temporaries")
    return True


def _with(optimizer: Optimizer, implementation: Implementation) -> PlayedStep:
    job = replace(step("zero1", TINY), optimizer=replace(optimizer, implementation=implementation))
    return play(job, RANKS)


def _temporaries(run: PlayedStep) -> float:
    samples = [dict(sample.by_category).get("optimizer", 0) for sample in run.timeline.memory if sample.rank == 0]
    return max(samples) - samples[-1]


def updates_shards_alike(optimizer: Optimizer) -> bool:
    """Return True if a numpy update in place gives every shard the bits of the whole arrays; False without an update.

    Arrays of 97 numbers are updated three times, whole and cut at each place; BrokenLawError names a difference.
    """
    if optimizer.numbers is None:
        return False
    constants = UpdateConstants(1, 1e-3, (0.9, 0.999), 0.9, 1e-8, 0.01)
    chance, size = np.random.default_rng(0), 97
    for dtype in ("float64", "float32"):
        start, *gradients = (chance.standard_normal(size).astype(dtype) for _ in range(4))
        full = _updated(optimizer.numbers, optimizer.states, start, gradients, [(0, size)], constants)
        require(
            not np.array_equal(full[0], start), "`numbers` changes no parameter; it must change the arrays in place"
        )
        for cut in range(1, size):
            parts = _updated(optimizer.numbers, optimizer.states, start, gradients, [(0, cut), (cut, size)], constants)
            for name, array, other in zip(("parameters", *["states"] * optimizer.states), full, parts, strict=True):
                same = array.tobytes() == other.tobytes()
                require(same, f"`numbers` gives other {name} in {dtype} if a shard ends at {cut} of {size}")
    return True


def _updated(
    update: OwnUpdate,
    states: int,
    start: Array,
    gradients: Sequence[Array],
    shards: Sequence[tuple[int, int]],
    constants: UpdateConstants,
) -> list[Array]:
    """Return parameters and states after an update with each gradient, of each shard (begin, end) alone."""
    arrays = [start.copy(), *(np.zeros_like(start) for _ in range(states))]
    for number, gradient in enumerate(gradients, 1):
        for begin, end in shards:
            parameters, *moments = (array[begin:end] for array in arrays)
            update(parameters, gradient[begin:end].copy(), tuple(moments), replace(constants, step=number))
    return arrays


def is_simulated(optimizer: Optimizer, strategy: str) -> bool:
    """Check that a step takes as long in both engines."""
    return takes_as_long_in_both_engines(replace(step(strategy, TINY), optimizer=under(optimizer, strategy)), RANKS)
