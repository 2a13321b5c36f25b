"""Memory as PyTorch's snapshot, over time, and at the peaks of several runs."""

from __future__ import annotations

import copy
import pickle
import pickletools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.text import Text

from simulator.engine.allocator import NoRoomError
from simulator.engine.allocator_log import LoggedAllocator
from simulator.records.memory_margin import MemoryMargin
from simulator.records.timeline import AllocatorEvent, MemorySample, Timeline
from simulator.report.numbers.memory_at import allocations_at, large_over_time
from simulator.report.numbers.memory_steps import thinned
from simulator.report.plots import style
from simulator.report.plots.plot import CloseUp
from simulator.report.plots.training import memory as plot_memory
from simulator.report.plots.training import memory_peaks as plot_memory_peaks
from simulator.report.plots.training.memory_peaks import Peak
from simulator.report.traces.memory_snapshot import reserved, snapshot, write

MIB, GIB = 2**20, 2**30


def step(name: str = "caching") -> LoggedAllocator:
    """Weights that stay, a batch that goes, a buffer on another stream, a small tensor."""
    memory = LoggedAllocator(name, 1 * GIB)
    memory.allocate("weights", 100 * MIB - 5, now=0.0, category="parameters")
    memory.allocate("batch", 300 * MIB, now=1.0, category="activations")
    memory.allocate("bucket", 25 * MIB, now=2.0, category="buffers", stream=20)
    memory.allocate("scale", 4, now=3.0)
    memory.free("batch", now=4.0)
    memory.allocate("layer_start;0", 7 * MIB, now=5.0, category="activations")
    return memory


def blocks(shot: dict[str, Any]) -> list[dict[str, Any]]:
    return [block for segment in shot["segments"] for block in segment["blocks"]]


# --- The snapshot -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["caching", "expandable_segments"])
def test_blocks_fill_their_segments_and_hold_what_was_asked_for(name: str) -> None:
    memory = step(name)
    shot = snapshot(memory.events)
    for segment in shot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address
            address += block["size"]
    assert sum(segment["total_size"] for segment in shot["segments"]) == memory.allocator.reserved
    assert sum(segment["allocated_size"] for segment in shot["segments"]) == memory.allocator.allocated
    held = {b["frames"][0]["name"]: b["requested_size"] for b in blocks(shot) if b["state"] == "active_allocated"}
    assert held == {"weights": 100 * MIB - 5, "bucket": 25 * MIB, "scale": 4, "layer start,0": 7 * MIB}


def test_the_segments_of_a_snapshot_are_those_of_the_allocator() -> None:
    for name in ("caching", "expandable_segments"):
        memory = step(name)
        told = [
            (segment["address"], [(b["size"], b["state"] == "active_allocated") for b in segment["blocks"]])
            for segment in snapshot(memory.events)["segments"]
        ]
        assert told == [(run[0].address, [(b.size, b.held) for b in run]) for run in memory.allocator.segments()]


def test_a_free_is_requested_and_completed() -> None:
    (trace,) = snapshot(step().events)["device_traces"]
    actions = [entry["action"] for entry in trace]
    segment = "segment_alloc"
    assert actions == [
        segment, "alloc", segment, "alloc", segment, "alloc", segment, "alloc",
        "free_requested", "free_completed", "alloc",
    ]  # fmt: skip
    assert [entry["time_us"] for entry in trace][-3:] == [4_000_000, 4_000_000, 5_000_000]
    assert {entry["stream"] for entry in trace} == {0, 20}


def test_labels_are_the_innermost_frames_and_categories_around_them() -> None:
    (trace,) = snapshot(step().events)["device_traces"]
    assert [frame["name"] for frame in trace[1]["frames"]] == ["weights", "parameters"]
    assert [frame["name"] for frame in trace[0]["frames"]] == ["large pool"]
    assert [frame["name"] for frame in trace[-1]["frames"]] == ["layer start,0", "activations"]


def test_every_event_has_a_category_and_unknown_is_one() -> None:
    (trace,) = snapshot(step().events)["device_traces"]
    assert {entry["category"] for entry in trace} == {"unknown", "parameters", "activations", "buffers"}


def test_a_snapshot_until_the_peak_holds_what_is_freed_later() -> None:
    shot = snapshot(step().events, until=3.0)
    assert "batch" in {frame["name"] for block in blocks(shot) for frame in block["frames"]}
    assert "free_requested" not in {entry["action"] for entry in shot["device_traces"][0]}


