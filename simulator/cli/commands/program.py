"""Print a layer's kernels in order, and what proves them.

Kernels stand part by part, as a step times them: forward, then backward from the last part to the first. A framework
may interleave parts that do not wait for each other, such as the matrices of queries, keys and values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, get_args

import typer

from simulator.basics.counts import number_of
from simulator.basics.dtypes import find
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import micro_batch_text
from simulator.cli.console import print_table, print_text
from simulator.cli.kernel_options import KernelOptions
from simulator.cli.options import takes
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Elementwise, bytes_written
from simulator.model.operation import Operation, saved_bytes
from simulator.model.programs.recordings import Recording, recordings_of
from simulator.report.tables.layout import Column, text_columns

if TYPE_CHECKING:
    from simulator.step.kernel_table import ModelPart
    from simulator.step.kernel_timer import KernelCost
    from simulator.step.spec import TrainingStep

_KERNELS: Final = (*text_columns("part", "pass", "kernel"), *map(Column, ("read", "written", "GFLOP")))
_SAVED: Final = (*text_columns("saved by", "tensor", "made by"), Column("size"))


@dataclass(frozen=True, slots=True)
class ProgramOptions(KernelOptions):
    """Arguments and options of `program`."""

    part: Annotated[str, typer.Option(help="Part of the model: layer, embedding or head.")] = "layer"
    layer: Annotated[int, typer.Option(help="Number of the layer; layers may differ.")] = 0


@takes(ProgramOptions)
def command(options: ProgramOptions) -> None:
    """Print tables of the kernels and of the saved tensors."""
    from simulator.step.kernel_table import part_operations
    from simulator.step.kernel_timer import KernelTimer
    from simulator.step.pass_pieces import backward_pieces, forward_pieces

    step = options.step()
    part = _checked(step, options.part, options.layer)
    with options.on_gpu():
        timer, operations = part_operations(KernelTimer(load_gpu(options.gpu), step), part, options.layer)
        plain = replace(step, framework=step.framework.with_constants(program="bare"))
        _, bare = part_operations(replace(timer, step=plain), part, options.layer)
        forward, backward = forward_pieces(timer, operations).cost, backward_pieces(timer, operations).cost
    shared = {*_moving(operations)} & {*_moving(bare)}
    names = [kernel.name for kernel in _moving(operations) if kernel in shared]
    evidence, recordings = _evidence(step, part, list(dict.fromkeys(names)))
    rows, tensors = list(_rows(operations, find(step.precision.params).itemsize)), _saved(operations)
    if options.as_json:
        document = {
            "model": step.model.name,
            "framework": step.framework.name,
            "gpu": timer.gpu.name,
            "part": part,
            "layer": options.layer if part == "layer" else None,
            "launches": {"forward": forward.launches, "backward": backward.launches},
            "host_seconds": {"forward": forward.host, "backward": backward.host},
            "saved_bytes": saved_bytes(operations),
            "kernels": rows,
            "saved": tensors,
            "evidence": evidence,
            "recordings": [asdict(recording) for recording in recordings],
        }
        typer.echo(json.dumps(document, indent=2))
        return
    print_text(_finding(step, part, options.layer, (forward, backward), saved_bytes(operations)))
    print_text(f"{_host_text(step, operations, forward + backward)} {evidence}")
    for recording in recordings:
        print_text(f"  {recording.name}: {recording.module} ({recording.versions})", indent="    ")
    typer.echo()
    print_table(_KERNELS, [_cells(row) for row in rows], keys=(0, 2))
    typer.echo()
    cells = [
        [", ".join(row["saved_by"]), row["tensor"], row["made_by"], format_memory(row["bytes"])] for row in tensors
    ]
    print_table(_SAVED, cells, keys=(0, 1))
    print_text(
        "\nBytes: each operand and each result counts once. Not included: exchanges between ranks, and casts of "
        "matmuls' operands to eight or four bits."
    )


def _checked(step: TrainingStep, part: str, layer: int) -> ModelPart:
    """Return the part of the model; raise an error for an unknown part, or for a layer that the model lacks."""
    from simulator.step.kernel_table import ModelPart

    parts: tuple[ModelPart, ...] = get_args(ModelPart)
    chosen_part = next((name for name in parts if name == part), None)
    if chosen_part is None:
        raise ScenarioError(f"--part: got {part!r}; {one_of(parts, part)}")
    last = max(max(members) for members in step.model.kinds.values())
    if not 0 <= layer <= last:
        raise ScenarioError(f"--layer: got {layer}; {step.model.name} has layers 0 to {last}")
    return chosen_part


def _finding(step: TrainingStep, part: ModelPart, layer: int, costs: tuple[KernelCost, KernelCost], saved: int) -> str:
    """Return a sentence on what a part of the model launches, moves and saves."""
    subject = f"Layer {layer}" if len(step.model.kinds) > 1 else "A layer"
    micro_batch = micro_batch_text(step.model.work_unit, step.keys.micro_batch_size, step.keys.seq_len)
    forward, backward = costs
    return (
        f"{subject if part == 'layer' else f'The {part}'} of {step.model.name} under {step.framework.name} launches "
        f"{number_of(forward.launches, 'kernel')} forward and {backward.launches} backward, moves "
        f"{format_memory(forward.nbytes + backward.nbytes)} and saves {format_memory(saved)} for a micro-batch of "
        f"{micro_batch}."
    )


def _host_text(step: TrainingStep, operations: Sequence[Operation], cost: KernelCost) -> str:
    """Return a sentence on the host's time for the launches of both passes."""
    framework = step.framework
    if not framework.host.issue:
        return f"{framework.name} has no time of the host for {cost.launches} launches."
    timed = [operation.name for operation in operations if operation.name in framework.host.parts]
    times = f", but longer or shorter for {', '.join(timed)} (host.parts of the framework)" if timed else ""
    issued = f"The host issues {cost.launches} launches in {format_time(cost.host)}"
    return f"{issued}: {format_time(framework.host.issue)} each{times}."


