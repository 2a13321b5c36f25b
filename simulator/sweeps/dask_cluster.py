"""Plays points on the workers of a Dask cluster that is running already, perhaps on other machines.

Rule: the workers need the same simulator and nothing of this machine's disk. Files that points name by a relative path
are sent once; files that a point leaves behind come back with its outcome and are written here before the outcome is
yielded.

Dask plays a point again whose worker is lost, and gives up on a point that has lost several.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import registry
from simulator.basics.atomic_files import write_atomically
from simulator.basics.edition import edition
from simulator.basics.errors import ScenarioError, SimulationError
from simulator.basics.optional_packages import require_package
from simulator.run.outcome import PointOutcome, failed
from simulator.scenario.named_files import files_of
from simulator.scenario.records import Point
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.outcome import NumberedPoint, play_alone, play_point
from simulator.sweeps.process_pool import lost_text

if TYPE_CHECKING:
    from distributed import Client

# How long the scheduler may take to answer [s].
TIMEOUT: Final = 5
# Points that are submitted at once; Dask warns of large messages.
_POINTS_A_MESSAGE: Final = 500

Files = Mapping[str, bytes]


def play(
    numbered: Sequence[NumberedPoint], address: str, keep: ArtifactWriter | None = None, *, alone: bool = False
) -> Generator[PointOutcome]:
    """Play points on a cluster and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    address : str
        Of its scheduler: "tcp://HOST:PORT".
    keep : ArtifactWriter, optional
        What a point leaves behind; written here.
    alone : bool
        Whether a point's error is raised instead of being its outcome.

    Raises
    ------
    ScenarioError
        No address, no scheduler or no workers there, another edition of the simulator; the extra is not installed.
    SimulationError
        The cluster went away.
    """
    check(address)
    with _connected(address) as client:
        _refuse_others(client, address)
        files = files_to_send([point for _, point in numbered])
        # Sent as the result of a task and not scattered: if the worker that holds it is lost, Dask runs the task again.
        named_files: Any = client.submit(dict, files, pure=False) if files else None
        yield from _played(client, numbered, keep, named_files, alone=alone)


@dataclass(slots=True)
class Submitted:
    """Points that are submitted to a cluster one by one, and come back in any order.

    Attributes
    ----------
    client : distributed.Client
    files : future or None
        What the points name.
    """

    client: Client
    files: Any
    _waiting: dict[Any, tuple[NumberedPoint, Any]] = field(default_factory=dict)

    def submit(self, point: NumberedPoint) -> None:
        """Hand a point over."""
        future: Any = self.client.submit(
            play_on_worker, point, keep=None, files=self.files, ours=edition(), alone=False, pure=False
        )
        self._waiting[future.key] = point, future

    def outcome(self) -> PointOutcome:
        """Wait for the next outcome; which point's does not matter."""
        from distributed import as_completed

        futures = [future for _, future in self._waiting.values()]
        future, answer = next(as_completed(futures, loop=self.client.loop, with_results=True, raise_errors=False))
        point, _ = self._waiting.pop(future.key)
        return _outcome_and_files(point, future.status, answer)[0]

    def cancel(self) -> None:
        """Drop what has not come back."""
        with suppress(OSError):
            self.client.cancel([future for _, future in self._waiting.values()], force=True)


@contextmanager
def submitted(address: str, points: Sequence[NumberedPoint]) -> Iterator[Submitted]:
    """What takes points until the block ends; all name the files that these name, and errors are those of `play`."""
    check(address)
    with _connected(address) as client:
        _refuse_others(client, address)
        files = files_to_send([point for _, point in points])
        taking = Submitted(client, client.submit(dict, files, pure=False) if files else None)
        try:
            yield taking
        finally:
            taking.cancel()


