"""Muon by hand: states, bytes sent, FLOPs and temporaries of each way to bring whole matrices together."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.model.parameters import modules, total
from simulator.records.operation import Allocate
from simulator.scenario.build_training import optimizer
from simulator.step.optimizers.optimizer import OPTIMIZERS, busiest_owner
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.training_spec import OptimizerSpec
from tests.training import TINY, play

# Every pair that the rules allow.
WAYS = [
    ("ddp", "replicated"), ("ddp", "owners"), ("zero1", "gathered"), ("zero1", "owners"), ("zero1", "all_to_all"),
    ("zero2", "gathered"), ("zero2", "all_to_all"), ("zero3", "gathered"), ("zero3", "all_to_all"),
]  # fmt: skip
# Working parameters and gradients in bfloat16, master copies and states in float32, matrices travel in bfloat16 [B].
PARAMETER, GRADIENT, MASTER, STATE, SENT = 2, 2, 4, 4, 2


def step(strategy: str, way: str, **facts: Any) -> TrainingStep:
    made = optimizer(OptimizerSpec(name="muon", distribution=way), strategy)
    return bare_step(
        TINY, 32, 1, optimizer=made, sharding=Sharding(strategy=strategy), precision=Precision().resolved(), **facts
    )


def matrices() -> list[tuple[int, ...]]:
    """Shapes of the weight matrices of the tiny model's layers: what Muon makes orthogonal."""
    layers = [module for module in modules(TINY) if module.name.startswith("layer")]
    return [one.shape for module in layers for one in module.parameters if len(one.shape) == 2]


def owned(ranks: int, *, alone: bool = False) -> tuple[list[tuple[int, ...]], int]:
    """The matrices of the rank that owns the most elements, and the elements of all its tensors, by dealing them out in
    order of size: 0, 1, ..., N - 1, N - 1, ..., 0, ...; with `alone` nothing but matrices is dealt out.
    """
    tables = [(*one.shape, 1) for m in modules(TINY) if not m.name.startswith("layer") for one in m.parameters
              if len(one.shape) == 2]  # fmt: skip
    small = [(sum(one.elements for one in m.parameters if len(one.shape) < 2),) for m in modules(TINY)]
    hands: list[list[tuple[int, ...]]] = [[] for _ in range(ranks)]
    order = [*range(ranks), *reversed(range(ranks))]
    dealt = matrices() if alone else [*matrices(), *tables, *small]
    for place, shape in enumerate(sorted(dealt, key=lambda s: (prod(s), s))):
        hands[order[place % len(order)]].append(shape)
    most = max(hands, key=lambda hand: sum(map(prod, hand)))
    return [shape for shape in most if len(shape) == 2], sum(map(prod, most))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("strategy", "way"), WAYS)
