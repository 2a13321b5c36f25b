"""Write a scenario file, or a GPU file, to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.cli.options import NoPlugins
from simulator.scenario.template import template

_QUESTION: Final = "What do we want to know?"
# Figures of an H100's data sheet; whoever writes a file of another GPU replaces them.
_GPU: Final = """# A GPU from its data sheet: replace every value, and write where it is from.
# Rates are dense (data sheets print twice as much "with sparsity"); bandwidths are of one direction.
product: {name}
vector_flops:
  float32: {{value: 66.9 TFLOP/s, source: data sheet}}
matrix_flops:          # tensor cores; leave out the formats that the GPU lacks
  tf32: {{value: 494.7 TFLOP/s, source: data sheet}}
  float16: {{value: 989.4 TFLOP/s, source: data sheet}}
  bfloat16: {{value: 989.4 TFLOP/s, source: data sheet}}
  float8_e4m3fn: {{value: 1978.9 TFLOP/s, source: data sheet}}
hbm_bytes: {{value: 80 GiB, source: data sheet}}
hbm_bandwidth: {{value: 3350 GB/s, source: data sheet}}
sms: {{value: 132, source: data sheet}}                     # streaming multiprocessors, or compute units
scale_up_bandwidth: {{value: 450 GB/s, source: data sheet}} # NVLink or xGMI; leave out without
host_bandwidth: {{value: 63 GB/s, source: data sheet}}      # PCIe
clock: {{value: 1830000000, source: data sheet}}            # Hz, at which the rates are reached
power: {{value: 700, source: data sheet}}                   # W
# Nothing is measured of this GPU: constants of its kernels are those of the GPU of the catalog that is most alike.
# `simulator fit gpu` replaces them by measured ones.
kernels_as: h100_sxm
"""


def command(
    name: Annotated[str, typer.Argument(help="Name of the scenario; the file is NAME.yaml.", metavar="NAME")],
    question: Annotated[str, typer.Option(help="Question that the scenario answers.")] = _QUESTION,
    training: Annotated[
        bool, typer.Option("--training", help="Write a training step instead of a collective.")
    ] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Write the file of a GPU, to fill in from a data sheet, instead.")
    ] = False,
    no_plugins: NoPlugins = False,
) -> None:
    if gpu and (training or question != _QUESTION):
        raise ScenarioError("--gpu: a GPU's file has no question and no training step; leave out the other options")
    # `simulator new demo` and `simulator new demo.yaml` mean the same file.
    from simulator.scenario.load import check_name

    name = name.removesuffix(".yaml")
    check_name(name)
    path = Path(f"{name}.yaml")
    try:
        # Mode "x" creates the file or fails, in one step.
        with path.open("x", encoding="utf-8") as file:
            text = template(name, question, "training" if training else "collective")
            file.write(_GPU.format(name=name) if gpu else text)
    except FileExistsError:
        raise ScenarioError(f"{path}: the file exists already; choose another name, or remove the file") from None
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be written: {error.strerror or error}") from error
    if gpu:
        typer.echo(f"{path}: written; next: replace its values, then `gpu: {path}` under `cluster` in a scenario")
        return
    typer.echo(f"{path}: written; next: `simulator check {path}`, then `simulator run {path}`")
