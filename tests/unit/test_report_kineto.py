"""The trace: names, numbers and bytes. What an independent reader makes of it is in tests/theory/test_hta.py."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from simulator.records.operation import Collective, ElementSizes
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.timeline import MemorySample, Span, Timeline
from simulator.report.traces import kineto
from simulator.report.traces.kineto_names import collective_args, kernel_name


def collective(operation: str, algorithm: str = "ring", group: tuple[int, ...] = (0, 1), **facts: Any) -> Collective:
    schedule = Schedule(operation, algorithm, len(group), 0, 1, ReductionOrder.IN_SEQUENCE, lambda: iter(()))
    return Collective("sync", group, schedule, elements=7, sizes=ElementSizes(4, 4), **facts)


def played() -> Timeline:
    spans = (
        Span(0, "communication", "sync", "all_reduce", 1e-6, 3.0005e-6),
        Span(0, "compute", "layer", "forward", 0.0, 2.5e-6, 10.0, 20.0),
        Span(0, "copy to device", "weights", "offload", 0.0, 1e-6, 100.0),
        Span(1, "communication", "sync", "all_reduce", 1e-6, 3e-6),
    )
    memory = (MemorySample(0, 0.0, 5, (("parameters", 3), ("gradients", 2))),)
    return Timeline("events", 3.0005e-6, spans, (), memory)


def document(path: Path) -> Any:
    return json.loads(gzip.decompress(path.read_bytes()))


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, ...]:
    return kineto.write(played(), {"sync": collective("all_reduce")}, tmp_path / "trace")


def rows(path: Path, category: str) -> list[Any]:
    return [event for event in document(path)["traceEvents"] if event.get("cat") == category]


def test_each_rank_has_a_file_that_says_whose_it_is(files: tuple[Path, ...]) -> None:
    assert [path.name for path in files] == ["rank0.json.gz", "rank1.json.gz"]
    assert document(files[1])["distributedInfo"]["rank"] == 1
    # Readers look for white space behind the colon.
    assert b'"rank": 1,' in gzip.decompress(files[1].read_bytes())


def test_equal_timelines_give_equal_bytes(files: tuple[Path, ...], tmp_path: Path) -> None:
    again = kineto.write(played(), {"sync": collective("all_reduce")}, tmp_path / "again", ranks=[1, 0])
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in files]


def test_times_are_microseconds_rounded_to_nanoseconds(files: tuple[Path, ...]) -> None:
    (kernel,) = [row for row in rows(files[0], "kernel") if row["name"].startswith("nccl")]
    # 3.0005 us lie between two nanoseconds; the nearer even one is 3.000 us.
    assert (kernel["ts"], kernel["dur"]) == (1, round(3000.5) / 1000 - 1)


def test_every_kernel_has_a_launch_and_an_arrow_from_it(files: tuple[Path, ...]) -> None:
    kernels = rows(files[0], "kernel") + rows(files[0], "gpu_memcpy")
    launches = rows(files[0], "cuda_runtime")
    numbers = sorted(row["args"]["correlation"] for row in kernels)
    assert numbers == sorted(row["args"]["correlation"] for row in launches) == [1, 2, 3]
    assert sorted((row["ph"], row["id"]) for row in rows(files[0], "ac2g")) == sorted(
        (end, number) for number in numbers for end in "sf"
    )
    assert {row["name"] for row in launches} == {"cudaLaunchKernel", "cudaMemcpyAsync"}


def test_each_stream_is_a_track_above_zero(files: tuple[Path, ...]) -> None:
    tracks = {row["name"]: row["tid"] for row in rows(files[0], "kernel") + rows(files[0], "gpu_memcpy")}
    assert len(set(tracks.values())) == 3
    assert min(tracks.values()) > 0
    assert "Memcpy HtoD weights" in tracks


def test_a_step_reaches_past_the_last_end(files: tuple[Path, ...]) -> None:
    (step,) = rows(files[0], "user_annotation")
    assert (step["name"], step["ts"]) == ("ProfilerStep#0", 0)
    assert step["dur"] == 3.001


def test_steps_can_be_told_apart(tmp_path: Path) -> None:
    (path,) = kineto.write(played(), {}, tmp_path, ranks=[0], steps=[0.0, 2e-6])
    assert [(row["name"], row["ts"], row["dur"]) for row in rows(path, "user_annotation")] == [
        ("ProfilerStep#0", 0, 2),
        ("ProfilerStep#1", 2, 1.001),
    ]


def test_memory_is_a_counter_by_category(files: tuple[Path, ...]) -> None:
    (counter,) = [event for event in document(files[0])["traceEvents"] if event["ph"] == "C"]
    assert counter["args"] == {"parameters": 3, "gradients": 2}


def test_a_group_that_is_not_the_world_has_a_name_of_its_own(tmp_path: Path) -> None:
    whole, part = collective("all_reduce"), collective("all_gather", group=(0, 2))
    (path,) = kineto.write(played(), {"sync": part, "other": whole}, tmp_path, ranks=[0])
    groups = document(path)["distributedInfo"]["pg_config"]
    assert [(group["pg_name"], group["ranks"]) for group in groups] == [("0", [0, 1, 2]), ("1", [0, 2]), ("2", [0, 1])]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (collective("all_reduce", dtype="bfloat16"), "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"),
        (collective("all_reduce", "tree", reduction="max"), "ncclDevKernel_AllReduce_MinMax_f32_TREE_LL"),
        (collective("reduce_scatter"), "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"),
        (collective("all_gather", "direct"), "ncclDevKernel_AllGather_RING_LL"),
        (collective("broadcast", "double_binary_tree"), "ncclDevKernel_Broadcast_TREE_LL"),
        (collective("all_to_all"), "ncclDevKernel_SendRecv"),
    ],
)
def test_kernels_are_named_as_nccl_names_them(told: Collective, expected: str) -> None:
    assert kernel_name(told) == expected


@pytest.mark.parametrize(
    ("operation", "rank", "expected"),
    [
        ("all_reduce", 0, (7, 7)),
        ("all_gather", 0, (4, 7)),  # 7 elements in 2 parts: 4 and 3
        ("all_gather", 1, (3, 7)),
        ("reduce_scatter", 1, (7, 3)),
        ("reduce", 0, (7, 7)),
        ("reduce", 1, (7, 0)),
        ("gather", 0, (4, 7)),
        ("scatter", 1, (0, 3)),
        ("all_reduce", 9, (0, 0)),
    ],
)
def test_elements_in_and_out_are_those_of_the_rank(operation: str, rank: int, expected: tuple[int, int]) -> None:
    args = collective_args(collective(operation), "0", rank)
    assert (args["In msg nelems"], args["Out msg nelems"]) == expected


def test_long_lists_of_ranks_are_cut() -> None:
    args = collective_args(collective("all_reduce", group=tuple(range(64))), "0", 0)
    assert args["Process Group Ranks"].endswith("29, ...]")
    assert args["Group size"] == 64
