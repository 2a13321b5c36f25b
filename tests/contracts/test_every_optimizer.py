"""Contract of every optimizer: it holds the states that it declares, and its update moves them and takes that long.

The update runs as one fused kernel, or as a kernel for each arithmetic operation (over all tensors, or for each): its
traffic is counted here from the operations of PyTorch's implementation, array by array.

An optimizer needs an entry in `UPDATES`: what its update rule reads and writes for each parameter, counted from its
paper, and whether that is all that it computes. Without an entry a test fails. An optimizer that multiplies matrices
(Muon's Newton-Schulz steps) must declare a rule for matrices, so that it cannot pass for one that only streams; the
rule has tests of its own (tests/theory/test_muon.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pytest

from simulator.basics.registry import names
from simulator.cluster.build import build
from simulator.model.expert_partition import ExpertPartition
from simulator.model.parameters import modules, total
from simulator.model.partition import ModelPartition
from simulator.planner.bound import BoundCalculator
from simulator.planner.setting import Setting
from simulator.scenario.build_training import optimizer
from simulator.scenario.training_spec import OptimizerSpec
from simulator.step.framework import IMPLEMENTATIONS, load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import implementation_of, temporary_bytes, update_traffic
from simulator.step.optimizers.optimizer import OPTIMIZERS, Optimizer
from simulator.step.parallelism import Parallelism
from simulator.step.spec import Precision, Sharding, TrainingStep, Updater
from simulator.step.states import even_part, states
from simulator.step.strategies.strategy import STRATEGIES
from tests.training import TINY, play, step


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule.

    Attributes
    ----------
    states : int
        Numbers that it keeps for each parameter.
    multiplies : bool
        Whether it multiplies matrices.
    source : str
    nbytes : float
        Bytes of a kept number, with its share of a scale.
    """

    states: int
    multiplies: bool
    source: str
    nbytes: float = 4


UPDATES: Final = {
    "sgd": Update(0, False, "p -= rate g"),
    "momentum": Update(1, False, "Polyak 1964: v = m v + g; p -= rate v"),
    "adam": Update(2, False, "Kingma & Ba, arXiv:1412.6980, algorithm 1: first and second moment"),
    "adam_8bit": Update(
        2, False, "Dettmers et al., arXiv:2110.02861, section 2.2: a byte, and a float32 scale for each block of 256",
        1 + 4 / 256,
    ),
    "paged_adam": Update(2, False, "Kingma & Ba, arXiv:1412.6980, algorithm 1; paged: arXiv:2305.14314, section 3"),
    "paged_adam_8bit": Update(2, False, "as adam_8bit; paged: arXiv:2305.14314, section 3", 1 + 4 / 256),
    "adafactor": Update(0, False, "Shazeer & Stern, arXiv:1804.04235: rows and columns of the second moment alone"),
    "lion": Update(1, False, "Chen et al., arXiv:2302.06675, algorithm 2: one momentum"),
    "muon": Update(2, True, "Jordan et al. 2024: Adam for all but the matrices of layers; the tests here are of Adam"),
}  # fmt: skip
# Optimizers with an implementation that runs a kernel for each operation.
SEPARATE: Final = [name for name in UPDATES if name not in ("adam_8bit", "paged_adam", "paged_adam_8bit")]
# Working parameters and gradients in bfloat16, a master copy in float32 [B].
PRECISION, PARAMETER, GRADIENT, MASTER, STATE = Precision(), 2, 2, 4, 4
RANKS = 4
# Kernels of PyTorch's updates, in which operation the arrays that it reads, and those that it writes: p parameter,
# g gradient, m and v moments, b momentum buffer, d a temporary as large as p. Kernels over rows or columns alone are
# left out.
KERNELS: Final = {
    "sgd": (("pg", "p"),),
    "momentum": (("b", "b"), ("bg", "b"), ("pb", "p")),
    "adam": (
        ("p", "p"),  # weight decay
        ("mg", "m"),
        ("v", "v"),
        ("vg", "v"),  # the square of g, which is read once
        ("v", "d"),
        ("d", "d"),
        ("d", "d"),
        ("pmd", "p"),
    ),
    "adafactor": (
        ("p", "p"),
        ("g", ""),  # norms of rows
        ("g", ""),  # norms of columns
        ("", "d"),
        ("d", "d"),
        ("d", "d"),
        ("d", "d"),
        ("dg", "d"),
        ("d", ""),
        ("p", ""),
        ("pd", "p"),
    ),
    "lion": (
        ("p", "p"),  # weight decay
        ("m", "d"),
        ("dg", "d"),
        ("d", "d"),  # its sign
        ("pd", "p"),
        ("m", "m"),
        ("mg", "m"),
    ),
}
KERNELS["muon"] = KERNELS["adam"]