def _evidence(step: TrainingStep, part: ModelPart, bare: Sequence[str]) -> tuple[str, tuple[Recording, ...]]:
    """Return sentences on what proves the kernels of a part of the model, and the recordings that do; `bare` names
    kernels that the program takes over from bare kernels.
    """
    framework = step.framework
    # No program lists the kernels of embedding and head.
    program = step.program if part == "layer" else "bare"
    recordings = recordings_of(part, step.loss_kernels if part == "head" else program)
    sentences = []
    if recordings:
        what = f"the kernels over logits of loss {step.loss_kernels}" if part == "head" else f"program {program}"
        sentences.append(f"Tests compare {what} with recordings of the modules below.")
    elif program != "bare":
        source = framework.facts.get("sources", {}).get("program")
        sentences.append(f"Program {program}: no recording; source: {source or 'none'}.")
    if program != "bare" and bare:
        sentences.append(f"Bare kernels, without recording: {', '.join(bare)}.")
    if program == "bare":
        sentences.append(f"{'Other' if recordings else 'Bare'} kernels: no recording.")
    if step.keys.compile:
        origin = framework.facts.get("fitted_to", {}).get("kernels.compiled")
        fitted = f" (fitted to {origin})" if origin else ""
        share = f"{framework.kernels.compiled:g}"
        sentences.append(f"A compiler merges elementwise kernels, whose bytes count {share} times{fitted}.")
    return " ".join(sentences), recordings


def _moving(operations: Sequence[Operation]) -> list[Elementwise]:
    """Return the elementwise kernels, without those of adapters, which are the same in every program."""
    kernels = [kernel for operation in operations for kernel in (*operation.forward, *operation.backward)]
    return [kernel for kernel in kernels if isinstance(kernel, Elementwise) and " adapter " not in kernel.name]


def _rows(operations: Sequence[Operation], itemsize: float) -> Iterator[dict[str, Any]]:
    """Yield the kernels of a part of the model in order of launch."""
    launched = [(operation, "forward", operation.forward) for operation in operations]
    launched += [(operation, "backward", operation.backward) for operation in reversed(operations)]
    for operation, run, kernels in launched:
        for kernel in kernels:
            written = bytes_written(kernel, itemsize)
            yield {
                "part": operation.name,
                "pass": run,
                "kernel": kernel.name,
                "read_bytes": kernel.nbytes(itemsize) - written,
                "written_bytes": written,
                "flops": kernel.flops,
            }


def _saved(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """Return the saved tensors of a part of the model, each once, with the operations that save it."""
    tensors: dict[str, dict[str, Any]] = {}
    for operation in operations:
        for tensor in operation.saved:
            row = {"tensor": tensor.name, "bytes": tensor.nbytes, "made_by": tensor.source, "saved_by": []}
            tensors.setdefault(tensor.name, row)["saved_by"].append(operation.name)
    return list(tensors.values())


def _cells(row: dict[str, Any]) -> list[str]:
    flops = f"{row['flops'] / 1e9:,.4g}" if row["flops"] else ""
    sizes = (format_memory(row[f"{way}_bytes"]) for way in ("read", "written"))
    return [row["part"], row["pass"], row["kernel"], *sizes, flops]
