"""`simulator memory`: does a model fit? Closed forms by ZeRO stage and checkpointing; nothing is simulated."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.registry import shipped
from simulator.basics.units import GIB, format_memory
from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import as_options
from simulator.cluster.gpu_file import load_gpu
from simulator.model import conventions
from simulator.model.head import logits_memory
from simulator.model.layer import layer_operations
from simulator.model.load import load_transformer
from simulator.model.model import modules, total
from simulator.model.operation import Batch
from simulator.model.shape import Transformer
from simulator.report.numbers.memory_margin import tight_memory
from simulator.report.tables.layout import Column
from simulator.scenario.load import load_scenario
from simulator.step.checkpointing import POLICIES, kept

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
class MemoryOptions:
    """The arguments of `simulator memory`."""

    model: str
    dp: int
    seq_len: int
    micro_batch_size: int
    gpu: str
    attention: str


def show(request: MemoryOptions, *, as_json: bool) -> None:
    """Print a model's states by ZeRO stage, activations by checkpointing policy, and the combinations that fit."""
    # Checks all options before any work: one message lists every invalid option.
    _check(request)
    model = load_transformer(request.model, request.seq_len)
    # Both depend on the model alone; the GPU's capacity decides what fits.
    states, activations = _states(model, request.dp), _activations(model, request)
    capacity = load_gpu(request.gpu).hbm_bytes
    # "h100" means a card with a form and a memory: print the card's own name.
    card = shipped("gpu", request.gpu) or request.gpu
    if as_json:
        document = {
            "parameters": total(model),
            "capacity_bytes": capacity,
            "states": states,
            "activations": activations,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    # Rows are ZeRO stages, columns are checkpointing policies [B].
    needs = [[states[f"paper, stage {stage}"] + nbytes for nbytes in activations.values()] for stage in range(4)]
    print_text(_finding(needs, list(activations), capacity, card))
    print_text(f"{model.name}: {total(model):,} parameters; GiB per rank, with {request.dp} data-parallel ranks")
    typer.echo("\nmodel states (Adam, mixed precision), by convention")
    for name, nbytes in states.items():
        typer.echo(f"  {name:<34}{nbytes / GIB:>10.2f} GiB")
    print_text(
        f"\nactivations and logits, micro-batch of {request.micro_batch_size} x {request.seq_len}, by checkpointing"
    )
    for name, nbytes in activations.items():
        typer.echo(f"  {name:<34}{nbytes / GIB:>10.2f} GiB")
    print_text(f"\nsum on {card} of {capacity / GIB:.1f} GiB (ZeRO stages by the paper's convention)")
    rows = [
        [f"stage {stage}", *(f"{need / GIB:.1f} {'fits' if need <= capacity else 'over'}" for need in own)]
        for stage, own in enumerate(needs)
    ]
    print_table([Column(left=True), *map(Column, activations)], rows, indent="  ")
    print_text("  fits: within the GPU's memory; over: more than the GPU's memory")
    # Flash attention never stores scores, so recomputing attention saves nothing; say so.
    if activations["attention"] == activations["none"]:
        print_text(
            f"  attention equals none: --attention {request.attention} stores no scores, therefore recomputing "
            "attention saves no memory",
            indent="  ",
        )
    print_text(
        "\nNot included: gathered units, buckets, fragmentation, and the framework's own 0.5 to 2 GiB. A simulated "
        "step includes the first three."
    )


def _finding(needs: Sequence[Sequence[float]], policies: Sequence[str], capacity: float, gpu: str) -> str:
    """Return a sentence: the first ZeRO stage at which the model fits, or the combination with the least memory."""
    # Low stages first, because they communicate least; within a stage, "none" first.
    for stage, own in enumerate(needs):
        fitting = [policy for need, policy in zip(own, policies, strict=True) if need <= capacity]
        if fitting:
            how = "without checkpointing" if fitting[0] == "none" else f"with {fitting[0]} checkpointing"
            need = own[policies.index(fitting[0])]
            tight = tight_memory(need, capacity)
            warning = f"; {tight}" if tight else ""
            return f"fits on {gpu} from ZeRO stage {stage} on, {how}: {format_memory(need)}{warning}"
    need, policy, stage = min(
        (need, policy, stage) for stage, own in enumerate(needs) for need, policy in zip(own, policies, strict=True)
    )
    return (
        f"the model does not fit on {gpu} of {format_memory(capacity)}; the smallest need is {format_memory(need)}, "
        f"ZeRO stage {stage} with {policy} checkpointing"
    )


def _check(request: MemoryOptions) -> None:
    """Raise an error with every fault in the arguments, found by a scenario's rules."""
    training = {
        "model": request.model,
        "seq_len": request.seq_len,
        "micro_batch_size": request.micro_batch_size,
        "attention": request.attention,
        # Closed forms count mixed precision, whichever dtypes the GPU supports. fp32 is supported by every GPU.
        "precision": "fp32",
    }
    cluster = {"topology": "star_100g", "world_size": request.dp, "gpu": request.gpu}
    try:
        load_scenario({"name": "memory", "cluster": cluster, "training": training})
    except ScenarioError as error:
        error.args = (as_options(str(error), _OPTIONS),)
        raise


def _states(model: Transformer, ranks: int) -> dict[str, float]:
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


def _activations(model: Transformer, request: MemoryOptions) -> dict[str, float]:
    attention: Any = request.attention
    batch = Batch(request.micro_batch_size, request.seq_len, 2, attention)
    kinds = [(layer_operations(kind, batch), own) for kind, own in model.kinds.items()]
    operations = {layer: made for made, own in kinds for layer in own}
    # Bytes of a layer's input; checkpointing keeps at least this.
    entry = batch.tokens * model.hidden_size * batch.itemsize
    head = logits_memory(model, batch)
    # Forward and backward pass of the head never coincide.
    logits = max(head.forward_peak, head.backward_peak)
    by_policy = {}
    for policy in POLICIES:
        layers = [kept(policy, i, model, operations[i], entry) for i in range(model.num_layers)]
        # Every layer's saved tensors, and one layer recomputed at a time.
        peak = sum(layer.nbytes for layer in layers) + max(layer.recomputed for layer in layers)
        by_policy[policy] = float(peak + logits)
    return by_policy
