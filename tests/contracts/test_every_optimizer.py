"""Contract of every optimizer: it holds the states that it declares, and its update moves them and takes that long.

The update runs as one fused kernel, or as a kernel for each arithmetic operation (over all tensors, or for each): its
traffic is counted here from the operations of PyTorch's implementation, array by array.

An optimizer needs an entry in `UPDATES`: what its update rule reads and writes for each parameter, counted from its
paper, and whether that is all that it computes. Without an entry a test fails. An optimizer that multiplies matrices
(Muon's Newton-Schulz steps) must have these counted in `flops`, so that it cannot pass for one that only streams.
"""

from __future__ import annotations

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
from simulator.step.framework import IMPLEMENTATIONS, load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import implementation_of, temporary_bytes, update_traffic
from simulator.step.parallelism import Parallelism
from simulator.step.spec import OPTIMIZERS, Precision, Sharding, TrainingStep, Updater
from simulator.step.states import states
from simulator.step.strategies.strategy import STRATEGIES
from tests.training import TINY, play, step


@dataclass(frozen=True, slots=True)
class Update:
    """An update rule.

    Attributes
    ----------
    states : int
        float32 numbers that it keeps for each parameter.
    flops : float
        Multiplications and additions of matrices for each parameter [FLOP]; 0 if it works number by number.
    source : str
    """

    states: int
    flops: float
    source: str


UPDATES: Final = {
    "sgd": Update(0, 0.0, "p -= rate g"),
    "momentum": Update(1, 0.0, "Polyak 1964: v = m v + g; p -= rate v"),
    "adam": Update(2, 0.0, "Kingma & Ba, arXiv:1412.6980, algorithm 1: first and second moment"),
    "adafactor": Update(0, 0.0, "Shazeer & Stern, arXiv:1804.04235: rows and columns of the second moment alone"),
}
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
}


def moved(name: str, sizes: Mapping[str, int]) -> int:
    """Bytes that the kernels of an update move for each parameter; `sizes` are those of p and g, all others float32."""
    arrays = "".join(read + written for read, written in KERNELS[name])
    return sum(sizes.get(array, STATE) for array in arrays)


def test_every_optimizer_is_counted() -> None:
    assert set(UPDATES) == set(OPTIMIZERS)
    # The simulator has no matrices in an update yet: an optimizer that needs them cannot be declared by a line.
    assert not any(update.flops for update in UPDATES.values())


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_states_and_traffic_are_those_of_the_update_rule(name: str, strategy: str) -> None:
    made = TrainingStep(TINY, 32, 1, optimizer=OPTIMIZERS[name], sharding=Sharding(strategy), precision=PRECISION)
    elements = 1000 * RANKS
    found = states(made, STRATEGIES.find(strategy).shards, STRATEGIES.find(strategy).updater, [(elements, RANKS)])
    own = elements if strategy == "ddp" else elements // RANKS
    kept = UPDATES[name].states * STATE
    assert found.updated == own
    # Every state, gradient and master copy is read once, and every state and master copy written once at least.
    assert found.update_read >= own * (kept + GRADIENT + MASTER)
    assert found.update_written >= own * (kept + MASTER)
    master = 0 if strategy == "zero3" else MASTER  # its shard of the parameters is the master copy
    assert found.optimizer == own * (kept + master)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero3"])
