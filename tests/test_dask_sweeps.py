"""Sweeps on a Dask cluster of two local workers: the same bytes as here, and no worker that cannot be lost."""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, LocalCluster

from simulator.basics.errors import ScenarioError, SimulationError
from simulator.run.simulate import SimulatedRun
from simulator.scenario.load import load_scenario, points
from simulator.sweeps import dask_cluster
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.outcome import NumberedPoint
from simulator.sweeps.sweep import Backend, play_points, sweep
from tests.commands import Command, commands_in
from tests.interrupting import ROOT, contents, ended, held, started, wait_for_points

SCENARIO: dict[str, Any] = {
    "name": "many",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB", "payload": False},
}
MODEL = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256, "vocab_size": 512}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as found:
            yield found


@pytest.fixture(autouse=True)
def _a_busy_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Twelve times as long as a user waits; a client whose worker was lost may take all of it to close.
    monkeypatch.setattr(dask_cluster, "TIMEOUT", 60)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def numbered(count: int, scenario: dict[str, Any] = SCENARIO) -> list[NumberedPoint]:
    return list(enumerate(points(load_scenario({**scenario, "sweep": {"seed": list(range(count))}}))))


@pytest.mark.long
def test_a_cluster_leaves_the_bytes_that_processes_leave(cli: Command, cluster: LocalCluster, tmp_path: Path) -> None:
    command = ("sweep", "both.yaml", "--set", "cluster.world_size=2,4,8", "--trace", "--parquet")
    here = cli(*command, "--out", "here", "--jobs", 1)
    there = cli(*command, "--out", "there", "--scheduler", cluster.scheduler_address)
    assert (here.code, there.code) == (0, 0)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert "points/0005/trace/rank3.json.gz" in contents(tmp_path / "there")


def test_a_single_point_is_played_there_and_its_error_is_the_runs(
    cli: Command, cluster: LocalCluster, tmp_path: Path
) -> None:
    there = ("sweep", "small.yaml", "--scheduler", cluster.scheduler_address)
    assert cli("run", "small.yaml", "--out", "here").code == 0
    assert cli(*there, "--out", "there").code == 0
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    failed = cli(*there, "--out", "failed", "--set", "cluster.link_factors={'gpu9->switch0': 0.5}")
    assert failed.code == 2
    assert failed.faults[-1].startswith("small.yaml: link: got 'gpu9->switch0'; one of gpu0->switch0")
    assert not (tmp_path / "failed").exists()


