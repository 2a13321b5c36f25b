"""Which command continues an interrupted run? The interrupted command with `--resume` and the run's directory."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path


def continuing_command(words: Sequence[str], folder: Path) -> str:
    """Return the command that continues an interrupted `run`, `sweep` or `plan`, ready for a shell.

    Parameters
    ----------
    words : sequence of str
        Words of the interrupted command after the program's name, as in `sys.argv[1:]`.
    folder : Path
        Directory of the interrupted run.

    Examples
    --------
    >>> continuing_command(["run", "my job.yaml", "--out", "a", "--set", "seed=1,2"], Path("a"))
    "simulator sweep 'my job.yaml' --set seed=1,2 --resume --out a"
    >>> continuing_command(["plan", "--out=a", "job.yaml", "--resume"], Path("a"))
    'simulator plan job.yaml --resume --out a'
    """
    command, *given = words
    kept: list[str] = []
    rest = iter(given)
    for word in rest:
        if word == "--out":
            next(rest, None)
        elif word != "--resume" and not word.startswith("--out="):
            kept.append(word)
    # `run` has no --resume; `sweep` simulates the same points.
    again = "sweep" if command == "run" else command
    return shlex.join(["simulator", again, *kept, "--resume", "--out", str(folder)])