def test_states_are_one_momentum_of_matrices_and_two_of_the_rest(strategy: str, way: str, ranks: int) -> None:
    """A matrix has 4 B of momentum, everything else 8 B of moments; a master copy 4 B, which a shard itself is under
    zero3.
    """
    program = play(step(strategy, way), ranks).plan.program
    (held,) = (op.nbytes for op in program.ranks[0] if isinstance(op, Allocate) and op.name == "optimizer states")
    inside, everything = sum(map(prod, matrices())), total(TINY)
    mine, all_mine = owned(ranks)
    if way == "owners":
        averaged, updated = sum(map(prod, mine)), everything if strategy == "ddp" else all_mine
        applied = inside if strategy == "ddp" else averaged
    else:
        parts = 1 if strategy == "ddp" else ranks
        averaged, updated = -(-inside // parts), -(-everything // parts)
        applied = averaged
    master = 0 if strategy == "zero3" else MASTER
    assert held == updated * master + averaged * STATE + (updated - applied) * 2 * STATE


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("strategy", "way"), WAYS)
def test_bytes_sent_are_those_of_closed_forms(strategy: str, way: str, ranks: int) -> None:
    """All N ranks together send, beside what Adam sends: nothing (replicated); N (N - 1) shards of each layer
    (gathered); the matrices of the rank that owns the most N (N - 1) times (owners under ddp); each shard twice,
    without the part of its own (all_to_all). Owners under zero1 sum whole gradients, 2 (N - 1) times in place of N - 1,
    and gather parameters in shards of whole tensors.
    """

    def sent(made: TrainingStep) -> float:
        return sum(float(log.nbytes.sum()) for log in play(made, ranks).timeline.logs)

    made = step(strategy, way, collectives="played")
    more = sent(made) - sent(replace(made, optimizer=OPTIMIZERS.find("adam")))
    layers = [module for module in modules(TINY) if module.name.startswith("layer")]
    shards = [-(-sum(one.elements for one in m.parameters if len(one.shape) == 2) // ranks) for m in layers]
    mine, all_mine = owned(ranks)
    if way == "owners" and strategy == "zero1":
        # The tiny model is one bucket. Adam gathers N (N - 1) shards of everything, in bfloat16.
        gradients = (ranks - 1) * total(TINY) * 4
        shard = -(-total(TINY) // ranks)
        assert more == pytest.approx(gradients + ranks * (ranks - 1) * (all_mine - shard) * PARAMETER, rel=1e-6)
        return
    expected = {
        "replicated": 0,
        "gathered": ranks * (ranks - 1) * sum(shards) * SENT,
        "owners": ranks * (ranks - 1) * sum(map(prod, mine)) * SENT,
        "all_to_all": 2 * (ranks - 1) * sum(shards) * SENT,
    }
    assert more == pytest.approx(expected[way], rel=1e-9)


@given(
    st.lists(st.tuples(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 40)), min_size=1, max_size=6,
             unique_by=lambda one: one[0]),
    st.integers(1, 9),
)  # fmt: skip
@settings(deadline=None)
def test_dealing_by_counts_is_dealing_one_by_one(sizes: list[tuple[tuple[int, int], int]], ranks: int) -> None:
    hands: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(ranks)]
    order = [*range(ranks), *reversed(range(ranks))]
    deck = [shape for shape, count in sorted(sizes, key=lambda one: (prod(one[0]), one[0])) for _ in range(count)]
    for place, shape in enumerate(deck):
        hands[order[place % len(order)]][shape] += 1
    most = max(sum(prod(shape) * count for shape, count in hand.items()) for hand in hands)
    found = busiest_owner(tuple(sizes), ranks)
    assert Counter(dict(found)) in hands
    assert sum(prod(shape) * count for shape, count in found) == most


def test_newton_schulz_counts_4_m2_n_and_2_m3_for_an_iteration() -> None:
    """Jordan et al. 2024: A = X X' is 2 m^2 n, A A 2 m^3, B X 2 m^2 n FLOPs, with m the shorter side."""
    rule = OPTIMIZERS.find("muon").of_matrices
    assert rule is not None
    for rows, columns in ((3, 8), (8, 3), (4, 4)):
        m, n = min(rows, columns), max(rows, columns)
        assert sum(2 * a * b * c for a, b, c in rule.matmuls(rows, columns)) == 5 * (4 * m * m * n + 2 * m**3)


@pytest.mark.parametrize(("strategy", "way"), WAYS)
def test_ranks_multiply_every_matrix_or_their_own_alone(strategy: str, way: str) -> None:
    ranks = 4
    played = play(step(strategy, way), ranks)
    found = sum(
        one.flops for one in played.timeline.spans if one.rank == 0 and one.name.startswith("make ") and one.flops
    )
    rule = OPTIMIZERS.find("muon").of_matrices
    assert rule is not None
    done = owned(ranks, alone=way == "all_to_all")[0] if way in ("owners", "all_to_all") else matrices()
    assert found == sum(2 * a * b * c for rows, columns in done for a, b, c in rule.matmuls(rows, columns))


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_ranks_of_opposite_directions_gather_in_one_order(strategy: str) -> None:
    # DualPipe: rank 0 holds the first and the last stage, its mirror the last and the first. Both gather together.
    both = Parallelism(pp=2, schedule="dualpipe")
    made = step(strategy, "gathered", gradient_accumulation_steps=4, parallelism=both)
    spans = [one for one in play(made, 4).timeline.spans if one.name.startswith("gather averages")]
    for rank in range(4):
        assert sum(one.rank == rank for one in spans) == TINY.num_layers
