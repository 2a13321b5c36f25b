"""Print the memory that a model needs, and whether it fits.

A simulated step tells whether the model fits on the GPU. Closed forms give the memory of each ZeRO stage and kind
of checkpointing. With an option from --tp on, the table shows the memory of each pipeline stage in one step
instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.registry import shipped
from simulator.basics.sentence import started
from simulator.basics.units import GIB, format_memory
from simulator.basics.work_unit import micro_batch_text
from simulator.cli.completion import names_of
from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import told_as_options
from simulator.cli.options import AsJson, ModelName, NoPlugins, Tokens
from simulator.cluster.chassis import cluster_of
from simulator.cluster.gpu_file import load_gpu
from simulator.model import conventions
from simulator.model.head import logits_memory
from simulator.model.layer import layer_operations
from simulator.model.load import load_model, sequence_length
from simulator.model.model import Model, modules, total
from simulator.model.operation import Batch
from simulator.model.shape import Transformer
from simulator.records.memory_margin import MemoryMargin
from simulator.records.setting_text import label
from simulator.report.tables.layout import Column

if TYPE_CHECKING:
    from simulator.scenario.records import Scenario

# Kinds of sharding and checkpointing policies of the simulated steps: least communication, and least recompute, first.
_SHARDINGS: Final = ("ddp", "zero1", "zero2", "zero3")
_TRIED: Final = ("none", "selective_op", "full")
# Option for each scenario key.
_OPTIONS: Final = {
    "cluster.world_size": "--dp",
    "cluster.gpu": "--gpu",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
    "training.micro_batch_size": "--micro-batch-size",
    "training.attention": "--attention",
}


@dataclass(frozen=True, slots=True)
class _Request:
    """Options of the closed forms."""

    model: str
    dp: int
    seq_len: int
    micro_batch_size: int
    gpu: str
    attention: str


def command(
    model: ModelName,
    dp: Annotated[int, typer.Option(help="Number of data-parallel ranks that share the model states.")] = 8,
    seq_len: Tokens = None,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences per micro-batch on each rank.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="GPU that must hold the model.", autocompletion=names_of("gpu"))
    ] = "h100_sxm",
    attention: Annotated[str, typer.Option(help="Attention kernels: flash or standard.")] = "flash",
    tp: Annotated[int, typer.Option(help="Number of tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Number of pipeline-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(help="Number of context-parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Number of expert-parallel ranks within a stage.")] = 1,
    etp: Annotated[
        int | None, typer.Option(help="Number of ranks that split each expert's matrices; equal to --tp if omitted.")
    ] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(help="Split the activations between the matrices along the sequence, or not. [default: split]"),
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Pipeline schedule: 1f1b, interleaved, zb_v, ...")] = None,
    virtual_stages: Annotated[
        int | None, typer.Option(help="Number of stages per rank, for interleaved schedules.")
    ] = None,
    stages: Annotated[
        str | None, typer.Option(help="Number of layers of each stage: '[7, 8, 8, 7]', '{last_less: 1}'.")
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Number of micro-batches per step (gradient accumulation).")
    ] = None,
    sharding: Annotated[
        str | None,
        typer.Option(help="Sharding strategy: ddp, zero1, zero2, zero3, or a mapping of the sharding keys."),
    ] = None,
    checkpointing: Annotated[
        str | None, typer.Option(help="Activation checkpointing: none, selective_op, full, ...")
    ] = None,
    precision: Annotated[str | None, typer.Option(help="Precision: bf16, fp32, fp8, ...")] = None,
    no_plugins: NoPlugins = False,
    as_json: AsJson = False,
) -> None:
    from simulator.cli.memory_by_stage import show as show_stages

    tokens = sequence_length(seq_len, model)
    sizes = {"--tp": tp, "--pp": pp, "--cp": cp, "--ep": ep}
    others = {
        "--etp": etp,
        "--sequence-parallel": sequence_parallel,
        "--schedule": schedule,
        "--virtual-stages": virtual_stages,
        "--stages": stages,
        "--micro-batches": micro_batches,
        "--sharding": sharding,
        "--checkpointing": checkpointing,
        "--precision": precision,
    }
    # Only options of the closed forms were given: they know neither partitioning nor pipelines.
    if set(sizes.values()) == {1} and set(others.values()) == {None}:
        _show(_Request(model, dp, tokens, micro_batch_size, gpu, attention), as_json=as_json)
        return
    # Any other option needs the plan of a step.
    batch = {"--seq-len": tokens, "--micro-batch-size": micro_batch_size, "--attention": attention, "--gpu": gpu}
    show_stages({"MODEL": model, "--dp": dp, **batch, **sizes, **others}, as_json=as_json)


def _show(request: _Request, *, as_json: bool) -> None:
    """Print whether a step fits by sharding and checkpointing, and closed forms of the states and activations."""
    # Checks all options before any work: one message lists every invalid option.
    peaks, framework = _peaks(request)
    model = load_model(request.model, request.seq_len)
    states = _states(model, request.dp)
    # The closed forms of activations are those of a transformer's layers.
    activations = _activations(model, request) if isinstance(model, Transformer) else {}
    capacity = load_gpu(request.gpu).hbm_bytes
    # "h100" means a card with a form and a memory: print the card's own name.
    card = shipped("gpu", request.gpu) or request.gpu
    sharding, policy = _chosen(peaks)
    margin = peaks[sharding][policy]
    if as_json:
        document = {
            "parameters": total(model),
            "capacity_bytes": capacity,
            "fits": margin.fits,
            "framework": framework,
            "sharding": sharding,
            "checkpointing": policy,
            "reserved_bytes": margin.reserved,
            "allocated_bytes": margin.allocated,
            "context_bytes": margin.context,
            "nccl_bytes": margin.nccl,
            "process_bytes": margin.process,
            "free_bytes": margin.free,
            "missing_bytes": margin.missing,
            "simulated_reserved_bytes": {
                name: {policy: margin.reserved for policy, margin in of_policy.items()}
                for name, of_policy in peaks.items()
            },
            "states": states,
            "activations": activations,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    micro_batch = f"micro-batch of {micro_batch_text(model.work_unit, request.micro_batch_size, request.seq_len)}"
    row = f"{sharding} and {label('training.activation_checkpointing', policy)}, in {framework}"
    print_text(_finding(margin, f"{model.name} with a {micro_batch}", row, f"{request.dp:,} {card}"))
    print_text(f"{model.name}: {total(model):,} parameters; GiB per rank, with {request.dp} data-parallel ranks")
    typer.echo("\nmodel states (Adam, mixed precision), by convention")
    for name, nbytes in states.items():
        typer.echo(f"  {name:<34}{nbytes / GIB:>10.2f} GiB")
    if activations:
        print_text(f"\nactivations and logits, {micro_batch}, by checkpointing")
    for name, nbytes in activations.items():
        typer.echo(f"  {name:<34}{nbytes / GIB:>10.2f} GiB")
    # Without the closed forms above, this heading tells the micro-batch.
    size = "" if activations else f", {micro_batch}"
    print_text(f"\nreserved memory of a simulated step in {framework} on {card} of {capacity / GIB:.1f} GiB{size}")
    rows = [
        [name, *(f"{margin.reserved / GIB:.1f} {'fits' if margin.fits else 'over'}" for margin in of_policy.values())]
        for name, of_policy in peaks.items()
    ]
    print_table([Column(left=True), *map(Column, _TRIED)], rows, indent="  ")
    print_text("  fits: reserved memory, CUDA context and NCCL buffers are within the GPU's memory; over: they are not")
    for note in _notes(peaks):
        print_text(f"  {note}", indent="  ")
    # Flash attention never stores scores, so recomputing attention saves nothing; say so.
    if activations and activations["attention"] == activations["none"]:
        print_text(
            f"  attention equals none: --attention {request.attention} stores no scores, therefore recomputing "
            "attention saves no memory",
            indent="  ",
        )
    print_text(
        "\nThe closed forms contain no gathered units, buckets and fragments; the reserved memory contains them. "
        f"Neither contains {margin.beside}."
    )
    if margin.fits:
        print_text(f"With {sharding} and {label('training.activation_checkpointing', policy)}, {margin.figures}.")


def _notes(peaks: Mapping[str, Mapping[str, MemoryMargin]]) -> Iterator[str]:
    """Yield explanations of reserved memory that differs from what the closed forms suggest."""
    for policy in _TRIED[1:]:
        # Whole gradients come while activations go: blocks of freed activations are too small for them.
        holed = [
            name
            for name, margins in peaks.items()
            if margins[policy].allocated < margins["none"].allocated
            # A difference that the table shows.
            and round(margins[policy].reserved / GIB, 1) > round(margins["none"].reserved / GIB, 1)
        ]
        if holed:
            tensors = ", ".join(format_memory(peaks[name][policy].allocated) for name in holed)
            yield (
                f"{policy} reserves more than none with {' and '.join(holed)}, although its tensors need less "
                f"({tensors}): gradients do not fit into the blocks that its activations leave; allocator: "
                "expandable_segments in a scenario avoids such holes"
            )
    for less, more in pairwise(_SHARDINGS):
        equal = [peaks[less][policy].reserved == peaks[more][policy].reserved for policy in _TRIED]
        # On one GPU all are equal.
        if any(equal) and not all(equal):
            yield (
                f"{more} equals {less} where the peak is at the end of the forward pass: with one micro-batch, "
                "gradients appear only as activations are freed"
            )


def _finding(margin: MemoryMargin, job: str, row: str, cards: str) -> str:
    """Return the verdict in whole sentences, on the first row of the table that fits, or on the row with the least
    memory.

    Parameters
    ----------
    job : str
        The model and its micro-batch, in words.
    row : str
        Sharding, checkpointing and framework, in words.
    cards : str
        Number and name of the GPUs.
    """
    on = f"on {cards} of {format_memory(margin.capacity)}"
    if margin.fits:
        warning = f" {started(margin.warning)}." if margin.warning else ""
        return f"{started(job)} fits {on} with {row}: {margin.text}.{warning}"
    return f"{started(job)} does not fit {on}; the smallest need is that of {row}: {margin.text}."


def _chosen(peaks: Mapping[str, Mapping[str, MemoryMargin]]) -> tuple[str, str]:
    """Return the sharding and the policy of the first step that fits, else of the step with the least memory."""
    every = [(sharding, policy) for sharding, of_policy in peaks.items() for policy in of_policy]
    fitting = (place for place in every if peaks[place[0]][place[1]].fits)
    return next(fitting, min(every, key=lambda place: peaks[place[0]][place[1]].reserved))


def _peaks(request: _Request) -> tuple[dict[str, dict[str, MemoryMargin]], str]:
    """Return the margin of a step by sharding and checkpointing policy, and the name of the framework.

    Raises
    ------
    ScenarioError
        Options are invalid, or the GPU does not support such a step; one line for each fault.
    """
    from simulator.run.memory_need import estimate_memory
    from simulator.scenario.build_training import to_step

    peaks: dict[str, dict[str, MemoryMargin]] = {sharding: {} for sharding in _SHARDINGS}
    # Every GPU supports fp32: other precisions are known only after the GPU's name was checked.
    _scenario(request, precision="fp32")
    cluster, framework = cluster_of(request.gpu, request.dp), ""
    precision = cluster.gpus[0].mixed_precision
    for sharding, policy in product(_SHARDINGS, _TRIED):
        keys = {"sharding": sharding, "activation_checkpointing": policy, "precision": precision}
        spec = _scenario(request, **keys).training
        if spec is None:
            raise TypeError("a scenario of a training step has a training step")
        step = to_step(spec, request.dp)
        framework = step.framework.name
        try:
            need = estimate_memory(cluster, step)
        # A generation of attention kernels that this GPU does not support.
        except ValueError as error:
            raise ScenarioError(f"--gpu: {request.gpu}: {error}") from error
        peaks[sharding][policy] = need.margin
    return peaks, framework


def _scenario(request: _Request, **training: str) -> Scenario:
    """Return the scenario of a step with the command's options; raise an error with every fault in them."""
    from simulator.scenario.load import load_scenario

    keys = {
        "model": request.model,
        "seq_len": request.seq_len,
        "micro_batch_size": request.micro_batch_size,
        "attention": request.attention,
    }
    cluster = {"topology": "star_100g", "world_size": request.dp, "gpu": request.gpu}
    with told_as_options(_OPTIONS):
        return load_scenario({"name": "memory", "cluster": cluster, "training": keys | training})