def test_files_that_a_scenario_names_go_to_the_workers(cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    text = (ROOT / "topologies" / "star_100g.yaml").read_text(encoding="utf-8")
    (tmp_path / "own" / "mine.yaml").write_text(text, encoding="utf-8")
    (tmp_path / "s.yaml").write_text(
        "name: s\ncluster: {topology: ./own/mine.yaml, world_size: 4}\ncollective: {operation: all_reduce, size: 4 KiB}"
        "\nsweep: {seed: [0, 1, 2]}\n",
        encoding="utf-8",
    )
    at = list(enumerate(points(load_scenario(tmp_path / "s.yaml"))))
    assert list(dask_cluster.files_to_send([point for _, point in at])) == ["own/mine.yaml"]
    here = list(play_points(at))
    outcomes = play_points(at, Backend(scheduler=cluster.scheduler_address))
    first = next(outcomes)
    there = sorted([first, *outcomes], key=lambda outcome: outcome.index)
    assert there == here


def test_a_model_is_called_there_as_it_is_here(tmp_path: Path) -> None:
    catalog = ROOT / "simulator" / "catalog" / "models"
    folder = tmp_path / "my_model"
    folder.mkdir()
    (folder / "config.json").write_bytes(sorted(catalog.glob("*.json"))[0].read_bytes())
    (folder / "s.yaml").write_text(
        "name: s\ncluster: {topology: star_100g, world_size: 2}\ntraining: {model: ./config.json, seq_len: 64}\n",
        encoding="utf-8",
    )
    (at,) = enumerate(points(load_scenario(folder / "s.yaml")))
    files = dask_cluster.files_to_send([at[1]])
    here, _ = dask_cluster.play_on_worker(at, keep=None, files=None, ours=dask_cluster.edition(), strict=False)
    there, _ = dask_cluster.play_on_worker(at, keep=None, files=files, ours=dask_cluster.edition(), strict=False)
    assert there == here
    assert there.error is None


def test_a_plan_finds_the_same_on_a_cluster(cli: Command, cluster: LocalCluster, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    (tmp_path / "p.yaml").write_text(
        "name: p\ncluster: {topology: dgx_a100, world_size: 8}\ntraining: {model: ./own/config.json, seq_len: 256}\n"
        "plan: {global_batch: 32seq, fix: {pp: 1, checkpointing: none}, among: {sharding: [zero1, zero3]}, best: 3}\n",
        encoding="utf-8",
    )
    here = cli("plan", "p.yaml", "--out", "here", "--jobs", 1)
    there = cli("plan", "p.yaml", "--out", "there", "--scheduler", cluster.scheduler_address)
    assert (here.code, there.code) == (0, 0)
    # More points are chosen before the first outcome is there, so more are played; the best are the same.
    plans = [json.loads((tmp_path / name / "plan.json").read_text(encoding="utf-8")) for name in ("here", "there")]
    assert plans[1]["best"] == plans[0]["best"]
    assert plans[1]["played"] >= plans[0]["played"]
    assert (tmp_path / "there" / "best.yaml").read_bytes() == (tmp_path / "here" / "best.yaml").read_bytes()


@pytest.mark.long
def test_a_lost_worker_loses_no_point(cluster: LocalCluster, tmp_path: Path) -> None:
    at = numbered(150)
    keep = ArtifactWriter(tmp_path, single=False)
    found = []
    for outcome in play_points(at, Backend(scheduler=cluster.scheduler_address), keep):
        found.append(outcome)
        if len(found) == 20:
            os.kill(cluster.workers[0].pid, signal.SIGKILL)
    assert sorted(found, key=lambda outcome: outcome.index) == list(play_points(at))
    assert len(list((tmp_path / "points").iterdir())) == 150


class EndsItsProcess(ArtifactWriter):
    """Keeps nothing, and ends the process that plays point 1."""

    __slots__ = ()

    def __call__(self, index: int, run: SimulatedRun) -> None:
        if index == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.long
def test_a_point_that_ends_every_worker_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """Four workers are lost before the point fails. Dask may not replace a worker that ends while it starts.

    Five workers are enough even if none is replaced.
    """
    keep = EndsItsProcess(tmp_path, single=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with LocalCluster(n_workers=5, threads_per_worker=1, dashboard_address=None) as five:
            outcomes = play_points(numbered(6), Backend(scheduler=five.scheduler_address), keep)
            found = {outcome.index: outcome.error for outcome in outcomes}
    assert sorted(found) == list(range(6))
    assert str(found[1]).startswith("the worker of this point was killed")
    assert [index for index, error in found.items() if error] == [1]


def test_sweep_plays_on_a_cluster(cluster: LocalCluster) -> None:
    axes = {"cluster.world_size": [2, 4]}
    scenario = load_scenario(SCENARIO)
    assert sweep(scenario, axes, scheduler=cluster.scheduler_address).equals(sweep(scenario, axes))


def test_what_a_cluster_played_is_kept_here(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Backend(scheduler=cluster.scheduler_address, cache=tmp_path / "kept")
    first = sorted(play_points(numbered(4), there), key=lambda outcome: outcome.index)
    monkeypatch.setattr(dask_cluster, "play", None)
    assert list(play_points(numbered(4), there)) == first


def test_another_edition_is_refused(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.basics.edition.VERSION", "9.9")
    with pytest.raises(
        ScenarioError, match=r"--scheduler: this is simulator 9\.9 .*, (the scheduler|tcp://\S+) has "
    ) as told:
        list(play_points(numbered(2), Backend(scheduler=cluster.scheduler_address)))
    assert str(told.value).endswith("install the same on every machine")


def test_a_worker_that_joins_later_with_another_edition_is_refused() -> None:
    with pytest.raises(SimulationError, match=r"this is simulator 9\.9, a worker has 0\.1\.0"):
        dask_cluster.play_on_worker(numbered(1)[0], keep=None, files=None, ours="9.9", strict=False)


def test_a_cluster_without_workers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Client.wait_for_workers
    # No worker ever comes, so this wait may be short; all others are as long as they must be.
    monkeypatch.setattr(Client, "wait_for_workers", lambda self, count, timeout: waits(self, count, timeout=0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with LocalCluster(n_workers=0, dashboard_address=None) as empty:
            address = empty.scheduler_address
            with pytest.raises(ScenarioError, match="has no workers; start workers with `dask worker"):
                list(play_points(numbered(2), Backend(scheduler=address)))


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.long)],
)
def test_ctrl_c_and_sigterm_keep_what_had_ended(
    cli: Command, cluster: LocalCluster, tmp_path: Path, number: int, code: int, word: str
) -> None:
    long = (tmp_path / "small.yaml").read_text(encoding="utf-8").replace("4 KiB", "8 MiB")
    (tmp_path / "long.yaml").write_text(
        long.replace("plots: []", "sweep: {seed: [0, 1, 2, 3, 4, 5, 6, 7]}\nplots: []"), encoding="utf-8"
    )
    there = ("--scheduler", cluster.scheduler_address)
    with started(tmp_path, "sweep", "long.yaml", "--out", "torn", *there, "--json", program=held(2)) as process:
        wait_for_points(process, tmp_path / "torn", 2)
        process.send_signal(number)
        out, err = ended(process)
    (tmp_path / "go").touch()  # a thread of a worker cannot be ended, so it ends by itself
    assert (process.returncode, out) == (code, ""), err
    assert "Traceback" not in err
    told = [text for text in err.splitlines() if word in text]
    assert len(told) == 1
    again = " ".join(("simulator sweep long.yaml", *there, "--json --resume --out torn"))
    assert told[0].endswith(f"2 of 8 points are in torn; to continue, use `{again}`")
    assert cli("sweep", "long.yaml", "--out", "torn", "--resume", *there).code == 0
    assert cli("run", "long.yaml", "--out", "whole").code == 0
    assert contents(tmp_path / "torn") == contents(tmp_path / "whole")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--scheduler", "127.0.0.1:1"),
            "--scheduler: got '127.0.0.1:1'; must be tcp://HOST:PORT, as `dask scheduler`",
        ),
        (("--scheduler", "tcp://host"), "--scheduler: got 'tcp://host'; must be tcp://HOST:PORT"),
        (
            ("--scheduler", "tcp://h:1", "--jobs", "2"),
            "--scheduler: excludes --jobs, because a Dask cluster has its own processes; omit one option",
        ),
        (
            ("--scheduler", "tcp://h:1", "--jobs", "1"),
            "--scheduler: excludes --jobs, because a Dask cluster has its own processes; omit one option",
        ),
    ],
)
def test_what_is_no_cluster_is_refused(cli: Command, tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    answer = cli("sweep", "both.yaml", "--out", "here", *options)
    assert (answer.code, len(answer.faults)) == (2, 1)
    assert answer.err.startswith(told)
    assert not (tmp_path / "here").exists()


def test_an_address_that_nobody_answers_is_told_in_one_line(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dask_cluster, "TIMEOUT", 0.5)
    answer = cli("sweep", "both.yaml", "--out", "here", "--scheduler", "tcp://127.0.0.1:1")
    assert answer.code == 2
    assert answer.faults == [
        "--scheduler: no scheduler answered at tcp://127.0.0.1:1 within 0.5 s; is `dask scheduler` running on this "
        "machine and port?"
    ]
    assert not (tmp_path / "here").exists()
