"""Writes everything that the shipped scenarios leave behind into a folder: `python -m tools.outputs FOLDER [NAME ...]`.

A change that moves code and changes no behaviour leaves equal folders: run this before and after the change, each with
the environment of its checkout, and compare them with `diff -r BEFORE AFTER`. Files that tell when and by which code
they were written (`run.json`) are left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# The command of each kind of file, by its folder below scenarios/.
_COMMANDS: Final = {".": ("run",), "jobs": ("jobs",), "days": ("goodput",)}


def write_outputs(folder: Path, names: Iterable[str] = ()) -> list[str]:
    """Run the shipped scenarios, or those named, below `folder`; return the names of those that failed.

    A scenario's output is a folder of its name, and what the command prints is NAME.txt beside it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failed, chosen = [], set(names)
    for file in sorted((ROOT / "scenarios").rglob("*.yaml")):
        kind = file.relative_to(ROOT / "scenarios").parent.as_posix()
        name = file.stem if kind == "." else f"{kind}_{file.stem}"
        if chosen and name not in chosen:
            continue
        print(name, flush=True)
        command = [sys.executable, "-m", "simulator", *_COMMANDS[kind], file.stem, "--out", name]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        # Progress goes to stderr and counts seconds.
        (folder / f"{name}.txt").write_text(f"{done.stdout}\nexit code {done.returncode}\n")
        if done.returncode:
            failed.append(name)
        for stamp in (folder / name).rglob("run.json"):
            stamp.unlink()
    return failed


if __name__ == "__main__":
    failures = write_outputs(Path(sys.argv[1]).resolve(), sys.argv[2:])
    sys.exit(f"failed: {', '.join(failures)}" if failures else 0)
