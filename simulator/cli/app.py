"""The commands and their options. Nothing slow is imported here, therefore --help answers at once."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated

import typer

from simulator.basics.edition import VERSION
from simulator.cli.completion import LISTS, lists, names_of
from simulator.cli.guard import guarded as guarded
from simulator.cli.interruption import heed_interruptions
from simulator.cli.model_commands import fit_check, kernels, memory, plan
from simulator.cli.number_options import as_days, as_duration, as_length, as_rate, as_tokens
from simulator.cli.options import (
    AnswerOut,
    AsJson,
    Cache,
    Engine,
    NoPlugins,
    NoReport,
    OtherGpu,
    Out,
    Parquet,
    Ranks,
    ScenarioName,
    Settings,
    Svg,
    Table,
    Trace,
    Transfers,
)

# `guard` prints errors, therefore typer's tracebacks are off. Without rich markup, brackets in help texts are literal.
app = typer.Typer(
    name="simulator",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """Simulate distributed training: step time, memory, link traffic.

    A point is one combination of the values in a scenario's `compare` and `sweep`.
    """
    if version:
        typer.echo(VERSION)
        # typer's way to end a command early with code 0.
        raise typer.Exit


@app.command()
def run(
    scenario: ScenarioName,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    engine: Engine = None,
    transfers: Transfers = False,
    trace: Trace = False,
    ranks: Ranks = None,
    parquet: Parquet = False,
    cache: Cache = None,
    svg: Svg = False,
    table: Table = "small",
    no_report: NoReport = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Simulate the points of a scenario, one after another.

    A point is one combination of the values in the scenario's `compare` and `sweep`. The command `sweep` simulates
    points on several processes.
    """
    # Every command imports its modules here, and not at the top: importing networkx and numpy takes longer than --help.
    from simulator.cli.play import PlayOptions, play
    from simulator.cli.settings import as_full, as_ranks
    from simulator.sweeps.sweep import Backend

    # `run` simulates in its own process: a Backend with neither jobs nor scheduler.
    kept, backend, full = as_ranks(ranks), Backend(cache=cache), as_full(table)
    options = PlayOptions(
        out, as_json, engine, transfers, trace, kept, parquet, backend, svg=svg, full_table=full, page=not no_report
    )
    play(scenario, settings or [], options)


@app.command()
def sweep(
    scenario: ScenarioName,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    engine: Engine = None,
    transfers: Transfers = False,
    trace: Trace = False,
    ranks: Ranks = None,
    parquet: Parquet = False,
    cache: Cache = None,
    svg: Svg = False,
    table: Table = "small",
    no_report: NoReport = False,
    no_plugins: NoPlugins = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes on this machine; the number of cores if omitted.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Simulate on a Dask cluster, tcp://HOST:PORT (extra `distributed`)."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted sweep in --out.")] = False,
) -> None:
    """Simulate a scenario on several processes or machines.

    The points and the meaning of --set are the same as for `run`. --resume continues an interrupted sweep.
    """
    from simulator.sweeps.process_pool import number_of_processes, preload

    jobs = number_of_processes(jobs, scheduler)
    # Workers start importing now, while this process imports the modules below and reads the scenario.
    pool = preload(__name__) if jobs and jobs > 1 else None
    from simulator.cli.play import PlayOptions, play
    from simulator.cli.settings import as_full, as_ranks
    from simulator.sweeps.sweep import Backend

    backend = Backend(jobs, scheduler, cache, pool)
    kept, full = as_ranks(ranks), as_full(table)
    options = PlayOptions(
        out,
        as_json,
        engine,
        transfers,
        trace,
        kept,
        parquet,
        backend,
        resume,
        svg=svg,
        full_table=full,
        page=not no_report,
    )
    play(scenario, settings or [], options)


