"""Number formats against numpy's and ml_dtypes' own figures."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from simulator.basics.dtypes import DTYPES, find
from simulator.basics.errors import UnknownNameError

STORED = [name for name, dtype in DTYPES.items() if not dtype.compute_only]


@pytest.mark.parametrize("name", STORED)
def test_sizes_and_limits_are_those_of_the_array_library(name: str) -> None:
    dtype = find(name)
    assert dtype.numpy.itemsize == dtype.itemsize == dtype.bits // 8
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)  # type: ignore[no-untyped-call]
        assert dtype.largest == float(info.max)
        assert dtype.smallest_normal == float(info.smallest_normal)
        # tf32 aside, a sign, the exponent and the fraction fill the bits.
        assert dtype.bits == 1 + dtype.exponent + dtype.fraction
        assert float(info.eps) == 2.0**-dtype.fraction
    else:
        limits = np.iinfo(dtype.numpy)
        assert dtype.largest == limits.max
        assert (dtype.kind == "uint") == (limits.min == 0)


def test_well_known_figures() -> None:
    assert find("float16").largest == 65_504
    assert find("bfloat16").largest == pytest.approx(3.39e38, rel=1e-3)
    assert find("float8_e4m3fn").largest == 448
    assert find("float8_e5m2").largest == 57_344
    tf32 = find("tf32", stored=False)
    assert (tf32.exponent, tf32.fraction, tf32.itemsize) == (8, 10, 4)


@pytest.mark.parametrize(
    ("alias", "meant"),
    [("fp32", "float32"), ("bf16", "bfloat16"), ("half", "float16"), ("e4m3", "float8_e4m3fn"), ("BF16", "bfloat16")],
)
def test_other_peoples_names_get_ours(alias: str, meant: str) -> None:
    with pytest.raises(UnknownNameError, match=f"did you mean '{meant}'"):
        find(alias)


def test_tf32_cannot_be_sent() -> None:
    with pytest.raises(UnknownNameError, match="tf32 is a compute format"):
        find("tf32")


def test_formats_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        DTYPES["mine"] = find("int8")  # type: ignore[index]
