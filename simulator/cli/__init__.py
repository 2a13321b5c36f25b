"""The command line: one file per command in `commands`; a file is imported only when its command is called."""

from __future__ import annotations

import sys
from io import TextIOWrapper


def main() -> None:
    """Run the command line; print errors for the user as lines on stderr, and exit with their code.

    Both `simulator` and `python -m simulator` call this.
    """
    from simulator.cli.guard import guarded

    sys.exit(guarded(_run))


def _run() -> object:
    from simulator.cli.commands import application
    from simulator.cli.interruption import heed_interruptions

    # Inside `guarded`: a signal that arrives right after the handler's installation is then caught.
    heed_interruptions()
    for stream in (sys.stdout, sys.stderr):
        # Characters unknown to the terminal are written as escapes; a scenario's question may hold any character.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    # Without standalone mode, typer raises errors instead of exiting, and `guarded` handles them.
    return application(prog_name="simulator", standalone_mode=False)
