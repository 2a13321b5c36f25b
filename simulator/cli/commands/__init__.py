"""Commands, one file each: the file's name names the command, the docstring is the help, `command` does the work.

`simulator --help` reads the docstrings alone: a file is imported when its command is called or completed.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from simulator.basics.edition import VERSION

# Commands in the order of `--help`; a command that is missing here comes last.
_ORDER: Final = (
    "run", "sweep", "collective", "check", "check-algorithm", "check-plugin", "new", "list", "show", "import-model",
    "export-msccl", "import-config", "import-machine", "export-config", "export-chakra", "memory", "fit-check", "plan",
    "kernels", "program", "support", "schema", "diff", "compare-trace", "simulate-trace", "flight-recorder", "plot",
    "rerun", "fit", "validate", "calibrate", "expect", "goodput", "jobs", "app", "mcp",
)  # fmt: skip


def helps() -> dict[str, str]:
    """Return the help of each command by name, in the order of `--help`, without importing the commands' files."""
    files = {path.stem.replace("_", "-"): path for path in sorted(Path(__file__).parent.glob("[!_]*.py"))}
    names = dict.fromkeys((*(name for name in _ORDER if name in files), *files))
    # Python's parser would double the time of `--help`.
    return {name: files[name].read_text(encoding="utf-8").split('"""', 2)[1].strip() for name in names}


def load(name: str) -> Any:
    """Import the file of a command, and return the command with its options."""
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    lone = typer.Typer(add_completion=False, rich_markup_mode=None)
    lone.command(name, help=module.__doc__)(module.command)
    return get_command(lone)


class _Commands(TyperGroup):
    """The commands, each with its name and its help alone until it is called or completed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: TyperCommand(name, help=text) for name, text in helps().items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the name of the called command, the command with its options, and the arguments after its name."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


# `guard` prints errors, therefore typer's tracebacks are off. Without rich markup, brackets in help texts are literal.
application = typer.Typer(
    name="simulator",
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@application.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Simulate distributed training: step time, memory, link traffic.

    A point is one combination of the values in a scenario's `compare` and `sweep`.
    """
    if version:
        typer.echo(VERSION)
        # typer's way to end a command early with code 0.
        raise typer.Exit
