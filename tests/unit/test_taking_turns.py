"""Two passes of one rank whose kernels take turns: orders, and what that hides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cluster.build import build
from simulator.engine.events import execute as events
from simulator.model.shape import Transformer
from simulator.records.operation import Collective, Compute, Op
from simulator.step import pipeline
from simulator.step.interleaved_kernels import interleaved_kernels
from simulator.step.parallelism import Parallelism
from simulator.step.plan import StepPlan, plan_step
from tests.training import step

MODEL = Transformer("experts", 4, 64, 4, 4, 16, 128, 128, 64, tied=False, num_experts=8, active_experts=2)


def planned() -> StepPlan:
    cut = Parallelism(pp=2, schedule="dualpipe", ep=2)
    return plan_step(build("star_100g", 4), step("ddp", MODEL, gradient_accumulation_steps=8, parallelism=cut))


def kernels(name: str, *after: str) -> Compute:
    return Compute(name, 1.0, 0.0, 0.0, None, "forward", after=after)


def exchange(name: str, *after: str) -> Collective:
    template = next(op for op in planned().program.ranks[0] if isinstance(op, Collective))
    return template.named(name, after, template.group)


def names(ops: list[Op]) -> list[str]:
    return [op.name for op in ops]


def test_each_goes_on_while_the_other_exchanges() -> None:
    one: list[Op] = [kernels("a1"), exchange("ax", "a1"), kernels("a2", "ax")]
    other: list[Op] = [kernels("b1"), exchange("bx", "b1"), kernels("b2", "bx")]
    assert names(interleaved_kernels(one, other)) == ["a1", "ax", "b1", "bx", "a2", "b2"]


def test_one_with_more_parts_has_more_turns() -> None:
    one: list[Op] = [kernels("a1"), exchange("ax", "a1"), kernels("a2", "ax")]
    other: list[Op] = [kernels("b0")]
    for number in range(1, 4):
        other += [exchange(f"bx{number}", f"b{number - 1}"), kernels(f"b{number}", f"bx{number}")]
    turns = [name for name in names(interleaved_kernels(one, other)) if "x" not in name]
    assert turns == ["a1", "b0", "b1", "a2", "b2", "b3"]


def test_passes_with_experts_take_turns_at_the_experts_exchanges_alone() -> None:
    """Exchanges of tensor parallelism between them would leave parts that hide little."""

    def passing(name: str) -> list[Op]:
        ops: list[Op] = [kernels(f"{name}0")]
        for number, scope in enumerate(("tensor", "experts", "tensor", "experts", "tensor"), 1):
            sent = replace(exchange(f"{name}x{number}", f"{name}{number - 1}"), stream=f"communication {scope}")
            ops += [sent, kernels(f"{name}{number}", f"{name}x{number}")]
        return ops

    turns = [name for name in names(interleaved_kernels(passing("a"), passing("b"))) if "x" not in name]
    assert turns == ["a0", "a1", "b0", "b1", "a2", "a3", "b2", "b3", "a4", "a5", "b4", "b5"]


def test_without_exchanges_or_where_one_needs_the_other_they_follow_each_other() -> None:
    plain: list[Op] = [kernels("a1"), kernels("a2")]
    assert names(interleaved_kernels(plain, [kernels("b1")])) == ["a1", "a2", "b1"]
    one: list[Op] = [kernels("a1"), exchange("ax", "a1"), kernels("a2", "ax")]
    assert names(interleaved_kernels(one, [kernels("b1", "a2")])) == ["a1", "ax", "a2", "b1"]


def test_turns_hide_exchanges_and_change_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, by_turns = build("star_100g", 4), planned()
    monkeypatch.setattr(pipeline, "interleaved_kernels", lambda one, other: [*one, *other])
    one_by_one = planned()
    for rank in range(4):
        ops = [sorted(plan.program.ranks[rank], key=lambda op: op.name) for plan in (by_turns, one_by_one)]
        assert [replace(op, after=()) for op in ops[0]] == [replace(op, after=()) for op in ops[1]]
    taken = [events(plan.program, cluster, limit_memory=False).end for plan in (by_turns, one_by_one)]
    assert taken[0] < 0.97 * taken[1]
