"""Plays points on worker processes of this machine; the kernel or a user may kill any of them at any moment.

Rule: each worker has a pipe of its own and one point at a time. So it is known which point a killed worker was playing;
another worker plays that point again, and no other point is affected.

`preload` lets workers import while the parent still reads the scenario, so this module imports nothing that takes long.

Why not `concurrent.futures`: there one killed process ends the whole pool and nobody knows which point it was playing,
and the workers of a killed parent wait for ever. Here they see their pipe close, and exit.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_all_start_methods, get_context, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Final

from simulator.basics.errors import SimulationError

if TYPE_CHECKING:
    from simulator.run.outcome import PointOutcome
    from simulator.sweeps.outcome import NumberedPoint, RunHandler

# A point fails when so many workers have been killed while they played it; a sweep fails when so many workers in a row
# end before they could play anything.
MOST_LOSSES: Final = 3
# Spawned, not forked: the parent may hold threads of numpy or of a notebook.
_SPAWN: Final = get_context("spawn")


def play(
    numbered: Sequence[NumberedPoint], jobs: int, keep: RunHandler | None = None, pool: WorkerPool | None = None
) -> Generator[PointOutcome]:
    """Play points on processes and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    jobs : int
        Processes.
    keep : callable (int, Run), optional
        Called where the point is played; must be picklable.
    pool : WorkerPool, optional
        From `preload`.

    Raises
    ------
    SimulationError
        Workers end before they can play anything. A point whose worker is killed is played again; with the third
        worker that it loses it fails.
    """
    pool = pool or WorkerPool()
    pool.waiting, pool.keep = deque(numbered), keep
    try:
        for _ in range(min(jobs, len(numbered))):
            pool.start_worker()
        while pool.by_pipe:
            for pipe in connection.wait(pool.by_pipe):
                outcome = pool.receive(pool.by_pipe[pipe])  # type: ignore[index]
                if outcome is not None:
                    yield outcome
    finally:
        pool.stop()


@contextmanager
def staying(jobs: int, pool: WorkerPool | None = None) -> Iterator[WorkerPool]:
    """Workers that wait for points, which come one by one, until the block ends; see `WorkerPool.submit`."""
    pool = pool or WorkerPool()
    pool.stays = True
    try:
        for _ in range(jobs):
            pool.start_worker()
        yield pool
    finally:
        pool.stop()


def preload(*imports: str) -> WorkerPool:
    """Start a fork server that imports these modules, and what playing needs, in the background; workers copy it.

    Only for the command line: it changes the settings of `multiprocessing` for the whole program.
    """
    if "forkserver" not in get_all_start_methods():  # Windows
        return WorkerPool()
    context = get_context("forkserver")
    # networkx is imported by the first cluster only.
    context.set_forkserver_preload([*imports, "simulator.sweeps.outcome", "networkx"])
    with _without_interrupts():
        forkserver.ensure_running()
    return WorkerPool(context=context)


@dataclass(slots=True)
class _Worker:
    """A worker process, its pipe, the point that it plays, and whether it has finished its imports."""

    process: BaseProcess
    pipe: Connection
    point: NumberedPoint | None = None
    ready: bool = False


@dataclass(slots=True)
class WorkerPool:
    """The workers, the points that wait, how many workers each point has lost, and starts that failed in a row.

    Workers that stay wait when there is nothing to play; others end.
    """

    context: SpawnContext | ForkServerContext = _SPAWN
    waiting: deque[NumberedPoint] = field(default_factory=deque)
    keep: RunHandler | None = None
    by_pipe: dict[Connection, _Worker] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    failed_starts: int = 0
    stays: bool = False

    def submit(self, point: NumberedPoint) -> None:
        """Let a point wait, and send it to a worker that has nothing to do."""
        self.waiting.append(point)
        idle = next((one for one in self.by_pipe.values() if one.ready and one.point is None), None)
        if idle is not None:
            with suppress(OSError):  # killed just now; the next `recv` of its pipe shows it
                self._send_next_point(idle)

    def outcome(self) -> PointOutcome:
        """Wait for the next outcome; which point's does not matter."""
        while True:
            pipe = connection.wait(self.by_pipe)[0]
            outcome = self.receive(self.by_pipe[pipe])  # type: ignore[index]
            if outcome is not None:
                return outcome

    def start_worker(self) -> None:
        """Start a worker; its first message says that it is ready."""
        pipe, theirs = self.context.Pipe()
        process = self.context.Process(target=_worker_main, args=(theirs,), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()  # only the process holds its end now, so its pipe closes with it
        self.by_pipe[pipe] = _Worker(process, pipe)

    def receive(self, worker: _Worker) -> PointOutcome | None:
        """Receive a worker's message and send it the next point; or note that it was killed."""
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return self._handle_lost_worker(worker)
        worker.point, worker.ready, self.failed_starts = None, True, 0
        with suppress(OSError):  # killed just now; the next `recv` of its pipe shows it
            self._send_next_point(worker)
        if isinstance(message, Exception):
            raise message
        outcome: PointOutcome | None = message
        return outcome

    def _send_next_point(self, worker: _Worker) -> None:
        if self.waiting:
            worker.point = self.waiting.popleft()
            worker.pipe.send((*worker.point, self.keep))
        elif not self.stays:
            self._release(worker)

    def _release(self, worker: _Worker) -> None:
        """Close a worker's pipe, at which it exits, and wait for that."""
        del self.by_pipe[worker.pipe]
        worker.pipe.close()
        worker.process.join()

    def _handle_lost_worker(self, worker: _Worker) -> PointOutcome | None:
        """Let the point of a killed worker wait again, or fail if it has lost too many; start another worker."""
        self._release(worker)
        self.failed_starts += not worker.ready
        if self.failed_starts >= MOST_LOSSES:
            raise SimulationError(
                f"{MOST_LOSSES} processes ended before they could play a point; in a script of your own, sweep below "
                '`if __name__ == "__main__":`, or take --jobs 1'
            )
        failure = None
        if worker.point is not None:
            index, point = worker.point
            self.lost[index] += 1
            if self.lost[index] < MOST_LOSSES:
                self.waiting.append(worker.point)
            else:
                from simulator.run.outcome import failed

                failure = failed(index, point, lost_text("process", MOST_LOSSES))
        if self.waiting or self.stays:
            self.start_worker()
        return failure

    def stop(self) -> None:
        """Terminate all workers, in the middle of a point if the caller gave up."""
        for worker in self.by_pipe.values():
            worker.process.terminate()
        for worker in list(self.by_pipe.values()):
            self._release(worker)


def lost_text(what: str, times: int) -> str:
    """The error of a point all of whose workers were killed."""
    return f"its {what} was ended from outside {times} times, perhaps because memory ran out; play fewer at once"


def _worker_main(pipe: Connection) -> None:
    """The worker process: play each point that arrives, until the parent closes the pipe or has ended."""
    # The terminal sends Ctrl-C to workers too; the parent stops them, and they would only print tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from simulator.run.scenario_cluster import Clusters
    from simulator.sweeps.outcome import play_point

    clusters = Clusters()
    try:
        pipe.send(None)
        while True:
            index, point, keep = pipe.recv()
            try:
                answer: PointOutcome | Exception = play_point(index, point, keep, clusters)
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = error
            pipe.send(answer)
    except (EOFError, OSError):  # the parent needs no more points, or has been killed
        # No file is open, and an orderly exit of the interpreter takes a tenth of a second.
        os._exit(0)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block Ctrl-C while a process starts: it inherits the block, so it prints no traceback while it imports."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # The first process would start the resource tracker, and that unblocks signals again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
