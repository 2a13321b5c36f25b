"""Holistic Trace Analysis reads a played FSDP step of 8 ranks, and sees the bare communication that is reported."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import pytest

from simulator.basics.intervals import length, outside
from simulator.model.shape import Transformer
from simulator.report.traces import kineto
from tests.training import play, step

pytestmark = pytest.mark.filterwarnings(r"ignore:::hta\.")

# Large enough that kernels and collectives last many microseconds, for the reader counts whole ones.
MODEL = Transformer("small", 4, 2048, 16, 16, 128, 8192, 32000, 1024)


def test_the_overlap_that_is_read_is_the_overlap_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "HTA_DISABLE_NS_ROUNDING", "1")
    played = play(step("zero3", MODEL, seq_len=1024, micro_batch_size=1), 8)
    kineto.write(played.timeline, played.plan.program.collectives(), tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from hta.trace_analysis import TraceAnalysis

        analysis = TraceAnalysis(trace_dir=str(tmp_path))
    overlap = analysis.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    assert sorted(overlap.index) == list(range(8))
    for rank in range(8):
        spans = [s for s in played.timeline.spans if s.rank == rank]
        compute = [(s.start, s.end) for s in spans if s.stream == "compute"]
        comm = [(s.start, s.end) for s in spans if s.stream == "communication"]
        hidden = 1 - outside(comm, compute) / length(comm)
        assert overlap[rank] == pytest.approx(100 * hidden, abs=0.5)
        assert outside(comm, compute) == pytest.approx(played.report.exposed_comm_time_s, rel=1e-6)
