"""Simulates points on the workers in a running Dask cluster, possibly on different machines.

The workers need the same simulator, and nothing from this machine's disk. Files with relative paths in the points are
sent once. Files that a point leaves come back with its outcome, and are written here before the outcome is yielded.

If a worker is lost, Dask simulates its point again; after several lost workers Dask gives the point up.
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

# Maximum time for the scheduler's answer [s].
TIMEOUT: Final = 5
# Points submitted in a single message; Dask warns about large messages.
_POINTS_A_MESSAGE: Final = 500

Files = Mapping[str, bytes]


def play(
    numbered: Sequence[NumberedPoint], address: str, keep: ArtifactWriter | None = None, *, strict: bool = False
) -> Generator[PointOutcome]:
    """Simulate numbered points on a Dask cluster and yield their outcomes in order of completion.

    Parameters
    ----------
    numbered : sequence of (int, Point)
        Points with their numbers.
    address : str
        Address of the scheduler: "tcp://HOST:PORT".
    keep : ArtifactWriter, optional
        Writes the files of each point; the files arrive in this writer's folder.
    strict : bool
        Whether a point's error is raised instead of stored in its outcome.

    Raises
    ------
    ScenarioError
        Invalid address, no scheduler or workers, another edition of the simulator, or the extra is not installed.
    SimulationError
        The connection to the cluster was lost.
    """
    check(address)
    with _connected(address) as client:
        _refuse_others(client, address)
        files = files_to_send([point for _, point in numbered])
        # Sent as the result of a task, not scattered: if the worker with the files is lost, Dask runs the task again.
        named_files: Any = client.submit(dict, files, pure=False) if files else None
        yield from _outcomes(client, numbered, keep, named_files, strict=strict)


@dataclass(slots=True)
class Submitted:
    """Points submitted one by one to a Dask cluster; outcomes return in any order."""

    client: Client  # connection to the cluster
    files: Any  # files named in the points
    _waiting: dict[Any, tuple[NumberedPoint, Any]] = field(default_factory=dict)

    def submit(self, point: NumberedPoint) -> None:
        """Submit a numbered point to the Dask cluster."""
        future: Any = self.client.submit(
            play_on_worker, point, keep=None, files=self.files, ours=edition(), strict=False, pure=False
        )
        self._waiting[future.key] = point, future

    def outcome(self) -> PointOutcome:
        """Wait for the next outcome, of any submitted point, and return the outcome."""
        from distributed import as_completed

        futures = [future for _, future in self._waiting.values()]
        future, answer = next(as_completed(futures, loop=self.client.loop, with_results=True, raise_errors=False))
        point, _ = self._waiting.pop(future.key)
        return _outcome_and_files(point, future.status, answer)[0]

    def cancel(self) -> None:
        """Cancel all submitted points whose outcomes have not returned."""
        with suppress(OSError):
            self.client.cancel([future for _, future in self._waiting.values()], force=True)


@contextmanager
def submitted(address: str, points: Sequence[NumberedPoint]) -> Iterator[Submitted]:
    """Yield a `Submitted` connected to the Dask scheduler at `address`.

    When the block ends, open points are cancelled.
    """
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
    """Raise ScenarioError if the Dask scheduler's address is invalid, or if Dask is not installed."""
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
                f"--scheduler: no scheduler answered at {address} within {TIMEOUT} s; is `dask scheduler` running on "
                "this machine and port?"
            ) from error
        try:
            yield client
        finally:
            # The cluster may have ended, or may be too busy to answer.
            with suppress(OSError):
                client.close(timeout=TIMEOUT)