def check(address: str) -> None:
    """Refuse text that is no address, and every address if Dask is not installed."""
    if not re.fullmatch(r"(tcp|tls)://[^/\s]+:\d{1,5}", address):
        raise ScenarioError(f"--scheduler: got {address!r}; must be tcp://HOST:PORT, as `dask scheduler` prints it")
    require_package("--scheduler", "distributed", "distributed")


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    from distributed import Client

    with _without_dask_logs():
        try:
            client = Client(address, timeout=TIMEOUT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise ScenarioError(
                f"--scheduler: nobody answered at {address} within {TIMEOUT} s; is `dask scheduler` running there?"
            ) from error
        try:
            yield client
        finally:
            with suppress(OSError):  # it went away, or is too busy to say goodbye
                client.close(timeout=TIMEOUT)


@contextmanager
def _without_dask_logs() -> Iterator[None]:
    """Switch Dask's log lines off: what matters in them arrives as an error too, and becomes one line."""
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
    """Refuse workers with another edition of the simulator: one table must not mix figures of two editions."""
    try:
        client.wait_for_workers(1, timeout=TIMEOUT)
    except TimeoutError as error:
        raise ScenarioError(
            f"--scheduler: {address} has no workers; start some with `dask worker {address}`"
        ) from error
    editions: dict[str, Any] = client.run(edition, on_error="return")
    try:
        editions = {"the scheduler": client.run_on_scheduler(edition), **editions}
    except Exception as error:  # whatever unpickling raised on the scheduler
        editions = {"the scheduler": error, **editions}
    our_edition = edition()
    for machine, its_edition in editions.items():
        if its_edition != our_edition:
            has = f"cannot import it ({its_edition})" if isinstance(its_edition, Exception) else f"has {its_edition}"
            raise ScenarioError(
                f"--scheduler: this is simulator {our_edition}, {machine} {has}; install the same on every machine"
            )


def files_to_send(points: Sequence[Point]) -> dict[str, bytes]:
    """Content of the files that points of one scenario name relative to it, by their paths from there."""
    contents = {}
    base = points[0].scenario.base
    for named in files_of(point.scenario for point in points):
        path = named.path.relative_to(base) if named.path.is_relative_to(base) else named.path
        if not path.is_absolute() and ".." not in path.parts and registry.is_file(named.path):
            contents[path.as_posix()] = named.path.read_bytes()
    return contents


def _played(
    client: Client, numbered: Sequence[NumberedPoint], keep: ArtifactWriter | None, named_files: Any, *, alone: bool
) -> Generator[PointOutcome]:
    from distributed import as_completed

    remote_writer = None if keep is None else replace(keep, folder=Path())
    pending: dict[Any, tuple[NumberedPoint, Any]] = {}
    try:
        for start in range(0, len(numbered), _POINTS_A_MESSAGE):
            batch = numbered[start : start + _POINTS_A_MESSAGE]
            futures = client.map(
                play_on_worker, batch, keep=remote_writer, files=named_files, ours=edition(), alone=alone, pure=False
            )
            pending.update(zip((future.key for future in futures), zip(batch, futures, strict=True), strict=True))
        futures = [future for _, future in pending.values()]
        for future, answer in as_completed(futures, loop=client.loop, with_results=True, raise_errors=False):
            numbered_point, _ = pending.pop(future.key)
            outcome, files = _outcome_and_files(numbered_point, future.status, answer)
            if keep is not None:
                _write_files(files, keep.folder)
            yield outcome
    finally:
        with suppress(OSError):
            client.cancel([future for _, future in pending.values()], force=True)


def _write_files(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)


def _outcome_and_files(numbered_point: NumberedPoint, status: str, answer: Any) -> tuple[PointOutcome, Files]:
    """The outcome and files that a finished task returned; a failed outcome where its workers were lost."""
    from distributed.scheduler import KilledWorker

    if status == "finished":
        outcome, files = answer
        return outcome, files
    if status != "error":
        raise SimulationError("the Dask cluster went away, or has dropped the points that it was given")
    error = answer[1]
    if isinstance(error, KilledWorker):
        return failed(*numbered_point, lost_text("worker", error.allowed_failures + 1)), {}
    raise error


def play_on_worker(
    at: NumberedPoint, *, keep: ArtifactWriter | None, files: Files | None, ours: str, alone: bool
) -> tuple[PointOutcome, Files]:
    """Play a point on a worker; return its outcome and the files that it leaves, by path below the run's folder."""
    if edition() != ours:  # a worker that joined after `_refuse_others`
        raise SimulationError(f"this is simulator {ours}, a worker has {edition()}; install the same on every machine")
    index, point = at
    with TemporaryDirectory(prefix="simulator-") as scratch:
        kept = Path(scratch, "kept")
        if files:
            # Named like the scenario's own folder: a report names a model's config.json after its folder.
            base = Path(scratch, "given", point.scenario.base.resolve().name)
            for name, content in files.items():
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_bytes(content)
            point = replace(point, scenario=point.scenario.replaced(base=base))
        play_one = play_alone if alone else play_point
        outcome = play_one(index, point, None if keep is None else replace(keep, folder=kept))
        left = sorted(path for path in kept.rglob("*") if path.is_file())
        return outcome, {path.relative_to(kept).as_posix(): path.read_bytes() for path in left}