@app.command()
def collective(
    operation: Annotated[str, typer.Argument(help="Operation: all_reduce, all_gather, ...", metavar="OPERATION")],
    algorithm: Annotated[str, typer.Option(help="Algorithm: ring, tree, ..., or auto.")] = "auto",
    topology: Annotated[
        str, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = "star_100g",
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 8,
    begin: Annotated[str, typer.Option(help="Smallest size; a bare number is bytes.")] = "8",
    end: Annotated[str, typer.Option(help="Largest size.")] = "1GiB",
    factor: Annotated[int, typer.Option(min=2, help="Ratio of consecutive sizes.")] = 2,
    dtype: Annotated[str, typer.Option(help="Data type of the elements.")] = "float32",
    gpu: OtherGpu = None,
    payload: Annotated[bool, typer.Option("--payload", help="Carry real arrays, and count wrong elements.")] = False,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Print the table of nccl-tests for a simulated machine."""
    from simulator.cli.collective import ArraySizes, table

    table(
        operation,
        algorithm,
        topology,
        world_size,
        ArraySizes(begin, end, factor),
        dtype,
        gpu,
        payload=payload,
        as_json=as_json,
    )


@app.command()
def check(scenario: ScenarioName, settings: Settings = None, no_plugins: NoPlugins = False) -> None:
    """List all mistakes in a scenario or topology file.

    For a valid scenario, print the time and memory of its simulation; for a valid topology, describe the machine.
    """
    from simulator.cli.check_topology import check_topology, is_topology

    # The file's keys decide: `check` accepts scenarios and topologies.
    if is_topology(scenario):
        check_topology(scenario, settings or [])
        return
    from simulator.cli.check import check as checked

    checked(scenario, settings or [])


@app.command("check-algorithm")
def check_algorithm(
    algorithm: Annotated[
        str, typer.Argument(metavar="FILE", help="File of an own collective algorithm, or an algorithm's name.")
    ],
    ranks: Annotated[
        list[int] | None,
        typer.Option("--ranks", min=2, max=64, metavar="N", help="Number of ranks. Repeatable; several if omitted."),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Check an own collective algorithm.

    Checked are the proof without a clock, exact sums, bytes sent and the closed form, for several numbers of ranks. The
    exit code is 1 if the algorithm breaks a law.
    """
    from simulator.cli.check_algorithm import show as show_check

    show_check(algorithm, ranks or ())


@app.command("check-plugin")
def check_plugin(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Python file with an own part, or a framework file (YAML).")
    ],
    no_plugins: NoPlugins = False,
) -> None:
    """Check own parts, such as a schedule.

    Parts are collective algorithms, pipeline schedules, sharding strategies, topology builders, optimizers, plots,
    findings and framework files. The records in the file tell its parts, and each part is checked with the laws of its
    kind, which the shipped parts keep too. The exit code is 1 if a part breaks a law.
    """
    from simulator.cli.check_plugin import show as show_check

    show_check(file)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the scenario; the file is NAME.yaml.", metavar="NAME")],
    question: Annotated[str, typer.Option(help="Question that the scenario answers.")] = "What do we want to know?",
    training: Annotated[
        bool, typer.Option("--training", help="Write a training step instead of a collective.")
    ] = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Write a scenario file to start from."""
    from simulator.cli.new import write

    # The template differs in its main section.
    write(name, question, "training" if training else "collective")


@app.command("list")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"Kind of names: {', '.join(LISTS)}; the kinds if omitted.",
            autocompletion=lists,
        ),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    """List the names that a scenario may contain."""
    from simulator.cli.listing import show

    show(kind)


@app.command()
def show(
    topology: Annotated[
        str,
        typer.Argument(
            help="Name, or path of a topology or graph file.",
            metavar="TOPOLOGY",
            autocompletion=names_of("topology"),
        ),
    ],
    world_size: Annotated[
        int | None, typer.Option(min=1, max=1_000_000, help="Number of ranks; two full nodes if omitted.")
    ] = None,
    gpu: OtherGpu = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Picture to write; TOPOLOGY.png if omitted.")] = None,
    svg: Svg = False,
    links: Annotated[
        bool,
        typer.Option("--links", help="Print the name of every link, for `cluster.link_factors`, instead of a picture."),
    ] = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Draw a topology, and print its link bandwidths."""
    if links:
        from simulator.cli.links import print_links

        print_links(topology, world_size, gpu, drawing=[*(["--out"] if out else []), *(["--svg"] if svg else [])])
        return
    from simulator.cli.show import show as shown

    shown(topology, world_size, out, gpu, svg=svg)


@app.command("import-model")
def import_model(
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
    """Write a PyTorch module as a model's file.

    The module is traced without a GPU and without weights; this needs PyTorch. Only import a file that you trust: it
    is run.
    """
    from simulator.cli.import_model import write

    write(source, out, unit or ())


@app.command("export-msccl")
def export_msccl(
    algorithm: Annotated[str, typer.Argument(metavar="ALGORITHM", help="Algorithm: a name, or the path of a file.")],
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="Operation: all_reduce, all_gather, ...")],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="XML file to write.")],
    ranks: Annotated[int, typer.Option("--ranks", min=2, max=256, metavar="N", help="Number of ranks.")] = 8,
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Number of ranks in a node, for hierarchical and multi_ring.")
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Write a collective algorithm as a program of MSCCL (XML).

    The program is read back and proved before it is written.
    """
    from simulator.cli.export_msccl import write

    write(algorithm, operation, ranks, group_size, out)


@app.command("import-config")
def import_config(
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
    """Write a training's configuration as a scenario.

    Read are Megatron-LM, DeepSpeed, torchtitan, NeMo and Megatron-Bridge, axolotl, LLaMA-Factory, and Hugging Face's
    Trainer and accelerate. The files are parsed and never run. The output lists the settings that were understood, the
    settings that are not in the scenario, and the values that no file gives.
    """
    from simulator.cli.import_config import write

    asked = {
        "topology": topology, "gpu": gpu, "gpus": gpus, "nodes": nodes, "model": model, "seq_len": seq_len,
        "micro_batch_size": micro_batch_size, "framework": framework,
    }  # fmt: skip
    write(files, out, asked, define or [], as_json=as_json)


@app.command("import-machine")
def import_machine(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Descriptions of one machine: NCCL's topology and graph XML, nvidia-smi's topo -m, Slurm's "
            "topology.conf or topology.yaml or scontrol's answer, GML, or ASTRA-sim's network file.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--output", "--out", metavar="FILE", help="Topology to write; FILE's name .yaml if omitted."),
    ] = None,
    gpu: OtherGpu = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="Number of equal nodes, on a rail network.")
    ] = None,
    inside: Annotated[
        str | None, typer.Option(metavar="KIND", help="Links between GPUs: nvswitch, full_mesh or pcie.")
    ] = None,
    link_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of one NVLink or xGMI link, one direction: '25 GB/s'.")
    ] = None,
    pcie_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of every PCIe link, one direction.")
    ] = None,
    socket_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth between two NUMA nodes, one direction.")
    ] = None,
    nic_bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="Bandwidth of a network card, one direction: '400 Gb/s'.")
    ] = None,
    oversubscription: Annotated[
        float | None, typer.Option(min=1.0, max=1e6, help="Bandwidth down divided by bandwidth up, at a leaf switch.")
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            metavar="TOPOLOGY",
            help="Topology with the inside of a node, for Slurm.",
            autocompletion=names_of("topology"),
        ),
    ] = None,
    node_list: Annotated[
        str | None, typer.Option(metavar="HOSTLIST", help="Nodes to import, for Slurm: 'gpu[001-004]'.")
    ] = None,
    level_bandwidth: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LEVEL=RATE",
            help="Bandwidth up from each switch of a level, for Slurm; leaf switches are level 1. Repeatable.",
        ),
    ] = None,
    nvlink_blocks: Annotated[
        bool,
        typer.Option("--nvlink-blocks", help="Each block of Slurm is one NVLink domain: one --node."),
    ] = False,
    section: Annotated[
        str | None, typer.Option(metavar="NAME", help="Topology of a topology.yaml; the default one if omitted.")
    ] = None,
    card: Annotated[
        list[str] | None,
        typer.Option(metavar="BUSID", help="PCI address of a network card, if the file has no classes. Repeatable."),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Write a machine's description as a topology.

    Read are NCCL's topology and graph XML, the matrix of nvidia-smi topo -m, Slurm's topology.conf and topology.yaml
    and the output of scontrol show topology, networks as GML, and ASTRA-sim's network and system files. The output
    lists what was read, what was assumed, and what is not in the topology. Two files are written: the topology and its
    graph.
    """
    from simulator.cli.import_machine import write

    asked = {
        "gpu": gpu, "nodes": nodes, "inside": inside, "link_bandwidth": link_bandwidth,
        "pcie_bandwidth": pcie_bandwidth, "socket_bandwidth": socket_bandwidth, "nic_bandwidth": nic_bandwidth,
        "oversubscription": oversubscription, "node": node, "node_list": node_list, "level_bandwidth": level_bandwidth,
        "nvlink_blocks": nvlink_blocks, "section": section, "cards": card or None,
    }  # fmt: skip
    write(files, out, asked, as_json=as_json)


