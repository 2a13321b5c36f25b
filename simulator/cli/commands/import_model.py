"""Write a PyTorch module as a model's file.

The module is traced without a GPU and without weights; this needs PyTorch. Only import a file that you trust: it
is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.basics.atomic_files import write_atomically
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import load_file
from simulator.cli.console import print_text
from simulator.cli.options import NoPlugins
from simulator.model.model import total
from simulator.model.torch_tracing import NEEDS_TORCH, trace
from simulator.model.traced_file import written_layer_list


def command(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION",
            help="Python file, which is run, and a function in it that returns a PyTorch module and its inputs.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="JSON file to write; FUNCTION.json if omitted.")
    ] = None,
    unit: Annotated[
        list[str] | None,
        typer.Option("--unit", metavar="CLASS", help="Class whose instances are layers of the model. Repeatable."),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    path, _, function = source.rpartition(":")
    if not path or not function.isidentifier():
        raise ScenarioError(f"got {source!r}; must be FILE.py:FUNCTION, such as my_model.py:build")
    module, inputs = _made(Path(path), function)
    model = trace(module, inputs, function, unit or ())
    target = out or Path(f"{function}.json")
    write_atomically(target, written_layer_list(model))
    giga = model.forward_flops_per_sample / 2e9
    tokens = f" of {model.tokens:,} tokens" if model.tokens > 1 else ""
    print_text(
        f"{target}: {type(module).__name__}, {total(model):,} parameters, {model.num_layers} layers, "
        f"{giga:.4g} G multiply-adds forward for a sample{tokens}"
    )
    if model.unknown:
        print_text(
            f"without a cost of their own, counted by the bytes that they read and write: {', '.join(model.unknown)}"
        )
    print_text(f"next: training: {{model: {target}, seq_len: {model.tokens}}} in a scenario")


def _made(path: Path, function: str) -> tuple[Any, Any]:
    """Return the module and the inputs that a function of a Python file returns."""
    if not path.is_file():
        raise ScenarioError(f"{path}: no such file")
    try:
        foreign = load_file(str(path))
        build = getattr(foreign.declared, function, None)
        if not callable(build):
            raise ScenarioError(f"{path}: has no function {function!r}")
        with foreign.origin.telling():
            pair = build()
    except ScenarioError as error:
        if isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == "torch":
            raise ScenarioError(NEEDS_TORCH) from error
        raise
    if not (isinstance(pair, tuple) and len(pair) == 2):
        raise ScenarioError(f"{path}: {function} must return a module and its inputs, as in: return net, [image]")
    return pair
