"""A scenario that asks for a plan: what it says, what it may not say, and that every command and function knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pandas as pd
import pytest

import simulator
from simulator.basics.errors import ScenarioError
from simulator.planner.plan_question import plan_question
from simulator.scenario.load import load_scenario, points
from simulator.scenario.resolve import resolved, to_yaml
from simulator.scenario.schema import schema
from tests.commands import Command, commands_in
from tests.scenario_data import changed, told

MODEL = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256, "vocab_size": 512}
BASE: dict[str, Any] = {
    "name": "asked",
    "cluster": {"topology": "dgx_a100", "world_size": 8},
    "training": {"model": MODEL, "seq_len": 256},
    "plan": {
        "global_batch": "32seq",
        "fix": {"pp": 1, "checkpointing": "none"},
        "among": {"sharding": ["zero1", "zero3"], "micro_batch": [1, 2]},
        "without": ["zero3"],
        "best": 3,
    },
}


def with_keys(*changes: tuple[str, Any]) -> dict[str, Any]:
    """BASE with more keys."""
    return changed(BASE, dict(changes))


def test_what_is_asked_for_is_what_the_file_says() -> None:
    question = plan_question(load_scenario(BASE))
    values = question.choices().values
    assert question.sequences == 32
    assert question.plan.best == 3
    assert (values["pp"], values["checkpointing"], values["micro_batch"]) == ((1,), ("none",), (1, 2))
    assert values["sharding"] == ("zero1",)
    assert question.base.plan is None


@pytest.mark.parametrize(
    ("written", "sequences"),
    [("4M", 16384), (4194304, 16384), ("512seq", 512), ("1e6", None), (8192, 32), ("16k", 64), ("0seq", None)],
)
def test_a_batch_is_tokens_or_sequences(written: Any, sequences: int | None) -> None:
    data = with_keys(("plan__global_batch", written))
    if sequences is None:
        assert told(data)[0].startswith("plan.global_batch: ")
    else:
        plan = load_scenario(data).plan
        assert plan is not None
        assert plan.sequences == sequences


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (("compare", {"training.seq_len": [128, 256]}),
         "plan: excludes compare, because a plan takes a single value of each key; remove one"),
        (("training__parallelism", {"tp": 2}),
         "training.parallelism.tp: is chosen by the plan; write plan: {fix: {tp: ...}}"),
        (("training__sharding", "zero1"),
         "training.sharding.strategy: is also a choice of the plan; keep one"),
        (("training__gradient_accumulation_steps", 2),
         "training.gradient_accumulation_steps: follows from plan.global_batch; remove the key"),
        (("plan__fix__sharding", "zero1"),
         "plan.among.sharding: contradicts plan.fix, which fixes the same name; omit one"),
        (("plan__fix__tp", 0), "plan.fix.tp: got 0; must be at least 1"),
        (("plan__among__tp", [1, "two"]), "plan.among.tp.1: got 'two'; must be a whole number"),
        (("plan__among__gpus", [4, 16]), (
            "plan.among.gpus: must contain cluster.world_size, 8, because the report describes this number of GPUs "
            "in full"
        )),
        (("plan__among__gpus", [8, 0]), "plan.among.gpus.1: got 0; must be at least 1"),
        (("plan__among__tp", []), "plan.among.tp: got an empty list; give at least one value"),
        (("plan__fix__heads", 4), "plan.fix.heads: got 'heads'; one of base, checkpointing, cp, ep, framework, "
                                  "micro_batch, offload, optimizer, pp, precision, rank, schedule, ..."),
        (("plan__global_batch", 1000), (
            "plan.global_batch: 1,000 tokens are not a multiple of seq_len 256; write 768, or 3seq; "
            "for 1,000 sequences write 1000seq"
        )),
        (("plan__deadline", "6w"),
         "plan.deadline: needs the length of the training; write budget: {tokens: 1e12}"),
        (("plan__deadline", "soon"), "plan.deadline: got 'soon'; must be a time in days, such as 30, 30d, 6w or 12h"),
        (("cluster__jitter", {"compute": 0.1}),
         "cluster.jitter: a plan excludes jitter, because random times may be shorter than any lower bound"),
        (("answer", ["fit"]), "answer: describes points, but a plan has its own answer; remove the key"),
        (("plots", ["timeline"]), "plots: describes points, but a plan has its own answer; remove the key"),
        (("plan__fix__sharding", "parameter_server"),
         (
             "plan.fix.sharding: got 'parameter_server', whose servers hold states outside the ranks; a plan does "
             "not support servers"
         )),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_told_where_it_stands(change: tuple[str, Any], fault: str) -> None:
    assert fault in told(with_keys(change))


def test_a_collective_has_no_plan() -> None:
    data = with_keys(("collective", {"operation": "all_reduce", "size": "1 MiB"}))
    del data["training"]
    assert told(data) == ["plan: needs a training, but the scenario simulates a collective; remove the key"]


@pytest.mark.parametrize(
    "changes", [(), (("plan__deadline", "6w"), ("budget", {"tokens": 1e12})), (("plan__among__gpus", [4, 8]),)]
)
@pytest.mark.one_of(3)
def test_what_is_written_loads_back_and_keeps_the_schema(changes: tuple[tuple[str, Any], ...], tmp_path: Path) -> None:
    scenario = load_scenario(with_keys(*changes, ("training__sharding", {"bucket_size": "50 MiB"})))
    (tmp_path / "again.yaml").write_text(to_yaml(scenario), encoding="utf-8")
    again = load_scenario(tmp_path / "again.yaml")
    assert (again, again.warnings) == (scenario, ())
    jsonschema.validate(json.loads(json.dumps(resolved(scenario))), schema())


def test_set_changes_what_is_asked_for() -> None:
    scenario = load_scenario(BASE, {"plan.fix.pp": "2", "plan.best": "1", "cluster.world_size": "16"})
    assert scenario.plan is not None
    assert (scenario.plan.fix["pp"], scenario.plan.best, scenario.cluster.world_size) == (2, 1, 16)
    with pytest.raises(ScenarioError, match=r"^--set plan.fix.pp=none: got 'none'; must be a whole number$"):
        load_scenario(BASE, {"plan.fix.pp": "none"})


@pytest.mark.long
def test_it_is_searched_not_played() -> None:
    scenario = load_scenario(BASE)
    for play in (simulator.simulate, simulator.play, simulator.sweep, points):
        with pytest.raises(ScenarioError, match=r"is a plan and has no points; use simulator\.plan\(scenario\)"):
            play(scenario)
    found = simulator.plan(scenario)
    assert [one.setting.sharding for one in found.best] == ["zero1"] * len(found.best)
    assert len(found.best) == 3
    asked = {"topology": "dgx_a100", "gpus": 8, "seq_len": 256, "global_batch": "32seq"}
    same = simulator.plan(
        MODEL, **asked, fix=BASE["plan"]["fix"], among=BASE["plan"]["among"], without=["zero3"], best=3
    )
    assert [one.report for one in same.best] == [one.report for one in found.best]


def test_numbers_of_gpus_are_told_alike_in_a_file_and_in_python() -> None:
    of_file = simulator.plan(changed(BASE, {"plan__among__gpus": [4, 8]}))
    asked = {"topology": "dgx_a100", "seq_len": 256, "global_batch": "32seq", "fix": BASE["plan"]["fix"]}
    among = {**BASE["plan"]["among"], "gpus": [8, 4]}
    of_python = simulator.plan(MODEL, **asked, among=among, without=["zero3"], best=3)
    pd.testing.assert_frame_equal(of_file.sizes(), of_python.sizes())
    assert list(of_file.sizes()["gpus"]) == [8, 4]
    assert set(of_file.front()["gpus"]) <= {4, 8}
    assert len(of_file.best) == 3
    assert {one.setting.gpus for one in of_file.best} == {8}
    assert "GPU hours (tested: 4, 8)." in of_file.to_html()
    assert simulator.plan(BASE).sizes().empty


def test_python_says_what_is_missing_or_too_much() -> None:
    with pytest.raises(
        ScenarioError,
        match=r"^plan: missing seq_len, global_batch; the plan of a model needs topology, gpus, seq_len and global_"
        r"batch$",
    ):
        simulator.plan(MODEL, topology="dgx_a100", gpus=8)
    with pytest.raises(ScenarioError, match=r"^plan: gpus: needs a model and a topology"):
        simulator.plan(BASE, gpus=8)
    with pytest.raises(ScenarioError, match=r"has no plan; write for example 'plan: "):
        simulator.plan("zero_stages")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "asked.yaml").write_text(to_yaml(load_scenario(BASE)), encoding="utf-8")
    return commands_in(tmp_path, monkeypatch, capsys)


def test_run_sweep_and_plan_search_alike(cli: Command, tmp_path: Path) -> None:
    answers = {
        "plan": cli("plan", "asked.yaml", "--out", "plan", "--jobs", "1"),
        "sweep": cli("sweep", "asked.yaml", "--out", "sweep", "--jobs", "1"),
        "run": cli("run", "asked.yaml"),
    }
    assert [answer.code for answer in answers.values()] == [0, 0, 0]
    folders = ("plan", "sweep", "runs/asked-0001")
    for name in ("plan.json", "best.yaml", "report.html"):
        assert len({(tmp_path / folder / name).read_bytes() for folder in folders}) == 1, name
    assert cli("check", "asked.yaml").out.splitlines()[-1] == (
        "settings:  6 possible; 2 further combinations are impossible"
    )
    assert cli("run", "best.yaml").faults[0].startswith("best.yaml: ")
    assert cli("run", "plan/best.yaml", "--json").code == 0


def test_a_plan_has_no_empty_column_and_no_empty_list_of_reasons(cli: Command, tmp_path: Path) -> None:
    """Without a price there is no cost, on the page either; without excluded settings there are no reasons."""
    numbers = ("--set", "plan.among.gpus=[4, 8]", "--set", "budget.tokens=1e9", "--jobs", "1")
    answer = cli("plan", "asked.yaml", *numbers, "--out", "plan")
    (heads,) = (line for line in answer.out.splitlines() if line.startswith("GPUs"))
    assert heads.split() == ["GPUs", "step", "tokens/s/GPU", "days", "GPU", "hours", "fastest", "setting"]
    assert "<th>cost</th>" not in (tmp_path / "plan" / "report.html").read_text(encoding="utf-8")
    priced = cli("plan", "asked.yaml", *numbers, "--out", "priced", "--set", "budget.price=2")
    assert any(line.split()[3:7] == ["days", "GPU", "hours", "cost"] for line in priced.out.splitlines())
    assert "<th>cost</th>" in (tmp_path / "priced" / "report.html").read_text(encoding="utf-8")
    one = ("plan.fix={pp: 1, tp: 1, checkpointing: none}", "plan.among={micro_batch: [1], sharding: [zero1, zero3]}")
    few = cli("plan", "asked.yaml", *(word for setting in one for word in ("--set", setting)), "--jobs", "1")
    assert "considered, 1 simulated.\n" in few.out
    assert "Excluded" not in few.out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("run", "asked.yaml", "--trace"), (
            "--trace: is an option for points, but asked.yaml is a plan; omit the option"
        )),
        (("plan", "asked.yaml", "--gpus", "4"),
         "--gpus: applies to a model with --topology; asked.yaml is a scenario; change its keys with --set"),
        (("plan", "llama3_8b", "--gpus", "4"),
         "--topology: missing; the plan of a model needs a machine; write for example --topology dgx_h100 --gpus 8"),
        (("plan", "asked.yaml", "--set", "plan.without=zero9"),
         "--set plan.without=zero9: got 'zero9'; must be a list, such as 'without: [zero3]'"),
        (("plan", "asked.yaml", "--set", "plan.without=[zero9]"),
         "asked.yaml: plan.without: zero9: one of 1f1b, interleaved, none, zero1, zero3; did you mean 'zero3'?"),
        (("plan", "small.yaml"),
         "small.yaml: has no plan; write for example 'plan: {global_batch: 4M}', or use `simulator run`"),
        (("plan", "asked.yaml", "--topology", "dgx_a100"),
         "--gpus: missing; write for example --gpus 8, or --among gpus=8,16"),
    ],
)  # fmt: skip
def test_wrong_options_are_one_line(cli: Command, arguments: tuple[str, ...], fault: str) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.faults == [fault]
