"""What is in a run's directory: everything that a run leaves behind, enough to look at it and to run it again?

Rule: a result is written whole or not at all; what differs from run to run (versions, wall time) stands in run.json
alone, so that all else is byte-equal for the same scenario and seed.

    scenario.yaml    resolved, every default written out
    report.json      {"answer": {"question", "sentences", "why", ...}, "points": [{"settings", "engine", "report"}]}
    report.html      all of it to look at, in one file
    run.json         versions, wall time, seed
    spans.csv        operations of each rank
    transfers.csv    up to 100,000 of them, else it says what it left out
    trace/           a Kineto trace for each rank; only if asked for
    parameters.npz   of a real training, after its last step, by PyTorch's names
    memory_rank0.pickle  of a training step, only beside traces: PyTorch's memory snapshot, for its memory_viz page
    plots/           PNG and SVG
    table.csv        of several points: a row each, the columns of simulator.sweep; table.parquet if asked for
    points.jsonl     one line a point, as they finish; gone when the run has ended
    begun.json       with what it was begun, so that nobody goes on with something else; gone too

A run of several points has spans, transfers, traces and parameters in points/0000/, points/0001/, ... It has ended when
run.json is there.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import simulator
from simulator.basics import document
from simulator.basics.atomic_files import remove_drafts, write_atomically
from simulator.basics.edition import edition
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_json, read_text
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison
from simulator.results.page.page import FILE, kept_views, report_page
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import parse_scenario
from simulator.scenario.named_files import digests_of
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeps import journal
from simulator.sweeps.table import table_text, write_parquet

# Characters of a file's value that a message repeats.
_LONGEST: Final = 60


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


def begin(folder: Path, scenario: Scenario, circumstances: dict[str, Any] | None = None) -> None:
    """Write the resolved scenario, and the circumstances that a resumed run must share (see `begun_with`)."""
    if circumstances is not None:
        write_atomically(folder / "begun.json", json.dumps(circumstances, indent=2) + "\n")
    write_atomically(folder / "scenario.yaml", to_yaml(scenario))


def begun_with(points: Iterable[Point], **options: bool | list[int] | None) -> dict[str, Any]:
    """What must not change while a run is interrupted: the simulator, the named files, options of what is kept."""
    return {"simulator": edition(), **options, "files": digests_of(point.scenario for point in points)}


def going_on(folder: Path, scenario: Scenario, circumstances: dict[str, Any]) -> None:
    """Check that an interrupted run can be resumed, and clear away what it left half written.

    Raises
    ------
    ScenarioError
        The directory holds no run, a run of another scenario, one that was begun with other circumstances, or one that
        has ended.
    """
    left = folder / "scenario.yaml"
    remove_drafts(folder)
    if not left.is_file():
        if not folder.is_dir() or {path.name for path in folder.iterdir()} - {"begun.json"}:
            raise ScenarioError(f"--resume: {folder} holds no scenario.yaml, so there is nothing to go on with")
        begin(folder, scenario, circumstances)  # interrupted before scenario.yaml was written
        return
    if read_text(left) != to_yaml(scenario):
        raise ScenarioError(
            f"--resume: {left} is another scenario than this one; repeat its options, or give another --out"
        )
    if (folder / "run.json").is_file():
        _clear(folder)
        raise ScenarioError(f"--resume: the run in {folder} has ended; nothing is missing")
    _refuse_changes(folder / "begun.json", circumstances)


def _refuse_changes(begun: Path, now: dict[str, Any]) -> None:
    if not begun.is_file():
        return
    before = read_json(begun)
    if not isinstance(before, dict):
        raise ScenarioError(f"{begun}: says not with what the run was begun; give another --out")
    for key, value in now.items():
        if before.get(key) == value:
            continue
        then = before.get(key)
        if isinstance(value, dict) and isinstance(then, dict):
            changed = sorted(name for name in {*value, *then} if value.get(name) != then.get(name))
            change = f"{', '.join(changed)} changed since"
        else:
            change = f"{key} was {_brief(then)} then and is {_brief(value)} now"
        raise ScenarioError(f"--resume: {begun.parent} was begun with something else: {change}; give another --out")


def _brief(value: Any) -> str:
    return str(value).lower()[:_LONGEST]


def load(folder: Path) -> Scenario:
    """The scenario of a finished run, with relative paths as they were meant when it ran.

    Raises
    ------
    ScenarioError
        No finished run, or a file that its scenario names is gone.
    """
    missing = [name for name in ("scenario.yaml", "report.json", "run.json") if not (folder / name).is_file()]
    if missing:
        raise ScenarioError(
            f"{folder}: holds no finished run (scenario.yaml, report.json, run.json); give a run's directory"
        )
    return parse_scenario(document.load(folder / "scenario.yaml"), _base(folder / "run.json"))


def _base(path: Path) -> Path:
    """The folder that relative paths of a run's scenario start from."""
    read = read_json(path)
    base = read.get("base") if isinstance(read, dict) else None
    if not isinstance(base, str) or "\0" in base:
        raise ScenarioError(f"{path}: base: got {str(base)[:_LONGEST]!r}; must be the folder that the run started from")
    return Path(base)


def report_text(outcomes: Iterable[PointOutcome], answer: Answer) -> str:
    """report.json: one document of all points, and of the answer to the scenario's question."""
    points = [outcome.to_dict() for outcome in outcomes]
    return json.dumps({"answer": answer.to_dict(), "points": points}, indent=2) + "\n"


def finish(
    folder: Path,
    compared: Comparison,
    answer: Answer,
    wall_time: float,
    *,
    parquet: bool = False,
    page: bool = True,
) -> None:
    """Write the report, its table, and run.json, whose being there says that the run has ended."""
    scenario, outcomes = compared.scenario, compared.outcomes
    remove_drafts(folder)  # of processes that were lost
    write_atomically(folder / "report.json", report_text(outcomes, answer))
    if page:
        write_atomically(folder / FILE, report_page(compared, answer, kept_views(folder, compared), folder))
    if len(outcomes) > 1:
        write_atomically(folder / "table.csv", table_text(outcomes))
    if parquet:
        write_parquet(outcomes, folder / "table.parquet")
    write_atomically(folder / "run.json", json.dumps(_circumstances(scenario, wall_time), indent=2) + "\n")
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove the files that only a resumed run needs."""
    (folder / journal.NAME).unlink(missing_ok=True)
    (folder / "begun.json").unlink(missing_ok=True)


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
