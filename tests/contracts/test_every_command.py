"""Contract of every command: whose code runs is announced once, and `--no-plugins` or the variable forbids it.

An input of any command may name a file that names a Python file: a scenario, a topology, days, jobs, a run's directory.
A command needs an entry in `CALLS` for each of its inputs that may do so, or in `WITHOUT_CODE`. Without an entry a
test fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics import foreign_code
from simulator.cli.commands import _ORDER, helps, load
from tests.commands import Command, commands_in
from tests.own_parts import BUILDER, OPTIMIZER, PARTS, PLOT, SCHEDULE, SHARDING
from tests.traces.kineto_sample import document

ALGORITHM: Final = "mine.py"
MODEL: Final = "build.py"
SHORT: Final = ("--world-size", "4", "--end", "64")
SWEEP: Final = ("--world-size", "4", "--operation", "all_reduce")
PLAN: Final = (
    "--gpus", "4", "--seq-len", "8", "--global-batch", "8seq", "--jobs", "1", "--fix", "pp=4", "--fix",
    "micro_batch=1", "--fix", "checkpointing=none",
)  # fmt: skip
IMPORT: Final = ("--gpus", "4", "--model", "gpt2", "--seq-len", "8")
# Calls, each with the file whose code runs; rack.yaml is a topology with a builder of its own.
CALLS: Final = {
    ("run", "own.yaml", "--out", "new"): BUILDER.file,
    ("sweep", "own.yaml", "--jobs", "1", "--out", "new"): BUILDER.file,
    ("check", "own.yaml"): BUILDER.file,
    ("check", "rack.yaml"): BUILDER.file,
    ("expect", "own.yaml", "--measured", "1 s"): BUILDER.file,
    ("goodput", "own.yaml", "--days", "3"): BUILDER.file,
    ("goodput", "days.yaml"): BUILDER.file,
    ("jobs", "jobs.yaml"): BUILDER.file,
    ("plan", "plan.yaml", "--jobs", "1"): BUILDER.file,
    ("plan", "tiny.json", "--topology", "rack.yaml", *PLAN): BUILDER.file,
    ("plan", "tiny.json", "--topology", "star_100g", *PLAN, "--fix", "schedule=./lifo.py"): SCHEDULE.file,
    ("export-config", "own.yaml", "--to", "deepspeed", "--out", "ds.new"): BUILDER.file,
    ("export-chakra", "own.yaml", "--out", "trace"): BUILDER.file,
    ("compare-trace", "own.yaml", "profile.json"): BUILDER.file,
    ("compare-trace", "out", "profile.json"): BUILDER.file,
    ("simulate-trace", "given", "--topology", "rack.yaml"): BUILDER.file,
    ("simulate-trace", "given", "--algorithm", "./mine.py"): ALGORITHM,
    ("plot", "out", "--kind", "memory"): BUILDER.file,
    ("plot", "plain", "--kind", "./idle.py"): PLOT.file,
    ("rerun", "out"): BUILDER.file,
    ("show", "rack.yaml", "--world-size", "4"): BUILDER.file,
    ("show", "rack.yaml", "--world-size", "4", "--links"): BUILDER.file,
    ("collective", "all_reduce", "--topology", "rack.yaml", *SHORT): BUILDER.file,
    ("collective", "all_reduce", "--algorithm", "./mine.py", *SHORT): ALGORITHM,
    ("check-algorithm", "mine.py", "--ranks", "2"): ALGORITHM,
    ("check-plugin", "amsgrad.py"): OPTIMIZER.file,
    ("export-msccl", "./mine.py", "all_reduce", "--ranks", "4", "--out", "mine.xml"): ALGORITHM,
    ("import-model", "build.py:build"): MODEL,
    ("import-config", "ds.json", "--topology", "rack.yaml", *IMPORT): BUILDER.file,
    ("import-machine", "topology.conf", "--node", "rack.yaml"): BUILDER.file,
    ("memory", "tiny.json", "--dp", "2", "--sharding", "./synced.py"): SHARDING.file,
    ("memory", "tiny.json", "--dp", "1", "--pp", "4", "--schedule", "./lifo.py"): SCHEDULE.file,
    ("fit-check", "tiny.json", "--gpu", "a100_sxm_80gb", "--optimizer", "./amsgrad.py"): OPTIMIZER.file,
    ("fit", "sizes.csv", "--topology", "rack.yaml", *SWEEP): BUILDER.file,
    ("validate", "--csv", "runs.csv", "--jobs", "1"): BUILDER.file,
    ("calibrate", "runs.csv", "--out", "fitted.yaml"): BUILDER.file,
    ("fit", "sizes.csv", "--topology", "star_100g", *SWEEP, "--algorithm", "./mine.py"): ALGORITHM,
}  # fmt: skip
# Calls that run no code, although files that they may name have some.
WITHOUT_CODE: Final = (
    ("new", "it"),
    ("list", "optimizers"),
    ("schema",),
    ("kernels", "tiny.json", "--framework", "./amsgrad.py"),
    ("program", "tiny.json", "--framework", "./amsgrad.py"),
    ("diff", "out", "out"),
    ("diff", "out", "out", "--html", "diff.html"),
    ("flight-recorder", "profile.json"),
    ("support",),
)
TINY: Final = {
    "model_type": "gpt2", "n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 8, "vocab_size": 32,
}  # fmt: skip
STEP: Final = {"model": TINY, "seq_len": 8, "sharding": "ddp", "framework": "bare"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in a folder with an input of each kind; run Python files leave a letter in the file `ran`."""
    topology = {**BUILDER.scenario(f"./{BUILDER.file}")["cluster"]["topology"], "gpu": "a100_sxm_80gb"}
    own = {"name": "own", "cluster": {"topology": "rack.yaml", "world_size": 4}, "training": STEP, "plots": []}
    documents: dict[str, Any] = {
        "rack.yaml": topology,
        "own.yaml": own,
        "plain.yaml": own | {"cluster": {"topology": "star_100g", "world_size": 4}},
        "plan.yaml": own | {"training": {"model": TINY, "seq_len": 8}, "plan": {"global_batch": "8seq"}},
        "days.yaml": {"scenario": "own.yaml", "days": 3, "failures": 5},
        "jobs.yaml": {
            "cluster": {"topology": "rack.yaml"},
            "jobs": {"a": {"training": STEP, "world_size": 4, "steps": 1}},
        },
        "tiny.json": TINY,
        "ds.json": {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}},
        "profile.json": document(),
    }
    # JSON is YAML.
    files = {name: json.dumps(data) for name, data in documents.items()}
    files |= {part.file: part.source for part in PARTS.values()}
    files |= {
        "topology.conf": "SwitchName=s0 Nodes=n[0-1]\n",
        "sizes.csv": "size,time\n1024,100\n1048576,1000\n",
        "runs.csv": "scenario,step_time_s\nown.yaml,1\n",
        ALGORITHM: "from simulator.collectives.ring import ALGORITHM\n",
        MODEL: "def build():\n    return None\n",
    }
    for name, text in files.items():
        marked = f"with open({str(tmp_path / 'ran')!r}, 'a') as _:\n    _.write('x')\n" if name.endswith(".py") else ""
        (tmp_path / name).write_text(marked + text)
    return commands_in(tmp_path, monkeypatch, capsys)


