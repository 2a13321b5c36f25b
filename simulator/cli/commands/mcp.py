"""Answer programs by the Model Context Protocol.

Each tool is a command with --json, in a process of its own with bounded time, without plugins, in an empty folder.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from importlib import import_module
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from simulator.basics.edition import VERSION
from simulator.basics.errors import ScenarioError
from simulator.cli import commands
from simulator.cli.commands import load
from simulator.cli.options import NoPlugins

if TYPE_CHECKING:
    import mcp.types

# Tools, and the commands that answer them.
TOOLS: Final[Mapping[str, str]] = {
    "memory": "memory", "fit_check": "fit-check", "simulate": "run", "collective": "collective", "plan": "plan",
    "expect": "expect", "support": "support", "schema": "schema",
}  # fmt: skip
# Options of commands that say where results go and how a terminal shows them.
_OF_TERMINALS: Final = frozenset({
    "as_json", "no_plugins", "out", "cache", "jobs", "scheduler", "resume", "engine", "transfers", "trace", "ranks",
    "parquet", "svg", "table", "no_report", "payload", "help",
})  # fmt: skip
# Arguments that may be the text of a scenario file instead of a name.
_SCENARIOS: Final = frozenset({"scenario", "source", "subject"})
_TYPES: Final = {int: "integer", float: "number", bool: "boolean"}
# What the text of a file has, and no name or path
_OF_TEXTS: Final = ("\n", "{", ": ")
# Longest answer [characters]; a reader of longer ones would see little else.
_MOST: Final = 1_000_000


def command(
    seconds: Annotated[float, typer.Option(min=1.0, help="Longest time of an answer [s].")] = 120.0,
    no_plugins: NoPlugins = False,
) -> None:
    try:
        from mcp.server.stdio import stdio_server
    except ImportError:
        raise ScenarioError("mcp: needs the package mcp; install it with the extra: pip install '.[mcp]'") from None
    running = set[int]()
    server = _server(seconds, running)

    def leave(number: int, frame: object) -> None:
        # The thread that reads standard input does not end by itself.
        for process in running:
            os.killpg(process, signal.SIGKILL)
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, leave)

    async def serve() -> None:
        async with stdio_server() as (received, sent):
            await server.run(received, sent, server.create_initialization_options())

    asyncio.run(serve())


def _server(seconds: float, running: set[int]) -> Any:
    """Return the server with every tool; `running` holds the numbers of the processes that compute answers."""
    import mcp.types
    from mcp.server.lowlevel import Server

    offered = [
        mcp.types.Tool(name=name, description=load(of).help.strip(), input_schema=input_schema(of))
        for name, of in TOOLS.items()
    ]

    async def list_tools(context: object, page: object) -> mcp.types.ListToolsResult:
        return mcp.types.ListToolsResult(tools=offered)

    async def call_tool(context: object, call: mcp.types.CallToolRequestParams) -> mcp.types.CallToolResult:
        texts, failed = await answer(call.name, call.arguments or {}, seconds, running)
        return mcp.types.CallToolResult(
            content=[mcp.types.TextContent(type="text", text=text) for text in texts], is_error=failed
        )

    return Server("simulator", version=VERSION, on_list_tools=list_tools, on_call_tool=call_tool)


def input_schema(name: str) -> dict[str, Any]:
    """Return the JSON schema of a command's arguments and options, without those for terminals."""
    properties, required = dict[str, Any](), list[str]()
    types = _types(name)
    for parameter in load(name).params:
        if parameter.name in _OF_TERMINALS:
            continue
        kind: dict[str, Any] = {"type": types[parameter.name]}
        if parameter.multiple:
            kind = {"type": "array", "items": {"type": "string"}}
        text = parameter.help or ""
        if parameter.name in _SCENARIOS:
            text += " Or the text of a scenario file (YAML or JSON)."
        properties[parameter.name] = kind | {"description": text}
        if parameter.required:
            required.append(parameter.name)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _types(name: str) -> dict[str, str]:
    """Return the JSON types of a command's arguments and options, by name."""
    function = import_module(f"{commands.__name__}.{name.replace('-', '_')}").command
    types = dict[str, str]()
    for parameter in signature(function, eval_str=True).parameters.values():
        # Annotated[int | None, ...] is an int.
        options = get_args(get_args(parameter.annotation)[0]) or get_args(parameter.annotation)[:1]
        types[parameter.name] = next((_TYPES[kind] for kind in options if kind in _TYPES), "string")
    return types


