"""Chunks of unlike sizes round a ring: the formula against the hops one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collectives.recurrence import advance_uneven

TIMES = st.sampled_from([0.0, 1e-6, 3.3e-6, 1e-4, 2e-3])


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[float], list[float], list[float], list[float], int]:
    """Ends, latencies, bytes of two or three sizes, rates, rounds; rates alike in half of all."""
    n = draw(st.integers(2, 11))

    def each(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=n, max_size=n))

    alike = draw(st.booleans())
    rate = st.sampled_from([1e9, 2.5e9, 1e10])
    rates = [draw(rate)] * n if alike else each(rate)
    sizes = draw(st.sampled_from([(4000.0, 4004.0), (4000.0, 4e5), (4000.0, 4004.0, 4e5)]))
    return each(TIMES), each(TIMES), each(st.sampled_from(sizes)), rates, draw(st.integers(1, 3 * n))


@settings(max_examples=400, derandomize=True)
@given(rings())
def test_uneven_chunks_go_round_as_hop_by_hop(
    ring: tuple[list[float], list[float], list[float], list[float], int],
) -> None:
    ends, latencies, nbytes, rates, rounds = ring
    n, now = len(ends), list(ends)
    for k in range(rounds):
        now = [max(now[r - 1] + latencies[r], now[r]) + nbytes[(r - k) % n] / rates[r] for r in range(n)]
    found = advance_uneven(*(np.array([column]) for column in (ends, latencies, nbytes, rates)), rounds)
    assert found[0].tolist() == pytest.approx(now, rel=1e-12)
