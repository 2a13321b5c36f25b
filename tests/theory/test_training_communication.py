"""Bytes on the wire of a data-parallel step, against the formulas of ZeRO (Rajbhandari et al., SC 2020, section 7).

P parameters, N ranks, p bytes each: an all-reduce sends 2 p P (N-1)/N from every rank, an all-gather or a
reduce-scatter half of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.parameters import modules, total
from simulator.training.spec import Precision
from tests.training import TINY, play, sent, step

P = total(TINY)
ROOT = modules(TINY)[0].elements + modules(TINY)[-1].elements
BF16 = Precision(reduce="bfloat16")


def padded(elements: int, ranks: int) -> int:
    return -(-elements // ranks) * ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("strategy", "times"), [("ddp", 2), ("zero1", 2), ("zero2", 2)])
def test_ddp_and_the_first_two_stages_send_every_parameter_twice(strategy: str, times: int, ranks: int) -> None:
    # One bucket for all, so that nothing but the whole is padded.
    played = play(step(strategy, precision=BF16, bucket_size=2**40), ranks)
    expected = times * 2 * padded(P, ranks) * (ranks - 1) / ranks
    assert sent(played) == pytest.approx([expected] * ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2), (False, 1)])
def test_stage_three_gathers_forward_and_backward_and_scatters_once(ranks: int, reshard: bool, gathers: int) -> None:
    """Exceptions that FSDP makes: the root is gathered once; the last layer stays for its backward pass."""
    played = play(step("zero3", precision=BF16, reshard_after_forward=reshard), ranks)
    layer = padded(modules(TINY)[1].elements, ranks)
    layers = TINY.num_layers
    gathered = layers * layer * gathers - (layer if reshard else 0) + padded(ROOT, ranks)
    scattered = layers * layer + sum(padded(modules(TINY)[i].elements, ranks) for i in (0, -1))
    expected = 2 * (gathered + scattered) * (ranks - 1) / ranks
    assert sent(played) == pytest.approx([expected] * ranks)


@pytest.mark.parametrize(("strategy", "rounds"), [("ddp", 1), ("zero1", 1), ("zero2", 3)])
def test_accumulation_multiplies_only_what_reduces_every_micro_batch(strategy: str, rounds: int) -> None:
    """Three micro-batches: ddp and stage 1 communicate in the last, stage 2 (DeepSpeed) in each."""
    ranks, facts = 4, {"precision": BF16, "bucket_size": 2**40}
    thrice = play(step(strategy, accumulation=3, **facts), ranks)
    half = 2 * padded(P, ranks) * (ranks - 1) / ranks
    assert sent(thrice) == pytest.approx([half * rounds + half] * ranks)


def test_gradients_in_float32_double_their_part() -> None:
    wide = play(step("ddp", precision=Precision(reduce="float32"), bucket_size=2**40), 4)
    narrow = play(step("ddp", precision=BF16, bucket_size=2**40), 4)
    assert sent(wide) == pytest.approx([2 * nbytes for nbytes in sent(narrow)])


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3"])
def test_closed_forms_and_played_collectives_give_one_step_time(strategy: str) -> None:
    facts: dict[str, Any] = {"precision": BF16, "bucket_size": 2**16}
    played = play(step(strategy, collectives="played", **facts), 4)
    formed = play(step(strategy, collectives="auto", **facts), 4)
    assert formed.report.closed_form_collectives > 0
    assert formed.report.step_time_s == pytest.approx(played.report.step_time_s, rel=1e-9)


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (8, 2), (8, 4)])
def test_hybrid_sharding_gathers_in_its_group_and_adds_its_part_over_the_copies(ranks: int, size: int) -> None:
    """As stage three with n = size ranks, and an all-reduce of the part over g copies: 2 (p P / n) (g-1)/g."""
    played = play(step("zero3", precision=BF16, shard_size=size), ranks)
    copies = ranks // size
    layer, layers = padded(modules(TINY)[1].elements, size), TINY.num_layers
    units = [modules(TINY)[i].elements for i in (0, -1)]
    gathered = (2 * layers - 1) * layer + padded(ROOT, size)
    scattered = layers * layer + sum(padded(elements, size) for elements in units)
    parts = [layer // size] * layers + [padded(elements, size) // size for elements in units]
    summed = sum(2 * padded(part, copies) * (copies - 1) / copies for part in parts)
    expected = 2 * ((gathered + scattered) * (size - 1) / size + summed)
    # Which rank sends how much of a small all-reduce is the algorithm's choice; together they send the least there is.
    assert sum(sent(played)) == pytest.approx(expected * ranks)


def test_a_shard_group_of_all_ranks_is_plain_stage_three() -> None:
    plain, whole = (play(step("zero3", shard_size=size), 4).report for size in (None, 4))
    assert plain == whole