def optimizer_of(name: str, strategy: str = "zero1") -> Optimizer:
    """The optimizer as a scenario's `optimizer: NAME` has it under a strategy."""
    return optimizer(OptimizerSpec(name=name), strategy)


def streamed(name: str) -> int:
    """Number of the tiny model's parameters that the optimizer updates number by number: not the matrices of layers, if
    it has a rule for these.
    """
    layers = [module for module in modules(TINY) if module.name.startswith("layer")]
    matrices = sum(one.elements for module in layers for one in module.parameters if len(one.shape) > 1)
    return total(TINY) - (matrices if UPDATES[name].multiplies else 0)


def moved(name: str, sizes: Mapping[str, int]) -> int:
    """Bytes that the kernels of an update move for each parameter; `sizes` are those of p and g, all others float32."""
    arrays = "".join(read + written for read, written in KERNELS[name])
    return sum(sizes.get(array, STATE) for array in arrays)


def test_every_optimizer_is_counted() -> None:
    assert set(UPDATES) == set(OPTIMIZERS.names())
    for name, update in UPDATES.items():
        assert update.multiplies == (OPTIMIZERS.find(name).of_matrices is not None)
        assert (name in SEPARATE) == (OPTIMIZERS.find(name).separate is not None)


@pytest.mark.parametrize("name", OPTIMIZERS.names())
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_states_and_traffic_are_those_of_the_update_rule(name: str, strategy: str) -> None:
    made = TrainingStep(TINY, 32, 1, optimizer=OPTIMIZERS.find(name), sharding=Sharding(strategy), precision=PRECISION)
    elements = 1000 * RANKS
    found = states(
        made, STRATEGIES.find(strategy).shards, STRATEGIES.find(strategy).updater, [even_part(elements, RANKS)]
    )
    own = elements if strategy == "ddp" else elements // RANKS
    kept = UPDATES[name].states * UPDATES[name].nbytes
    assert found.updated == own
    # Every state, gradient and master copy is read once, and every state and master copy written once at least.
    assert found.update_read >= own * (kept + GRADIENT + MASTER)
    assert found.update_written >= own * (kept + MASTER)
    master = 0 if strategy == "zero3" else MASTER  # its shard of the parameters is the master copy
    assert found.optimizer == math.ceil(own * (kept + master))


