"""Commands about a model without a scenario: does it fit, which layout is fastest, how long do kernels take?

Same as app.py: only options and help; nothing slow is imported here, therefore --help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.completion import names_of
from simulator.cli.number_options import as_days, as_length
from simulator.cli.options import AsJson, Cache, ModelName, NoPlugins, OtherGpu, Settings, Tokens


def memory(
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
    """Print the memory that a model needs, and whether it fits.

    A simulated step tells whether the model fits on the GPU. Closed forms give the memory of each ZeRO stage and kind
    of checkpointing. With an option from --tp on, the table shows the memory of each pipeline stage in one step
    instead.
    """
    from simulator.model.load import sequence_length

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
        from simulator.cli.memory import MemoryOptions, show

        show(MemoryOptions(model, dp, tokens, micro_batch_size, gpu, attention), as_json=as_json)
        return
    # Any other option needs the plan of a step.
    from simulator.cli.memory_by_stage import show as show_stages

    batch = {"--seq-len": tokens, "--micro-batch-size": micro_batch_size, "--attention": attention, "--gpu": gpu}
    show_stages({"MODEL": model, "--dp": dp, **batch, **sizes, **others}, as_json=as_json)


def fit_check(
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
    """Tell whether a training fits on a card, and what helps.

    The answer names the fewest cards of this kind, and the changes that make the training fit. Each is simulated.
    Single changes come first, then changes that keep the method. The exit code is 1 if the training does not fit.
    """
    from simulator.cli.fit_check import show
    from simulator.model.load import sequence_length

    show(
        {
            "model": model, "gpu": gpu, "gpus": gpus, "method": method, "rank": rank,
            "seq_len": sequence_length(seq_len, model), "micro_batch": micro_batch_size, "optimizer": optimizer,
            "framework": framework,
        },
        as_json=as_json,
    )  # fmt: skip


def plan(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SCENARIO",
            help=(
                "Model (catalog name, or path of a config.json) with --topology and --gpus, or a scenario with the "
                "key `plan`."
            ),
            autocompletion=names_of("model"),
        ),
    ],
    topology: Annotated[
        str | None, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of GPUs.")] = None,
    seq_len: Tokens = None,
    global_batch: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Global batch size per step, in tokens (4M) or sequences (512seq). [default: 4M; none for images]",
        ),
    ] = None,
    gpu: OtherGpu = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Fix a value: tp=8. Repeatable.")] = None,
    among: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE,...", help="Restrict the search to these values: pp=1,2,4. Repeatable."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Exclude a value from the search: zero3, interleaved. Repeatable."),
    ] = None,
    settings: Settings = None,
    best: Annotated[int | None, typer.Option(min=1, help="Number of settings to list. [default: 10]")] = None,
    tokens: Annotated[
        float | None,
        typer.Option(metavar="NUMBER", parser=as_length, help="Number of tokens in the whole training: 15e12, 1T."),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Price per GPU hour, in any currency.")] = None,
    watts: Annotated[
        float | None,
        typer.Option(min=0.0, help="Power per GPU [W], including its share of host, network and cooling."),
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", parser=as_days, help="Longest allowed duration of the training: 30 (days), 30d, 6w."
        ),
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Repeat the plan with twice the network bandwidth, one more network card, and twice the memory.",
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory for best.yaml, plan.json and report.html.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted plan in --out.")] = False,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Simulate on this Dask cluster.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help=("Number of processes; the number of cores if omitted."))
    ] = None,
    cache: Cache = None,
    no_plugins: NoPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Find the fastest settings for a training on N GPUs.

    The search excludes settings that are impossible, that do not fit into memory, and that are slower than the best
    settings according to a lower bound. It simulates every other setting, therefore no faster setting is missed.
    """
    from simulator.sweeps.process_pool import number_of_processes, preload

    # Same as in `sweep`: workers import while this process reads the question.
    jobs = number_of_processes(jobs, scheduler)
    pool = preload(__name__) if jobs is not None and jobs > 1 else None
    from simulator.cli.plan import Output
    from simulator.cli.plan import plan as planned
    from simulator.cli.plan_question import PlanOptions, question
    from simulator.cli.settings import as_overrides
    from simulator.sweeps.sweep import Backend

    # None means "not given" throughout: a scenario with `plan` refuses any of these options.
    asked = PlanOptions(
        topology, gpus, seq_len, global_batch, gpu, tuple(fix or ()), tuple(among or ()), tuple(without or ()), best,
        tokens, price, watts, deadline, sensitivity or None,
    )  # fmt: skip
    of = question(source, asked, as_overrides(settings or []))
    planned(of, Backend(jobs, scheduler, cache, pool), Output(out, as_json, resume))


def kernels(
    model: ModelName,
    gpu: Annotated[str, typer.Option(help="GPU that runs the kernels.", autocompletion=names_of("gpu"))] = "h100_sxm",
    seq_len: Tokens = None,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences per micro-batch.")] = 1,
    precision: Annotated[str, typer.Option(help="Precision: bf16, fp32, tf32, fp8, ...")] = "bf16",
    attention: Annotated[str, typer.Option(help="Attention kernels: flash or standard.")] = "flash",
    framework: Annotated[
        str | None, typer.Option(help="Framework that launches the kernels: torchtitan, llm_foundry, bare, ...")
    ] = None,
    compiled: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="A compiler merges memory-bound kernels, which then move fewer bytes: 0.8 times as many, none with "
            "framework bare.",
        ),
    ] = False,
    tp: Annotated[
        int, typer.Option(help="Number of tensor-parallel ranks; the table shows the kernels on each rank.")
    ] = 1,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Print each kernel's time, and what bounds it."""
    from simulator.cli.kernels import show as show_kernels
    from simulator.model.load import sequence_length

    # False is the default of --compile, and must count as not given.
    show_kernels(
        {
            "MODEL": model, "--gpu": gpu, "--seq-len": sequence_length(seq_len, model),
            "--micro-batch-size": micro_batch_size,
            "--precision": precision, "--attention": attention, "--framework": framework,
            "--compile": compiled or None, "--tp": tp,
        },
        as_json=as_json,
    )  # fmt: skip
