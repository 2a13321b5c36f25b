"""Simulate Chakra execution traces on a machine.

Kernels keep their measured times. Messages and collectives run on the links of the machine, collectives by its
algorithms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.input_files import read_json
from simulator.cli.completion import names_of
from simulator.cli.options import AnswerOut, AsJson, NoPlugins, OtherGpu
from simulator.cli.warnings_output import print_warnings
from simulator.report.traces import kineto
from simulator.traces.json_stream import whole_number


def command(
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
    from simulator.cli.answer_output import give
    from simulator.results.answer_directory import claimed
    from simulator.results.presentation import Presentation
    from simulator.traces.chakra.run import TraceFiles, simulate_traces

    if trace and out is None:
        raise ScenarioError("--trace: needs --out DIR")
    ranks_by_group = None if groups is None else _groups(groups)
    with claimed(out):
        run = simulate_traces(
            TraceFiles(prefix, world_size, repair),
            topology,
            gpu=gpu,
            algorithm=algorithm,
            factor=scale_compute,
            groups=ranks_by_group,
        )
        print_warnings(run.converted.notes)
        ranks, operations = run.tables()
        plots = run.pictures() if out else ()
        answer = Presentation("", f"{prefix} on {topology}", run.sentences, run.to_dict(), [ranks, operations], plots)
        if trace and out is not None:
            kineto.write(run.timeline, run.converted.program.collectives(), out / "trace")
        give(answer, [ranks], out, as_json=as_json)


def _groups(path: Path) -> dict[str, list[int]]:
    """Return the ranks of process groups by name from a JSON file, as ASTRA-sim reads it."""
    data: Any = read_json(path)
    if not isinstance(data, dict):
        raise ScenarioError(f'{path}: must be a mapping of names to lists of ranks, such as {{"1": [0, 1]}}')
    ranks_by_group = {}
    for name, ranks in data.items():
        valid = isinstance(ranks, list) and all(whole_number(rank) is not None for rank in ranks)
        if not valid or not ranks or len(set(ranks)) < len(ranks):
            raise ScenarioError(one_line(f"{path}: {name}: must be a list of different ranks, such as [0, 1]"))
        ranks_by_group[str(name)] = list(ranks)
    return ranks_by_group
