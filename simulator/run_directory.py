"""A run's directory: everything that a run leaves behind, enough to look at it and to run it again.

Rule: a result is written whole or not at all; what differs from run to run (versions, wall time) stands in run.json
alone, so that all else is byte-equal for the same scenario and seed.

    scenario.yaml    resolved, every default written out
    report.json      {"points": [{"settings", "engine", "report"}]}
    run.json         versions, wall time, seed
    spans.csv        operations of each rank
    transfers.csv    up to 100,000 of them, else it says what it left out
    trace/           a Kineto trace for each rank
    memory_rank0.pickle  of a training step: PyTorch's memory snapshot, for its memory_viz page
    plots/           PNG and SVG
    points.jsonl     one line a point, as they finish; gone when all have

A run of several points has spans and transfers in points/0000/, points/0001/, ...
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import simulator
from simulator import document
from simulator.errors import ScenarioError
from simulator.report import kineto, memory_snapshot
from simulator.run import Run
from simulator.scenario.load import parse_scenario
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeping import Outcome
from simulator.timeline import TransferLog

TRANSFERS_KEPT: Final = 100_000


def create(name: str, out: Path | None) -> Path:
    """Make the directory of a new run: `out`, or runs/NAME-0001, the next number that is free.

    Raises
    ------
    ScenarioError
        `out` is there and holds something, or cannot be made.
    """
    try:
        if out is not None:
            if out.exists() and not out.is_dir():
                raise ScenarioError(f"--out: {out} is a file; results go into a directory, so give another name")
            if out.exists() and any(out.iterdir()):
                raise ScenarioError(f"--out: {out} is there and not empty; give another, or --resume to go on with it")
            out.mkdir(parents=True, exist_ok=True)
            return out
        number = 1
        while True:
            folder = Path("runs") / f"{name}-{number:04d}"
            try:
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
                continue
            return folder
    except OSError as error:
        raise ScenarioError(f"--out: {out or 'runs'}: cannot be written: {error.strerror or error}") from error


def discard(folder: Path) -> None:
    """Remove the directory of a run that came to nothing."""
    shutil.rmtree(folder, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it is there whole or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def begin(folder: Path, scenario: Scenario) -> None:
    """Leave the resolved scenario."""
    write_whole(folder / "scenario.yaml", to_yaml(scenario))


def load(folder: Path) -> Scenario:
    """The scenario of a finished run, with relative paths as they were meant when it ran.

    Raises
    ------
    ScenarioError
        No finished run, or a file that its scenario names is gone.
    """
    left = folder / "scenario.yaml"
    try:
        base = Path(json.loads((folder / "run.json").read_text(encoding="utf-8"))["base"])
        (folder / "report.json").read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ScenarioError(
            f"{folder}: holds no finished run (scenario.yaml, report.json, run.json); give a run's directory"
        ) from error
    return parse_scenario(document.load(left), base)


def note_outcome(folder: Path, outcome: Outcome) -> None:
    """Append a finished point, for who goes on after an interruption."""
    with (folder / "points.jsonl").open("a", encoding="utf-8") as file:
        # The line break comes first: behind a line that was cut short the next one is whole again.
        file.write("\n" + json.dumps({"index": outcome.index, **outcome.to_dict()}))


def noted(folder: Path) -> dict[int, Outcome]:
    """Points that an interrupted run has finished; a last line cut short does not count."""
    found: dict[int, Outcome] = {}
    path = folder / "points.jsonl"
    if not path.is_file():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            read = json.loads(line)
            outcome = Outcome(read["index"], read["settings"], read["engine"], read["report"], read.get("error"))
        except (ValueError, KeyError, TypeError):
            continue
        found[outcome.index] = outcome
    return found


def report_text(outcomes: Iterable[Outcome]) -> str:
    """report.json: one document of all points."""
    return json.dumps({"points": [outcome.to_dict() for outcome in outcomes]}, indent=2) + "\n"


def finish(folder: Path, scenario: Scenario, outcomes: Sequence[Outcome], wall_time: float) -> None:
    """Leave the report, and what may differ from run to run."""
    write_whole(folder / "report.json", report_text(outcomes))
    write_whole(folder / "run.json", json.dumps(_circumstances(scenario, wall_time), indent=2) + "\n")
    (folder / "points.jsonl").unlink(missing_ok=True)


def _circumstances(scenario: Scenario, wall_time: float) -> dict[str, Any]:
    from importlib.metadata import version

    packages = ("simpy", "numpy", "networkx", "ml_dtypes")
    return {
        "simulator": simulator.__version__,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "seed": scenario.seed,
        "base": str(scenario.base.resolve()),
        "wall_time_s": wall_time,
    }


@dataclass(frozen=True, slots=True)
class Keeper:
    """Writes what one point leaves behind; picklable, so that workers can.

    Attributes
    ----------
    folder : Path
        Of the run.
    single : bool
        Whether the run is one point: then its files lie in the folder itself, with a trace.
    transfers : bool
        Whether all transfers are kept, however many.
    trace : bool
        Whether a trace is written for points of a larger run too.
    """

    folder: Path
    single: bool
    transfers: bool = False
    trace: bool = False

    def __call__(self, index: int, run: Run) -> None:
        target = self.folder if self.single else self.folder / "points" / f"{index:04d}"
        target.mkdir(parents=True, exist_ok=True)
        write_whole(target / "spans.csv", spans_text(run))
        write_whole(target / "transfers.csv", transfers_text(run, None if self.transfers else TRANSFERS_KEPT))
        if self.single or self.trace:
            kineto.write(run.timeline, run.plan.program.collectives(), target / "trace")
            for rank, events in list(run.timeline.allocations.items())[:1]:
                memory_snapshot.write(events, target / f"memory_rank{rank}.pickle", until=run.timeline.end)


def spans_text(run: Run) -> str:
    """Operations of every rank as CSV; times in seconds, written so that they read back exactly."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "stream", "name", "kind", "start_s", "end_s", "bytes", "flop"])
    for s in run.timeline.spans:
        table.writerow(
            [s.rank, s.stream, s.name, s.kind, repr(s.start), repr(s.end), f"{s.nbytes:.0f}", f"{s.flops:.0f}"]
        )
    return text.getvalue()


def transfers_text(run: Run, most: int | None) -> str:
    """Transfers as CSV, in the order of their numbers; where there are more than `most`, a line that says so."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    total = sum(len(log) for log in run.timeline.logs)
    if most is not None and total > most:
        text.write(f"# {total} transfers left out; `simulator run --transfers` keeps them\n")
        return text.getvalue()
    table.writerow(
        ["collective", "number", "src", "dst", "first_chunk", "chunks", "reduce", "bytes", "enter_s", "end_s"]
    )
    for log in run.timeline.logs:
        table.writerows(_transfer_rows(log))
    return text.getvalue()


def _transfer_rows(log: TransferLog) -> Iterable[list[Any]]:
    t = log.transfers
    columns = (t.src, t.dst, t.first, t.count, t.reduce, log.nbytes, log.enter, log.end)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    for number, (src, dst, first, count, reduce, nbytes, enter, end) in enumerate(rows):
        vertices = (log.vertices[src], log.vertices[dst])
        yield [log.collective, number, *vertices, first, count, int(reduce), f"{nbytes:.0f}", repr(enter), repr(end)]
