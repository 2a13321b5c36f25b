"""Real gloo collectives of 4 processes, met bit for bit by a ring that runs the other way round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.collectives.algorithm import CollectiveRequest
from tests.golden.gpt import initial, model, tokens
from tests.playing import Array, played, same_bits, star

GOLDEN = Path(__file__).parent / "gloo_allreduce_shared.npz"
W = 4
BACKWARDS = (0, 3, 2, 1)
DTYPES = {"fp32": "float32", "fp16": "float16"}


@pytest.fixture(scope="module")
def golden() -> dict[str, Array]:
    with np.load(GOLDEN) as file:
        return dict(file)


def ring(operation: str, start: list[Array], dtype: str, order: tuple[int, ...] = BACKWARDS) -> list[Array]:
    request = CollectiveRequest(operation, W, len(start[0]), rank_order=order)
    return played(star(W), "ring", request, dtype=dtype, start=start).results


@pytest.mark.parametrize("short", DTYPES)
def test_the_ring_backwards_gives_gloos_all_reduce(golden: dict[str, Array], short: str) -> None:
    results = ring("all_reduce", list(golden[f"W4_{short}_in"]), DTYPES[short])
    assert all(same_bits(result, golden[f"W4_{short}_out"]) for result in results)


@pytest.mark.parametrize("short", DTYPES)
def test_the_ring_backwards_gives_gloos_reduce_scatter(golden: dict[str, Array], short: str) -> None:
    results = ring("reduce_scatter", list(golden[f"W4_{short}_in"]), DTYPES[short])
    assert all(same_bits(*pair) for pair in zip(results, golden[f"W4_{short}_reduce_scatter"], strict=True))


@pytest.mark.parametrize("short", DTYPES)
def test_all_gather_gives_gloos_bits(golden: dict[str, Array], short: str) -> None:
    gathered = golden[f"W4_{short}_all_gather"]
    part = len(gathered) // W
    start = [np.zeros_like(gathered) for _ in range(W)]
    for rank in range(W):
        start[rank][rank * part : (rank + 1) * part] = gathered[rank * part : (rank + 1) * part]
    assert all(same_bits(result, gathered) for result in ring("all_gather", start, DTYPES[short]))


@pytest.mark.parametrize("short", DTYPES)
def test_another_order_gives_other_bits(golden: dict[str, Array], short: str) -> None:
    # Otherwise the tests above would say nothing about the order.
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        results = ring("all_reduce", list(golden[f"W4_{short}_in"]), DTYPES[short], order)
        assert not same_bits(results[0], golden[f"W4_{short}_out"])


@pytest.mark.parametrize("kind", DTYPES)
def test_gradients_in_a_bucket_are_summed_in_gloos_order(kind: str) -> None:
    """Chunk c starts with rank c - 1, then c - 2, ..., its own last: a ring whose ranks are reversed, bit for bit."""
    gpt, dtype = model("float32"), DTYPES[kind]
    parts = [gpt.gradients(initial(gpt), rows)[1] for rows in np.split(tokens(0), 4)]
    names = [name for unit in gpt.units for name in gpt.shapes(unit)]
    packed = [np.concatenate([part[n].ravel() for n in reversed(names)]) / np.float32(4) for part in parts]
    sent = [array.astype(dtype) for array in packed]
    assert len(sent[0]) % 4 == 0
    request = CollectiveRequest("all_reduce", 4, len(sent[0]), rank_order=(0, 3, 2, 1))
    carried = played(star(4), "ring", request, dtype=dtype, start=[array.copy() for array in sent]).results
    chunks = np.split(np.arange(len(sent[0])), 4)
    for c, chunk in enumerate(chunks):
        total = sent[(c - 1) % 4][chunk].copy()
        for back in (2, 3, 4):
            total = total + sent[(c - back) % 4][chunk]
        for array in carried:
            np.testing.assert_array_equal(array[chunk], total)
