"""Flash attention is exact, and moves what its formula says; so do three ways to a softmax.

Formulas: Dao et al. 2022, algorithms 1 and 4; Milakov & Gimelshein 2018.
"""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.arrays import Array
from simulator.model.kernel import Attention
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.attention import attention, attention_backward
from simulator.numerics.flash import flash, flash_backward, tiles
from simulator.numerics.hbm_counter import HbmCounter
from simulator.numerics.softmax import fused, online, three_pass
from simulator.numerics.unfused_attention import Softmax, unfused_attention, unfused_attention_backward
from simulator.step.kernels.attention_time import attention_bytes

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def drawn(seed: int, *shape: int, dtype: str = "float64") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plain(q: Array, k: Array, v: Array, seen: Array) -> Array:
    """Scores written out whole; a query that sees nothing gets zeros."""
    scores = np.where(seen, q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]), -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = e.sum(axis=-1, keepdims=True)
    return np.divide(e, total, out=np.zeros_like(e), where=total > 0) @ v


def near(found: Array, right: Array, tolerance: float) -> None:
    """To within a tolerance of 1, or of the largest number where that is larger."""
    assert np.abs(found - right).max() <= tolerance * max(1.0, float(np.abs(right).max()))


@pytest.mark.parametrize("dtype", TOLERANCE)
@settings(derandomize=True, max_examples=25)
@given(st.integers(1, 40), st.sampled_from([2, 4, 8]), st.integers(16, 400), st.integers(0, 10**6))
def test_causal_tiles_give_what_the_whole_gives(
    dtype: str, seq_len: int, head_dim: int, on_chip: int, seed: int
) -> None:
    q, k, v, dy = (drawn(seed + i, 2, 3, seq_len, head_dim, dtype=dtype) for i in range(4))
    cut = tiles(seq_len, head_dim, on_chip, causal=True)
    out, kept = flash(q, k, v, cut, HbmCounter())
    expected, whole = attention(arithmetic(dtype), q, k, v)
    near(out, expected, TOLERANCE[dtype])
    found = flash_backward(dy, kept, cut, HbmCounter())
    for gradient, right in zip(found, attention_backward(arithmetic(dtype), dy, whole), strict=True):
        near(gradient, right, TOLERANCE[dtype])


def test_rows_that_see_nothing_get_zeros_and_give_no_gradient() -> None:
    seen = np.random.default_rng(0).random((24, 24)) < 0.4
    seen[[3, 17]] = False
    q, k, v, dy = (drawn(i, 1, 2, 24, 4) for i in range(4))
    cut = tiles(24, 4, 64, causal=False)
    out, kept = flash(q, k, v, cut, HbmCounter(), seen)
    np.testing.assert_allclose(out, plain(q, k, v, seen), atol=1e-12)
    assert (out[..., [3, 17], :] == 0).all()
    dq, dk, dv = flash_backward(dy, kept, cut, HbmCounter(), seen)
    assert (dq[..., [3, 17], :] == 0).all()
    assert np.isfinite(dk).all()
    assert np.isfinite(dv).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("seq_len", "head_dim", "columns"), [(64, 8, 16), (96, 16, 32), (64, 8, 64)])
def test_counted_traffic_is_the_kernel_models_formula(
    seq_len: int, head_dim: int, columns: int, backward: bool, causal: bool
) -> None:
    """K and V once (and their gradients); Q, the output and the statistics once for each block of K and V."""
    batch, heads, on_chip = 2, 3, 4 * head_dim * columns
    q, k, v, dy = (drawn(i, batch, heads, seq_len, head_dim, dtype="float32") for i in range(4))
    cut = tiles(seq_len, head_dim, on_chip, causal=causal)
    forward, back = HbmCounter(), HbmCounter()
    _, kept = flash(q, k, v, cut, forward)
    flash_backward(dy, kept, cut, back)
    kernel = Attention("", batch, heads, heads, seq_len, head_dim, causal=causal, backward=backward)
    told = attention_bytes(kernel, 4, 1, on_chip * 4)
    walks = (ceil(seq_len / columns) + 1) / 2 if causal else ceil(seq_len / columns)
    one, statistics = q.nbytes, 4 * batch * heads * seq_len
    by_hand = 4 * one + walks * (5 * one + 2 * statistics) if backward else 2 * one + walks * (3 * one + 4 * statistics)
    assert (back if backward else forward).total == by_hand == told