async def answer(
    tool: str, arguments: Mapping[str, Any], seconds: float, running: set[int]
) -> tuple[tuple[str, ...], bool]:
    """Return a tool's answer as JSON with the command's warnings behind it, or its lines of errors, and whether it
    failed.

    Parameters
    ----------
    seconds : float
        Time after which the process is stopped [s].
    running : set of int
        Numbers of the processes that compute answers; this one's is in it until it ends.
    """
    if tool not in TOOLS:
        return (f"tool: got {tool!r}; one of {', '.join(TOOLS)}",), True
    with TemporaryDirectory() as folder:
        try:
            line = _line(TOOLS[tool], arguments, Path(folder))
        except ScenarioError as error:
            return (str(error),), True
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "simulator", *line, cwd=folder, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        running.add(process.pid)
        try:
            out, errors = await asyncio.wait_for(process.communicate(), seconds)
        except TimeoutError:
            return (f"{tool}: no answer in {seconds:g} s; ask for fewer GPUs, points or settings",), True
        finally:
            running.discard(process.pid)
            if process.returncode is None:
                # Its processes too
                os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
    text, told = out.decode(), errors.decode(errors="replace").strip()
    # A command may answer "no" with exit code 1.
    if process.returncode and not text:
        return (told or f"{tool}: exit code {process.returncode}",), True
    if len(text) > _MOST:
        return (f"{tool}: the answer has {len(text):,} characters, more than {_MOST:,}; ask for fewer points",), True
    warnings = [line for line in told.splitlines() if line.startswith(("warning: ", "note: "))]
    return (text, "\n".join(warnings)) if warnings else (text,), False


def _line(name: str, arguments: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a command line with the given arguments; raise ScenarioError for one that the command does not have."""
    every = {parameter.name: parameter for parameter in load(name).params}
    parameters = {key: parameter for key, parameter in every.items() if key not in _OF_TERMINALS}
    words, options = list[str](), list[str]()
    for key, value in arguments.items():
        if key not in parameters:
            raise ScenarioError(f"{key}: is no argument; one of {', '.join(parameters)}")
        parameter = parameters[key]
        if "\0" in str(value):
            raise ScenarioError(f"{key}: got a text with the character 0")
        if value is None:
            continue
        if parameter.param_type_name == "argument":
            words.append(_written(key, value, folder))
        elif _types(name)[key] == "boolean":
            if not isinstance(value, bool):
                raise ScenarioError(f"{key}: got {value!r}; must be true or false")
            options += [parameter.opts[0]] if value else parameter.secondary_opts[:1]
        else:
            texts = value if isinstance(value, list) else [value]
            options += [f"{parameter.opts[0]}={text}" for text in texts]
    if "as_json" in every:
        options.append("--json")
    if "no_report" in every:
        options += ["--no-report", "--out", str(folder / "run")]
    # What follows "--" is no option, whatever it begins with.
    return [name, "--no-plugins", *options, "--", *words]


def _written(key: str, value: Any, folder: Path) -> str:
    """Return an argument; the text of a scenario is written to a file, whose path is returned."""
    if key not in _SCENARIOS or (isinstance(value, str) and not any(mark in value for mark in _OF_TEXTS)):
        return str(value)
    path = folder / "scenario.yaml"
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return str(path)