def test_segments_know_their_pool_and_whether_they_can_grow() -> None:
    kinds = [(s["segment_type"], s["is_expandable"]) for s in snapshot(step().events)["segments"]]
    assert sorted(kinds) == [("large", False), ("large", False), ("large", False), ("small", False)]
    kinds = [(s["segment_type"], s["is_expandable"]) for s in snapshot(step("expandable_segments").events)["segments"]]
    assert sorted(kinds) == [("large", True), ("large", True), ("small", True)]


def test_an_allocation_that_does_not_fit_says_what_the_device_has_left() -> None:
    memory = LoggedAllocator("caching", 100 * MIB)
    with pytest.raises(NoRoomError):
        memory.allocate("batch", 200 * MIB, now=0.5)
    (trace,) = snapshot(memory.events)["device_traces"]
    assert (trace[0]["action"], trace[0]["size"], trace[0]["device_free"]) == ("oom", 200 * MIB, 100 * MIB)
    assert "addr" not in trace[0]


def test_a_segment_that_went_back_is_gone() -> None:
    memory = LoggedAllocator("caching", 100 * MIB)
    memory.allocate("small one", 60 * MIB, now=0.0)
    memory.free("small one", now=1.0)
    memory.allocate("large one", 80 * MIB, now=2.0)
    assert [segment["total_size"] for segment in snapshot(memory.events)["segments"]] == [80 * MIB]


def test_pages_at_the_end_of_a_segment_go_back_first_where_they_are_free() -> None:
    memory = LoggedAllocator("expandable_segments", 100 * MIB)
    memory.allocate("a", 40 * MIB, now=0.0)
    memory.allocate("b", 40 * MIB, now=0.0)
    memory.free("b", now=1.0)
    memory.allocate("c", 60 * MIB, now=2.0, stream=20)
    assert [segment["total_size"] for segment in snapshot(memory.events)["segments"]] == [40 * MIB, 60 * MIB]


