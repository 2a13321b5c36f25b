"""Commands about a model without a scenario: does it fit, which layout is fastest, how long do kernels take?

Same as app.py: only options and help; nothing slow is imported here, therefore --help answers at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.cli.completion import names_of
from simulator.cli.number_options import as_days, as_length, as_tokens
from simulator.cli.options import AsJson, Cache, ModelName, OtherGpu, Settings, Tokens


def memory(
    model: ModelName,
    dp: Annotated[int, typer.Option(help="Data-parallel ranks that share model states.")] = 8,
    seq_len: Tokens = 2048,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences of a micro-batch on one rank.")] = 1,
    gpu: Annotated[
        str, typer.Option(help="Whose memory it must fit into.", autocompletion=names_of("gpu"))
    ] = "h100_sxm",
    attention: Annotated[str, typer.Option(help="flash or standard.")] = "flash",
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline-parallel ranks.")] = 1,
    cp: Annotated[int, typer.Option(help="Context-parallel ranks.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert-parallel ranks, of those of a stage.")] = 1,
    etp: Annotated[int | None, typer.Option(help="Ranks that cut one expert's matrices; as --tp if left out.")] = None,
    sequence_parallel: Annotated[
        bool | None,
        typer.Option(help="Whether what lies between matrices is cut along the sequence; it is by default."),
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="Of the pipeline: 1f1b, interleaved, zb_v, ...")] = None,
    virtual_stages: Annotated[int | None, typer.Option(help="Stages of a rank, for interleaved ones.")] = None,
    stages: Annotated[str | None, typer.Option(help="Layers by stage: '[7, 8, 8, 7]', '{last_less: 1}'.")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Of a step: gradient accumulation.")] = None,
    sharding: Annotated[str | None, typer.Option(help="ddp, zero1, zero2, zero3, or a mapping of its keys.")] = None,
    checkpointing: Annotated[str | None, typer.Option(help="none, selective_op, full, ...")] = None,
    precision: Annotated[str | None, typer.Option(help="bf16, fp32, fp8, ...")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what a model takes of a GPU's memory, nothing played.

    By closed forms of each ZeRO stage and checkpointing; or, where an option from --tp on is given, of one step what
    each pipeline stage holds.
    """
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

        show(MemoryOptions(model, dp, seq_len, micro_batch_size, gpu, attention), as_json=as_json)
        return
    # Any other option needs the plan of a step.
    from simulator.cli.memory_by_stage import show as show_stages

    batch = {"--seq-len": seq_len, "--micro-batch-size": micro_batch_size, "--attention": attention, "--gpu": gpu}
    show_stages({"MODEL": model, "--dp": dp, **batch, **sizes, **others}, as_json=as_json)


def plan(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SCENARIO",
            help="Catalog name, or path of a config.json, with --topology and --gpus; or a scenario that has `plan`.",
            autocompletion=names_of("model"),
        ),
    ],
    topology: Annotated[str | None, typer.Option(help="Name or path.", autocompletion=names_of("topology"))] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="How many.")] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(metavar="TOKENS", parser=as_tokens, help="Tokens of a sequence; 8k is 8192. [default: 2048]"),
    ] = None,
    global_batch: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Of a step: tokens (4M), or sequences (512seq). [default: 4M]"),
    ] = None,
    gpu: OtherGpu = None,
    fix: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Choose it yourself: tp=8.")] = None,
    among: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE,...", help="Choose among these: pp=1,2,4.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="VALUE", help="Leave out: zero3, interleaved.")] = None,
    settings: Settings = None,
    best: Annotated[int | None, typer.Option(min=1, help="How many settings are told. [default: 10]")] = None,
    tokens: Annotated[
        float | None, typer.Option(metavar="NUMBER", parser=as_length, help="Of the whole training: 15e12, 1T.")
    ] = None,
    price: Annotated[float | None, typer.Option(min=0.0, help="Of a GPU hour, in any currency.")] = None,
    watts: Annotated[float | None, typer.Option(min=0.0, help="Power of a GPU with its share of the rest.")] = None,
    deadline: Annotated[
        float | None, typer.Option(metavar="DAYS", parser=as_days, help="Days that it may take: 30, 30d, 6w.")
    ] = None,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity", help="Tell what twice the network, one more card and twice the memory change: plans again."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where best.yaml, plan.json and report.html go.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted plan in --out.")] = False,
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Play on this Dask cluster instead.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one a core otherwise.")] = None,
    cache: Cache = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest layout of a training on so many GPUs.

    What cannot be, does not fit or cannot win is ruled out; the rest is played, so that nothing faster is missed.
    """
    import os

    from simulator.sweeps.process_pool import preload

    # Same as in `sweep`: workers import while this process reads the question.
    jobs = jobs or (None if scheduler is not None else os.cpu_count() or 1)
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
    gpu: Annotated[str, typer.Option(help="On which GPU.", autocompletion=names_of("gpu"))] = "h100_sxm",
    seq_len: Tokens = 2048,
    micro_batch_size: Annotated[int, typer.Option(help="Sequences of a micro-batch.")] = 1,
    precision: Annotated[str, typer.Option(help="bf16, fp32, tf32, fp8, ...")] = "bf16",
    attention: Annotated[str, typer.Option(help="flash or standard.")] = "flash",
    framework: Annotated[str | None, typer.Option(help="Whose kernels: torchtitan, llm_foundry, bare, ...")] = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="What a compiler merges takes no time of its own.")
    ] = False,
    tp: Annotated[int, typer.Option(help="Tensor-parallel ranks: the kernels of one of them.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Print how long each kernel takes, and what bounds it."""
    from simulator.cli.kernels import show as show_kernels

    # False is the default of --compile, and must count as not given.
    show_kernels(
        {
            "MODEL": model, "--gpu": gpu, "--seq-len": seq_len, "--micro-batch-size": micro_batch_size,
            "--precision": precision, "--attention": attention, "--framework": framework,
            "--compile": compiled or None, "--tp": tp,
        },
        as_json=as_json,
    )  # fmt: skip
