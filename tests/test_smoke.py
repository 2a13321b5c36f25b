"""One of everything, in a few seconds: what must work in every environment that the package says it works in.

Rule: needs pytest and the package, with the extras that are installed; no other tool of the tests.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.smoke

RING = """\
# How fast is a small ring?
name: ring
cluster: {topology: star_100g, world_size: 4}
collective: {operation: all_reduce, algorithm: ring, size: 4 KiB}
plots: [steps]
"""
STEP = """\
# What does a step of a small model take?
name: step
cluster: {topology: dgx_a100, world_size: 8}
training: {model: gpt2_medium, seq_len: 1024, micro_batch_size: 4}
compare: {training.sharding.strategy: [ddp, zero3]}
plots: [memory, timeline]
"""
REAL = """\
# Does a small model learn?
name: real
cluster: {topology: star_100g, world_size: 2}
training:
  model: {model_type: gpt2, n_embd: 16, n_layer: 1, n_head: 2, n_positions: 8, vocab_size: 16}
  seq_len: 8
  micro_batch_size: 4
  numerics: true
  steps: 40
  precision: bf16
  learning: {rate: 0.01}
plots: [loss]
"""


def simulator(folder: Path, *arguments: object, code: int = 0) -> str:
    """What a command prints, run as its users run it: a process of its own, whatever its packages warn of."""
    command = [sys.executable, "-W", "ignore", "-m", "simulator", *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def played(folder: Path, text: str, *arguments: object) -> list[dict[str, float]]:
    """The reports of a scenario's points, which leaves its pictures too."""
    (folder / "scenario.yaml").write_text(text, encoding="utf-8")
    simulator(folder, "run", "scenario.yaml", "--out", "out", *arguments)
    pictures = sorted((folder / "out" / "plots").glob("*.png"))
    assert pictures
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)
    return [point["report"] for point in json.loads((folder / "out" / "report.json").read_text())["points"]]


def test_a_collective_takes_what_the_formula_says(tmp_path: Path) -> None:
    """A ring of four: six steps, each two cables of 5 us and a quarter of the array at 100 Gb/s."""
    (report,) = played(tmp_path, RING)
    assert report["time_s"] == pytest.approx(6 * (2 * 5e-6 + 1024 / 12.5e9), rel=1e-9)
    assert report["wrong"] == 0


def test_a_training_step_is_played_and_drawn(tmp_path: Path) -> None:
    ddp, zero3 = played(tmp_path, STEP)
    assert zero3["peak_memory_bytes"] < ddp["peak_memory_bytes"]
    assert min(ddp["mfu"], zero3["mfu"]) > 0


def test_a_model_learns_for_real(tmp_path: Path) -> None:
    (report,) = played(tmp_path, REAL)
    losses = report["learning"]["losses"]  # type: ignore[index]
    assert losses[-1] < 0.95 * losses[0]


def test_a_sweep_goes_over_processes_and_leaves_a_table(tmp_path: Path) -> None:
    (tmp_path / "ring.yaml").write_text(RING, encoding="utf-8")
    parquet = ("--parquet",) if find_spec("pyarrow") else ()
    simulator(tmp_path, "sweep", "ring.yaml", "--set", "cluster.world_size=2,4", "--jobs", 2, "--out", "out", *parquet)
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == 3
    assert (tmp_path / "out" / "table.parquet").exists() is bool(parquet)


def test_a_sweep_goes_over_a_dask_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    (tmp_path / "ring.yaml").write_text(RING, encoding="utf-8")
    axis = ("--set", "cluster.world_size=2,4")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:
        simulator(tmp_path, "sweep", "ring.yaml", *axis, "--scheduler", cluster.scheduler_address, "--out", "dask")
    simulator(tmp_path, "sweep", "ring.yaml", *axis, "--jobs", 1, "--out", "here")
    assert (tmp_path / "dask" / "report.json").read_bytes() == (tmp_path / "here" / "report.json").read_bytes()


def test_the_command_line_says_what_is_missing_or_unknown(tmp_path: Path) -> None:
    assert simulator(tmp_path, "--help").strip().startswith("Usage")
    assert "ring" in simulator(tmp_path, "list", "algorithms")
    assert simulator(tmp_path, "run", code=2).startswith("simulator run: Missing argument 'SCENARIO'")
    assert "did you mean 'run'" in simulator(tmp_path, "runn", code=2)
    assert simulator(tmp_path, "run", "ring", code=2).startswith("scenario: got 'ring'")
