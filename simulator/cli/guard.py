"""Turns a command's error into lines on stderr and an exit code.

No error caused by a user ends in a traceback. Nothing slow is imported here.
"""

from __future__ import annotations

import errno
import re
import warnings
from collections.abc import Callable
from typing import Any

import typer

from simulator.basics.errors import DefectError, ForeignCodeWarning, ScenarioError, SimulatorError, one_line, one_of
from simulator.cli.console import print_text
from simulator.cli.interruption import exit_code, heed_no_more, interruption_behind, word


def guarded(command: Callable[[], Any]) -> int:
    """Run a command and return its exit code; errors and foreign code are printed as lines on stderr."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", ForeignCodeWarning)
            warnings.showwarning = _showing(warnings.showwarning)
            code = command()
    # BaseException: interruptions are not Exceptions, and an error may have replaced an interruption on its way.
    except BaseException as error:
        interruption = interruption_behind(error)
        return _told(error) if interruption is None else _interrupted(interruption)
    return code if isinstance(code, int) else 0


def _showing(others: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints a ForeignCodeWarning as a line on stderr, and passes other warnings on."""

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, ForeignCodeWarning):
            typer.echo(f"warning: {message}", err=True)
        else:
            others(message, category, *place)

    return show


def _told(error: BaseException) -> int:
    if isinstance(error, SimulatorError):
        if isinstance(error, ScenarioError):
            # A line for each fault, as editors and `grep` read it. A fault may quote any text of a file.
            typer.echo("\n".join(map(one_line, str(error).split("\n"))), err=True)
        else:
            print_text(str(error), indent="  ", stderr=True)
        if isinstance(error, DefectError) and error.scenario:
            typer.echo(error.scenario.rstrip(), err=True)
        return error.exit_code
    if isinstance(error, SystemExit):
        # Typer raises this if the reader of the output closed the pipe, as in `simulator schema | head -1`.
        return 0
    # A full disk, or a folder that was removed.
    if isinstance(error, OSError):
        message = f"{error.filename or 'output'}: cannot be read or written: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            message += "; free space, then continue a run or plan with --resume, or repeat another command"
        typer.echo(message, err=True)
        return 1
    if isinstance(error, MemoryError):
        # An estimate was too low, or another process took memory in the meantime.
        remedy = "take fewer ranks, micro-batches or layers, or use a machine with more memory"
        typer.echo(f"this machine ran out of memory; {remedy}", err=True)
        return 1
    # Typer's own errors: wrong options, --help.
    return _typers(error)


def _interrupted(error: BaseException | None) -> int:
    heed_no_more()
    typer.echo(f"{word(error)}; no file was left incomplete", err=True)
    return exit_code(error)


def _typers(error: BaseException) -> int:
    if type(error).__name__ == "Abort":
        # Typer asked for input, and the input ended.
        return _interrupted(None)
    message = getattr(error, "format_message", None)
    if message is None or not hasattr(error, "exit_code"):
        raise error
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(message())
        return 0
    typer.echo(_usage(" ".join(str(message()).split()).rstrip("."), getattr(error, "ctx", None)), err=True)
    return int(error.exit_code)


def _usage(message: str, context: Any) -> str:
    """Return the line for a usage error: the command, the fault, and where to find help."""
    path = context.command_path if context is not None else "simulator"
    commands = getattr(context.command, "commands", None) if context is not None else None
    # Typer's own message for an unknown command proposes no other name.
    unknown = re.match(r"No such command .([\w-]*)", message)
    if commands and unknown:
        name = unknown.group(1)
        return f"{path}: got {name!r}; {one_of(commands, name, f'{path} --help')}"
    return f"{path}: {message}; see `{path} --help`"
