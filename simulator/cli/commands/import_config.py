"""Write a training's configuration as a scenario.

Read are Megatron-LM, DeepSpeed, torchtitan, NeMo and Megatron-Bridge, axolotl, LLaMA-Factory, and Hugging Face's
Trainer and accelerate. The files are parsed and never run. The output lists the settings that were understood, the
settings that are not in the scenario, and the values that no file gives.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.cli import import_lists
from simulator.cli.completion import names_of
from simulator.cli.console import print_text
from simulator.cli.number_options import as_tokens
from simulator.cli.options import AsJson, NoPlugins, OtherGpu
from simulator.cluster.build import facts
from simulator.cluster.chassis import machine_of
from simulator.importing.machine import MACHINE, NODE, Options
from simulator.importing.settings import Imported

_WORDS: Final = import_lists.Words("scenario key", "the scenario", "a step", "in the simulation")


def command(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files of one configuration: a script, DeepSpeed JSON, TOML, YAML, or FILE.py:FUNCTION of torchtitan.",
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Scenario to write; FILE's name .yaml if omitted.")
    ] = None,
    topology: Annotated[
        str | None, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = None,
    gpu: OtherGpu = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Number of nodes, instead of --gpus.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model, if the files name none: catalog name or path.", autocompletion=names_of("model")),
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", metavar="TOKENS", parser=as_tokens, help="Sequence length in tokens.")
    ] = None,
    micro_batch_size: Annotated[
        int | None,
        typer.Option("--micro-batch-size", "--micro-batch", min=1, help="Sequences per micro-batch on each rank."),
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Framework whose constants apply, instead of the files' own.")
    ] = None,
    define: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Value of a shell variable that a script does not assign. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.importing.importer import import_files

    values = {
        "topology": topology, "gpu": gpu, "gpus": gpus, "nodes": nodes, "model": model, "seq_len": seq_len,
        "micro_batch_size": micro_batch_size, "framework": framework,
    }  # fmt: skip
    target = out or Path(f"{Path(files[0].partition('.py:')[0]).stem}.yaml")
    if target.exists():
        raise ScenarioError(f"{target}: the file exists already; choose another name with --out, or remove the file")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", target.stem)[:100].lstrip(".-") or "imported"
    scenario = import_files(files, _options({**values, "variables": _variables(define or ())}), name, target.parent)
    try:
        # Mode "x" creates the file or fails, in one step.
        with target.open("x", encoding="utf-8") as file:
            file.write(scenario.text)
    except OSError as error:
        raise ScenarioError(f"{target}: cannot be written: {error.strerror or error}") from error
    if as_json:
        typer.echo(json.dumps(_data(scenario, target), indent=2))
    else:
        _print(scenario, target)


def _options(values: Mapping[str, Any]) -> Options:
    """Return the command's options, with the machine that has the GPU, and the size of its nodes."""
    if values.get("gpus") is not None and values.get("nodes") is not None:
        raise ScenarioError("--nodes: excludes --gpus; give one of both")
    gpu = values.get("gpu")
    shipped = None if gpu is None else registry.shipped("gpu", gpu)
    machine = MACHINE if shipped is None else machine_of(shipped)
    node_size = facts(values.get("topology") or machine).node_size
    return Options(**values, machine=machine, gpus_per_node=node_size or NODE)


def _variables(defined: Sequence[str]) -> dict[str, str]:
    """Return the variables in texts NAME=VALUE, by name."""
    pairs = [text.partition("=") for text in defined]
    wrong = next((text for text, (name, equals, _) in zip(defined, pairs, strict=True) if not name or not equals), None)
    if wrong is not None:
        raise ScenarioError(f"--define: got {wrong!r}; must be NAME=VALUE, such as TP=8")
    return {name: value for name, _, value in pairs}


def _data(notes: Imported, target: Path) -> dict[str, Any]:
    """Return the result of an import as plain data for --json."""
    lists = import_lists.data("key", notes.understood, notes.missing, notes.ignored)
    return {"scenario": str(target), "formats": dict(notes.formats), **lists, "warnings": list(notes.warnings)}


def _print(notes: Imported, target: Path) -> None:
    import_lists.show(_WORDS, notes.formats, notes.understood, notes.missing, notes.ignored, notes.warnings)
    print_text(f"\n{target}: written; next: `simulator check {target}`, then `simulator run {target}`")
