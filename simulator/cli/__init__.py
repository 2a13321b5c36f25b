"""The command line: one file per command; each command imports its modules only when it runs."""

from __future__ import annotations


def main() -> None:
    """Run the command line; both `simulator` and `python -m simulator` call this."""
    from simulator.cli.app import run_app

    run_app()