@app.command("export-config")
def export_config(
    scenario: ScenarioName,
    to: Annotated[str, typer.Option("--to", metavar="PROGRAM", help="Program: megatron or deepspeed.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="File to write; train.sh or ds.json if omitted.")
    ] = None,
    settings: Settings = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Write a scenario as another program's configuration.

    The output lists the parts of the step that the program's file does not say.
    """
    from simulator.cli.export_config import write
    from simulator.cli.settings import as_overrides

    write(scenario, to, out, as_overrides(settings or ()))


@app.command("export-chakra")
def export_chakra(
    scenario: ScenarioName,
    out: Annotated[
        Path, typer.Option("--out", metavar="PREFIX", help="Path of the files PREFIX.0.et, PREFIX.1.et, ...")
    ],
    settings: Settings = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Write a simulated step as Chakra execution traces.

    Kernels have their simulated times in whole microseconds. `simulator simulate-trace` reads the files back.
    """
    from simulator.cli.export_chakra import write
    from simulator.cli.settings import as_overrides

    write(scenario, as_overrides(settings or ()), out)


# The order here is the order in `--help`.
for _command in (memory, fit_check, plan, kernels):
    app.command()(_command)


@app.command()
def schema(
    kind: Annotated[str, typer.Argument(help="Kind of files: scenario or topology.", metavar="KIND")] = "scenario",
    no_plugins: NoPlugins = False,
) -> None:
    """Print the JSON schema of scenario or topology files."""
    from simulator.cli.schema import show

    show(kind)


@app.command()
def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of the second run.")],
    as_json: AsJson = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write a page with both timelines and a common cursor, instead of text."
        ),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Compare scenario keys, points and figures of two runs."""
    from simulator.cli.diff import show

    show(first, second, as_json=as_json, page=page)


@app.command("compare-trace")
def compare_trace(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Scenario with a single point: shipped name or path; or the directory of a run.",
            metavar="SCENARIO",
            autocompletion=names_of("scenario"),
        ),
    ],
    traces: Annotated[
        list[Path],
        typer.Argument(metavar="TRACE...", help="Traces of PyTorch's profiler, one a rank: JSON, plain or gzipped."),
    ],
    step: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Take ProfilerStep#N; if omitted, the step of median duration."),
    ] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(min=0, metavar="R", help="Rank of each trace, in order; if omitted, as the traces say."),
    ] = None,
    settings: Settings = None,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Compare a profile of a real step with the simulated step.

    The traces are read and never run. The output has the time by kind of kernel and collective, measured and simulated,
    and the first differences in order and in time.
    """
    from simulator.cli.compare_trace import show
    from simulator.cli.settings import as_overrides

    show(scenario, traces, as_overrides(settings or ()), step, rank or (), out, as_json=as_json)


@app.command("simulate-trace")
def simulate_trace(
    prefix: Annotated[
        str, typer.Argument(metavar="PREFIX", help="Path of Chakra execution traces PREFIX.0.et (or .json), ...")
    ],
    topology: Annotated[
        str, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = "dgx_h100",
    gpu: OtherGpu = None,
    algorithm: Annotated[str, typer.Option(help="Algorithm of collectives: ring, tree, ..., or auto.")] = "auto",
    scale_compute: Annotated[
        float,
        typer.Option("--scale-compute", min=0.0, max=1e6, metavar="FACTOR", help="Factor on the times of kernels."),
    ] = 1.0,
    groups: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help='Ranks of process groups as JSON, {"1": [0, 1]}; if omitted, as traces say.'),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(min=1, max=4096, metavar="N", help="Number of ranks that do what the only file says."),
    ] = None,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Drop dependencies on nodes that do not exist, and one of each circle."),
    ] = False,
    out: AnswerOut = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write traces for Perfetto to --out.")] = False,
    no_plugins: NoPlugins = False,
    as_json: AsJson = False,
) -> None:
    """Simulate Chakra execution traces on a machine.

    Kernels keep their measured times. Messages and collectives run on the links of the machine, collectives by its
    algorithms.
    """
    from simulator.cli.simulate_trace import show

    show(
        prefix, topology, gpu, algorithm, scale_compute, groups, world_size, out, repair=repair,
        trace=trace, as_json=as_json,
    )  # fmt: skip