def test_unmapped_pages_part_a_segment() -> None:
    memory = LoggedAllocator("expandable_segments", 200 * MIB)
    for label, mib in (("a", 40), ("b", 60), ("c", 40)):
        memory.allocate(label, mib * MIB, now=0.0)
    memory.free("b", now=1.0)
    memory.allocate("d", 120 * MIB, now=2.0)  # 60 MIB are left, so the hole's pages move to the end
    shot = snapshot(memory.events)
    assert [s["total_size"] // MIB for s in shot["segments"]] == [40, 40 + 120]
    assert "segment_unmap" in {entry["action"] for entry in shot["device_traces"][0]}


def test_the_pickle_can_be_read_by_the_viewer_and_is_the_same_for_equal_events(tmp_path: Path) -> None:
    events = step().events
    first = write(events, tmp_path / "memory" / "rank0.pickle").read_bytes()
    again = pickle.loads(pickle.dumps(copy.deepcopy(events)))
    assert write(again, tmp_path / "rank0.pickle").read_bytes() == first
    assert pickle.loads(first) == snapshot(events)
    # All that MemoryViz.js knows: protocol 4 at most, no objects, integers of at most 8 bytes.
    known = {
        "PROTO", "FRAME", "MEMOIZE", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND",
        "APPENDS", "SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "NEWTRUE", "NEWFALSE",
        "TUPLE2", "BINGET", "LONG_BINGET",
    }  # fmt: skip
    assert {code.name for code, _, _ in pickletools.genops(first)} <= known
    assert first[1] == 4
    assert all(segment["address"] + segment["total_size"] < 2**53 for segment in pickle.loads(first)["segments"])


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (AllocatorEvent(0.0, "lost", 0, 1), "got action 'lost'; one of alloc, free, oom"),
        (AllocatorEvent(0.0, "free", 0, 1, "a"), "'a' frees 0x0, which is not held"),
        (AllocatorEvent(0.0, "alloc", 4096, 1, "a"), "alloc of 'a' at 0x1000 lies in no segment"),
        (AllocatorEvent(0.0, "segment_free", 0, 1, "large"), "lies in no segment"),
    ],
)
def test_events_that_contradict_each_other_are_refused(event: AllocatorEvent, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        snapshot([event])


def test_what_is_reserved_is_told_each_time_that_it_changes() -> None:
    memory = LoggedAllocator("caching", 100 * MIB)
    memory.allocate("a", 60 * MIB, now=1.0)
    memory.free("a", now=2.0)
    memory.allocate("b", 80 * MIB, now=3.0)
    assert reserved(memory.events) == ((1.0, 60 * MIB), (3.0, 0), (3.0, 80 * MIB))


@settings(max_examples=60)
@given(
    st.sampled_from(["caching", "expandable_segments"]),
    st.lists(st.one_of(st.integers(0, 99), st.integers(1, 90 * MIB).map(lambda n: -n)), min_size=8, max_size=40),
)
def test_a_snapshot_of_any_log_is_what_the_allocator_holds(name: str, steps: list[int]) -> None:
    memory = LoggedAllocator(name, 150 * MIB)
    live: list[str] = []
    for time, number in enumerate(steps):
        if number < 0:
            try:
                memory.allocate(f"t{time}", -number, now=float(time), stream=number % 2)
            except NoRoomError:
                continue
            live.append(f"t{time}")
        elif live:
            memory.free(live.pop(number % len(live)), now=float(time))
    told = [
        (s["address"], s["stream"], [(b["size"], b["state"] == "active_allocated") for b in s["blocks"]])
        for s in snapshot(memory.events)["segments"]
    ]
    runs = memory.allocator.segments()
    assert told == [(run[0].address, run[0].pool.stream, [(b.size, b.held) for b in run]) for run in runs]


def test_pytorch_s_own_tools_read_the_snapshot() -> None:
    viz = pytest.importorskip("torch.cuda._memory_viz")
    for name in ("caching", "expandable_segments"):
        shot = snapshot(step(name).events)
        assert "total_allocated" in viz.segsum(copy.deepcopy(shot))
        assert "cudaMalloc" in viz.trace(copy.deepcopy(shot)) or name == "expandable_segments"
        assert "parameters" in viz.memory(copy.deepcopy(shot), format_flamegraph=str)


# --- Over time --------------------------------------------------------------------------------------------------------


def sample(time: float, **held: int) -> MemorySample:
    return MemorySample(3, time, sum(held.values()), tuple(sorted(held.items())))


STAIRS = (
    sample(0.0, parameters=2 * GIB),
    sample(0.1, parameters=2 * GIB, activations=4 * GIB),
    sample(0.2, parameters=2 * GIB, activations=1 * GIB, gradients=1 * GIB),
    sample(0.3, parameters=2 * GIB),
)


def texts(drawn: Figure) -> set[str]:
    return {text.get_text() for text in drawn.findobj(Text)}


def test_the_finding_tells_height_moment_largest_category_and_distance() -> None:
    assert plot_memory.finding(STAIRS, MemoryMargin(7 * GIB, 8 * GIB)) == (
        "rank 3 peaks at 6 GiB after 100 ms (67 % activations); "
        "the step fits in 8 GiB (reserved memory 7 GiB, 1 GiB free)"
    )
    assert plot_memory.finding(STAIRS, MemoryMargin(7 * GIB, 5 * GIB)).endswith(
        "activations); the step does not fit in 5 GiB (reserved memory 7 GiB, 2 GiB missing)"
    )
    assert plot_memory.finding(STAIRS).endswith("(67 % activations)")
    assert plot_memory.finding([sample(0.0)]) == "rank 3 peaks at 0 B after 0 s"


def test_of_several_equal_peaks_the_first_is_meant() -> None:
    twice = (*STAIRS, sample(0.4, activations=6 * GIB))
    assert plot_memory.peak_of(twice).time == 0.1


def test_no_samples_and_those_of_several_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="no memory samples"):
        plot_memory.finding([])
    with pytest.raises(ValueError, match="ranks 0, 3"):
        plot_memory.over_time([MemorySample(0, 0.0, 0, ()), *STAIRS])


def test_what_stays_lies_at_the_bottom_and_steps_reach_the_end() -> None:
    names, layers, times = plot_memory._layers(STAIRS, 0.5)
    assert names == ["parameters", "gradients", "activations"]
    assert times == [0.0, 0.1, 0.2, 0.3, 0.5]
    assert layers["activations"] == [0, 4 * GIB, 1 * GIB, 0, 0]


def test_a_million_steps_are_thinned_without_losing_the_peak_or_the_end() -> None:
    samples = [sample(i * 1e-6, a=i % 7) for i in range(20_000)]
    samples[12_345] = sample(12_345e-6, a=1000)
    kept = thinned(samples, samples[-1].time, 2000)
    assert len(kept) <= 2002
    assert samples[12_345] in kept
    assert kept[-1] == samples[-1]
    assert [s.time for s in kept] == sorted(s.time for s in kept)


