"""Contract of every optimizer: it holds the states that it declares, and its update moves them and takes that long.

The update runs as one fused kernel, or as a kernel for each arithmetic operation (over all tensors, or for each): its
traffic is counted here from the operations of PyTorch's implementation, array by array.

An optimizer needs an entry in `UPDATES`: what its update rule reads and writes for each parameter, counted from its
paper, and whether that is all that it computes. Without an entry a test fails. An optimizer that multiplies matrices
(Muon's Newton-Schulz steps) must declare a rule for matrices, so that it cannot pass for one that only streams; the
rule has tests of its own (tests/theory/test_muon.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pytest

from simulator.basics.registry import names
from simulator.cluster.build import build
from simulator.model.expert_partition import ExpertPartition
from simulator.model.parameters import modules
from simulator.model.partition import ModelPartition
from simulator.planner.bound import BoundCalculator
from simulator.planner.setting import PlanSetting
from simulator.step.framework import IMPLEMENTATIONS, load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import implementation_of, update_traffic
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.parallelism import Parallelism
from simulator.step.precision import MIXED, Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import Updater, bare_step
from simulator.step.states import even_part, states
from simulator.testing import check_optimizer
from simulator.testing import optimizer_laws as laws
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


def test_every_optimizer_is_counted() -> None:
    assert set(UPDATES) == set(OPTIMIZERS.names())
    for name, update in UPDATES.items():
        assert update.multiplies == (OPTIMIZERS.find(name).of_matrices is not None)
        assert (name in SEPARATE) == (OPTIMIZERS.find(name).separate is not None)


def each(name: str) -> float:
    """Bytes of the states of a parameter."""
    return UPDATES[name].states * UPDATES[name].nbytes


@pytest.mark.parametrize("name", OPTIMIZERS.names())
@pytest.mark.parametrize("strategy", laws.SHARDINGS)
def test_states_and_traffic_are_those_of_the_update_rule(name: str, strategy: str) -> None:
    laws.holds_its_states(OPTIMIZERS.find(name), strategy, each(name))


@pytest.mark.parametrize("name", OPTIMIZERS.names())
@pytest.mark.parametrize("strategy", laws.SHARDINGS)
def test_the_update_takes_its_traffic_at_hbms_bandwidth_at_least(name: str, strategy: str) -> None:
    laws.takes_its_traffic(OPTIMIZERS.find(name), strategy, each(name))


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_the_planners_bound_is_the_update_that_is_simulated_or_less(name: str) -> None:
    """The bound asks for the update's kernels by itself, so a new kernel would leave it loose, or too long."""
    optimizer = laws.under(OPTIMIZERS.find(name), "zero1")
    made = replace(step("zero1", TINY), optimizer=optimizer)
    played = play(made, RANKS)
    names = {"optimizer step", "average gradients of matrices", "apply orthogonal updates"}
    took = sum(one.end - one.start for one in played.timeline.spans if one.rank == 0 and one.name in names)
    setting = PlanSetting(
        gpus=RANKS, tp=1, pp=1, cp=1, ep=1, schedule="1f1b", virtual_stages=1, sharding="zero1", shard_size=None,
        micro_batch=2, micro_batches=1, checkpointing="none", offload="none",
    )  # fmt: skip
    (update,) = BoundCalculator(build("star_100g", RANKS)).of(setting, made).updates
    assert update <= took * (1 + 1e-9)
    # The bound leaves out the launches of kernels for each matrix.
    assert 0.5 * took <= update or UPDATES[name].multiplies


@pytest.mark.parametrize("name", SEPARATE)
@pytest.mark.parametrize("strategy", laws.SHARDINGS)
@pytest.mark.parametrize("precision", [MIXED, laws.WHOLE])
def test_separate_kernels_move_what_their_operations_read_and_write(
    name: str, strategy: str, precision: Precision
) -> None:
    assert laws.moves_its_arrays(OPTIMIZERS.find(name), strategy, precision, KERNELS[name])


@pytest.mark.parametrize("name", KERNELS)
def test_declared_accesses_are_those_of_the_kernels(name: str) -> None:
    declared = OPTIMIZERS.find(name)
    if name == "adafactor":
        # Its rows and columns take kernels, and no array as large as the parameter.
        separate = declared.separate
        assert separate is not None
        declared = replace(declared, separate=replace(separate, kernels=separate.kernels - 9))
    assert laws.counts_its_update(declared, KERNELS[name])


@pytest.mark.parametrize("name", OPTIMIZERS.names())
def test_a_user_gets_the_same_laws_from_a_single_function(name: str) -> None:
    checked = check_optimizer(name)
    assert checked.holds, "\n".join(checked.lines())


def test_adam_moves_28_bytes_fused_and_80_as_separate_kernels() -> None:
    """float32 without a copy: reads p, g, m, v and writes p, m, v; against 18 numbers and twice the gradient."""
    whole = Precision(params="float32").resolved()
    for implementation, each in (("fused", 28), ("foreach", 80), ("for_loop", 80)):
        optimizer = replace(OPTIMIZERS.find("adam"), implementation=implementation)
        made = bare_step(TINY, 32, 1, optimizer=optimizer, sharding=Sharding(strategy="ddp"), precision=whole)
        found = states(made, frozenset(), Updater.EVERY_RANK, [even_part(1000, 1)])
        assert update_traffic(made, found) == 1000 * each


@pytest.mark.parametrize("name", [one for one in SEPARATE if not UPDATES[one].multiplies])
def test_implementations_differ_by_traffic_and_by_launches_for_each_tensor(name: str) -> None:
    """A fused update is the fastest, one for each tensor the slowest: by its launches alone."""
    assert laws.differs_by_launches(OPTIMIZERS.find(name))


def test_experts_of_a_rank_are_tensors_of_their_own() -> None:
    """A rank's experts are reduced apart from the rest; the update still launches its kernels for each tensor."""
    model = replace(TINY, num_experts=4, active_experts=2)
    took = {}
    for implementation in ("foreach", "for_loop"):
        made = replace(
            step("ddp", model, parallelism=Parallelism(ep=2)),
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
