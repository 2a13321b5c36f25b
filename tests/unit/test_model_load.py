"""Models by name, by path, inline; and what is said of a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.model.load import load_model
from tests.commands import commands_in

GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
                        "vocab_size": 1000}  # fmt: skip


def test_an_unknown_model_gets_did_you_mean() -> None:
    with pytest.raises(UnknownNameError, match=r"model: got 'llama3_9b'; .*did you mean 'llama3_8b'"):
        load_model("llama3_9b")
    with pytest.raises(UnknownNameError, match=r"did you mean 'qwen2_0\.5b'"):
        load_model("qwen2_0.6b")


def test_a_config_json_is_named_by_its_folder_and_any_other_file_by_its_stem(tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    for path, name in ((tmp_path / "tiny" / "config.json", "tiny"), (tmp_path / "small.json", "small")):
        path.write_text(json.dumps(GPT2))
        assert load_model(str(path)).name == name
    assert load_model(GPT2).name == "inline"
    assert load_model(GPT2 | {"name": "mine"}).name == "mine"


def test_a_relative_path_is_read_beside_the_file_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "near.json").write_text(json.dumps(GPT2))
    assert load_model("near.json", base=tmp_path).hidden_size == 64
    assert load_model("gpt2", base=tmp_path).hidden_size == 768
    with pytest.raises(
        ScenarioError, match=r"near.json: no such model file; give an existing path or a name; `simulator list models`"
    ):
        load_model("near.json")


def test_a_file_of_a_hub_is_read_as_it_is(tmp_path: Path) -> None:
    extra = {"architectures": ["GPT2LMHeadModel"], "layer_norm_epsilon": 1e-05, "task_specific_params": {"a": [1, {}]},
             "torch_dtype": "float32", "n_inner": None, "unknown": None}  # fmt: skip
    for indent in (None, 2, "\t"):
        path = tmp_path / "config.json"
        path.write_text("\ufeff" + json.dumps(extra | GPT2, indent=indent))
        model = load_model(path)
        assert (model.ffn_size, model.vocab_size, model.tied) == (256, 1000, True)


def test_frozen_mappings_are_read_like_dicts() -> None:
    inner = MappingProxyType({"alibi": False})
    keys = {"model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 10, "attn_config": inner}
    assert load_model(MappingProxyType(keys)).positions == "learned"


@pytest.mark.parametrize("seq_len", [0, -1, True, 2.5])
def test_a_sequence_has_at_least_one_token(seq_len: Any) -> None:
    with pytest.raises(ScenarioError, match=f"seq_len: got {seq_len}; must be a whole number of at least 1"):
        load_model("gpt2", seq_len=seq_len)


def test_a_sequence_longer_than_the_learned_positions_is_refused() -> None:
    assert load_model("gpt2", seq_len=1024).max_positions == 1024
    assert load_model("gpt2", seq_len=512).max_positions == 1024
    with pytest.raises(ScenarioError, match="seq_len: got 1025; gpt2 has learned 1024 positions; take at most that"):
        load_model("gpt2", seq_len=1025)


def test_rotary_positions_have_no_table_to_leave() -> None:
    assert load_model("llama2_7b", seq_len=65536) == load_model("llama2_7b")


def test_faults_have_their_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text('{\n  "model_type": "gpt2",\n  "n_embd": 64, "n_layer": 0,\n  "n_head": "4", "n_positions": 9\n}\n')
    with pytest.raises(ScenarioError) as caught:
        load_model(str(path))
    assert str(caught.value).splitlines() == [
        f"{path}:1:1: vocab_size: is missing; give it",
        f"{path}:3:28: n_layer: got 0; must be from 1 to 10000",
        f"{path}:4:13: n_head: got '4'; must be a whole number",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe\x00", "not a UTF-8 text file"),
        (b"", "the file is empty"),
        (b"[1, 2]", "got list; must be a mapping"),
        (b'{"model_type": "gpt2"', "not YAML"),
    ],
)
def test_what_is_no_config_json_is_told_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=message) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_a_path_object_to_nothing_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read: No such file"):
        load_model(tmp_path / "none.json")


@pytest.mark.parametrize(
    "command", [("memory",), ("kernels", "--gpu", "h100_sxm"), ("program",), ("fit-check", "--gpu", "h100_sxm")]
)
def test_a_scenario_in_place_of_a_model_is_named(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was told that model_type is missing."""
    text = "name: own\ncluster: {topology: dgx_h100, world_size: 8}\ntraining: {model: llama3_8b, seq_len: 8k}\n"
    (tmp_path / "own.yaml").write_text(text, encoding="utf-8")
    name, *options = command
    answer = commands_in(tmp_path, monkeypatch, capsys)(name, "own.yaml", *options)
    assert answer.code == 2
    assert answer.err == (
        "MODEL: own.yaml: is a scenario and no model; its model is llama3_8b; `simulator run`, `simulator check` and "
        "`simulator expect` take scenarios\n"
    )
