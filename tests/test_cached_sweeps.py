"""The cache of outcomes: a hit where nothing has changed, a miss where anything has."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.sweeps import cache as caching
from simulator.sweeps.cache import Cache
from simulator.sweeps.sweep import Backend, play_points, sweep
from tests.commands import Command, commands_in
from tests.interrupting import ROOT, contents

OWN = """\
# {question}
name: {name}
cluster: {{topology: ./own/star.yaml, world_size: 4}}
collective: {{operation: all_reduce, size: {size}}}
plots: []
"""
TRAINED = """\
name: trained
cluster: {topology: star_100g, world_size: 2, gpu: ./gpu.yaml}
training: {model: ./model.json, seq_len: 64}
plots: []
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def project(folder: Path, question: str = "Why?", name: str = "own", size: str = "4 KiB") -> Path:
    """A scenario with a topology file of its own."""
    (folder / "own").mkdir(parents=True)
    shutil.copy(ROOT / "topologies" / "star_100g.yaml", folder / "own" / "star.yaml")
    (folder / "own.yaml").write_text(OWN.format(question=question, name=name, size=size), encoding="utf-8")
    return folder


def key(file: Path, **options: Any) -> str | None:
    (point,) = points(load_scenario(file))
    return Cache(Path("unused"), **options).key(point.scenario)


def must_not_play(scenario: Scenario, **_: Any) -> None:
    raise AssertionError(scenario)