def test_more_categories_than_colours_become_one_layer_of_all_others() -> None:
    many = [sample(0.0, **{f"c{i}": (i + 1) * MIB for i in range(12)})]
    names, layers, _ = plot_memory._layers(many, 1.0)
    assert names == ["c10", "c11", "c5", "c6", "c7", "c8", "c9", "other"]
    assert layers["other"][0] == sum(range(1, 6)) * MIB
    assert len(set(style.colours(names).values())) == 8


def test_categories_are_stacked_in_one_order_and_empty_ones_left_out() -> None:
    held = [{"activations": 3 * GIB, "buffers": 0, "own": 1}, {"optimizer": 1, "parameters": 2}]
    assert plot_memory.shown_categories(held) == ["parameters", "optimizer", "activations", "own"]


def test_the_figure_shows_peak_capacity_and_what_is_held_then(tmp_path: Path) -> None:
    drawn = plot_memory.over_time(STAIRS, 8 * GIB, end=0.5, reserved=[(0.0, 2 * GIB), (0.1, 7 * GIB)])
    assert {"peak 6 GiB", "capacity 8 GiB", "activations  4 GiB", "gradients", "reserved  7 GiB"} <= texts(drawn)
    png = style.save(drawn, tmp_path, "memory", svg=True)
    assert png.stat().st_size > 10_000
    assert png.with_suffix(".svg").stat().st_size > 5_000


def test_a_capacity_far_above_is_told_instead_of_drawn() -> None:
    drawn = plot_memory.over_time(STAIRS, 80 * GIB, title="mine")
    assert {"capacity 80 GiB (beyond the axis)", "Mine"} <= texts(drawn)
    assert drawn.axes[0].get_ylim()[1] < 8 * GIB


def test_very_many_steps_are_drawn_without_edges_between_them() -> None:
    few, many = ([sample(i * 1e-3, a=1 + i % 2) for i in range(n)] for n in (100, 1000))
    assert len(plot_memory.over_time(few).axes[0].lines) == len(plot_memory.over_time(many).axes[0].lines) + 1


def test_a_rank_that_holds_nothing_can_be_drawn() -> None:
    assert plot_memory.over_time([sample(0.0)]).axes


@pytest.mark.parametrize(("highest", "expected"), [(80.0, 10.0), (8.0, 1.0), (1.0, 0.2), (700.0, 100.0)])
def test_ticks_are_ones_twos_and_fives_and_at_most_eight(highest: float, expected: float) -> None:
    assert plot_memory.tick_step(highest) == expected


# --- At the peaks -----------------------------------------------------------------------------------------------------


def zero(stage: str, parameters: int, gradients: int, optimizer: int) -> Peak:
    sizes = {"parameters": parameters, "gradients": gradients, "optimizer": optimizer}
    return Peak(stage, tuple((name, nbytes * GIB) for name, nbytes in sizes.items()))


# 1 G parameters in mixed precision on 8 GPUs: 2 + 2 + 12 bytes each, of which each stage divides one more by 8.
STAGES = (zero("ddp", 16, 16, 96), zero("zero1", 16, 16, 12), zero("zero2", 16, 2, 12), zero("zero3", 2, 2, 12))


def test_the_finding_compares_most_with_least_and_says_who_does_not_fit() -> None:
    start = "ddp needs 128 GiB, 8.0x as much as zero3 (16 GiB)"
    assert plot_memory_peaks.finding(STAGES) == start
    assert plot_memory_peaks.finding(STAGES, 128 * GIB) == f"{start}; all settings fit in 128 GiB"
    assert plot_memory_peaks.finding(STAGES, 40 * GIB) == f"{start}; ddp and zero1 do not fit in 40 GiB"
    assert plot_memory_peaks.finding(STAGES, 44 * GIB) == f"{start}; ddp does not fit in 44 GiB"
    assert plot_memory_peaks.finding(STAGES, 8 * GIB) == f"{start}; no setting fits in 8 GiB"


