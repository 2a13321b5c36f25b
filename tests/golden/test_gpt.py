"""Real training against PyTorch's: loss, gradient norm, parameters after twenty steps."""

from __future__ import annotations

import numpy as np
import pytest

from tests.golden.gpt import farthest, golden, trained


def test_one_process_in_float64_is_pytorch_to_the_last_digits() -> None:
    told, reference = trained("float64", 1), golden("fp64_single")
    np.testing.assert_allclose(told.loss, reference["loss"], rtol=1e-12)
    np.testing.assert_allclose(told.norm, reference["gnorm"], rtol=1e-12)
    size = max(float(np.abs(reference[f"final/{name}"]).max()) for name in told.final)
    assert farthest(told.final, reference) <= 1e-12 * size


def test_four_ranks_in_float32_are_ddp_within_what_sound_programs_differ_by() -> None:
    told, reference = trained("float32", 4), golden("fp32_ddp")
    assert np.abs(np.array(told.loss) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose(told.norm, reference["gnorm"], rtol=1e-6)
    assert farthest(told.final, reference) <= 1e-5


@pytest.mark.parametrize("dtype", ["tf32", "bfloat16"])
def test_narrow_numbers_learn_too_but_not_the_same(dtype: str) -> None:
    """Parameters kept narrow, no master copy: coarse, yet the loss falls as in float64 to within a tenth."""
    told, reference = trained(dtype, 1, steps=5), golden("fp64_single")
    assert 0 < np.abs(np.array(told.loss) - reference["loss"][:5]).max() < 0.1
