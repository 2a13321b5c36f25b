"""Forbids code from outside this package while a command runs, in this process and in its workers."""

from __future__ import annotations

import os

import typer

from simulator.basics.foreign_code import NO_PLUGINS


def forbid_plugins(context: typer.Context, given: bool) -> bool:
    """Set the environment variable that forbids plugins until the command ends, if the option was given."""
    if given:
        before = os.environ.get(NO_PLUGINS)
        # Worker processes inherit the environment.
        os.environ[NO_PLUGINS] = "1"
        context.call_on_close(lambda: _restore(NO_PLUGINS, before))
    return given


def _restore(name: str, before: str | None) -> None:
    if before is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = before