@app.command("flight-recorder")
def flight_recorder(
    dumps: Annotated[
        list[Path],
        typer.Argument(metavar="DUMP...", help="Dumps of PyTorch's NCCL flight recorder, one a rank, or a directory."),
    ],
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Tell which collective of a job hangs, and on which rank.

    The output has the time in collectives and the ranks that arrived last, too. A pickle is read without unpickling:
    only plain containers are taken from it, and nothing is run.
    """
    from simulator.cli.flight_recorder import show

    show(dumps, out, as_json=as_json)


@app.command()
def plot(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run.")],
    kind: Annotated[
        str, typer.Option("--kind", metavar="NAME", help="Kind of picture: timeline, memory, ...; see `list plots`.")
    ],
    point: Annotated[
        list[str] | None,
        typer.Option("--point", metavar="KEY=VALUE", help="Setting of the point to draw. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="PNG file to write; in RUN/plots if omitted.")
    ] = None,
    svg: Svg = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Draw another picture of a finished run.

    A picture of a single point's details needs a new simulation of this point.
    """
    from simulator.cli.plot import plot as drawn

    drawn(folder, kind, point or [], out, svg=svg)


@app.command()
def rerun(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a run.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Directory for the results; discarded if omitted.")
    ] = None,
    trace: Trace = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Repeat a run, and report whether results are equal."""
    from simulator.cli.rerun import rerun as again

    again(folder, out, trace=trace)


@app.command()
def fit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="SWEEP... | gpu FILE",
            help=(
                "Outputs of nccl-tests, or CSV files with size and time; or the word gpu and an output of "
                "tools/measure_gpu.py."
            ),
        ),
    ],
    topology: Annotated[
        str | None, typer.Option(help="Topology of the measured machine.", autocompletion=names_of("topology"))
    ] = None,
    world_size: Annotated[int | None, typer.Option(help="Number of ranks, if the file does not say.")] = None,
    operation: Annotated[
        str | None, typer.Option(help="Operation (all_reduce, ...), if the file does not say.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Algorithm of the measured machine; the best match if omitted.")
    ] = None,
    base: Annotated[
        str, typer.Option(metavar="GPU", help="For gpu FILE: GPU of the catalog with the same data sheet.")
    ] = "h100_sxm",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the result: a section of a topology file, or a GPU file."),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    """Fit a machine's or a GPU's constants to measurements.

    The result is a section of a topology file (a machine's start-up times and rates), or a GPU file (kernel speeds).
    """
    from simulator.cli.fitting import show, show_gpu

    # `fit gpu FILE` and `fit SWEEP...` share the command; a sweep's file called "gpu" needs a path, such as ./gpu.
    if str(paths[0]) == "gpu" and len(paths) == 2:
        show_gpu(paths[1], base, out)
        return
    show(paths, topology, world_size, operation, algorithm, out)


@app.command()
def validate(
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Table: foundry, vtrain, nanotron_cut, ...; all tables if omitted."),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="CSV file with your own measured runs; docs/validation.md lists the columns."
        ),
    ] = None,
    every: Annotated[int, typer.Option(min=1, metavar="K", help="Simulate only every K-th row.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
    kept: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File that keeps simulated rows, so that the same command continues after an interruption; "
            "runs/validation.jsonl if omitted without --csv.",
        ),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Simulate measured training steps, and print the errors."""
    from simulator.cli.validate import show

    show(source, own, every, jobs, kept, as_json=as_json)


@app.command()
def calibrate(
    runs: Annotated[
        Path,
        typer.Argument(
            metavar="RUNS.csv", help="Your measured runs, a line each; docs/validation.md lists the columns."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Framework file to write, such as my_framework.yaml.")],
    topology: Annotated[
        str | None, typer.Option(metavar="NAME", help="Topology of the lines without a topology of their own.")
    ] = None,
    jobs: Annotated[
        int, typer.Option(min=1, help="Number of processes; more than one pays for runs that take seconds each.")
    ] = 1,
    no_plugins: NoPlugins = False,
) -> None:
    """Fit a framework to your own measured runs."""
    from simulator.cli.calibrate import calibrate as fit

    fit(runs, out, topology, jobs)


@app.command()
def expect(
    scenario: ScenarioName,
    measured: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Your measurement: '14.7 s', '120000 tokens/s' or '5700 tokens/s/GPU' (samples/s for images).",
        ),
    ],
    settings: Settings = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Tell whether a measured step is normal, and why not."""
    from simulator.cli.expect import expect as tell
    from simulator.cli.settings import as_overrides

    tell(scenario, measured, as_overrides(settings or ()), as_json=as_json)


@app.command()
def goodput(
    scenario: Annotated[
        str,
        typer.Argument(
            help="Scenario, or file of days: shipped name or path.", metavar="SCENARIO", autocompletion=names_of("days")
        ),
    ],
    days: Annotated[
        float | None, typer.Option(help="Length of the run: 30d, 6w.", parser=as_days, metavar="TIME")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Work of the training: 15T.", parser=as_length, metavar="TOKENS")
    ] = None,
    failures: Annotated[
        float | None, typer.Option(help="Failures of 1,000 nodes in a day that stop the job. [default: 3.79]")
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            help="Mean time between failures of the whole job: 8h, 2d; instead of --failures.",
            parser=as_days,
            metavar="TIME",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(help="asynchronous: copy to the host and write behind; or synchronous. [default: asynchronous]"),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(help="Work between saves: 1 h. [default: the best]", parser=as_duration, metavar="TIME"),
    ] = None,
    storage: Annotated[
        float | None,
        typer.Option(
            help="Rate of the storage: 20 GB/s. [default: 160 MB/s for each GPU]", parser=as_rate, metavar="RATE"
        ),
    ] = None,
    detection: Annotated[
        float | None,
        typer.Option(help="Time until an error ends the job. [default: 30 s]", parser=as_duration, metavar="TIME"),
    ] = None,
    watchdog: Annotated[
        float | None,
        typer.Option(
            help="Time until a hanging collective ends the job. [default: 10 min]", parser=as_duration, metavar="TIME"
        ),
    ] = None,
    restart: Annotated[
        float | None,
        typer.Option(
            help="Time from there to the first step, without loading. [default: 5 min]",
            parser=as_duration,
            metavar="TIME",
        ),
    ] = None,
    spares: Annotated[int | None, typer.Option(help="Spare nodes. [default: as many as needed]")] = None,
    repair: Annotated[
        float | None,
        typer.Option(help="Time until a failed node is back: 3d, 12h. [default: 1d]", parser=as_days, metavar="TIME"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the failures. [default: 0]")] = None,
    settings: Settings = None,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Tell what a training does in days with failures.

    The step is simulated once; failures, saves and restarts of many runs of days are drawn with its time. A file of
    days names a scenario, a length, what fails and how it saves, and may compare values.
    """
    from simulator.cli.goodput import show
    from simulator.cli.settings import as_overrides

    asked = {
        "days": days, "tokens": tokens, "failures": None if failures is None else failures / 1000.0,
        "mtbf": None if mtbf is None else mtbf * 86400.0, "save": save, "interval": interval, "storage": storage,
        "detection": detection, "watchdog": watchdog, "restart": restart, "spares": spares,
        "repair": None if repair is None else repair * 86400.0, "seed": seed,
    }  # fmt: skip
    show(scenario, as_overrides(settings or ()), asked, out, as_json=as_json)


@app.command()
def jobs(
    file: Annotated[
        str,
        typer.Argument(
            metavar="JOBS", help="Shipped name, or path to a file of jobs.", autocompletion=names_of("jobs")
        ),
    ],
    shifts: Annotated[
        int, typer.Option(min=0, max=100, metavar="N", help="Try N later starts of the last job, within its step.")
    ] = 0,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    """Tell what several jobs on one cluster cost each other.

    Each job is simulated alone, and then all together on the links that they share.
    """
    from simulator.cli.jobs import show

    show(file, shifts, out, as_json=as_json)


def run_app() -> None:
    """Run the command line; print errors for the user as lines on stderr, and exit with their code."""
    sys.exit(guarded(_run))


def _run() -> object:
    # Inside `guarded`: a signal that arrives right after the handler's installation is then caught.
    heed_interruptions()
    for stream in (sys.stdout, sys.stderr):
        # Characters unknown to the terminal are written as escapes; a scenario's question may hold any character.
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    # Without standalone mode, typer raises errors instead of exiting, and `guarded` handles them.
    return app(prog_name="simulator", standalone_mode=False)
