"""How many units zero3 holds whole at any time: the one at work and `prefetch` more, in the order of their turns.

FSDP's rule. Forward the units ahead are the next ones, backward those before; a unit that was freed after its forward
pass is gathered again, one that was not stays until its backward pass, and so does the last unit. Held bytes are those
of the played timeline; expected ones are counted here from the model's parameters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.step.parallelism import Parallelism
from tests.training import SHARDED, PlayedStep, play, step

MODEL = Transformer("seven layers", 7, 64, 4, 4, 16, 256, 512, 128)
# Gathers take next to no time, so that as much is held as may be; and so long that little is gathered ahead.
FAST, SLOW = (
    {"builder": "star", "options": {"bandwidth": bandwidth, "latency": "0 us"}, "gpu": "a100_sxm_80gb"}
    for bandwidth in ("1000 TB/s", "10 MB/s")
)
RANKS = 4
_BFLOAT16 = 2


@dataclass(frozen=True, slots=True)
class Units:
    """Bytes of the root (embedding and head) and of each unit of so many layers."""

    root: int
    blocks: list[int]
    layers: list[list[int]]

    @classmethod
    def of(cls, layers_per_unit: int) -> Units:
        embedding, *layers, head = (_BFLOAT16 * module.elements for module in modules(MODEL))
        numbers = list(range(len(layers)))
        units = [numbers[i : i + layers_per_unit] for i in range(0, len(layers), layers_per_unit)]
        return cls(embedding + head, [sum(layers[layer] for layer in unit) for unit in units], units)


def gathered(played: PlayedStep, rank: int, time: float) -> int:
    """Bytes that a rank holds of what was brought together [B]."""
    samples = [sample for sample in played.timeline.memory if sample.rank == rank]
    place = bisect_right(samples, time, key=lambda sample: sample.time)
    return dict(samples[place - 1].by_category).get("gathered", 0)


def at_work(played: PlayedStep, rank: int, name: str) -> float:
    """The middle of a kernel's span [s]."""
    (span,) = (s for s in played.timeline.spans if s.rank == rank and s.name == name)
    return (span.start + span.end) / 2


def turns(units: Units, prefetch: int, *, reshard: bool | int) -> Iterator[tuple[str, set[int], set[int]]]:
    """For each layer's pass: its name, the units that are whole meanwhile, and those of which only a part is there."""
    last = len(units.blocks) - 1
    for number, layers in enumerate(units.layers):
        ahead = set(range(number, min(number + prefetch, last) + 1))
        # When the last unit's turn has come all before it are gone, and the first to be used again come back.
        back = set(range(max(last - prefetch, 0), last)) if number == last else set()
        whole = ahead | back if reshard else ahead | set(range(number))
        for layer in layers:
            yield f"layer {layer} forward", whole, set(range(number))
    for number, layers in enumerate(units.layers):
        behind = set(range(max(number - prefetch, 0), number + 1))
        whole = behind if reshard else set(range(number + 1))
        for layer in layers:
            yield f"layer {layer} backward", whole, set(range(min(number, last - 1) + 1))


SETTINGS: list[tuple[int, bool | int, int]] = [
    *((prefetch, True, 1) for prefetch in (0, 1, 2, 3, 6, 9)),
    *((prefetch, True, size) for prefetch in (0, 1, 2) for size in (2, 3, 7)),
    *((prefetch, False, size) for prefetch in (0, 1, 3) for size in (1, 3)),
    *((prefetch, 2, size) for prefetch in (0, 1, 3) for size in (1, 3)),
]
NO_SYNC: dict[str, Any] = {"gradient_accumulation_steps": 2, "gradient_sync": "last"}
CASES = [(*setting, micros) for setting in SETTINGS for micros in ({}, NO_SYNC)]
CASES += [
    (1, True, 2, {"gradient_accumulation_steps": 3}),
    (2, 2, 1, {"gradient_accumulation_steps": 2, "activation_checkpointing": "full"}),
]


