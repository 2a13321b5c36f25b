"""The page of a profile beside a simulated step: both timelines on one time axis, with the first difference marked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.cli.commands.compare_trace import command as compare
from tests.browser.chromium import CHROMIUM, MISSING, browser, opened
from tests.traces.kineto_sample import RANK, written

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
SCENARIO = {
    "name": "own",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {"model": "gpt2", "seq_len": 256, "precision": {"params": "bfloat16"}, "sharding": "zero3"},
}


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("trace")
    (base / "own.yaml").write_text(yaml.safe_dump(SCENARIO), encoding="utf-8")
    compare(str(base / "own.yaml"), [written(base)], 8, out=base / "out")
    return base / "out"


def test_both_timelines_have_one_axis_and_the_first_difference_is_marked(running: Any, folder: Path) -> None:
    answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    with opened(running, folder / "report.html") as one:
        one.until("state.drawn === 0")
        assert one.said == []
        assert one.requests == [f"file://{folder / 'report.html'}"]
        assert one.page.locator("h3.run").all_inner_texts() == ["measured", "simulated"]
        assert one.value("state.timelines[0].view === state.timelines[1].view")
        ends = one.value("state.timelines.map((t) => Math.max(...t.lanes.map((l) => Math.max(...l.end))) * t.unit)")
        # The last kernel of the step ends where the answer's step does, or earlier where the GPU waits at its end.
        steps = [answer["times"][-1][key] for key in ("measured_s", "simulated_s")]
        assert all(end <= step * (1 + 1e-6) for end, step in zip(ends, steps, strict=True))
        # The profile has two copies between the host and the GPU, the simulated step none.
        streams = one.value("state.timelines.map((t) => t.lanes.map((l) => l.stream))")
        assert streams == [["kernels", "communication", "copies"], ["kernels", "communication"]]
        assert one.value("state.timelines[0].lanes[0].rank") == RANK
        first = answer["first_difference_in_order"] or answer["first_difference_in_time"]
        start = min(side["start_s"] for side in (first["measured"], first["simulated"]) if side is not None)
        assert one.value("state.view.marked * state.timelines[0].unit") == pytest.approx(start, rel=1e-6)
        box = one.page.locator("#run0 canvas").bounding_box()
        one.page.mouse.move(box["x"] + 500, box["y"] + 5)
        one.until("state.view.cursor !== null")


def test_without_scripts_the_tables_and_the_first_difference_are_there(running: Any, folder: Path) -> None:
    with opened(running, folder / "report.html", java_script_enabled=False) as one:
        heads = one.page.locator("h2").all_inner_texts()
        assert any(head.startswith("Operations and time by kind") for head in heads)
        assert "First differences" in heads
