"""What is told of a play that lasts, and what Ctrl-C does in the middle of one."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from simulator import load_scenario, simulate
from simulator.basics.progress import Progress, stage, tell, watched
from simulator.engine.compiled import library
from simulator.learning import training
from tests.interrupting import ended, started

# Everybody sends to everybody over shared links: half a minute in the core.
LONG = """\
name: long
cluster: {topology: torus_2d, world_size: 144}
collective: {operation: all_to_all, algorithm: direct, size: 16 MiB, payload: false}
plots: []
"""
# The command, which tells its progress every 50 ms.
TELLING = "-c", "from simulator.cli import main, progress; progress._EVERY = {False: 0.05}; main()"


def scenario(engine: str) -> dict[str, object]:
    cluster = {"topology": "torus_2d", "world_size": 64}
    collective = {"operation": "all_gather", "algorithm": "ring", "size": "1 MiB", "payload": False}
    return {"name": "x", "engine": engine, "cluster": cluster, "collective": collective}


@pytest.mark.parametrize("engine", ["events", "compiled"])
def test_a_play_tells_how_far_it_is(engine: str) -> None:
    if engine == "compiled" and not library.is_there():
        pytest.skip("there is no compiled core")
    progress = Progress()
    with watched(progress):
        run = simulate(load_scenario(scenario(engine)))
    assert progress.stage
    assert progress.share is None or 0.0 <= progress.share <= 1.0
    assert 0.0 <= progress.now <= run.timeline.end


@pytest.mark.parametrize("sharding", ["ddp", {"strategy": "parameter_server", "asynchronous": True}])
def test_a_real_training_tells_the_share_of_its_trained_steps(sharding: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the 4 steps begins when k of 4 are trained; asynchronous workers train all steps along one timeline."""
    told: list[tuple[float, float]] = []
    monkeypatch.setattr(training, "tell", lambda name, share, now: told.append((share, now)))
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}
    keys = {"model": model, "seq_len": 8, "steps": 4, "numerics": True, "precision": "fp32", "sharding": sharding}
    run = simulate(
        load_scenario({"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}, "training": keys})
    )
    shares = [share for share, _ in told]
    assert told == sorted(told)
    assert shares[0] == 0.0
    assert 0.9 < shares[-1] < 1.0
    assert {0.25, 0.5, 0.75} <= set(shares) or sharding != "ddp"
    whole = run.timeline.end * (4 if sharding == "ddp" else 1)
    assert 0.8 * whole < told[-1][1] <= whole


@pytest.mark.long
def test_a_check_of_points_tells_how_many_it_has_checked(tmp_path: Path) -> None:
    """A check of a few points may take minutes, because it plans every step; each line names the phase."""
    text = (
        "name: steps\ncluster: {topology: dgx_h100, world_size: 64}\n"
        "training: {model: llama3_8b, seq_len: 4096, micro_batch_size: 1, parallelism: {pp: 8}}\n"
        "sweep: {training.gradient_accumulation_steps: [16, 32, 64]}\n"
    )
    (tmp_path / "steps.yaml").write_text(text, encoding="utf-8")
    with started(tmp_path, "check", "steps.yaml", program=TELLING) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "points:    3\n" in out
    lines = err.splitlines()
    assert all(line.startswith("checking steps") for line in lines)
    assert any(": planning; 0 of 3 points checked" in line for line in lines)
    assert any(re.search(": planning; [12] of 3 points checked, about .* seconds left$", line) for line in lines)


def test_work_of_unknown_extent_names_its_phase(tmp_path: Path) -> None:
    program = "import time; from simulator.cli import progress; progress._EVERY = {False: 0.05}\n"
    with started(tmp_path, program=("-c", f"{program}with progress.phase('x: writing'): time.sleep(0.5)")) as process:
        _, err = process.communicate(timeout=60)
    assert set(err.splitlines()) == {"x: writing"}


def test_nobody_is_told_who_has_not_asked() -> None:
    progress = Progress()
    with watched(progress):
        stage("finding routes")
    tell("simulating", 0.5, 1.0)
    assert progress == Progress("finding routes")


def test_the_core_stops_at_ctrl_c(tmp_path: Path) -> None:
    if not library.is_there():
        pytest.skip("there is no compiled core")
    (tmp_path / "long.yaml").write_text(LONG, encoding="utf-8")
    with started(tmp_path, "run", "long.yaml", "--out", "here", program=TELLING) as process:
        assert process.stderr is not None
        assert any(": simulating, " in line for line in process.stderr)  # reads no further than the first such line
        for _ in range(2):  # impatient
            process.send_signal(signal.SIGINT)
            time.sleep(0.01)
        _, err = ended(process)
    assert process.returncode == 130
    assert err.endswith("interrupted: no point had ended, therefore no results are kept\n")
    assert not (tmp_path / "here").exists()


RUNS = (
    "model,gpu,topology,gpus,seq_len,micro_batch_size,sharding,tokens_per_s\n"
    "llama3_8b,h100_sxm,dgx_h100,8,4096,1,zero3,60000\n"
    "llama3_8b,h100_sxm,dgx_h100,16,4096,1,zero3,110000\n"
    "llama3_8b,h100_sxm,dgx_h100,32,4096,1,zero3,200000\n"
)
# The later rows last for a second: a command that tells of the first row has not ended, on any machine.
LONG_RUNS = (
    "model,gpu,topology,gpus,seq_len,micro_batch_size,sharding,tokens_per_s\n"
    "llama3_8b,h100_sxm,dgx_h100,8,4096,1,zero3,60000\n"
    "llama3_405b,h100_sxm,dgx_h100,512,4096,1,zero3,50000\n"
    "llama3_405b,h100_sxm,dgx_h100,1024,4096,1,zero3,100000\n"
)
STEPS = (
    "name: steps\ncluster: {topology: dgx_h100, world_size: 64}\n"
    "training: {model: llama3_8b, seq_len: 4096, micro_batch_size: 1, parallelism: {pp: 8}}\n"
    "sweep: {training.gradient_accumulation_steps: [64, 128, 256, 512, 1024]}\n"
)
PLAN = ("plan", "llama2_13b", "--topology", "dgx_h100", "--gpus", "64", "--seq-len", "4096", "--global-batch", "512seq")


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (("check", "steps.yaml"), ": planning; "),
        (("calibrate", "runs.csv", "--out", "own.yaml"), "trial steps simulated"),
        (("calibrate", "runs.csv", "--out", "own.yaml", "--jobs", "2"), "trial steps simulated"),
        (("validate", "--csv", "runs.csv", "--kept", "kept.jsonl", "--jobs", "1"), "measured rows simulated"),
        (PLAN, "note: training.framework is not given"),
    ],
)
@pytest.mark.one_of(5)
def test_ctrl_c_ends_a_command_in_one_line_and_leaves_no_file(
    tmp_path: Path, arguments: tuple[str, ...], first: str
) -> None:
    """The signal goes to every process of the group, like Ctrl-C on a terminal, while the command still works."""
    for name, text in (("runs.csv", RUNS), ("steps.yaml", STEPS)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    with started(tmp_path, *arguments, program=TELLING) as process:
        assert process.stderr is not None
        assert any(first in line for line in process.stderr)
        os.killpg(process.pid, signal.SIGINT)
        out, err = ended(process)
    assert (process.returncode, out) == (130, "")
    # Lines of progress may come before the line of the interruption.
    *before, last = err.splitlines()
    assert last in {"interrupted; no file was left incomplete", "interrupted; no setting was simulated"}
    assert not any("Traceback" in line or "interrupted" in line for line in before)
    assert {path.name for path in tmp_path.iterdir()} <= {"runs.csv", "steps.yaml"}


@pytest.mark.long
def test_an_interrupted_validation_names_the_file_that_keeps_its_rows(tmp_path: Path) -> None:
    """The same command simulates the rest, and its figures equal those of a command that was not interrupted."""
    (tmp_path / "runs.csv").write_text(LONG_RUNS, encoding="utf-8")
    command = ("validate", "--csv", "runs.csv", "--jobs", "1", "--json")
    with started(tmp_path, *command, "--kept", "kept.jsonl", program=TELLING) as process:
        assert process.stderr is not None
        assert any("; 1 of 3 measured rows simulated" in line for line in process.stderr)
        os.killpg(process.pid, signal.SIGINT)
        out, err = ended(process)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == (
        "interrupted: simulated rows are kept in kept.jsonl; the same command simulates the rest"
    )
    assert (tmp_path / "kept.jsonl").read_text(encoding="utf-8").endswith("\n")
    whole, rest = (started(tmp_path, *command, *more) for more in ((), ("--kept", "kept.jsonl")))
    assert ended(whole)[0] == ended(rest)[0] != ""


@pytest.mark.long
def test_an_interrupted_plan_names_the_command_that_continues_it(tmp_path: Path) -> None:
    with started(tmp_path, *PLAN, "--out", "plan", program=TELLING) as process:
        assert process.stderr is not None
        # Settings that do not fit give no best setting so far.
        assert any(" simulated, " in line and "; best " in line for line in process.stderr)
        os.killpg(process.pid, signal.SIGINT)
        out, err = ended(process)
    assert process.returncode == 130
    # The best settings so far are printed and written, and no setting is called slower.
    assert out.startswith("Search stopped after ")
    assert " not examined yet\n" in out
    assert "lower bound is slower" not in out
    assert "\nreport: plan/report.html\n" in out
    (line,) = [line for line in err.splitlines() if line.startswith("interrupted")]
    assert line.endswith(f"; to continue, use `simulator {' '.join(PLAN)} --resume --out plan`")
    whole = {"best.yaml", "plan.json", "report.html", "outcomes"}
    assert {path.name for path in (tmp_path / "plan").iterdir()} == whole
    assert json.loads((tmp_path / "plan" / "plan.json").read_text(encoding="utf-8"))["best"]
