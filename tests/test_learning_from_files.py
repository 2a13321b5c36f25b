"""Parameters and batches in files, on the whole way: commands, sweeps, processes, clusters, kept outcomes, reruns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from simulator.scenario.load import load_scenario, points
from simulator.sweeps import dask_cluster
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.cache import Cache
from tests.commands import Command, commands_in
from tests.interrupting import contents

SCENARIO = """\
# Does it go on where it stopped?
name: learns
cluster: {topology: star_100g, world_size: 2}
training:
  model: {model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 8, vocab_size: 30}
  seq_len: 8
  micro_batch_size: 2
  numerics: true
  steps: 2
  precision: fp32
  learning: {batches: data/tokens.npy}
plots: []
"""
INITIAL = "training.learning.initial"


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "data").mkdir()
    np.save(tmp_path / "data" / "tokens.npy", np.random.default_rng(3).integers(0, 30, (2, 4, 9)))
    (tmp_path / "learns.yaml").write_text(SCENARIO, encoding="utf-8")
    return commands_in(tmp_path, monkeypatch, capsys)


def losses(folder: Path) -> list[list[float]]:
    return [
        point["report"]["learning"]["losses"] for point in json.loads((folder / "report.json").read_text())["points"]
    ]


def test_what_a_run_leaves_another_begins_with(cli: Command, tmp_path: Path) -> None:
    assert cli("run", "learns.yaml", "--out", "first").code == 0
    with np.load(tmp_path / "first" / "parameters.npz", allow_pickle=False) as left:
        assert left["tok.weight"].shape == (30, 16)
        assert left["blocks.0.qkv.weight"].dtype == np.float32
    again = cli("run", "learns.yaml", "--out", "second", "--set", f"{INITIAL}=first/parameters.npz")
    assert again.code == 0, again.err
    assert losses(tmp_path / "second")[0][0] < losses(tmp_path / "first")[0][0]


def test_a_rerun_finds_the_files_from_anywhere(cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("run", "learns.yaml", "--out", "first")
    cli("run", "learns.yaml", "--out", "second", "--set", f"{INITIAL}=first/parameters.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = cli("rerun", tmp_path / "second", "--out", "third")
    assert (again.code, again.out.splitlines()[-1].endswith("the report is identical")) == (0, True)
    assert contents(tmp_path / "second") == contents(tmp_path / "elsewhere" / "third")
    assert "parameters.npz" in contents(tmp_path / "second")


@pytest.mark.long
def test_a_sweep_over_files_is_the_same_on_processes_and_on_a_clusters_workers(cli: Command, tmp_path: Path) -> None:
    for seed in (1, 2):
        cli("run", "learns.yaml", "--out", f"data/{seed}", "--set", f"seed={seed}")
    files = [f"data/{seed}/parameters.npz" for seed in (1, 2)]
    command = ("sweep", "learns.yaml", "--set", f"{INITIAL}={','.join(files)}")
    assert cli(*command, "--out", "one", "--jobs", 1).code == 0
    assert cli(*command, "--out", "two", "--jobs", 2).code == 0
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert {f"points/000{n}/parameters.npz" for n in (0, 1)} <= set(contents(tmp_path / "one"))
    first, second = losses(tmp_path / "one")
    assert first != second
    numbered = list(enumerate(points(load_scenario("learns.yaml", {f"sweep.{INITIAL}": str(files)}))))
    sent = dask_cluster.files_to_send([point for _, point in numbered])
    assert set(sent) == {"data/tokens.npy", *files}
    for index, at in enumerate(numbered):
        keeper = ArtifactWriter(Path(), single=False)
        there, left = dask_cluster.play_on_worker(
            at, keep=keeper, files=sent, ours=dask_cluster.edition(), strict=False
        )
        assert there.report is not None, there.error
        assert list(there.report["learning"]["losses"]) == losses(tmp_path / "one")[index]
        name = f"points/000{index}/parameters.npz"
        assert left[name] == contents(tmp_path / "one")[name]


def test_kept_outcomes_know_what_files_say(cli: Command, tmp_path: Path) -> None:
    cli("run", "learns.yaml", "--out", "data/1")
    (tmp_path / "own.npz").write_bytes((tmp_path / "data/1/parameters.npz").read_bytes())
    known = set()
    for changed in (None, "own.npz", "data/tokens.npy"):
        if changed == "own.npz":
            with np.load(tmp_path / changed) as there:
                parameters = dict(there)
            np.savez(tmp_path / changed, **parameters | {"lnf.bias": np.ones(16)})  # type: ignore[arg-type]
        elif changed:
            np.save(tmp_path / changed, np.zeros((2, 4, 9), int))
        (point,) = points(load_scenario("learns.yaml", {INITIAL: "own.npz"}))
        known.add(Cache(Path("unused")).key(point.scenario))
    assert None not in known
    assert len(known) == 3


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_cannot_be_read_is_one_line_with_its_place(cli: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "bad.yaml").write_text(SCENARIO.replace("tokens.npy", "tokens.npy, initial: bad.npz"), encoding="utf-8")
    answer = cli(command, "bad.yaml")
    place = "bad.yaml:11:49: training.learning.initial"
    assert (answer.code, answer.out) == (2, "")
    assert answer.faults == [f"{place}: bad.npz: is not an .npz archive; write the file with numpy.savez"]
    both = cli(command, "learns.yaml", "--set", "training.learning.tokens=[1, 2, 3, 4, 5, 6, 7, 8, 9]")
    assert both.code == 2
    (fault,) = both.faults
    assert fault.startswith("learns.yaml:11:14: training.learning.batches: excludes tokens, because a training learns")
    assert not (tmp_path / "runs").exists()


def test_batches_for_other_ranks_are_told_at_the_axis(cli: Command) -> None:
    answer = cli("sweep", "learns.yaml", "--set", "cluster.world_size=2,4")
    assert answer.code == 2
    assert "cluster.world_size" in answer.err
    assert "tokens.npy: has shape (2, 4, 9); must be (steps, 8, 9)" in answer.err
    assert len(answer.faults) == 1


def test_an_editor_is_told_of_the_keys(cli: Command) -> None:
    keys = cli("schema").data["$defs"]["LearningSpec"]["properties"]
    assert {"initial", "batches", "betas", "eps", "warmup", "schedule"} <= set(keys)
    assert keys["schedule"]["enum"] == ["constant", "linear", "cosine"]
