"""The command line: one file a command, each importing what it needs only when it runs."""

from __future__ import annotations


def main() -> None:
    """Run the command line; `simulator` and `python -m simulator` both call this."""
    from simulator.cli.app import run_app

    run_app()
