"""What runs of chunks carry, against adding them up one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.records.chunks import run_elements


@settings(max_examples=200, derandomize=True)
@given(st.data())
def test_runs_of_chunks_are_added_up(data: st.DataObject) -> None:
    k = data.draw(st.integers(1, 25))
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=k, max_size=k))
    run = st.tuples(st.integers(0, k - 1), st.integers(0, k + 2), st.integers(1, k + 1))
    runs = data.draw(st.lists(run, min_size=1, max_size=12))
    expected = [sum(sizes[(first + i * step) % k] for i in range(count)) for first, count, step in runs]
    assert run_elements(*(np.array(column) for column in zip(*runs, strict=True)), np.array(sizes)).tolist() == expected
