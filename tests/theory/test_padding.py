"""Padding in a batch: no time changes, and rates, budgets, goodput and measurements agree on useful tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.findings.answer import Answer, answer
from simulator.findings.comparison import Comparison
from simulator.report.numbers.training_summary import TrainingReport
from simulator.run.reliability.question import GoodputQuestion, goodput
from simulator.run.simulate import simulate
from simulator.scenario.days_file import RunOfDays
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points
from tests.commands import Command, commands_in

MODEL: Final = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 256}
LAYERS: Final = {"input": [8], "layers": [{"linear": [8, 8]}]}


def data(**training: Any) -> dict[str, Any]:
    cluster = {"topology": "dgx_h100", "world_size": 4}
    return {"name": "padded", "cluster": cluster, "training": {"model": MODEL, "seq_len": 128} | training}


def report(**training: Any) -> TrainingReport:
    found = simulate(load_scenario(data(**training))).report
    assert isinstance(found, TrainingReport)
    return found


def test_padding_changes_the_rate_of_useful_tokens_alone() -> None:
    """A step has 4 sequences of 128 tokens, of which 60 % are text."""
    whole, padded = report(), report(tokens_used=0.6)
    assert padded.tokens_per_s == 4 * 128 / padded.step_time_s
    assert padded.useful_tokens_per_s == pytest.approx(0.6 * 4 * 128 / padded.step_time_s, rel=1e-12)
    assert whole.useful_tokens_per_s == whole.tokens_per_s
    changed = {key for key, value in padded.to_dict().items() if value != whole.to_dict()[key]}
    assert changed == {"tokens_used", "useful_tokens_per_s"}


def told(document: dict[str, Any]) -> Answer:
    scenario = load_scenario(document)
    return answer(Comparison(scenario, list(play_points(list(enumerate(points(scenario)))))))


def test_a_comparison_of_shares_is_by_useful_tokens() -> None:
    """Equal steps: without padding a useful token takes 0.6 of the time, 40 % less."""
    found = told(data() | {"compare": {"training.tokens_used": [0.6, 1.0]}, "budget": {"tokens": 1e9}})
    assert found.sentences[0].startswith("No padding takes 40 % less time per useful token than 40 % padding")
    # The whole training takes 1 / 0.6 of the time.
    padded, whole = (one["days"] for one in found.budget)
    assert padded == pytest.approx(whole / 0.6, rel=1e-12)
    (caveat,) = [one.text for one in found.caveats if one.topic == "padding"]
    assert caveat.startswith("0 to 40 % of the tokens are padding")


def test_a_step_with_padding_says_so_and_names_both_rates() -> None:
    found, own = told(data(tokens_used=0.75) | {"budget": {"tokens": 1e9}}), report(tokens_used=0.75)
    (caveat,) = [one.text for one in found.caveats if one.topic == "padding"]
    assert caveat.startswith("25 % of the tokens are padding")
    assert f"useful tokens/s ({own.useful_tokens_per_s:,.0f})" in caveat
    assert any("Estimate for 1 billion useful tokens" in sentence for sentence in found.sentences)
    assert ("useful tokens/s", f"{own.useful_tokens_per_s:,.0f}") in own.headline
    assert not [one for one in told(data()).caveats if one.topic == "padding"]


def test_goodput_counts_useful_tokens() -> None:
    """Without failures, three days are 3 x 86,400 / step time steps of 0.6 x 4 x 128 useful tokens."""
    found = goodput(GoodputQuestion(load_scenario(data(tokens_used=0.6)), RunOfDays(days=3, failures=0.0)))
    useful = 3 * 86_400 / found.step_time * 0.6 * 4 * 128
    assert found.to_dict()["work"]["0.5"] == pytest.approx(useful, rel=1e-9)
    assert "useful tokens (80 %" in found.sentences[0]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_measured_rate_is_of_all_tokens_or_of_useful_ones(cli: Command, tmp_path: Path) -> None:
    """600 useful of 1,000 tokens in a second: both rates are the same step of 4 x 128 / 1,000 s."""
    (tmp_path / "step.json").write_text(json.dumps(data(tokens_used=0.6)), encoding="utf-8")
    for rate, hint in (
        ("1000 tokens/s", "the rate counts padding, 40 % of the tokens"),
        ("600 useful tokens/s", "40 % of the tokens are padding; the rates below count them"),
        ("150 useful tokens/s/GPU", "40 % of the tokens are padding; the rates below count them"),
    ):
        found = cli("expect", "step.json", "--measured", rate, "--json")
        assert json.loads(found.out)["measured_step_time_s"] == pytest.approx(4 * 128 / 1000, rel=1e-12)
        assert hint in found.err
    refused = cli("expect", "step.json", "--measured", "600 useful tokens/s", "--set", "training.tokens_used=1")
    assert refused.code == 2


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tokens_used": 0}, "training.tokens_used: got 0; must be greater than 0"),
        ({"tokens_used": 1.2}, "training.tokens_used: got 1.2; must be at most 1"),
        ({"tokens_used": 0.5, "numerics": True}, "got 0.5, but the batches of a real training have no padding"),
        ({"tokens_used": 0.5, "model": LAYERS, "seq_len": 1}, "are no sequences of tokens; omit the key"),
    ],
)
def test_a_share_without_meaning_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(data(**keys))
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