@settings(derandomize=True, max_examples=25)
@given(st.integers(1, 6), st.integers(1, 200), st.integers(1, 80), st.integers(0, 10**6))
def test_softmax_is_one_function_with_four_three_or_two_accesses(rows: int, n: int, block: int, seed: int) -> None:
    x = drawn(seed, rows, n) * 30
    x[0] = -np.inf
    counts = [HbmCounter(), HbmCounter(), HbmCounter()]
    found = [three_pass(x, counts[0], block), online(x, counts[1], block), fused(x, counts[2])]
    np.testing.assert_allclose(found[1], found[0], atol=1e-14)
    np.testing.assert_allclose(found[2], found[0], atol=1e-14)
    assert (found[0][0] == 0).all()
    np.testing.assert_allclose(found[0][1:].sum(axis=1), 1.0)
    assert [(c.read / x.nbytes, c.written / x.nbytes) for c in counts] == [(3, 1), (2, 1), (1, 1)]


SOFTMAXES = {three_pass: 4, online: 3, fused: 2}


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_attention_is_one_function(softmax: Softmax, dtype: str) -> None:
    """With rows that see nothing: three ways through HBM against tiles, forward and backward."""
    seen = np.random.default_rng(1).random((48, 48)) < 0.5
    seen[[0, 31]] = False
    q, k, v, dy = (drawn(i, 2, 3, 48, 8, dtype=dtype) for i in range(4))
    out, weights = unfused_attention(q, k, v, softmax, HbmCounter(), seen)
    cut = tiles(48, 8, 16 * 8 * 4, causal=False)
    tiled, kept = flash(q, k, v, cut, HbmCounter(), seen)
    near(tiled, out, TOLERANCE[dtype])
    gradients = unfused_attention_backward(dy, q, k, v, weights, HbmCounter())
    for found, right in zip(flash_backward(dy, kept, cut, HbmCounter(), seen), gradients, strict=True):
        near(found, right, TOLERANCE[dtype])


@pytest.mark.parametrize("softmax", SOFTMAXES, ids=lambda f: f.__name__)
@pytest.mark.parametrize(("seq_len", "head_dim"), [(64, 8), (96, 16), (17, 4)])
def test_counted_traffic_with_scores_in_memory_is_the_formula(softmax: Softmax, seq_len: int, head_dim: int) -> None:
    """Forward: Q, K, V and the output once, scores written, masked, softmaxed, read; backward 8 arrays, 7 scores."""
    batch, heads = 2, 3
    q, k, v, dy = (drawn(i, batch, heads, seq_len, head_dim, dtype="float32") for i in range(4))
    forward, back = HbmCounter(), HbmCounter()
    _, weights = unfused_attention(q, k, v, softmax, forward, np.tri(seq_len, dtype=np.bool_))
    unfused_attention_backward(dy, q, k, v, weights, back)
    one, scores = q.nbytes, 4 * batch * heads * seq_len**2
    assert forward.total == 4 * one + (1 + 2 + SOFTMAXES[softmax] + 1) * scores
    assert back.total == 8 * one + (1 + 1 + 3 + 1 + 1) * scores
    if softmax is fused:  # which the kernel model takes
        model = load_model({"model_type": "gpt2", "n_embd": heads * head_dim, "n_layer": 1, "n_head": heads,
                            "n_positions": seq_len, "vocab_size": 8})  # fmt: skip
        operations = layer_operations(model, Batch(batch, seq_len, 4, "standard"))
        ours = [op for op in operations if op.name in ("scores", "softmax", "attention")]
        assert forward.total == sum(kernel.nbytes(4) for op in ours for kernel in op.forward)
        assert back.total == sum(kernel.nbytes(4) for op in ours for kernel in op.backward)