@pytest.mark.parametrize(("prefetch", "reshard", "size", "micros"), CASES)
@pytest.mark.one_of(3)
def test_the_unit_at_work_and_as_many_as_asked_ahead_of_it_are_whole(
    prefetch: int, reshard: bool | int, size: int, micros: dict[str, Any]
) -> None:
    units = Units.of(size)
    facts: dict[str, Any] = {"prefetch": prefetch, "reshard_after_forward": reshard, "layers_per_unit": size}
    played = play(step("zero3", MODEL, **facts, **micros), RANKS, FAST)
    # On a mesh of two each has the larger half of the elements.
    mesh = 2 if reshard == 2 else None
    parts = [-(-nbytes // _BFLOAT16 // mesh) * _BFLOAT16 if mesh else 0 for nbytes in units.blocks]
    for micro in range(micros.get("gradient_accumulation_steps", 1)):
        for name, whole, between in turns(units, prefetch, reshard=reshard):
            expected = units.root + sum(units.blocks[i] for i in whole) + sum(parts[i] for i in between)
            for rank in (0, RANKS - 1):
                found = gathered(played, rank, at_work(played, rank, f"{name} {micro}"))
                assert found == expected, (name, micro, rank)


@pytest.mark.parametrize("sync", ["every", "last"])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_no_more_units_are_ever_whole(sync: str, prefetch: int) -> None:
    """At any time, between kernels too, and from one micro-batch to the next; on a slow network as on a fast one."""
    units = Units.of(1)
    most = units.root + (prefetch + 1) * units.blocks[0]
    facts: dict[str, Any] = {"prefetch": prefetch, "gradient_accumulation_steps": 2, "gradient_sync": sync}
    held = [
        max(dict(sample.by_category).get("gathered", 0) for sample in played.timeline.memory)
        for played in (play(step("zero3", MODEL, **facts), RANKS, topology) for topology in (FAST, SLOW))
    ]
    assert held[0] == most
    # Where kernels wait for gathers a unit may be through before the next but one is there.
    assert held[1] <= most


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_on_a_slow_network_a_gather_follows_the_one_before_or_the_unit_that_makes_room(prefetch: int) -> None:
    """Played spans alone: unit k enters when unit k - prefetch - 1 has left and the network is free, and not later."""
    played = play(step("zero3", MODEL, prefetch=prefetch), RANKS, SLOW)
    spans = [span for span in played.timeline.spans if span.rank == 0]
    on_network = sorted((span for span in spans if span.stream == "communication"), key=lambda span: span.start)
    ends = {span.name: span.end for span in spans}
    last = MODEL.num_layers - 1
    forward = [(f"layer {i}", "forward") for i in range(last + 1)]
    backward = [(f"layer {i}", "backward") for i in range(last - 1, -1, -1)]
    # What ends a unit's turn: its forward pass, but for the last one its backward pass.
    turn = [*(f"layer {i} forward 0" for i in range(last)), f"layer {last} backward 0"]
    turn += [f"layer {i} backward 0" for i in range(last - 1, -1, -1)]
    for number, (unit, way) in enumerate((*forward, *backward)):
        (place,) = (i for i, span in enumerate(on_network) if span.name == f"gather {unit} {way} 0")
        room = number - prefetch - 1
        if way == "backward" and room < last:
            # It must have gone before it comes again.
            room = max(room, last - 1) if prefetch else room
        leaves = ends[turn[room]] if room >= 0 else 0.0
        free = on_network[place - 1].end
        assert on_network[place].start == pytest.approx(max(leaves, free), rel=1e-12)
    # What the next pass waits for goes before the gradients of the unit that made room for it.
    order = [span.name for span in on_network]
    for unit in range(last, prefetch, -1):
        place = order.index(f"gather layer {unit - 1 - prefetch} backward 0")
        assert order[place + 1] == f"scatter layer {unit} 0"


PIPELINES = [("1f1b", 2, 1), ("gpipe", 2, 1), ("1f1b", 4, 1), ("interleaved", 2, 2), ("zb_h1", 2, 1), ("zb_v", 2, 2)]


def in_pipeline(schedule: str, ranks: int, chunks: int, micros: int, topology: Any = FAST, **facts: Any) -> PlayedStep:
    """A zero3 step over two copies of a pipeline with two layers a stage, on a network that takes no time."""
    model = replace(MODEL, num_layers=2 * ranks * chunks)
    asked = Parallelism(pp=ranks, schedule=schedule, virtual_stages=chunks)
    return play(
        step("zero3", model, gradient_accumulation_steps=micros, parallelism=asked, **facts), 2 * ranks, topology
    )


def most(played: PlayedStep, rank: int, category: str) -> int:
    """Most that a rank holds of a category [B]."""
    samples = (sample for sample in played.timeline.memory if sample.rank == rank)
    return max(dict(sample.by_category).get(category, 0) for sample in samples)


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
@pytest.mark.parametrize("prefetch", [0, 1])
@pytest.mark.one_of(3)
def test_micro_batches_in_flight_share_one_storage_of_each_unit(
    schedule: str, ranks: int, chunks: int, prefetch: int
) -> None:
    """Counted by hand: the embedding, the layer at work and `prefetch` more, whatever number is in flight."""
    embedding, layer, *_ = (_BFLOAT16 * module.elements for module in modules(MODEL))
    expected = embedding + (1 + prefetch) * layer
    if schedule == "zb_v":  # the first rank has the last stage too
        expected += _BFLOAT16 * modules(MODEL)[-1].elements
    found = {
        micros: most(in_pipeline(schedule, ranks, chunks, micros, prefetch=prefetch), 0, "gathered")
        for micros in (2 * ranks, 4 * ranks)
    }
    assert set(found.values()) == {expected}


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
def test_a_unit_is_gathered_when_it_is_not_there(schedule: str, ranks: int, chunks: int) -> None:
    """Each backward pass frees the embedding, so it is gathered once a micro-batch; layers are, once for each pass."""
    micros = 4 * ranks
    played = in_pipeline(schedule, ranks, chunks, micros)
    names = [span.name for span in played.timeline.spans if span.rank == 0 and span.name.startswith("gather")]
    assert sum("embedding" in name for name in names) == micros
    assert sum("layer" in name for name in names) == 2 * micros * 2 * chunks


@pytest.mark.parametrize(("schedule", "ranks", "chunks"), PIPELINES)
@pytest.mark.parametrize("topology", [FAST, SLOW])
@pytest.mark.one_of(3)
def test_parameters_that_stay_are_gathered_once_a_step_and_one_buffer_is_under_way(
    schedule: str, ranks: int, chunks: int, topology: Any
) -> None:
    """FSDP2's post-backward hook waits for the reduce-scatter before, so buffers of a step never queue up."""
    played = in_pipeline(schedule, ranks, chunks, 4 * ranks, topology, reshard_after_forward=False)
    names = [span.name for span in played.timeline.spans if span.rank == 0 and span.name.startswith("gather")]
    ends = 1 + (schedule == "zb_v")
    assert len(names) == 2 * chunks + ends
    # Reduced in float32: two bytes a gradient become four in the buffer.
    largest = max(module.elements for module in modules(MODEL))
    assert most(played, 0, "buffers") <= 4 * largest


@pytest.mark.parametrize("topology", [FAST, SLOW])
def test_zero2_has_two_buckets(topology: Any) -> None:
    """DeepSpeed fills one bucket while the other is reduced, however many micro-batches there are."""
    facts: dict[str, Any] = {"gradient_accumulation_steps": 6, "bucket_size": 1}
    played = play(step("zero2", MODEL, **facts), RANKS, topology)
    sizes = [_BFLOAT16 * module.elements for module in modules(MODEL)]
    shards = sum(-(-size // RANKS) for size in sizes)
    assert most(played, 0, "gradients") + most(played, 0, "buffers") <= shards + 4 * 2 * max(sizes)


@pytest.mark.parametrize(
    "facts", [{}, {"gradient_accumulation_steps": 3}, {"shard_size": 1}], ids=["alone", "accumulates", "copies"]
)
@pytest.mark.parametrize("strategy", SHARDED)
def test_states_that_no_other_rank_shares_are_not_gathered(strategy: str, facts: dict[str, Any]) -> None:
    """A sharding group of one is ddp: the same time, and the same bytes in the same order.

    FSDP switches to NO_SHARD, and DeepSpeed aliases its partition.
    """
    ranks = 4 if "shard_size" in facts else 1
    plain = {key: value for key, value in facts.items() if key != "shard_size"}
    alone, ddp = play(step(strategy, MODEL, **facts), ranks, FAST), play(step("ddp", MODEL, **plain), ranks, FAST)
    held = [[(s.rank, s.nbytes, s.by_category) for s in one.timeline.memory] for one in (alone, ddp)]
    if strategy != "zero1":
        assert held[0] == held[1]
    assert alone.report.peak_memory_bytes == ddp.report.peak_memory_bytes
    assert alone.timeline.end == pytest.approx(ddp.timeline.end, rel=1e-12 if strategy != "zero1" else 0.02)
    assert not any(dict(sample.by_category).get("gathered") for sample in alone.timeline.memory)
