"""Which files are in a run's directory: everything needed to look at the run and to repeat it?

Each result is written whole or not at all. Facts that differ from run to run (versions, wall time) are only in
run.json, so every other file is byte-equal for the same scenario and seed.

    scenario.yaml    resolved, every default written out
    report.json      {"answer": {"question", "sentences", "why", ...}, "points": [{"settings", "engine", "report"}]}
    report.html      the whole result as a page, in one file
    run.json         versions, wall time, seed
    spans.csv        operations of each rank
    transfers.csv    up to 100,000 transfers; with more, a line that says how many are omitted
    links.csv        share of its bandwidth that each link uses, in up to 100 equal parts of the time
    trace/           a Kineto trace for each rank, if requested
    parameters.npz   after real training: the parameters of the last step, by PyTorch's names
    memory_rank0.pickle  for a training step, beside traces: PyTorch's memory snapshot, for its memory_viz page
    plots/           PNG and SVG
    table.csv        for several points: a row each, the columns of simulator.sweep; table.parquet if requested
    points.jsonl     a line for each finished point; removed when the run ends
    begun.json       circumstances at the start, which a resumed run must share; removed when the run ends

A run with several points has spans, transfers, links, traces and parameters in points/0000/, ... The run has
ended when run.json exists.
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from simulator.basics import document
from simulator.basics.atomic_files import remove_drafts, write_atomically
from simulator.basics.edition import VERSION, edition
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
from simulator.sweeps.outcome_table import table_text, write_parquet

# Maximum characters of a file's value in a message.
_LONGEST: Final = 60


def create(name: str, out: Path | None) -> Path:
    """Create the directory for a new run and return it: `out`, or runs/NAME-0001 with the next free number.

    Raises
    ------
    ScenarioError
        `out` exists and is not empty, or cannot be created.
    """
    if out is not None:
        return claim(out, "choose a new directory, or continue the run with --resume")
    with _refusing(Path("runs")):
        # The first free number; runs may be deleted, so the number need not follow the last run.
        number = 1
        while True:
            folder = Path("runs") / f"{name}-{number:04d}"
            try:
                # mkdir without exist_ok: two runs that start at the same time get different numbers.
                folder.mkdir(parents=True)
            except FileExistsError:
                number += 1
                continue
            return folder


def claim(out: Path, hint: str = "choose a new directory") -> Path:
    """Create a directory for results, and return it.

    Raises
    ------
    ScenarioError
        `out` exists and is not empty (the message ends with `hint`), or cannot be created.
    """
    with _refusing(out):
        if out.exists() and not out.is_dir():
            raise ScenarioError(f"--out: {out} is a file; choose a directory for the results")
        # An empty directory is accepted; a directory with files may hold other results.
        if out.exists() and any(out.iterdir()):
            raise ScenarioError(f"--out: {out} exists and is not empty; {hint}")
        out.mkdir(parents=True, exist_ok=True)
    return out


@contextmanager
def _refusing(out: Path) -> Iterator[None]:
    """Raise ScenarioError in place of an error of the file system in the `with` block."""
    try:
        yield
    except OSError as error:
        raise ScenarioError(f"--out: {out}: cannot be written: {error.strerror or error}") from error


def discard(folder: Path) -> None:
    """Remove the directory of a run without any result."""
    shutil.rmtree(folder, ignore_errors=True)


def begin(folder: Path, scenario: Scenario, circumstances: dict[str, Any] | None = None) -> None:
    """Write into a new run's folder the scenario with every default, and the circumstances from `begun_with`."""
    # scenario.yaml comes last; if scenario.yaml exists, begun.json is complete.
    if circumstances is not None:
        write_atomically(folder / "begun.json", json.dumps(circumstances, indent=2) + "\n")
    write_atomically(folder / "scenario.yaml", to_yaml(scenario))


def begun_with(points: Iterable[Point], **options: bool | list[int] | None) -> dict[str, Any]:
    """Return facts that must not change while a run is interrupted: simulator version, named files, output options."""
    return {"simulator": edition(), **options, "files": digests_of(point.scenario for point in points)}