@contextmanager
def _without_dask_logs() -> Iterator[None]:
    """Switch off Dask's log lines within a `with` block; errors that matter are raised too."""
    # Importing `distributed` creates its loggers, and each logger may have a separate level.
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
    """Raise ScenarioError if the Dask cluster has no worker, or a worker with another edition of the simulator."""
    try:
        client.wait_for_workers(1, timeout=TIMEOUT)
    except TimeoutError as error:
        raise ScenarioError(
            f"--scheduler: {address} has no workers; start workers with `dask worker {address}`"
        ) from error
    # Every worker is asked; an exception counts as a different edition.
    editions: dict[str, Any] = client.run(edition, on_error="return")
    try:
        editions = {"the scheduler": client.run_on_scheduler(edition), **editions}
    except Exception as error:  # any error while the scheduler unpickles `edition`
        editions = {"the scheduler": error, **editions}
    our_edition = edition()
    for machine, its_edition in editions.items():
        if its_edition != our_edition:
            has = f"cannot import it ({its_edition})" if isinstance(its_edition, Exception) else f"has {its_edition}"
            raise ScenarioError(
                f"--scheduler: this is simulator {our_edition}, {machine} {has}; install the same on every machine"
            )


def files_to_send(points: Sequence[Point]) -> dict[str, bytes]:
    """Return {relative path: content} of the files that the points name by relative path."""
    contents = {}
    base = points[0].scenario.base
    for file in files_of(point.scenario for point in points):
        # Files outside the scenario's folder are not sent: workers must have them at the same path.
        path = file.path.relative_to(base) if file.path.is_relative_to(base) else file.path
        if not path.is_absolute() and ".." not in path.parts and registry.is_file(file.path):
            contents[path.as_posix()] = file.path.read_bytes()
    return contents


def _outcomes(
    client: Client, numbered: Sequence[NumberedPoint], keep: ArtifactWriter | None, named_files: Any, *, strict: bool
) -> Generator[PointOutcome]:
    from distributed import as_completed

    # On the worker, the writer's folder is a temporary folder (see `play_on_worker`).
    remote_writer = None if keep is None else replace(keep, folder=Path())
    pending: dict[Any, tuple[NumberedPoint, Any]] = {}
    try:
        for start in range(0, len(numbered), _POINTS_A_MESSAGE):
            batch = numbered[start : start + _POINTS_A_MESSAGE]
            futures = client.map(
                play_on_worker, batch, keep=remote_writer, files=named_files, ours=edition(), strict=strict, pure=False
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
        # If the caller stops iterating, workers must not continue in vain.
        with suppress(OSError):
            client.cancel([future for _, future in pending.values()], force=True)


def _write_files(files: Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, content)


def _outcome_and_files(numbered_point: NumberedPoint, status: str, answer: Any) -> tuple[PointOutcome, Files]:
    """Return (outcome, files) of a point's finished Dask task; a failed outcome if its workers were lost."""
    from distributed.scheduler import KilledWorker

    if status == "finished":
        outcome, files = answer
        return outcome, files
    # Neither finished nor failed: cancelled or lost by the scheduler.
    if status != "error":
        raise SimulationError("the Dask cluster ended, or dropped submitted points")
    error = answer[1]
    # Dask gives up after allowed_failures + 1 lost workers.
    if isinstance(error, KilledWorker):
        return failed(*numbered_point, lost_text("worker", error.allowed_failures + 1)), {}
    raise error


def play_on_worker(
    at: NumberedPoint, *, keep: ArtifactWriter | None, files: Files | None, ours: str, strict: bool
) -> tuple[PointOutcome, Files]:
    """Simulate a point on a Dask worker; return its outcome, and its files by path in the run's folder."""
    # A worker may have joined after `_refuse_others`.
    if edition() != ours:
        raise SimulationError(f"this is simulator {ours}, a worker has {edition()}; install the same on every machine")
    index, point = at
    with TemporaryDirectory(prefix="simulator-") as scratch:
        folder = Path(scratch, "kept")
        if files:
            # The folder has the name of the scenario's folder: reports name a model's config.json after its folder.
            base = Path(scratch, "given", point.scenario.base.resolve().name)
            for name, content in files.items():
                (base / name).parent.mkdir(parents=True, exist_ok=True)
                (base / name).write_bytes(content)
            point = replace(point, scenario=point.scenario.replaced(base=base))
        play_one = play_alone if strict else play_point
        outcome = play_one(index, point, None if keep is None else replace(keep, folder=folder))
        # The scratch folder is deleted at the end of the block, so the files are read here.
        left = sorted(path for path in folder.rglob("*") if path.is_file())
        return outcome, {path.relative_to(folder).as_posix(): path.read_bytes() for path in left}