@pytest.mark.parametrize("name", OPTIMIZERS.names())
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_the_update_takes_its_traffic_at_hbms_bandwidth_at_least(name: str, strategy: str) -> None:
    made = replace(step(strategy, TINY), optimizer=optimizer_of(name, strategy))
    played = play(made, RANKS)
    (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
    kept = UPDATES[name].states * UPDATES[name].nbytes
    elements = streamed(name) // (1 if strategy == "ddp" else RANKS)
    roof = elements * (2 * kept + GRADIENT + 2 * MASTER) / played.cluster.gpus[0].hbm_bandwidth
    assert span.end - span.start >= roof


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_the_planners_bound_is_the_update_that_is_simulated_or_less(name: str) -> None:
    """The bound asks for the update's kernels by itself, so a new kernel would leave it loose, or too long."""
    made = replace(step("zero1", TINY), optimizer=optimizer_of(name), parallelism=Parallelism())
    played = play(made, RANKS)
    names = {"optimizer step", "average gradients of matrices", "apply orthogonal updates"}
    took = sum(one.end - one.start for one in played.timeline.spans if one.rank == 0 and one.name in names)
    setting = Setting(
        gpus=RANKS, tp=1, pp=1, cp=1, ep=1, schedule="1f1b", virtual_stages=1, sharding="zero1", shard_size=None,
        micro_batch=2, micro_batches=1, checkpointing="none", offload="none",
    )  # fmt: skip
    (update,) = BoundCalculator(build("star_100g", RANKS)).of(setting, made).updates
    assert update <= took * (1 + 1e-9)
    # The bound leaves out the launches of kernels for each matrix.
    assert 0.5 * took <= update or UPDATES[name].multiplies


@pytest.mark.parametrize("name", SEPARATE)
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
@pytest.mark.parametrize("precision", [PRECISION, Precision("float32", "float32", "float32", None, "float32")])
def test_separate_kernels_move_what_their_operations_read_and_write(
    name: str, strategy: str, precision: Precision
) -> None:
    optimizer = replace(optimizer_of(name, strategy), implementation="foreach")
    made = TrainingStep(TINY, 32, 1, optimizer=optimizer, sharding=Sharding(strategy), precision=precision)
    found = states(
        made, STRATEGIES.find(strategy).shards, STRATEGIES.find(strategy).updater, [even_part(1000 * RANKS, RANKS)]
    )
    gradient = GRADIENT if precision.master else MASTER
    # A kernel of its own reads the master copy and writes the working copy; zero3 casts when it gathers.
    cast = MASTER + PARAMETER if precision.master and strategy == "ddp" else 0
    assert update_traffic(made, found) == found.updated * (moved(name, {"p": MASTER, "g": gradient}) + cast)
    temporaries = "d" in "".join(written for _, written in KERNELS[name])
    assert temporary_bytes(made, found) == found.updated * STATE * temporaries


def test_adam_moves_28_bytes_fused_and_80_as_separate_kernels() -> None:
    """float32 without a copy: reads p, g, m, v and writes p, m, v; against 18 numbers and twice the gradient."""
    whole = Precision("float32", "float32", "float32", None, "float32")
    for implementation, each in (("fused", 28), ("foreach", 80), ("for_loop", 80)):
        optimizer = replace(OPTIMIZERS.find("adam"), implementation=implementation)
        made = TrainingStep(TINY, 32, 1, optimizer=optimizer, sharding=Sharding("ddp"), precision=whole)
        found = states(made, frozenset(), Updater.EVERY_RANK, [even_part(1000, 1)])
        assert update_traffic(made, found) == 1000 * each


@pytest.mark.parametrize("name", [one for one in SEPARATE if not UPDATES[one].multiplies])
def test_implementations_differ_by_traffic_and_by_launches_for_each_tensor(name: str) -> None:
    """A fused update is the fastest, one for each tensor the slowest: by its launches alone."""
    took, held = {}, {}
    able = [one for one in IMPLEMENTATIONS if one != "fused" or OPTIMIZERS.find(name).has_fused]
    for implementation in able:
        made = replace(step("zero1", TINY), optimizer=replace(optimizer_of(name), implementation=implementation))
        played = play(made, RANKS)
        (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
        took[implementation] = span.end - span.start
        samples = [dict(one.by_category).get("optimizer", 0) for one in played.timeline.memory if one.rank == 0]
        held[implementation] = max(samples) - samples[-1]
    launch = KernelTimer(played.cluster.gpus[0], made).launch
    kernels = OPTIMIZERS.find(name).separate.kernels + 1  # and the cast of the working copy
    tensors = sum(len(module.parameters) for module in modules(TINY))
    assert took["for_loop"] - took["foreach"] == pytest.approx(kernels * (tensors - 1) * launch)
    assert took.get("fused", 0.0) < took["foreach"]
    own = streamed(name) // RANKS
    temporaries = own * STATE * OPTIMIZERS.find(name).separate.temporaries
    assert held["foreach"] == pytest.approx(temporaries, rel=1e-2)  # and is given back; shards are padded
    assert not any(held[one] for one in able if one != "foreach")


def test_experts_of_a_rank_are_tensors_of_their_own() -> None:
    """A rank's experts are reduced apart from the rest; the update still launches its kernels for each tensor."""
    model = replace(TINY, num_experts=4, active_experts=2)
    took = {}
    for implementation in ("foreach", "for_loop"):
        made = replace(
            step("ddp", model, parallelism=Parallelism(experts=ExpertPartition(2))),
            optimizer=replace(OPTIMIZERS.find("adam"), implementation=implementation),
        )
        played = play(made, RANKS)
        (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
        took[implementation] = span.end - span.start
    launch = KernelTimer(played.cluster.gpus[0], made).launch
    tensors = sum(len(module.parameters) for module in modules(model, ModelPartition(experts=ExpertPartition(2))))
    kernels = OPTIMIZERS.find("adam").separate.kernels + 1
    assert took["for_loop"] - took["foreach"] == pytest.approx(kernels * (tensors - 1) * launch)


def test_every_framework_has_an_implementation_of_every_optimizer() -> None:
    """A default of `fused` becomes `foreach` where an optimizer has no fused kernel."""
    assert {load_framework(name).optimizer_implementation for name in names("framework")} == set(IMPLEMENTATIONS)
    torchtitan, foundry = load_framework("torchtitan"), load_framework("llm_foundry")
    assert implementation_of(OPTIMIZERS.find("adafactor"), torchtitan) == "foreach"
    assert implementation_of(OPTIMIZERS.find("adafactor"), foundry) == "for_loop"
    assert implementation_of(replace(OPTIMIZERS.find("adam"), implementation="foreach"), foundry) == "foreach"
