"""`simulator validate --csv`: a user's own measured runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.basics.errors import ScenarioError
from simulator.calibration.training_runs.own_framework import OwnFramework
from simulator.calibration.training_runs.playing import frameworks, play_rows
from simulator.calibration.training_runs.rows import measured
from simulator.calibration.training_runs.user_rows import UserRow, columns, user_rows
from simulator.cli.commands.calibrate import remarks
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.step.framework import Framework
from tests.commands import Command, commands_in

HEAD = "model,gpu,topology,gpus,seq_len,micro_batch_size,accumulation,framework,sharding,tokens_per_s\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_run_that_the_tables_have_is_the_same_run(tmp_path: Path) -> None:
    row = next(row for row in measured("nanotron") if row.sharding == "ddp" and row.gpus == 8)
    cells = (row.model, row.gpu, row.topology, row.gpus, row.seq_len, row.micro_batch_size, row.accumulation)
    text = HEAD + ",".join(map(str, (*cells, row.framework, row.sharding, row.tokens_per_s))) + "\n"
    (own,) = user_rows(written(tmp_path, text))
    assert (own.transformer, own.step_time, own.name) == (row.transformer, row.step_time, row.name)
    assert own.parallelism == row.parallelism


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("gpt2,h100_sx,dgx_h100,8,1024,1,1,bare,ddp,5", "line 2: gpu: got 'h100_sx'; did you mean 'h100_sxm'"),
        ("gpt2,h100_sxm,dgx_h100,0,1024,1,1,bare,ddp,5", "line 2: gpus: got '0'; must be at least 1"),
        ("gpt2,h100_sxm,dgx_h100,8,8x,1,1,bare,ddp,5", "line 2: seq_len: got '8x'; must be a whole number, such as"),
        ("gpt2,h100_sxm,dgx_h100,8,1k,1,1,bare,ddp,5 t", "line 2: tokens_per_s: got '5 t'; must be a number, without"),
        ("gpt2,h100_sxm,dgx_h100,8,1k,1,1,bare,ddp,-5", "line 2: tokens_per_s: got '-5'; must be greater than 0"),
        (
            "gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,",
            "line 2: step_time_s: give one of step_time_s, tokens_per_s and log",
        ),
        ("gpt2,h100_sxm,dgx_h100,8,,1,1,bare,ddp,5", "line 2: seq_len: is missing; every run needs this column"),
        ("gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,zero9,5", "line 2: sharding: got 'zero9'; one of"),
        ("gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5,6", "line 2: got more cells than the 10 columns"),
    ],
)
def test_every_fault_is_a_line(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        user_rows(written(tmp_path, HEAD + line + "\n"))


def test_a_column_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"line 1: tpp: no such column; did you mean 'tp'"):
        user_rows(written(tmp_path, "tpp," + HEAD + "2,gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5\n"))


def test_names_and_numbers_of_scenarios_mean_the_same_columns(tmp_path: Path) -> None:
    own = (
        "checkpointing,compiled,accumulation,attention,gpus,tp,model,gpu,topology,seq_len,micro_batch_size,step_time_s"
    )
    scenario = (
        "activation_checkpointing,compile,gradient_accumulation_steps,attention_generation,cluster.world_size,"
        "training.parallelism.tp,model,gpu,topology,seq_len,micro_batch_size,step_time_s"
    )
    rest = "gpt2,h100_sxm,dgx_h100"
    (expected,) = user_rows(written(tmp_path, f"{own}\nfull,true,2,flash3,1024,2,{rest},8192,1,1\n"))
    (found,) = user_rows(written(tmp_path, f"{scenario}\nfull,yes,2,3,1_024,2,{rest},8k,1,1\n"))
    assert found == expected


@pytest.mark.parametrize(
    ("head", "cells", "told"),
    [
        ("attention_generation", "1", "line 2: attention_generation: got '1'; one of 2, 3"),
        ("attention,attention_generation", "flash3,2", "attention_generation: got '2' with attention flash3"),
        ("compile,compiled", "true,true", "line 1: compiled: names 2 columns"),
        ("compile", "maybe", "line 2: compiled: got 'maybe'; must be true or false"),
        ("stages", "4 x", "line 2: stages: got '4 x'; must be whole numbers"),
        ("context", "rng", "line 2: context: got 'rng'; one of ring, ulysses; did you mean 'ring'"),
    ],
)
def test_no_fault_of_a_cell_is_a_message_of_a_library(tmp_path: Path, head: str, cells: str, told: str) -> None:
    line = "gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5"
    with pytest.raises(ScenarioError, match=re.escape(told)):
        user_rows(written(tmp_path, f"{head},{HEAD}{cells},{line}\n"))


def test_a_rate_of_each_gpu_is_told_to_be_multiplied(tmp_path: Path) -> None:
    text = HEAD.replace("tokens_per_s", "tokens_per_gpu") + "gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5\n"
    with pytest.raises(ScenarioError) as caught:
        user_rows(written(tmp_path, text))
    assert str(caught.value).endswith(
        "line 1: tokens_per_gpu: no such column; tokens_per_s is the total of all GPUs; multiply by their number"
    )


@pytest.mark.parametrize(
    ("gpus", "times", "told"),
    [
        ((2, 4, 2), (2.5, 1.2, 9.9), ["Lines 2 and 4 have the same settings and different times, 2.5 s and 9.9 s."]),
        # Repeated runs of one setting spread by a few per cent.
        ((2, 2, 4), (2.5, 2.55, 1.2), []),
        ((2, 2, 2), (2.5, 2.55, 2.5), ["All runs have 2 GPUs: runs with one number of GPUs cannot separate slow"]),
        ((1, 1, 1), (2.5, 2.55, 2.5), ["All runs have a single GPU, and tell nothing about the network."]),
    ],
)
def test_remarks_on_runs_that_cannot_determine_the_constants(
    tmp_path: Path, gpus: tuple[int, ...], times: tuple[float, ...], told: list[str]
) -> None:
    head = HEAD.replace("tokens_per_s", "step_time_s")
    lines = [f"gpt2,h100_sxm,dgx_h100,{n},1024,1,1,bare,ddp,{t}\n" for n, t in zip(gpus, times, strict=True)]
    rows = user_rows(written(tmp_path, head + "".join(lines)))
    # Errors of 0: no run is unexplained for another reason.
    made = OwnFramework(Framework(), *([(0.0,) * len(rows)] * 3))
    found = remarks(rows, made)
    assert len(found) == len(told)
    assert all(one.startswith(start) for one, start in zip(found, told, strict=True))


@pytest.mark.parametrize(
    ("header", "faults"),
    [
        # The proposed columns are not reported as missing, too.
        (
            "model,gpu,topology,gpus,seqlen,mbs,ckpt,tokens_per_s",
            [
                "ckpt: no such column; did you mean 'checkpointing'? `docs/validation.md` lists all",
                "mbs: no such column; did you mean 'micro_batch_size'? `docs/validation.md` lists all",
                "seqlen: no such column; did you mean 'seq_len'? `docs/validation.md` lists all",
            ],
        ),
        (
            "model,gpu,topology,gpus,seq_len,colour,model",
            [
                "colour: no such column; `docs/validation.md` lists all",
                "micro_batch_size: is missing; every run needs this column",
                "model: names 2 columns; keep one of them",
                "step_time_s: is missing; give one of step_time_s, tokens_per_s and log",
            ],
        ),
    ],
)
def test_a_mistake_in_the_header_is_a_single_line(tmp_path: Path, header: str, faults: list[str]) -> None:
    """Three rows repeat no fault of the first line; a fault in a row is reported in the same round."""
    cells = ["gpt2", "h100_sxm", "dgx_h100", "8", "1024", "1", "gpt2", "5"][: len(header.split(","))]
    rows = [cells, cells, [*cells[:1], "h100_sx", *cells[2:]]]
    path = written(tmp_path, "\n".join([header, *map(",".join, rows)]) + "\n")
    with pytest.raises(ScenarioError) as caught:
        user_rows(path)
    lines = str(caught.value).splitlines()
    assert lines[:-1] == [f"{path} line 1: {fault}" for fault in faults]
    assert lines[-1].startswith(f"{path} line 4: gpu: got 'h100_sx'; did you mean 'h100_sxm'")


def test_a_comma_at_the_end_of_every_line_is_no_column(tmp_path: Path) -> None:
    line = "gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5,"
    assert len(user_rows(written(tmp_path, HEAD.replace("\n", ",\n") + line + "\n"))) == 1
    with pytest.raises(ScenarioError, match="line 2: got more cells than the 10 columns"):
        user_rows(written(tmp_path, HEAD.replace("\n", ",\n") + line + "6\n"))


def test_an_empty_file_says_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="has no rows"):
        user_rows(written(tmp_path, HEAD))


def test_the_command_plays_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: Command = commands_in(tmp_path, monkeypatch, capsys)
    path = written(tmp_path, HEAD + "gpt2,h100_sxm,dgx_h100,8,1024,4,1,bare,ddp,5e6\n")
    answer = cli("validate", "--csv", str(path), "--jobs", "1")
    assert (answer.code, "mine" in answer.out) == (0, True)


def test_the_page_has_the_columns() -> None:
    page = (Path(__file__).parents[1] / "docs" / "validation.md").read_text(encoding="utf-8")
    assert columns() in page
    assert all(field.description for field in UserRow.model_fields.values())


@pytest.mark.parametrize("place", [1, 3])
def test_a_cell_that_is_too_long_for_csv_is_refused_with_its_line(tmp_path: Path, place: int) -> None:
    lines = [HEAD, "# a comment\n", "gpt2,h100_sxm,dgx_h100,8,1024,1,1,bare,ddp,5\n"]
    lines[place - 1] = "x" * 131_073 + lines[place - 1]
    with pytest.raises(ScenarioError, match=rf"mine\.csv line {place}: not CSV: field larger than field limit"):
        user_rows(written(tmp_path, "".join(lines)))


def test_of_many_wrong_lines_the_first_fifty_are_told(tmp_path: Path) -> None:
    text = HEAD + "gpt2,h100_sxm,dgx_h100,0,1024,1,1,bare,ddp,5\n" * 60
    with pytest.raises(ScenarioError, match="and 10 further mistakes") as caught:
        user_rows(written(tmp_path, text))
    assert len(str(caught.value).splitlines()) == 51


OWN_MODEL = {
    "model_type": "llama", "hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 512, "vocab_size": 1000,
}  # fmt: skip
STAR = {"builder": "star", "options": {"bandwidth": "100 Gb/s", "latency": "5 us"}}
TRAINING: dict[str, Any] = {
    "model": "./own.json", "seq_len": 128, "framework": "transformers", "gradient_accumulation_steps": 5,
    "lora": {"rank": 8}, "cuda_graphs": "full_iteration",
}  # fmt: skip


@pytest.mark.parametrize(
    "changed", [{}, {"lora": {"rank": 4, "base": "nf4"}}, {"lora": None, "sharding": "zero3"}], ids=str
)
def test_a_line_with_a_scenario_is_simulated_as_the_scenario_is(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Own model, own topology, adapters: a run that takes as long as simulated has no error."""
    (tmp_path / "own.json").write_text(json.dumps(OWN_MODEL))
    training = {key: value for key, value in (TRAINING | changed).items() if value is not None}
    cluster = {"topology": STAR, "gpu": "a100_sxm_80gb", "world_size": 4}
    scenario = {"name": "own", "cluster": cluster, "training": training}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(scenario))
    report = simulate(load_scenario(tmp_path / "own.yaml")).report
    path = written(
        tmp_path,
        f"scenario,step_time_s,tokens_per_s,peak_gib\nown.yaml,{report.step_time_s!r},,1\n"
        f"own.yaml,,{4 * 128 * 5 / report.step_time_s!r},\n",
    )
    rows = user_rows(path)
    assert [row.step_time for row in rows] == pytest.approx([report.step_time_s] * 2, rel=1e-12)
    assert [row.peak for row in rows] == [2**30, None]
    for played in play_rows(rows, jobs=1):
        assert played.time_error == pytest.approx(0.0, abs=1e-9)
        assert played.peak == report.peak_memory_bytes