def test_what_is_kept_is_not_played_again_and_the_report_is_the_same_to_the_byte(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("run", "both.yaml", "--out", "plain").code == 0
    assert cli("run", "both.yaml", "--out", "first", "--cache", "kept").code == 0
    assert contents(tmp_path / "first") == contents(tmp_path / "plain")
    monkeypatch.setattr("simulator.sweeps.outcome.simulate_point", must_not_play)
    assert cli("run", "both.yaml", "--out", "again", "--cache", "kept").code == 0
    left = contents(tmp_path / "again")
    # What happened when is not kept, so that the page has no timelines, and says so.
    assert b'"views":{}' in left.pop("report.html")
    assert set(left) == {"scenario.yaml", "report.json", "table.csv"}
    assert left == {name: contents(tmp_path / "plain")[name] for name in left}


def test_sweep_gives_the_same_table_from_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load_scenario(project(tmp_path) / "own.yaml")
    axes = {"cluster.world_size": [2, 4], "seed": [0, 1]}
    first = sweep(scenario, axes, cache=tmp_path / "kept")
    monkeypatch.setattr("simulator.sweeps.outcome.simulate_point", must_not_play)
    assert sweep(scenario, axes, cache=str(tmp_path / "kept")).equals(first)
    fewer = sweep(scenario, {"cluster.world_size": [4]}, cache=tmp_path / "kept")
    assert fewer["time_s"].tolist() == first["time_s"].tolist()[2:3]


def test_a_scenario_that_moved_or_is_called_otherwise_is_found(tmp_path: Path) -> None:
    here = project(tmp_path / "here") / "own.yaml"
    there = project(tmp_path / "there", question="What else?", name="other") / "own.yaml"
    assert key(here) == key(there)


def test_what_can_change_an_outcome_is_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = project(tmp_path / "here") / "own.yaml"
    known = {key(file), key(file, limit_memory=True), key(project(tmp_path / "larger", size="8 KiB") / "own.yaml")}
    star = tmp_path / "here" / "own" / "star.yaml"
    star.write_text(star.read_text(encoding="utf-8") + "# another comment\n", encoding="utf-8")
    known.add(key(file))
    monkeypatch.setattr("simulator.basics.edition.VERSION", "9.9")
    known.add(key(file))
    monkeypatch.setattr("simulator.basics.edition._digest", lambda: "other code")
    known.add(key(file))
    assert len(known) == 6


def test_every_file_that_a_scenario_names_belongs_to_the_key(tmp_path: Path) -> None:
    catalog = ROOT / "simulator" / "catalog"
    shutil.copy(catalog / "gpus" / "a100_sxm_80gb.yaml", tmp_path / "gpu.yaml")
    shutil.copy(sorted((catalog / "models").glob("*.json"))[0], tmp_path / "model.json")
    (tmp_path / "trained.yaml").write_text(TRAINED, encoding="utf-8")
    known = [key(tmp_path / "trained.yaml")]
    for name in ("gpu.yaml", "model.json"):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write("\n")
        known.append(key(tmp_path / "trained.yaml"))
    assert None not in known
    assert len(set(known)) == 3


def test_a_topology_that_names_files_brings_them_in(tmp_path: Path) -> None:
    file = project(tmp_path) / "own.yaml"
    star = tmp_path / "own" / "star.yaml"
    shutil.copy(ROOT / "simulator" / "catalog" / "gpus" / "a100_sxm_80gb.yaml", tmp_path / "own" / "gpu.yaml")
    lines = [line for line in star.read_text(encoding="utf-8").splitlines() if not line.startswith("gpu:")]
    star.write_text("\n".join([*lines, "gpu: ./gpu.yaml", ""]), encoding="utf-8")
    before = key(file)
    with (tmp_path / "own" / "gpu.yaml").open("a", encoding="utf-8") as gpu:
        gpu.write("# measured again\n")
    assert None not in (before, key(file))
    assert key(file) != before


def test_failed_points_are_not_kept(cli: Command, tmp_path: Path) -> None:
    axes = ("--set", "cluster.world_size=2,4", "--set", "cluster.link_factors={'gpu3->switch0': 0.5}")
    for out in ("first", "again"):
        assert cli("sweep", "small.yaml", *axes, "--out", out, "--jobs", 1, "--cache", "kept").code == 1
    assert len(list((tmp_path / "kept").rglob("*.json"))) == 1
    assert (tmp_path / "again" / "points" / "0000").exists() is False
    assert contents(tmp_path / "again")["report.json"] == contents(tmp_path / "first")["report.json"]


def test_a_file_that_changes_while_a_point_is_played_keeps_nothing(tmp_path: Path) -> None:
    scenario = load_scenario(project(tmp_path) / "own.yaml")

    def changes(*_: object) -> None:
        with (tmp_path / "own" / "star.yaml").open("a", encoding="utf-8") as file:
            file.write("# changed\n")

    assert list(play_points(list(enumerate(points(scenario))), Backend(cache=tmp_path / "kept"), changes))
    assert not (tmp_path / "kept").exists()


def test_an_entry_that_cannot_be_read_is_missed_and_written_anew(tmp_path: Path) -> None:
    scenario = load_scenario(project(tmp_path) / "own.yaml")
    first = sweep(scenario, cache=tmp_path / "kept")
    (entry,) = (tmp_path / "kept").rglob("*.json")
    whole = entry.read_bytes()
    for torn in (b"", whole[:20], b"[]", b'{"engine": "events", "report": 7}', b"\xff"):
        entry.write_bytes(torn)
        assert sweep(scenario, cache=tmp_path / "kept").equals(first)
        assert json.loads(entry.read_bytes()) == json.loads(whole)


def test_a_single_run_that_does_not_fit_is_told_though_a_sweep_kept_it(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "large.yaml").write_text(
        "name: large\ncluster: {topology: star_100g, world_size: 2}\n"
        "training: {model: llama3_8b, seq_len: 2048, sharding: ddp}\nplots: []\n",
        encoding="utf-8",
    )
    assert cli("sweep", "large.yaml", "--set", "seed=0,1", "--out", "both", "--jobs", 1, "--cache", "kept").code == 0
    alone = cli("run", "large.yaml", "--out", "one", "--cache", "kept")
    assert alone.code == 1
    assert "ran out of memory" in alone.err


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(ScenarioError, match=r"--cache: .*locked: cannot be written: Permission denied"):
        sweep(load_scenario(project(tmp_path / "p") / "own.yaml"), cache=tmp_path / "locked")


def test_a_cache_that_is_a_file_is_told(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    answer = cli("run", "both.yaml", "--out", "here", "--cache", "file")
    assert answer.code == 2
    assert answer.faults[0].startswith("--cache: file: cannot be written: ")
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("option", ["--trace", "--transfers", "--ranks=0"])
def test_who_wants_what_a_cache_does_not_keep_is_refused(cli: Command, tmp_path: Path, option: str) -> None:
    answer = cli("run", "both.yaml", "--out", "here", "--cache", "kept", option)
    name = option.partition("=")[0]
    told = f"{name}: excludes --cache, because cached points have no timeline; omit one option\n"
    assert (answer.code, answer.err) == (2, told)
    assert not (tmp_path / "here").exists()


def test_the_edition_is_the_version_and_a_digest() -> None:
    assert caching.edition().startswith("0.1.0 (")
    assert caching.edition() == caching.edition()