def prepare(cli: Command, asked: tuple[str, ...], folder: Path) -> None:
    """Write the outputs of other commands that a call names, then forget all code as at the start of a process."""
    made = {
        "out": ("run", "own.yaml", "--out", "out"),
        "plain": ("run", "plain.yaml", "--out", "plain"),
        "given": ("export-chakra", "plain.yaml", "--out", "given"),
    }
    for name in made.keys() & set(asked):
        assert cli(*made[name]).code == 0
    foreign_code._run.cache_clear()
    foreign_code._warn.cache_clear()
    (folder / "ran").unlink(missing_ok=True)


def test_the_help_is_that_of_the_commands_in_their_order() -> None:
    """`simulator --help` reads the help from the files' text, and each command from the imported docstring."""
    assert tuple(helps()) == _ORDER
    assert {name: load(name).help for name in helps()} == helps()


def test_every_command_has_an_entry_and_can_forbid_code() -> None:
    commands = {name: load(name) for name in helps()}
    # Servers: of other commands with --no-plugins (tests/test_mcp_command.py), and of the catalog's names alone
    # (tests/browser/test_app.py).
    called = {"app", "mcp", *(name for name, *_ in (*CALLS, *WITHOUT_CODE))}
    assert sorted(commands) == sorted(called)
    assert {name for name, *_ in CALLS}.isdisjoint(name for name, *_ in WITHOUT_CODE)
    options = {name: {option for one in command.params for option in one.opts} for name, command in commands.items()}
    assert [name for name, known in options.items() if "--no-plugins" not in known] == []


@pytest.mark.parametrize(("asked", "file"), CALLS.items(), ids=[" ".join(asked) for asked in CALLS])
def test_code_is_announced_once_and_can_be_forbidden(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...], file: str
) -> None:
    prepare(cli, asked, tmp_path)
    by_option = cli(*asked, "--no-plugins")
    with monkeypatch.context() as patch:
        patch.setenv(foreign_code.NO_PLUGINS, "1")
        by_variable = cli(*asked)
    for refused in (by_option, by_variable):
        assert (refused.code, len(refused.faults)) == (2, 1), refused.err
        assert f"{file}', whose code is not run" in refused.err
        assert not (tmp_path / "ran").exists()
    free = cli(*asked)
    assert [line for line in free.err.splitlines() if "runs the code of" in line] == [
        f"warning: runs the code of {file}"
    ]
    assert (tmp_path / "ran").read_text() == "x"
    # The model is no module, and the topology has no nodes.
    assert free.code == (2 if asked[0] in ("import-model", "import-machine") else 0), free.err


@pytest.mark.parametrize("asked", WITHOUT_CODE, ids=" ".join)
def test_other_commands_run_no_code(cli: Command, tmp_path: Path, asked: tuple[str, ...]) -> None:
    prepare(cli, asked, tmp_path)
    told = cli(*asked).err
    assert "runs the code of" not in told
    assert "whose code is not run" not in told
    assert not (tmp_path / "ran").exists()
