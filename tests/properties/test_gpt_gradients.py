"""Every gradient of the numpy GPT against finite differences in float64."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.dropout import Draw
from simulator.numerics.exchange import alone
from simulator.numerics.gpt import Gpt, Parameters

DOUBLE = arithmetic("float64")
sizes = st.tuples(st.integers(3, 9), st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(1, 2))


def drawn(seed: int, shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def slope(value: object, along: Array, array: Array) -> float:
    """Central difference of a function of no arguments, as `array` moves along a direction."""
    step = 1e-6
    array += step * along
    above = value()  # type: ignore[operator]
    array -= 2 * step * along
    below = value()  # type: ignore[operator]
    array += step * along
    return float((above - below) / (2 * step))


@pytest.mark.parametrize("attention", ["standard", "flash"])
@settings(derandomize=True, max_examples=40)
@given(sizes, st.booleans(), st.sampled_from([0.0, 0.3]), st.integers(0, 10**6))
def test_every_units_gradients_are_the_slopes_of_its_output(
    attention: Literal["standard", "flash"], size: tuple[int, int, int, int, int], tied: bool, dropout: float, seed: int
) -> None:
    vocabulary, heads, half, seq_len, batch = size
    gpt = Gpt(vocabulary, 2 * half * heads, heads, seq_len, 1, DOUBLE, attention, tied, dropout)
    draw = Draw(dropout, (seed,))
    values = {u: {name: drawn(seed + len(name), shape) for name, shape in gpt.shapes(u).items()} for u in gpt.units}
    for unit in gpt.units:
        p = gpt.used(unit, values)
        tokens = np.random.default_rng(seed).integers(0, vocabulary, (batch, seq_len))
        x = tokens if unit == "embedding" else drawn(seed + 99, (batch, seq_len, gpt.width))
        out, cache = alone(gpt.forward(unit, p, x, draw))
        weights = drawn(seed + 7, out.shape)

        def value(unit: str = unit, p: Parameters = p, x: Array = x, weights: Array = weights) -> float:
            return float((alone(gpt.forward(unit, p, x, draw))[0] * weights).sum())

        dx, found = alone(gpt.backward(unit, p, cache, weights, draw))
        assert set(found) == set(p)
        for name, array in p.items():
            along = drawn(seed + 3, array.shape)
            assert float((found[name] * along).sum()) == pytest.approx(slope(value, along, array), rel=1e-5, abs=1e-6)
        if dx is not None:
            along = drawn(seed + 4, x.shape)
            assert float((dx * along).sum()) == pytest.approx(slope(value, along, x), rel=1e-5, abs=1e-6)


@settings(derandomize=True, max_examples=25)
@given(st.integers(1, 6), st.integers(2, 9), st.integers(0, 10**6))
def test_the_losss_gradient_is_its_slope(rows: int, vocabulary: int, seed: int) -> None:
    logits = drawn(seed, (rows, vocabulary))
    targets = np.random.default_rng(seed).integers(0, vocabulary, rows)
    _, kept = layers.cross_entropy(logits, targets)
    along = drawn(seed + 1, logits.shape)
    found = float((layers.cross_entropy_backward(kept, targets, 3.0) * along).sum())
    assert found == pytest.approx(3 * slope(lambda: layers.cross_entropy(logits, targets)[0], along, logits), rel=1e-6)