def test_runs_that_hold_the_same_are_told_together() -> None:
    assert plot_memory_peaks.finding(STAGES[:1]) == "ddp needs 128 GiB"
    twice = (STAGES[3], Peak("again", STAGES[3].by_category))
    assert plot_memory_peaks.finding(twice, 32 * GIB) == "all 2 settings peak at 16 GiB; all settings fit in 32 GiB"
    # 1 MiB of 16 GiB is no difference that three digits show.
    near = [Peak("one", (("optimizer", 16 * GIB),)), Peak("two", (("optimizer", 16 * GIB + MIB),))]
    assert plot_memory_peaks.finding(near) == "all 2 settings peak at 16 GiB"
    nothing = Peak("none", ())
    assert plot_memory_peaks.finding([STAGES[3], nothing]) == "zero3 needs 16 GiB, more than none (0 B)"


def test_no_runs_make_no_figure() -> None:
    with pytest.raises(ValueError, match="no settings"):
        plot_memory_peaks.composition([])


def test_bars_are_parted_in_one_order_and_told_in_numbers(tmp_path: Path) -> None:
    drawn = plot_memory_peaks.composition(STAGES, 80 * GIB)
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["ddp", "zero1", "zero2", "zero3"]
    assert [label.get_text() for label in drawn.legends[0].get_texts()] == ["parameters", "optimizer", "gradients"]
    assert {"128 GiB, too large", "44 GiB", "16 GiB", "96", "capacity 80 GiB"} <= texts(drawn)
    png = style.save(drawn, tmp_path, "peaks")
    assert png.stat().st_size > 10_000
    assert "capacity 80 GiB" not in texts(plot_memory_peaks.composition(STAGES))
    far = plot_memory_peaks.composition(STAGES[3:], 80 * GIB)
    assert "capacity 80 GiB" not in texts(far)
    assert far.axes[0].get_xlim()[1] < 20 * GIB


def test_matplotlib_is_not_loaded_before_something_is_drawn() -> None:
    code = (
        "import sys, simulator.report.plots.training.memory, simulator.report.plots.training.memory_peaks; "
        "sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_holders_are_those_of_the_peak_or_of_a_moment() -> None:
    timeline = Timeline("events", 6.0, (), allocations={3: tuple(step().events)})
    fullest = [(h.name, h.nbytes, h.since) for h in allocations_at(timeline, rank=3)]
    assert fullest == [
        ("batch", 300 * MIB, 1.0),
        ("weights", 100 * MIB - 5, 0.0),
        ("bucket", 25 * MIB, 2.0),
        ("scale", 4, 3.0),
    ]
    assert [h.name for h in allocations_at(timeline, 1.5, 3)] == ["batch", "weights"]
    assert [h.name for h in allocations_at(timeline, 4.0, 3)] == ["weights", "bucket", "scale"]
    with pytest.raises(ValueError, match="got rank 0; allocations are known of \\[3\\]"):
        allocations_at(timeline)


@pytest.mark.parametrize(
    ("share", "large"),
    [(0.5, {"batch"}), (0.2, {"batch", "weights", "layer"}), (0.05, {"batch", "weights", "layer", "bucket"})],
)
def test_allocations_are_large_together_if_their_names_differ_only_in_numbers(share: float, large: set[str]) -> None:
    """A peak of 425 MiB; three layers of 30 MiB together have 21 % of it, each alone 7 %, and the bucket 6 %."""
    memory = step()
    for layer in range(3):
        memory.allocate(f"layer {layer} activations", 30 * MIB, now=5.5, category="activations")
    timeline = Timeline("events", 6.0, (), allocations={3: tuple(memory.events)})
    lifetimes = large_over_time(timeline, 3, share)
    assert {one.holder.name.split()[0] for one in lifetimes} == large
    assert sum(one.holder.name.startswith("layer ") for one in lifetimes) == 3 * ("layer" in large)
    # The order is that of the allocations at a moment.
    assert [one.holder for one in lifetimes if one.until == 6.0] == [
        holder for holder in allocations_at(timeline, 6.0, 3) if holder.name.split()[0] in large
    ]


def test_the_rank_that_holds_most_is_drawn_and_holes_are_held_against_the_capacity() -> None:
    small, large = (MemorySample(rank, 0.0, (rank + 1) * GIB, (("activations", (rank + 1) * GIB),)) for rank in (0, 1))
    played = Timeline("events", 1.0, (), memory=(small, large), reserved={0: GIB, 1: 3 * GIB}, peak=large)
    drawn = plot_memory.PLOT.figure(CloseUp(played, 2.5 * GIB))
    assert drawn is not None
    title = " ".join(drawn.get_suptitle().split())
    assert title.startswith("Rank 1 peaks at 2 GiB")
    assert title.endswith("the step does not fit in 2.5 GiB (reserved memory 3 GiB, 512 MiB missing)")