# Closed forms of the literature explain the need, by convention of the states and, for the activations of transformers,
# by checkpointing policy. They count neither gathered units nor buffers and fragments: the simulated peak decides.
def _states(model: Model, ranks: int) -> dict[str, float]:
    parameters = float(total(model))
    units = modules(model)
    # The formulas of DeepSpeed and FSDP count the largest unit in gathered form.
    layer = float(max(unit.elements for unit in units))
    by_convention = {f"paper, stage {stage}": conventions.paper(parameters, ranks, stage).total for stage in range(4)}
    by_convention["deepspeed, stage 2"] = conventions.deepspeed_zero2(parameters, ranks).total
    by_convention["deepspeed, stage 3"] = conventions.deepspeed_zero3(parameters, ranks, layer).total
    by_convention["fsdp, full shard"] = conventions.fsdp(parameters, ranks, layer).total
    by_convention["fsdp, no reshard after forward"] = conventions.fsdp(
        parameters, ranks, layer, reshard_after_forward=False
    ).total
    return by_convention


def _activations(model: Transformer, request: _Request) -> dict[str, float]:
    from simulator.step.checkpointing import POLICIES, kept

    attention: Any = request.attention
    batch = Batch(request.micro_batch_size, request.seq_len, 2, attention)
    kinds = [(layer_operations(kind, batch), places) for kind, places in model.kinds.items()]
    operations = {layer: of_kind for of_kind, places in kinds for layer in places}
    # Bytes of a layer's input; checkpointing keeps at least this.
    entry = batch.tokens * model.hidden_size * batch.itemsize
    # Log-probabilities and two gradients.
    logits = 3 * logits_memory(model, batch).log_probabilities
    by_policy = {}
    for policy in POLICIES:
        layers = [kept(policy, i, model, operations[i], entry) for i in range(model.num_layers)]
        # Every layer's saved tensors, and one layer recomputed at a time.
        peak = sum(layer.nbytes for layer in layers) + max(layer.recomputed for layer in layers)
        by_policy[policy] = float(peak + logits)
    return by_policy