def test_the_update_takes_its_traffic_at_hbms_bandwidth_at_least(name: str, strategy: str) -> None:
    made = replace(step(strategy, TINY), optimizer=OPTIMIZERS[name])
    played = play(made, RANKS)
    (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
    kept = UPDATES[name].states * STATE
    elements = total(TINY) // (1 if strategy == "ddp" else RANKS)
    roof = elements * (2 * kept + GRADIENT + 2 * MASTER) / played.cluster.gpus[0].hbm_bandwidth
    assert span.end - span.start >= roof


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_planners_bound_is_the_update_that_is_simulated_or_less(name: str) -> None:
    """The bound asks for the update's kernels by itself, so a new kernel would leave it loose, or too long."""
    made = replace(step("zero1", TINY), optimizer=OPTIMIZERS[name], parallelism=Parallelism())
    played = play(made, RANKS)
    (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
    setting = Setting(
        gpus=RANKS, tp=1, pp=1, cp=1, ep=1, schedule="1f1b", virtual_stages=1, sharding="zero1", shard_size=None,
        micro_batch=2, micro_batches=1, checkpointing="none", offload="none",
    )  # fmt: skip
    (update,) = BoundCalculator(build("star_100g", RANKS)).of(setting, made).updates
    assert 0.5 * (span.end - span.start) <= update <= (span.end - span.start) * (1 + 1e-9)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
@pytest.mark.parametrize("precision", [PRECISION, Precision("float32", "float32", "float32", None, "float32")])
def test_separate_kernels_move_what_their_operations_read_and_write(
    name: str, strategy: str, precision: Precision
) -> None:
    optimizer = replace(OPTIMIZERS[name], implementation="foreach")
    made = TrainingStep(TINY, 32, 1, optimizer=optimizer, sharding=Sharding(strategy), precision=precision)
    found = states(made, STRATEGIES.find(strategy).shards, STRATEGIES.find(strategy).updater, [(1000 * RANKS, RANKS)])
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
        optimizer = replace(OPTIMIZERS["adam"], implementation=implementation)
        made = TrainingStep(TINY, 32, 1, optimizer=optimizer, sharding=Sharding("ddp"), precision=whole)
        found = states(made, frozenset(), Updater.EVERY_RANK, [(1000, 1)])
        assert update_traffic(made, found) == 1000 * each


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_implementations_differ_by_traffic_and_by_launches_for_each_tensor(name: str) -> None:
    """A fused update is the fastest, one for each tensor the slowest: by its launches alone."""
    took, held = {}, {}
    able = [one for one in IMPLEMENTATIONS if one != "fused" or OPTIMIZERS[name].has_fused]
    for implementation in able:
        made = replace(step("zero1", TINY), optimizer=replace(OPTIMIZERS[name], implementation=implementation))
        played = play(made, RANKS)
        (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
        took[implementation] = span.end - span.start
        samples = [dict(one.by_category).get("optimizer", 0) for one in played.timeline.memory if one.rank == 0]
        held[implementation] = max(samples) - samples[-1]
    launch = KernelTimer(played.cluster.gpus[0], made).launch
    kernels = OPTIMIZERS[name].separate.kernels + 1  # and the cast of the working copy
    tensors = sum(len(module.parameters) for module in modules(TINY))
    assert took["for_loop"] - took["foreach"] == pytest.approx(kernels * (tensors - 1) * launch)
    assert took.get("fused", 0.0) < took["foreach"]
    own = total(TINY) // RANKS
    temporaries = own * STATE * OPTIMIZERS[name].separate.temporaries
    assert held["foreach"] == pytest.approx(temporaries, rel=1e-2)  # and is given back; shards are padded
    assert not any(held[one] for one in able if one != "foreach")


def test_experts_of_a_rank_are_tensors_of_their_own() -> None:
    """A rank's experts are reduced apart from the rest; the update still launches its kernels for each tensor."""
    model = replace(TINY, num_experts=4, active_experts=2)
    took = {}
    for implementation in ("foreach", "for_loop"):
        made = replace(
            step("ddp", model, parallelism=Parallelism(experts=ExpertPartition(2))),
            optimizer=replace(OPTIMIZERS["adam"], implementation=implementation),
        )
        played = play(made, RANKS)
        (span,) = (one for one in played.timeline.spans if one.rank == 0 and one.name == "optimizer step")
        took[implementation] = span.end - span.start
    launch = KernelTimer(played.cluster.gpus[0], made).launch
    tensors = sum(len(module.parameters) for module in modules(model, ModelPartition(experts=ExpertPartition(2))))
    kernels = OPTIMIZERS["adam"].separate.kernels + 1
    assert took["for_loop"] - took["foreach"] == pytest.approx(kernels * (tensors - 1) * launch)


def test_every_framework_has_an_implementation_of_every_optimizer() -> None:
    """A default of `fused` becomes `foreach` where an optimizer has no fused kernel."""
    assert {load_framework(name).optimizer_implementation for name in names("framework")} == set(IMPLEMENTATIONS)
    torchtitan, foundry = load_framework("torchtitan"), load_framework("llm_foundry")
    assert implementation_of(OPTIMIZERS["adafactor"], torchtitan) == "foreach"
    assert implementation_of(OPTIMIZERS["adafactor"], foundry) == "for_loop"
    assert implementation_of(replace(OPTIMIZERS["adam"], implementation="foreach"), foundry) == "foreach"
