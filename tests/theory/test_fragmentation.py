"""What PyTorch's caching allocator loses in fragments, and expandable segments do not."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import OutOfMemoryError
from simulator.run import simulate
from simulator.run_directory import Keeper
from simulator.scenario.load import load_scenario, points


def test_a_step_that_fails_with_caching_fits_with_expandable_segments() -> None:
    caching, expandable = (point.scenario for point in points(load_scenario("fragmentation")))
    with pytest.raises(OutOfMemoryError, match="ran out of memory"):
        simulate(caching)
    report = simulate(expandable).report
    played_on = simulate(caching, limit_memory=False).report
    # The bytes are the same: only where they lie differs.
    assert played_on.peak_memory_bytes == report.peak_memory_bytes  # type: ignore[union-attr]
    assert not played_on.fits  # type: ignore[union-attr]
    assert played_on.peak_reserved_bytes > report.peak_reserved_bytes  # type: ignore[union-attr]


def test_a_run_leaves_a_snapshot_that_says_what_was_held(tmp_path: Path) -> None:
    scenario = replace(points(load_scenario("zero_stages"))[-1].scenario, plots=())
    run = simulate(scenario)
    Keeper(tmp_path, single=True)(0, run)
    snapshot = pickle.loads((tmp_path / "memory_rank0.pickle").read_bytes())
    assert set(snapshot) >= {"segments", "device_traces"}
    held = sum(
        b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )
    # After the step only model states are left.
    assert held == run.timeline.memory[-1].nbytes
