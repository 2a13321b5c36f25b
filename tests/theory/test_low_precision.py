"""What adding low-precision numbers hop by hop costs: rms error relative to the exact sum of the rounded inputs.

The figures are means over random unit normals. With E elements the measured rms of errors and of sums scatter by about
1/sqrt(2E) each; another 3 % is left for the printed figures, which have two digits.
"""

from __future__ import annotations

import numpy as np
import pytest

from simulator.collectives.algorithm import CollectiveRequest
from tests.playing import played, star, starts

ELEMENTS = 16_384
PRINTED = 0.03
# ranks: (bf16 ring, bf16 tree, bf16 with float32 accumulation, fp16 ring, fp32 ring)
TABLE = {8: (3.7e-3, 3.1e-3, 1.7e-3, 4.5e-4, 5.7e-8), 64: (9.7e-3, 4.4e-3, 1.65e-3, 1.2e-3, 1.5e-7)}
COLUMNS = (
    ("ring", "bfloat16", "payload"),
    ("tree", "bfloat16", "payload"),
    ("ring", "bfloat16", "float32"),
    ("ring", "float16", "payload"),
    ("ring", "float32", "payload"),
)


def rms_error(n: int, algorithm: str, dtype: str, accumulate: str) -> float:
    request = CollectiveRequest("all_reduce", n, ELEMENTS)
    x = starts(request, dtype)
    exact = sum(a.astype(np.float64) for a in x)
    result = played(star(n), algorithm, request, dtype=dtype, accumulate=accumulate, start=x).results[0]
    error = result.astype(np.float64) - exact
    return float(np.sqrt(np.mean(error**2) / np.mean(exact**2)))


@pytest.mark.parametrize("n", TABLE)
@pytest.mark.parametrize("column", range(5), ids=["-".join(c) for c in COLUMNS])
def test_the_error_of_a_sum_is_that_of_the_table(n: int, column: int) -> None:
    algorithm, dtype, accumulate = COLUMNS[column]
    expected = TABLE[n][column]
    margin = PRINTED + 3 * 2 / np.sqrt(2 * ELEMENTS)
    # The last digit that is printed.
    digit = 0.5 * 10.0 ** (np.floor(np.log10(expected)) - 1)
    assert rms_error(n, algorithm, dtype, accumulate) == pytest.approx(expected, rel=margin, abs=digit)


def test_rounding_once_is_as_good_as_the_dtype_can_be_for_any_number_of_ranks() -> None:
    # Half a unit in the last place, spread evenly over a binade of sums: about 2^-9 / sqrt(3) x 1.4 and no more with N.
    few, many = (rms_error(n, "ring", "bfloat16", "float32") for n in (4, 32))
    assert few == pytest.approx(many, rel=0.1)
    assert rms_error(32, "ring", "bfloat16", "payload") > 3 * many


@pytest.mark.parametrize("algorithm", ["direct", "naive", "parameter_server", "tree", "halving_doubling"])
def test_float32_accumulation_rounds_once_in_every_algorithm(algorithm: str) -> None:
    n = 8
    request = CollectiveRequest("all_reduce", n, ELEMENTS)
    x = starts(request, "bfloat16")
    result = played(star(n, 1), algorithm, request, dtype="bfloat16", accumulate="float32", start=x).results[0]
    exact = sum(a.astype(np.float64) for a in x)
    # One rounding of the sum to 8 bits, after N - 1 additions rounded to 24 bits.
    magnitude = sum(np.abs(a.astype(np.float64)) for a in x)
    bound = np.abs(exact) * 2.0**-8 + magnitude * (n - 1) * 2.0**-23
    assert np.all(np.abs(result.astype(np.float64) - exact) <= bound)
