"""What PyTorch's caching allocator loses in fragments, and expandable segments do not."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from simulator.basics.errors import OutOfMemoryError
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.artifacts import ArtifactWriter


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
    # Fewer bytes than the GPU has, and yet too many: whoever reads the share must learn why.
    assert "), does not fit because of fragmentation" in played_on.because
    assert "does not fit" not in report.because


@pytest.mark.parametrize("allocator", ["caching", "expandable_segments"])
def test_what_is_said_to_fit_fits_with_its_fragments(allocator: str) -> None:
    # With full checkpointing the bytes themselves fit either way; fragments of a caching allocator are too many.
    # Gradients of the first micro-batch lie in the holes that the second one needs.
    training = {"model": "llama3_8b", "seq_len": 35840, "sharding": "zero3", "allocator": allocator}
    training |= {"gradient_accumulation_steps": 2}
    step = {"name": "long", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": training}
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(load_scenario(step))
    full = load_scenario(step | {"training": training | {"activation_checkpointing": "full"}})
    report = simulate(full, limit_memory=False).report
    assert report.peak_memory_bytes < caught.value.capacity  # type: ignore[union-attr]
    assert report.fits == (allocator == "expandable_segments")  # type: ignore[union-attr]
    assert (("changes that make the step fit: activation_checkpointing: full (") in str(caught.value)) == report.fits  # type: ignore[union-attr]
    # Where fragments are too many, the other allocator has to come with it.
    both = (
        "changes that make the step fit: allocator: expandable_segments and activation_checkpointing: full (needs "
        "about "
    )
    assert (both in str(caught.value)) != report.fits  # type: ignore[union-attr]


def test_a_run_leaves_a_snapshot_that_says_what_was_held(tmp_path: Path) -> None:
    scenario = points(load_scenario("zero_stages"))[-1].scenario.replaced(plots=())
    run = simulate(scenario)
    ArtifactWriter(tmp_path, single=True, trace=True)(0, run)
    snapshot = pickle.loads((tmp_path / "memory_rank0.pickle").read_bytes())
    assert set(snapshot) >= {"segments", "device_traces"}
    held = sum(
        b["requested_size"] for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"
    )
    # After the step only model states are left.
    assert held == run.timeline.memory[-1].nbytes
