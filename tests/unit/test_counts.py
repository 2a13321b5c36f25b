"""Counts as people write them: in a file, in --set, in axes, as an option; resolved they are plain numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.basics.counts import THINGS, TOKENS, parse_count
from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario, points
from simulator.scenario.resolve import resolved
from tests.commands import Command, commands_in
from tests.schemas import scenario_validator

STEP: dict[str, Any] = {
    "name": "demo",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {"model": "gpt2", "seq_len": 1024},
}


def step(**training: Any) -> dict[str, Any]:
    return STEP | {"training": STEP["training"] | training}


@pytest.mark.parametrize(
    ("written", "tokens"),
    [
        ("8k", 8192),
        ("8K", 8192),
        ("128k", 131_072),
        ("1M", 1_048_576),
        ("1_000_000", 1_000_000),
        (1e6, 1_000_000),
        (8, 8),
    ],
)
def test_of_tokens_a_k_is_1024(written: Any, tokens: int) -> None:
    scenario = load_scenario(step(seq_len=written, model="llama3_8b"))
    assert scenario.training is not None
    assert scenario.training.seq_len == tokens


def test_of_gpus_and_steps_a_k_is_1000() -> None:
    data = step(gradient_accumulation_steps="2k") | {"cluster": {"topology": "dgx_h100", "world_size": "16k"}}
    scenario = load_scenario(data)
    assert scenario.training is not None
    assert (scenario.cluster.world_size, scenario.training.gradient_accumulation_steps) == (16_000, 2_000)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 999), st.sampled_from(["", "k", "M"]), st.sampled_from([TOKENS, THINGS]))
def test_a_count_and_its_letter_are_multiplied(count: int, letter: str, k: int) -> None:
    expected = count * k ** ("", "k", "M").index(letter)
    assert parse_count(f"{count}{letter}", k) == expected
    # Thousands apart, as Python writes them, and the number itself.
    assert parse_count(f"{expected:_}", k) == parse_count(str(expected), k) == expected


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 60), st.sampled_from(["k", "K"]))
def test_what_is_resolved_has_plain_numbers(thousands: int, letter: str) -> None:
    scenario = load_scenario(
        step(seq_len=f"{thousands}{letter}", model="llama3_8b") | {"sweep": {"training.seq_len": [f"{thousands}k", 1]}}
    )
    data = resolved(scenario)
    assert data["training"]["seq_len"] == 1024 * thousands
    assert data["sweep"] == {"training.seq_len": [1024 * thousands, 1]}
    assert load_scenario(data) == scenario


def test_points_of_an_axis_are_told_by_their_numbers() -> None:
    scenario = load_scenario(STEP, {"training.seq_len": "512, 1k"})
    assert [point.settings for point in points(scenario)] == [{"training.seq_len": n} for n in (512, 1024)]


def test_a_baseline_and_the_ends_of_a_threshold_are_plain_numbers_too() -> None:
    asked = {"finding": "threshold", "along": "training.seq_len", "between": ["4k", "32k"]}
    data = step(model="llama3_8b") | {
        "compare": {"training.gradient_accumulation_steps": ["1k", 2]},
        "baseline": {"training.gradient_accumulation_steps": "1k"},
        "answer": [asked],
    }
    scenario = load_scenario(data)
    assert dict(scenario.baseline) == {"training.gradient_accumulation_steps": 1000}
    assert scenario.answer[0].between == (4096, 32_768)
    assert load_scenario(resolved(scenario)) == scenario


def test_a_size_on_an_axis_keeps_its_unit() -> None:
    collective = {"operation": "all_reduce", "size": "1 MiB"}
    data = {"name": "demo", "cluster": {"topology": "star_100g", "world_size": 4}, "collective": collective}
    assert load_scenario(data, {"collective.size": "1 KiB, 2 KiB"}).sweep == {"collective.size": ("1 KiB", "2 KiB")}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("8kb", "got '8kb'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192"),
        ("8 k", "got '8 k'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192"),
        ("1.5k", "got '1.5k'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192"),
        ("10_00", "got '10_00'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192"),
        ("-8k", "got '-8k'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192"),
        ("8192", "got '8192'; must be a whole number; remove the quotes"),
        ("0k", "got 0; must be at least 1"),
        ("999999M", "got 1048574951424; must be at most 1000000000"),
        (8192.0, "got 8192.0; must be a whole number; write 8192"),
        (True, "got true; must be a whole number"),
    ],
)
def test_what_is_no_count_is_told(written: Any, said: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(step(seq_len=written))
    assert str(caught.value) == f"<dict>: training.seq_len: {said}"


def test_the_schema_takes_them_too() -> None:
    validator = scenario_validator()
    assert [validator.is_valid(step(seq_len=written)) for written in (8192, "8k", "1_000", "8kb")] == [
        True,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize("command", ["memory gpt2", "memory gpt2 --pp 2", "kernels gpt2"])
def test_options_take_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    cli: Command = commands_in(tmp_path, monkeypatch, capsys)
    short, plain = (cli(*command.split(), "--seq-len", written) for written in ("1k", 1024))
    assert short.code == 0
    assert short == plain
    wrong = cli(*command.split(), "--seq-len", "1kb")
    assert wrong.code == 2
    assert (
        "'--seq-len': got '1kb'; must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192; see" in wrong.err
    )