def going_on(folder: Path, scenario: Scenario, circumstances: dict[str, Any]) -> None:
    """Check that an interrupted run can be resumed, and remove half-written files.

    Raises
    ------
    ScenarioError
        The directory holds no run, a finished run, or a run with another scenario or other circumstances.
    """
    left = folder / "scenario.yaml"
    remove_drafts(folder)
    if not left.is_file():
        # begun.json alone: the run was interrupted between its first two files, and can begin again.
        if not folder.is_dir() or {path.name for path in folder.iterdir()} - {"begun.json"}:
            raise ScenarioError(f"--resume: {folder} has no scenario.yaml; there is no run to continue")
        begin(folder, scenario, circumstances)  # interrupted before scenario.yaml was written
        return
    # The resolved text is compared: every default is written out, so equal text means an equal scenario.
    if read_text(left) != to_yaml(scenario):
        raise ScenarioError(
            f"--resume: {left} is another scenario; repeat the options of the first call, or choose a new --out"
        )
    if (folder / "run.json").is_file():
        # The process may have ended between writing run.json and removing the journal.
        _clear(folder)
        raise ScenarioError(f"--resume: the run in {folder} has ended; no point is missing")
    _refuse_changes(folder / "begun.json", circumstances)


def _refuse_changes(begun: Path, now: dict[str, Any]) -> None:
    if not begun.is_file():
        # The run was begun without recorded circumstances.
        return
    before = read_json(begun)
    if not isinstance(before, dict):
        raise ScenarioError(f"{begun}: does not say how the run was started; choose a new --out")
    for key, value in now.items():
        if before.get(key) == value:
            continue
        then = before.get(key)
        # Digests of named files: report which files changed, not their digests.
        if isinstance(value, dict) and isinstance(then, dict):
            changed = sorted(name for name in {*value, *then} if value.get(name) != then.get(name))
            change = f"{', '.join(changed)} changed"
        else:
            change = f"{key} was {_brief(then)} and is now {_brief(value)}"
        raise ScenarioError(f"--resume: {begun.parent} was started with other inputs: {change}; choose a new --out")


def _brief(value: Any) -> str:
    return str(value).lower()[:_LONGEST]


def load(folder: Path) -> Scenario:
    """Return the scenario of a finished run, with relative paths based on the run's original folder.

    Raises
    ------
    ScenarioError
        There is no finished run, or a file named in the scenario is missing.
    """
    # A run without run.json is unfinished (see `finish`).
    missing = [name for name in ("scenario.yaml", "report.json", "run.json") if not (folder / name).is_file()]
    if missing:
        raise ScenarioError(
            f"{folder}: has no finished run (scenario.yaml, report.json, run.json); give a run's directory"
        )
    return parse_scenario(document.load(folder / "scenario.yaml"), _base(folder / "run.json"))


def _base(path: Path) -> Path:
    """Return the folder on which relative paths in a run's scenario are based, from the file run.json at `path`."""
    read = read_json(path)
    base = read.get("base") if isinstance(read, dict) else None
    if not isinstance(base, str) or "\0" in base:
        raise ScenarioError(f"{path}: base: got {str(base)[:_LONGEST]!r}; must be the folder that the run started from")
    return Path(base)


def report_text(outcomes: Iterable[PointOutcome], answer: Answer) -> str:
    """Return the text of report.json: every point, and the answer to the scenario's question."""
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
    """Write the report, table and page of a run to its folder, and finally run.json, which marks the run as ended."""
    scenario, outcomes = compared.scenario, compared.outcomes
    # Drafts may come from killed worker processes.
    remove_drafts(folder)
    write_atomically(folder / "report.json", report_text(outcomes, answer))
    if page:
        write_atomically(folder / FILE, report_page(compared, answer, kept_views(folder, compared), folder))
    if len(outcomes) > 1:
        write_atomically(folder / "table.csv", table_text(outcomes))
    if parquet:
        write_parquet(outcomes, folder / "table.parquet")
    # run.json comes last: its existence marks the run as ended.
    write_atomically(folder / "run.json", json.dumps(_circumstances(scenario, wall_time), indent=2) + "\n")
    _clear(folder)


def _clear(folder: Path) -> None:
    """Remove from a run's folder the files that only a resumed run needs."""
    (folder / journal.NAME).unlink(missing_ok=True)
    (folder / "begun.json").unlink(missing_ok=True)


def _circumstances(scenario: Scenario, wall_time: float) -> dict[str, Any]:
    from importlib.metadata import version

    # Packages whose version may change results.
    packages = ("simpy", "numpy", "networkx", "ml_dtypes")
    return {
        "simulator": VERSION,
        "python": platform.python_version(),
        "packages": {name: version(name) for name in packages},
        "seed": scenario.seed,
        "base": str(scenario.base.resolve()),
        "wall_time_s": wall_time,
    }
