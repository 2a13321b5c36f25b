"""Adding arrays as hardware does, against exact arithmetic."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pytest

from simulator.basics import dtypes
from simulator.collectives.payload.reduction import (
    REDUCTIONS,
    accumulate_into,
    divide,
    exact,
    finished,
    overflowed,
    rounded,
)
from tests.playing import Array

NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")


def all_values(name: str) -> Array:
    """Every finite value of an 8-bit dtype, or a spread of those of a 16-bit one."""
    kind = dtypes.find(name)
    raw = np.arange(2**kind.bits, dtype=f"u{kind.itemsize}")
    values = (raw if kind.bits == 8 else raw[::97]).view(kind.numpy)
    return values[np.isfinite(values.astype(np.float32))]


def nearest(values: list[float], true: float) -> set[float]:
    """The values that are nearest to a number, both where two are as near; exact for small sums of 8-bit floats."""
    place = bisect_left(values, true)
    near = values[max(0, place - 1) : place + 1]
    return {v for v in near if abs(v - true) == min(abs(w - true) for w in near)}


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_every_sum_of_two_8_bit_floats_is_correctly_rounded(name: str) -> None:
    values = all_values(name)
    a, b = (grid.ravel() for grid in np.meshgrid(values[::3], values[::2]))
    total = a.copy()
    accumulate_into(total, b, "sum")
    largest, known = dtypes.find(name).largest, sorted({float(v) for v in values})
    for x, y, got in zip(a.astype(float).tolist(), b.astype(float).tolist(), total.astype(float).tolist(), strict=True):
        if abs(x + y) <= largest:
            assert got in nearest(known, x + y), (x, y)


@pytest.mark.parametrize("name", NARROW)
@pytest.mark.parametrize("reduction", ["sum", "product"])
def test_narrow_floats_are_rounded_once_from_the_exact_result(name: str, reduction: str) -> None:
    values = all_values(name)
    a, b = values, np.roll(values, 31)
    total = a.copy()
    accumulate_into(total, b, reduction)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    true = wide_a + wide_b if reduction == "sum" else wide_a * wide_b
    # float64 holds sums and products of 11-bit numbers of this range well enough to round from.
    with np.errstate(over="ignore"):
        wanted = true.astype(a.dtype)
    held = np.isfinite(wanted.astype(np.float32))
    assert np.array_equal(total.astype(np.float32)[held], wanted.astype(np.float32)[held])


def test_integers_wrap_round() -> None:
    for name, a, b, wanted in (
        ("int8", 127, 1, -128),
        ("uint8", 255, 2, 1),
        ("int32", 2**31 - 1, 1, -(2**31)),
        ("int64", 2**63 - 1, 1, -(2**63)),
    ):
        total = np.array([a], name)
        accumulate_into(total, np.array([b], name), "sum")
        assert total.tolist() == [wanted]


@pytest.mark.parametrize(
    ("reduction", "wanted"), [("sum", 5.0), ("average", 5.0), ("max", 3.0), ("min", 2.0), ("product", 6.0)]
)
def test_reductions_do_what_their_names_say(reduction: str, wanted: float) -> None:
    total = np.array([2.0], np.float32)
    accumulate_into(total, np.array([3.0], np.float32), reduction)
    assert total.tolist() == [wanted]
    assert reduction in REDUCTIONS


def test_a_nan_stays() -> None:
    for reduction in REDUCTIONS:
        total = np.array([np.nan, 1.0], np.float16)
        accumulate_into(total, np.array([1.0, np.nan], np.float16), reduction)
        assert np.isnan(total).all()


@pytest.mark.parametrize("name", ["float64", "float32", *NARROW])
def test_a_division_is_rounded_once(name: str) -> None:
    values = all_values(name) if name in NARROW else np.linspace(-3, 3, 1001).astype(name)
    for n in (2, 3, 7, 64):
        wanted = (values.astype(np.float64) / n).astype(values.dtype)
        assert np.array_equal(divide(values, n).astype(np.float64), wanted.astype(np.float64))


def test_a_finished_average_is_divided_before_it_is_rounded() -> None:
    total = np.array([1.0 + 2.0**-8], np.float32)
    # Half of it is a tie of bfloat16 (8 bits) that goes to even; rounding first would do the same only by luck.
    assert float(finished(total, "average", 1, dtypes.find("bfloat16").numpy)[0]) == 1.0
    assert float(finished(np.array([3.0], np.float32), "average", 2, np.float16)[0]) == 1.5
    assert finished(total, "sum", 2, np.float32) is total


def test_too_large_becomes_infinite_or_nan() -> None:
    assert np.isinf(rounded(np.array([1e6], np.float32), np.float16)).all()
    assert np.isnan(rounded(np.array([1e6], np.float32), dtypes.find("float8_e4m3fn").numpy).astype(np.float32)).all()


def test_the_exact_result_is_exact_for_integers() -> None:
    big = [np.array([2**62, -(2**62), 3], np.int64)] * 5
    assert [int(v) for v in exact(big, "sum")] == [5 * 2**62, -5 * 2**62, 15]
    small = [np.array([127, -128], np.int8)] * 3
    assert exact(small, "sum").tolist() == [381.0, -384.0]
    assert exact(small, "product").astype(float).tolist() == [127.0**3, -(128.0**3)]


def test_the_exact_average_of_one_is_itself() -> None:
    x = [np.array([3.0], np.float32)]
    assert exact(x, "average").tolist() == [3.0]
    assert exact(x * 4, "average").tolist() == [3.0]


@pytest.mark.parametrize(
    ("name", "values", "count"),
    [
        # Beyond the largest and half a step of it a number is rounded to infinity: 65,504 + 16.
        ("float16", [65_504.0, 65_519.0, 65_520.0, -65_520.0, np.inf, np.nan], 2),
        ("bfloat16", [3.38e38, 3.5e38], 1),
        ("float8_e4m3fn", [448.0, 464.0, 500.0], 1),
        ("float8_e5m2", [57_344.0, 61_440.0, 1e6], 2),
        ("int8", [127, 128, -128, -129], 2),
        ("uint8", [255, 256, 0, -1], 2),
        ("float32", [3.4e38, 1e39], 1),
    ],
)
def test_overflow_is_what_the_dtype_cannot_hold(name: str, values: list[float], count: int) -> None:
    assert overflowed(np.array(values, np.float64), dtypes.find(name)) == count
