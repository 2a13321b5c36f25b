"""Holistic Trace Analysis, an independent reader, finds in our traces what was put into them."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from simulator.cluster.build import build
from simulator.collectives import ring
from simulator.collectives.algorithm import CollectiveRequest
from simulator.engine.events import execute
from simulator.records.operation import Collective, Compute, ElementSizes
from simulator.records.program import Program
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule
from simulator.records.timeline import Span, Timeline
from simulator.report.traces import kineto

# Raised inside the reader, by the pandas idioms that it uses; everything else stays an error.
pytestmark = pytest.mark.filterwarnings(r"ignore:::hta\.")

US = 1e-6


def _all_reduce(name: str) -> Collective:
    schedule = Schedule("all_reduce", "ring", 2, 0, 2, ReductionOrder.IN_SEQUENCE, lambda: iter(()))
    return Collective(name, (0, 1), schedule, elements=1000, sizes=ElementSizes(2, 2), dtype="bfloat16")


def _timeline() -> Timeline:
    """Two ranks, two streams [us]. Rank 1 computes a forward pass twice as long.

    rank 0  compute        |forward 0-100|backward 100-300|            |adam 420-450|
            communication                      |sync 200-400|
    rank 1  compute        |forward 0-200|backward 200-400|            |adam 520-550|
            communication                      |sync 300-500|
    """
    spans = []
    for rank, late in ((0, 0), (1, 100)):
        spans += [
            Span(rank, "communication", "sync", "all_reduce", (200 + late) * US, (400 + late) * US),
            Span(rank, "compute", "forward", "forward", 0.0, (100 + late) * US),
            Span(rank, "compute", "backward", "backward", (100 + late) * US, (300 + late) * US),
            Span(rank, "compute", "adam", "optimizer", (420 + late) * US, (450 + late) * US),
        ]
    return Timeline("events", 550 * US, tuple(spans))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("trace")
    kineto.write(_timeline(), {"sync": _all_reduce("sync")}, folder)
    return _read(folder)


def _read(folder: Path) -> Any:
    with warnings.catch_warnings():
        # The reader's own: deprecated imports and pandas idioms.
        warnings.simplefilter("ignore")
        from hta.trace_analysis import TraceAnalysis

        return TraceAnalysis(trace_dir=str(folder))


def test_communication_computation_overlap_is_as_computed_by_hand(analysis: Any) -> None:
    found = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    # Of 200 us of communication, 100 us lie under the backward pass: (300 - 200) / (400 - 200).
    assert found.to_dict() == {0: 50.0, 1: 50.0}


def test_temporal_breakdown_is_as_computed_by_hand(analysis: Any) -> None:
    table = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    # Compute 100 + 200 + 30; communication alone 400 - 300; idle between its end and adam 420 - 400.
    assert table.loc[0, "compute_time(us)"] == 100 + 200 + 30
    assert table.loc[0, "non_compute_time(us)"] == 400 - 300
    assert table.loc[0, "idle_time(us)"] == 420 - 400
    assert table.loc[0, "kernel_time(us)"] == 450
    # Rank 1 computes 100 us longer, all else is the same.
    assert table.loc[1, "compute_time(us)"] == 200 + 200 + 30
    assert table.loc[1, "non_compute_time(us)"] == 100
    assert table.loc[1, "idle_time(us)"] == 20


def test_kernels_are_told_apart_as_communication_and_computation(analysis: Any) -> None:
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False)
    sums = kinds.set_index("kernel_type")["sum"].to_dict()
    assert sums == {
        "COMMUNICATION": (200 - 100) * 2,
        "COMPUTATION": (330 - 100) + (430 - 100),
        "COMPUTATION overlapping COMMUNICATION": 100 * 2,
    }


def test_every_kernel_has_its_launch_and_no_queue_is_ever_negative(analysis: Any) -> None:
    series = analysis.get_queue_length_time_series(ranks=[0])[0]
    assert len(series) == 2 * 4  # a launch and a start for each of four kernels
    assert series["queue_length"].min() >= 0
    assert series["queue_length"].max() == 1


def test_ranks_are_recognised(analysis: Any) -> None:
    assert analysis.t.get_ranks() == [0, 1]


def test_a_played_program_of_two_streams_is_read_as_computed_by_hand(tmp_path: Path) -> None:
    """Forward 100 us; then, side by side, backward 120 us and a ring of 2 ranks; then adam 30 us.

    The ring moves S = 200 kB over 1 GB/s links without latency: 2 (N-1) S / (N beta) = 200 us, of which 120 are hidden.
    """
    topology = {"name": "pair", "builder": "star", "options": {"bandwidth": "1 GB/s", "latency": "0 us"}}
    cluster = build({**topology, "gpu": "a100_sxm_80gb"}, 2)
    schedule = ring.all_reduce(CollectiveRequest("all_reduce", 2, 100_000))
    sync = Collective("sync", (0, 1), schedule, 100_000, ElementSizes(2, 2), dtype="bfloat16", after=("forward",))
    ops = (
        Compute("forward", 100 * US, kind="forward"),
        Compute("backward", 120 * US, kind="backward"),
        sync,
        Compute("adam", 30 * US, kind="optimizer", after=("sync",)),
    )
    timeline = execute(Program((ops, ops)), cluster)
    assert timeline.end == pytest.approx((100 + 200 + 30) * US, rel=1e-9)
    kineto.write(timeline, {"sync": sync}, tmp_path)
    analysis = _read(tmp_path)
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    assert overlap.to_dict() == {0: 100 * 120 / 200, 1: 100 * 120 / 200}
    table = analysis.get_temporal_breakdown(visualize=False).set_index("rank")
    for rank in (0, 1):
        assert table.loc[rank, "compute_time(us)"] == 100 + 120 + 30
        assert table.loc[rank, "non_compute_time(us)"] == 200 - 120
        assert table.loc[rank, "idle_time(us)"] == 0
