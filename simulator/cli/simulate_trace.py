"""`simulator simulate-trace`: simulates Chakra execution traces on a machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.input_files import read_json
from simulator.cli.answer_output import give
from simulator.cli.warnings_output import print_warnings
from simulator.report.traces import kineto
from simulator.results.answer_directory import claimed
from simulator.results.presentation import Presentation
from simulator.traces.chakra.run import simulate_traces
from simulator.traces.json_stream import whole_number


def show(
    prefix: str,
    topology: str,
    gpu: str | None,
    algorithm: str,
    factor: float,
    groups: Path | None,
    world_size: int | None,
    out: Path | None,
    *,
    repair: bool,
    trace: bool,
    as_json: bool,
) -> None:
    """Simulate the traces PREFIX.R.et on a topology, print the step's time, and write it to `out` if given."""
    if trace and out is None:
        raise ScenarioError("--trace: needs --out DIR")
    known = None if groups is None else _groups(groups)
    with claimed(out):
        run = simulate_traces(
            prefix,
            topology,
            gpu=gpu,
            algorithm=algorithm,
            factor=factor,
            groups=known,
            world_size=world_size,
            repair=repair,
        )
        print_warnings(run.converted.notes)
        ranks, operations = run.tables()
        drawn = run.pictures() if out else ()
        answer = Presentation("", f"{prefix} on {topology}", run.sentences, run.to_dict(), [ranks, operations], drawn)
        if trace and out is not None:
            kineto.write(run.timeline, run.converted.program.collectives(), out / "trace")
        give(answer, [ranks], out, as_json=as_json)


def _groups(path: Path) -> dict[str, list[int]]:
    """Return the ranks of process groups by name from a JSON file, as ASTRA-sim reads it."""
    data: Any = read_json(path)
    if not isinstance(data, dict):
        raise ScenarioError(f'{path}: must be a mapping of names to lists of ranks, such as {{"1": [0, 1]}}')
    found = {}
    for name, ranks in data.items():
        valid = isinstance(ranks, list) and all(whole_number(rank) is not None for rank in ranks)
        if not valid or not ranks or len(set(ranks)) < len(ranks):
            raise ScenarioError(one_line(f"{path}: {name}: must be a list of different ranks, such as [0, 1]"))
        found[str(name)] = list(ranks)
    return found
