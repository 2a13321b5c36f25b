"""`simulator goodput`: bytes, times and verdicts by hand, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator import load_scenario, simulate
from simulator.basics.errors import ScenarioError
from simulator.reliability.failures import DAY
from simulator.reliability.question import GoodputQuestion, checkpoint_bytes, goodput, waterfall
from simulator.step.offload import COPY_EFFICIENCY
from tests.commands import Command, commands_in

SCENARIO: dict[str, Any] = {
    "name": "days",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "framework": "torchtitan"},
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def asked(**facts: Any) -> GoodputQuestion:
    return GoodputQuestion(load_scenario(SCENARIO), **({"days": 30.0} | facts))


def test_a_checkpoint_is_copied_to_the_host_and_written_behind() -> None:
    found = goodput(asked(storage=10e9))
    # Adam in bfloat16: 2 + 4 + 8 bytes for each of 8,030,261,248 parameters; a sixteenth over a slot of PCIe 5.
    nbytes = 14 * 8_030_261_248
    assert found.checkpoint_bytes == nbytes
    assert found.job.checkpointing.write == found.job.checkpointing.load == nbytes / 10e9
    assert found.job.checkpointing.stall >= nbytes / 16 / 64e9
    assert found.job.checkpointing.stall <= nbytes / 16 / (COPY_EFFICIENCY * 50e9)
    assert found.job.nodes == 2


def test_a_synchronous_save_stops_the_work_for_the_whole_write() -> None:
    found = goodput(asked(storage=10e9, save="synchronous"))
    assert (found.job.checkpointing.stall, found.job.checkpointing.write) == (14 * 8_030_261_248 / 10e9, 0.0)


def test_the_work_of_days_without_failures_is_their_steps() -> None:
    found = goodput(asked(failures=0.0))
    step = simulate(SCENARIO).report
    assert found.step_time == step.step_time_s
    assert found.outlook.work(0.5) == pytest.approx(30 * DAY)
    assert found.to_dict()["work"]["0.5"] == pytest.approx(30 * DAY * step.tokens_per_s)
    assert found.sentences[1] == "Nothing fails, so that no checkpoint is needed."


def test_the_training_of_some_tokens_ends_later_with_failures() -> None:
    tokens = 20 * DAY * simulate(SCENARIO).report.tokens_per_s
    sound, ill = (goodput(asked(days=None, tokens=tokens, failures=rate)) for rate in (0.0, 1.0))
    assert sound.outlook.time(0.5) == pytest.approx(20 * DAY)
    # Two failures a day, each 30 s or 600 s, 300 s, the load and lost work: at least half a per cent.
    assert ill.outlook.time(0.5) > 1.005 * 20 * DAY
    assert sum(share for _, share, _ in waterfall(ill)) == pytest.approx(1.0)


def test_adapters_alone_are_saved() -> None:
    lora = SCENARIO | {"training": SCENARIO["training"] | {"lora": {"rank": 8, "targets": ["q"]}}}
    found = simulate(lora, limit_memory=False)
    # 32 layers, q: 8 x 4096 and 4096 x 8; float32 parameters and two float32 states, no master copy.
    assert checkpoint_bytes(found.plan.step) == 32 * 2 * 8 * 4096 * (4 + 8)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"tokens": 1e12}, "days: .* give one of the two"),
        ({"days": None}, "days: .* give one of the two"),
        ({"days": 0.0}, "days: got 0; must be above 0"),
        ({"days": float("nan")}, "days: got nan; must be above 0"),
        ({"storage": -1.0}, "storage: got -1; must be above 0"),
        ({"failures": -1.0}, "failures: got -1; must be at least 0"),
        ({"spares": -2}, "spares: got -2; must be at least 0"),
        ({"save": "never"}, "save: got 'never'"),
    ],
)
def test_questions_that_no_training_asks_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        asked(**facts)


def test_a_collective_has_no_checkpoints() -> None:
    ring = {
        "name": "ring",
        "cluster": {"topology": "star_100g", "world_size": 4},
        "collective": {"operation": "all_reduce", "size": "4 KiB"},
    }
    with pytest.raises(ScenarioError, match="a collective has no checkpoints"):
        GoodputQuestion(load_scenario(ring), days=1.0)


def test_a_scenario_of_several_points_is_refused() -> None:
    several = SCENARIO | {"compare": {"training.sharding": ["ddp", "zero3"]}}
    with pytest.raises(ScenarioError, match=r"has several points along training\.sharding; give each a single value"):
        GoodputQuestion(load_scenario(several), days=1.0)


def test_the_command_prints_the_answer_and_where_the_time_goes(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "days.json"
    path.write_text(json.dumps(SCENARIO))
    out = cli("goodput", str(path), "--days", "30d", "--failures", "500").out
    assert "of the time is useful" in out
    assert "Young" in out
    assert "lost work" in out
    data = json.loads(cli("goodput", str(path), "--days", "30d", "--json").out)
    assert data["nodes"] == 2
    assert sum(data["shares"].values()) == pytest.approx(1.0)
