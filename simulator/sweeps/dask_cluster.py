"""Points on the workers of a Dask cluster that is there already, which may be other machines.

Rule: the cluster needs the same simulator and nothing of this machine's disk. Files that points name by a relative path
go there once; what a point leaves behind comes back with its outcome and is written here, before the outcome is told.

Dask plays a point again whose worker is lost, and gives up on one that has lost several.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import registry
from simulator.basics.edition import edition
from simulator.basics.optional_packages import need
from simulator.basics.whole_files import write_whole
from simulator.errors import ScenarioError, SimulationError
from simulator.scenario.named_files import files_of
from simulator.scenario.records import Point
from simulator.sweeps.keeping import Keeper
from simulator.sweeps.outcome import Numbered, Outcome, failed, play_alone, play_point
from simulator.sweeps.processes import lost_text

if TYPE_CHECKING:
    from distributed import Client

# So long an address may take to answer [s].
PATIENCE: Final = 5
# Points handed over at once; Dask warns where a message grows large.
_SLICE: Final = 500

Files = Mapping[str, bytes]


def play(
    numbered: Sequence[Numbered], address: str, keep: Keeper | None = None, *, alone: bool = False
) -> Generator[Outcome]:
    """Play points on a cluster and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    address : str
        Of its scheduler: "tcp://HOST:PORT".
    keep : Keeper, optional
        What a point leaves behind; written here.
    alone : bool
        Whether a point's error is raised instead of being its outcome.

    Raises
    ------
    ScenarioError
        No address, nobody there, no workers, another edition of the simulator; the extra is not installed.
    SimulationError
        The cluster went away.
    """
    check(address)
    with _connected(address) as client:
        _refuse_others(client, address)
        files = named_by([point for _, point in numbered])
        # A task's result, not data put there: should the worker that holds it be lost, Dask makes it again.
        sent: Any = client.submit(dict, files, pure=False) if files else None
        yield from _played(client, numbered, keep, sent, alone=alone)


def check(address: str) -> None:
    """Refuse what is no address, and any address where Dask is not installed."""
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d{1,5}", address):
        raise ScenarioError(f"--scheduler: got {address!r}; must be tcp://HOST:PORT, as `dask scheduler` prints it")
    need("--scheduler", "distributed", "distributed")


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client

    with _silence():
        try:
            client = Client(address, timeout=PATIENCE, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ScenarioError(
                f"--scheduler: nobody answered at {address} within {PATIENCE} s; is `dask scheduler` running there?"
            ) from error
        try:
            yield client
        finally:
            with suppress(OSError):  # it went away, or is too busy to say goodbye
                client.close(timeout=PATIENCE)


@contextmanager
def _silence() -> Iterator[None]:
    """Dask's own log lines: what matters of them comes as errors too, and those are told in one line."""
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] == "distributed"]
    before = {name: logging.getLogger(name).level for name in names}
    try:
        for name in before:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _refuse_others(client: Client, address: str) -> None:
    """All who take part must be the same simulator: figures of two editions do not belong in one table."""
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError as error:
        raise ScenarioError(
            f"--scheduler: {address} has no workers; start some with `dask worker {address}`"
        ) from error
    found: dict[str, Any] = client.run(edition, on_error="return")
    try:
        found = {"the scheduler": client.run_on_scheduler(edition), **found}
    except Exception as error:  # whatever its unpickling raised there
        found = {"the scheduler": error, **found}
    ours = edition()
    for who, theirs in found.items():
        if theirs != ours:
            has = f"cannot import it ({theirs})" if isinstance(theirs, Exception) else f"has {theirs}"
            raise ScenarioError(
                f"--scheduler: this is simulator {ours}, {who} {has}; install the same on every machine"
            )


def named_by(points: Sequence[Point]) -> dict[str, bytes]:
    """Content of the files that points of one scenario name relative to it, by their paths from there."""
    found = {}
    base = points[0].scenario.base
    for named in files_of(point.scenario for point in points):
        path = named.path.relative_to(base) if named.path.is_relative_to(base) else named.path
        if not path.is_absolute() and ".." not in path.parts and registry.is_file(named.path):
            found[path.as_posix()] = named.path.read_bytes()
    return found


def _played(
    client: Client, numbered: Sequence[Numbered], keep: Keeper | None, sent: Any, *, alone: bool
) -> Generator[Outcome]:
    from distributed import as_completed

    there = None if keep is None else replace(keep, folder=Path())
    asked: dict[Any, tuple[Numbered, Any]] = {}
    try:
        for start in range(0, len(numbered), _SLICE):
            some = numbered[start : start + _SLICE]
            futures = client.map(play_there, some, keep=there, files=sent, ours=edition(), alone=alone, pure=False)
            asked.update(zip((future.key for future in futures), zip(some, futures, strict=True), strict=True))
        futures = [future for _, future in asked.values()]
        for future, answer in as_completed(futures, loop=client.loop, with_results=True, raise_errors=False):
            at, _ = asked.pop(future.key)
            outcome, left = _taken(at, future.status, answer)
            if keep is not None:
                _bring_home(left, keep.folder)
            yield outcome
    finally:
        with suppress(OSError):
            client.cancel([future for _, future in asked.values()], force=True)


def _bring_home(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, content)


def _taken(at: Numbered, status: str, answer: Any) -> tuple[Outcome, Files]:
    """What came of a point: an outcome and files, or what went wrong with those who played it."""
    from distributed.scheduler import KilledWorker

    if status == "finished":
        outcome, left = answer
        return outcome, left
    if status != "error":
        raise SimulationError("the Dask cluster went away, or has dropped the points that it was given")
    error = answer[1]
    if isinstance(error, KilledWorker):
        return failed(*at, lost_text("worker", error.allowed_failures + 1)), {}
    raise error


def play_there(
    at: Numbered, *, keep: Keeper | None, files: Files | None, ours: str, alone: bool
) -> tuple[Outcome, Files]:
    """Play a point on a worker; gives its outcome and what it leaves behind, by path below the run's folder."""
    if edition() != ours:  # one that joined later
        raise SimulationError(f"this is simulator {ours}, a worker has {edition()}; install the same on every machine")
    index, point = at
    with TemporaryDirectory(prefix="simulator-") as scratch:
        kept = Path(scratch, "kept")
        if files:
            # Called like the folder at home, for a model's config.json is called by its folder.
            base = Path(scratch, "given", point.scenario.base.resolve().name)
            for name, content in files.items():
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_bytes(content)
            point = replace(point, scenario=replace(point.scenario, base=base))
        play_one = play_alone if alone else play_point
        outcome = play_one(index, point, None if keep is None else replace(keep, folder=kept))
        left = sorted(path for path in kept.rglob("*") if path.is_file())
        return outcome, {path.relative_to(kept).as_posix(): path.read_bytes() for path in left}