def test_calibrated_constants_act_on_lines_with_scenarios(tmp_path: Path) -> None:
    """All kernels and transfers twice as long: the step takes twice as long, and needs the same memory."""
    (tmp_path / "own.json").write_text(json.dumps(OWN_MODEL))
    cluster = {"topology": STAR, "gpu": "a100_sxm_80gb", "world_size": 4}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump({"name": "own", "cluster": cluster, "training": TRAINING}))
    (row,) = user_rows(written(tmp_path, "scenario,step_time_s\nown.yaml,1\n"))
    shipped = frameworks()["transformers"]
    slow = replace(shipped, kernel_time=2 * shipped.kernel_time, network_time=2 * shipped.network_time)
    once, twice = (play_rows([row], {"transformers": one}, jobs=1)[0] for one in (shipped, slow))
    assert twice.step_time / once.step_time == pytest.approx(2.0, rel=1e-2)
    assert twice.peak == once.peak


@pytest.mark.parametrize(
    ("head", "cells", "told"),
    [
        ("scenario,step_time_s,gpus", "own.yaml,1,4", "gpus: got '4' beside a scenario, which has all settings"),
        ("scenario,step_time_s", "own.yaml,", "step_time_s: give one of step_time_s, tokens_per_s and log"),
        ("scenario,step_time_s", "none.yaml,1", "no such scenario"),
        ("scenario,step_time_s", ",1", "model: is missing; every run needs this column, or a scenario"),
        ("scenario,step_time_s", "ring.yaml,1", "has no simulated training with a shipped framework"),
        ("scenario,step_time_s", "axes.yaml,1", "points"),
        ("scenario,step_time_s", "disturbed.yaml,1", "whose cluster has jitter or events; remove both keys"),
    ],
)
def test_a_line_with_a_wrong_scenario_is_refused(tmp_path: Path, head: str, cells: str, told: str) -> None:
    cluster = {"topology": "dgx_h100", "world_size": 8}
    training = {"model": "gpt2", "seq_len": 128, "framework": "torchtitan", "sharding": "ddp"}
    for name, keys in {
        "own": {"training": training},
        "ring": {"collective": {"operation": "all_reduce", "size": "1 MiB"}},
        "disturbed": {
            "training": training,
            "cluster": cluster | {"events": [{"at": "1 ms", "rank": 0, "factor": 0.5}]},
        },
        "axes": {"training": training, "sweep": {"training.seq_len": [128, 256]}},
    }.items():
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, "cluster": cluster} | keys))
    with pytest.raises(ScenarioError, match=rf"mine\.csv line 2: .*{re.escape(told)}"):
        user_rows(written(tmp_path, f"{head}\n{cells}\n"))
