"""What is drawn for a rank, and what is kept of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.basics.dtypes import find
from simulator.collectives.payload import inputs

# The length of the sequence that a long array repeats: the largest prime below 2^18.
PERIOD = 262_139


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "uint8"])
def test_a_long_array_repeats_what_a_short_one_is(dtype: str) -> None:
    kind = find(dtype)
    short, long = (np.empty(length, kind.numpy) for length in (PERIOD, 3 * PERIOD + 5))
    for array in (short, long):
        inputs.draw(3, array, kind, 7)
    repeated = np.tile(short, 4)[: len(long)]
    assert long.tobytes() == repeated.tobytes()


def test_the_period_is_prime() -> None:
    assert all(PERIOD % divisor for divisor in range(2, 513))
    assert inputs._DRAWN == PERIOD


@settings(max_examples=100)
@given(st.data())
def test_what_is_kept_is_what_was_drawn(data: st.DataObject) -> None:
    kind = find("float32")
    first = data.draw(st.integers(0, 1000), "first")
    length = data.draw(st.one_of(st.integers(0, 5000), st.integers(PERIOD - 3, 2 * PERIOD + 3)), "length")
    buffer = np.zeros(first + length + 10, kind.numpy)
    part = slice(first, first + length)
    inputs.draw(1, buffer[part], kind, 0)
    kept, before = inputs.RandomInput(buffer, part), buffer.copy()
    buffer[:] = -1
    begin = data.draw(st.integers(first, first + length), "begin")
    end = data.draw(st.integers(begin, first + length), "end")
    assert len(kept) == len(before)
    assert kept[begin:end].tobytes() == before[begin:end].tobytes()
