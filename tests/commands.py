"""The command line inside this process: what it says, where, and with which exit code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from simulator.cli.commands import application
from simulator.cli.guard import guarded
from tests.interrupting import PATIENCE_S

SMALL = """\
# How fast is a small ring?
name: small
cluster:
  topology: star_100g
  world_size: 4
collective:
  operation: all_reduce
  algorithm: ring
  size: 4 KiB
plots: []
"""

RING = SMALL.replace("  algorithm: ring\n", "").replace(
    "plots: []", "compare: {collective.algorithm: [ring, tree]}\nplots: []"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left on its two streams, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def faults(self) -> list[str]:
        """Lines on stderr, without notes."""
        return [line for line in self.err.splitlines() if not line.startswith("note: ")]

    @property
    def data(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)


Command = Callable[..., Answer]


def commands_in(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `simulator ARGUMENTS` in a folder that has small.yaml and both.yaml."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    # Lines of progress depend on the machine's speed, and would stand among the lines that a test expects.
    monkeypatch.setattr("simulator.cli.progress._EVERY", {True: PATIENCE_S, False: PATIENCE_S})
    monkeypatch.setattr("simulator.cli.plan_output._EVERY", PATIENCE_S)
    (folder / "small.yaml").write_text(SMALL, encoding="utf-8")
    (folder / "both.yaml").write_text(RING, encoding="utf-8")

    def simulator(*arguments: object) -> Answer:
        capsys.readouterr()
        texts = [str(argument) for argument in arguments]
        # Messages repeat the words of the command.
        monkeypatch.setattr("sys.argv", ["simulator", *texts])
        code = guarded(lambda: application(texts, prog_name="simulator", standalone_mode=False))
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return simulator
