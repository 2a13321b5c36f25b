"""Tell whether a training fits on a card, and what helps.

The answer names the fewest cards of this kind, and the changes that make the training fit. Each is simulated.
Single changes come first, then changes that keep the method. The exit code is 1 if the training does not fit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simulator.basics.units import format_memory
from simulator.basics.work_unit import rate_name
from simulator.cli.completion import names_of
from simulator.cli.console import print_table, print_text
from simulator.cli.option_names import told_as_options
from simulator.cli.options import AsJson, ModelName, NoPlugins, Tokens
from simulator.model.load import sequence_length
from simulator.report.tables.layout import Column

if TYPE_CHECKING:
    from simulator.planner.sizing.answer import FitCheck

# Option for each scenario key, and for each parameter that no scenario has.
_OPTIONS: Final = {
    "cluster.gpu": "--gpu",
    "cluster.world_size": "--gpus",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
    "training.micro_batch_size": "--micro-batch-size",
    "training.optimizer": "--optimizer",
    "training.framework": "--framework",
    "training.lora.rank": "--rank",
    "training.lora.targets": "--method",
    "method": "--method",
    "rank": "--rank",
}


def command(
    model: ModelName,
    gpu: Annotated[str, typer.Option(help="The card.", autocompletion=names_of("gpu"))],
    gpus: Annotated[int, typer.Option(help="Number of cards; on several cards, zero3 shards the states.")] = 1,
    method: Annotated[
        str, typer.Option(help="full: train all parameters; lora: adapters; qlora: adapters on a model in 4 bits.")
    ] = "full",
    rank: Annotated[int | None, typer.Option(help="Rank of the adapters. [default: 16]")] = None,
    seq_len: Tokens = None,
    micro_batch_size: Annotated[
        int, typer.Option("--micro-batch-size", "--micro-batch", help="Sequences per micro-batch on each card.")
    ] = 1,
    optimizer: Annotated[str, typer.Option(help="Optimizer: adam, adam_8bit, lion, ...")] = "adam",
    framework: Annotated[
        str, typer.Option(help="Framework: transformers, torchtitan, llm_foundry, bare, ...")
    ] = "transformers",
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.planner.sizing.fit_question import FitQuestion
    from simulator.planner.sizing.search import fit_check

    tokens = sequence_length(seq_len, model)
    with told_as_options(_OPTIONS):
        question = FitQuestion(
            model=model, gpu=gpu, gpus=gpus, method=method, rank=rank, seq_len=tokens, micro_batch=micro_batch_size,
            optimizer=optimizer, framework=framework,
        )  # fmt: skip
        answer = fit_check(question)
    if as_json:
        typer.echo(json.dumps(answer.to_dict(), indent=2))
    else:
        _print(answer)
    # A script sees from the exit code that the training does not fit.
    if not answer.fits:
        raise typer.Exit(1)


def _print(answer: FitCheck) -> None:
    rate = f"{rate_name(answer.question.work_unit)} per GPU"
    for sentence in answer.sentences:
        print_text(sentence)
    if answer.fits:
        print_text(f"Speed: {answer.tokens_per_s_per_gpu:,.0f} {rate}.")
        return
    if not answer.changes:
        return
    print_text("\nChanges with which it fits, each simulated; speed is relative to the training as asked")
    rows = [
        [
            change.text,
            format_memory(change.margin.process),
            format_memory(change.margin.free),
            f"{change.tokens_per_s_per_gpu:,.0f}",
            f"{change.speed:.0%}",
        ]
        for change in answer.changes
    ]
    columns = (Column("change", left=True), *map(Column, ("process", "free", rate, "speed")))
    print_table(columns, rows, keys=(0,), indent="  ")
    for warning in filter(None, (change.warning for change in answer.changes)):
        print_text(warning)
