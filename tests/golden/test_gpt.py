"""Real training against PyTorch's: loss, gradient norm, parameters after twenty steps, as any user can ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.golden.gpt import STEPS, farthest, golden, trained, update_difference

BFLOAT16 = {"params": "bfloat16", "master": None}
SHARDINGS = ("ddp", "zero1", "zero2", "zero3", "parameter_server")


@pytest.mark.parametrize(("sharding", "ranks"), [("ddp", 1), ("zero3", 4)])
def test_in_float64_it_is_pytorch_to_the_last_digits(tmp_path: Path, sharding: str, ranks: int) -> None:
    # A single rank sends nothing, and is warned of a dtype to send it in.
    double = {"params": "float64"} | ({"reduce": "float64"} if ranks > 1 else {})
    (told, final), reference = trained(tmp_path, double, ranks, sharding=sharding), golden("fp64_single")
    np.testing.assert_allclose(told.losses, reference["loss"], rtol=1e-12)
    np.testing.assert_allclose(told.gradient_norms, reference["gnorm"], rtol=1e-12)
    size = max(float(np.abs(reference[f"final/{name}"]).max()) for name in final)
    assert farthest(final, reference) <= 1e-12 * size


@pytest.mark.parametrize("sharding", SHARDINGS)
def test_four_ranks_in_float32_are_ddp_within_what_sound_programs_differ_by(tmp_path: Path, sharding: str) -> None:
    (told, final), reference = trained(tmp_path, "fp32", 4, sharding=sharding), golden("fp32_ddp")
    assert np.abs(np.array(told.losses) - reference["loss"]).max() <= 3e-6
    assert np.abs(np.array(told.losses_by_rank) - reference["loss_per_rank"]).max() <= 3e-6
    np.testing.assert_allclose(told.gradient_norms, reference["gnorm"], rtol=1e-6)
    assert farthest(final, reference) <= 1e-5
    assert told.optimizer_steps == tuple(range(1, STEPS + 1))


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_float16_scales_skips_and_counts_as_pytorch_does(tmp_path: Path, sharding: str) -> None:
    """Infinity in head.weight's gradient [3, 5] of rank 2 at step 7: Adam's count stands still there."""
    overflow = {"step": 7, "what": "overflow", "rank": 2, "element": 3 * 64 + 5}
    (told, final), reference = trained(tmp_path, "fp16", 4, sharding=sharding, faults=[overflow]), golden("fp16_A")
    assert told.loss_scales == tuple(reference["scale"])
    assert told.skipped == tuple(np.flatnonzero(reference["skipped"]))
    assert told.optimizer_steps == tuple(reference["adam_step"])
    assert np.abs(np.array(told.losses) - reference["loss"]).max() <= 2e-4
    kept = [n for n in range(STEPS) if n not in told.skipped]
    np.testing.assert_allclose(np.array(told.gradient_norms)[kept], reference["gnorm"][kept], rtol=2e-3)
    assert update_difference(final, reference) <= 0.02


@pytest.mark.parametrize("precision", ["tf32", BFLOAT16], ids=str)
def test_narrow_numbers_learn_too_but_not_the_same(tmp_path: Path, precision: Any) -> None:
    """Parameters kept narrow, no master copy: coarse, yet the loss falls as in float64 to within a tenth."""
    (told, _), reference = trained(tmp_path, precision, 1, steps=5), golden("fp64_single")
    assert 0 < np.abs(np.array(told.losses) - reference["loss"][:5]).max() < 0.1
