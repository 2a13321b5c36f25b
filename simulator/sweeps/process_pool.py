"""Simulates points on worker processes of this machine (by default one per core), any of which may be killed.

Each worker has its own pipe and simulates a single point at a time. If a worker is killed, the parent therefore knows
the lost point, and another worker simulates this point again. Other points are unaffected.

    parent                            worker
    start_worker    --- process -->   imports
    receive         <-- None -----    ready
    _send_next_point -- point ---->   simulates
    receive         <-- outcome --    ready again
    receive: EOF    <-- (killed)      _handle_lost_worker: point back into the queue, start a new worker

`preload` lets workers import while the parent still reads the scenario; this module therefore imports nothing slow.

Why not `concurrent.futures`? There, a killed process ends the whole pool, nobody knows the lost point, and workers of a
killed parent wait for ever. Here, workers of a killed parent see their pipe close, and exit.
"""

from __future__ import annotations

import os
import traceback
from collections import Counter, deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_all_start_methods, get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Final

from simulator.basics.errors import SimulationError
from simulator.basics.worker_signals import ignore_interrupts, without_interrupts

if TYPE_CHECKING:
    from simulator.run.outcome import PointOutcome
    from simulator.sweeps.outcome import NumberedPoint, RunHandler

# A point fails after this many workers were killed during its simulation. A sweep fails after this many workers in a
# row ended before they were ready.
MOST_LOSSES: Final = 3
# Spawn, not fork: the parent may have threads, from numpy or from a notebook.
_SPAWN: Final = get_context("spawn")


def play(
    numbered: Sequence[NumberedPoint], jobs: int, keep: RunHandler | None = None, pool: WorkerPool | None = None
) -> Generator[PointOutcome]:
    """Simulate numbered points on worker processes and yield their outcomes in order of completion.

    Parameters
    ----------
    numbered : sequence of (int, Point)
        Points with their numbers.
    jobs : int
        Number of processes.
    keep : callable (int, Run), optional
        Called in the process that simulates the point; must be picklable.
    pool : WorkerPool, optional
        Pool returned by `preload`.

    Raises
    ------
    SimulationError
        Workers end before they are ready. If a worker is killed, its point is simulated again; after three lost workers
        the point fails.
    """
    pool = pool or WorkerPool()
    pool.waiting, pool.keep = deque(numbered), keep
    try:
        for _ in range(min(jobs, len(numbered))):
            pool.start_worker()
        # Workers leave `by_pipe` when no point waits; the loop ends after the last worker.
        while pool.by_pipe:
            for pipe in connection.wait(pool.by_pipe):
                outcome = pool.receive(pool.by_pipe[pipe])  # type: ignore[index]
                if outcome is not None:
                    yield outcome
    finally:
        pool.stop()


@contextmanager
def staying(jobs: int, pool: WorkerPool | None = None) -> Iterator[WorkerPool]:
    """Yield a pool of `jobs` worker processes that wait for points until the block ends; see `WorkerPool.submit`."""
    pool = pool or WorkerPool()
    pool.stays = True
    try:
        for _ in range(jobs):
            pool.start_worker()
        yield pool
    finally:
        pool.stop()


def number_of_processes(jobs: int | None, scheduler: str | None) -> int | None:
    """Return the number of processes for a command's options: one per core if neither option is given.

    Parameters
    ----------
    jobs : int or None
        Value of --jobs.
    scheduler : str or None
        Value of --scheduler: the Dask cluster then decides the number of processes, and the result is `jobs`.

    Examples
    --------
    >>> number_of_processes(4, None), number_of_processes(None, "tcp://host:8786")
    (4, None)
    """
    return jobs if jobs or scheduler is not None else os.cpu_count() or 1


def preload(*imports: str) -> WorkerPool:
    """Return a worker pool, and start a fork server that imports these and the simulation's modules in the background.

    Workers are copies of this server. Only for the command line: the function changes the settings of `multiprocessing`
    for the whole program.
    """
    if "forkserver" not in get_all_start_methods():  # Windows
        return WorkerPool()
    context = get_context("forkserver")
    # `simulator.sweeps.outcome` does not import networkx; the first cluster does.
    context.set_forkserver_preload([*imports, "simulator.sweeps.outcome", "networkx"])
    with without_interrupts():
        forkserver.ensure_running()
    return WorkerPool(context=context)


@dataclass(slots=True)
class _Worker:
    """A worker process with its pipe and the point that it simulates; `ready`: its imports are finished."""

    process: BaseProcess
    pipe: Connection
    point: NumberedPoint | None = None
    ready: bool = False


@dataclass(slots=True)
class WorkerPool:
    """A pool of worker processes: workers, waiting points, lost workers per point, and failed starts in a row.

    If `stays` is set, idle workers wait for further points; otherwise they end.
    """

    context: SpawnContext | ForkServerContext = _SPAWN
    waiting: deque[NumberedPoint] = field(default_factory=deque)
    keep: RunHandler | None = None
    by_pipe: dict[Connection, _Worker] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)  # killed workers, by point number
    failed_starts: int = 0  # workers in a row that ended before they were ready
    stays: bool = False

    def submit(self, point: NumberedPoint) -> None:
        """Queue a numbered point; if a worker is idle, send the point at once."""
        self.waiting.append(point)
        idle = next((worker for worker in self.by_pipe.values() if worker.ready and worker.point is None), None)
        if idle is not None:
            # A worker killed just now is noticed at the next `recv` from its pipe.
            with suppress(OSError):
                self._send_next_point(idle)

    def outcome(self) -> PointOutcome:
        """Wait for the next outcome, of any submitted point, and return the outcome."""
        while True:
            pipe = connection.wait(self.by_pipe)[0]
            outcome = self.receive(self.by_pipe[pipe])  # type: ignore[index]
            if outcome is not None:
                return outcome

    def start_worker(self) -> None:
        """Start a worker process; its first message means "ready"."""
        pipe, theirs = self.context.Pipe()
        process = self.context.Process(target=_worker_main, args=(theirs,), daemon=True)
        with without_interrupts():
            process.start()
        # Only the process holds its end now: if the process ends, the parent's end reports EOF.
        theirs.close()
        self.by_pipe[pipe] = _Worker(process, pipe)

    def receive(self, worker: _Worker) -> PointOutcome | None:
        """Return the outcome that a worker sends (None for "ready"), and send the worker its next point.

        A killed worker is replaced.
        """
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            return self._handle_lost_worker(worker)
        worker.point, worker.ready, self.failed_starts = None, True, 0
        # A worker killed just now is noticed at the next `recv` from its pipe.
        with suppress(OSError):
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
        """Close a worker's pipe, which makes the worker exit, and wait until its process has ended."""
        del self.by_pipe[worker.pipe]
        worker.pipe.close()
        worker.process.join()

    def _handle_lost_worker(self, worker: _Worker) -> PointOutcome | None:
        """Queue a killed worker's point again and start a new worker; return a failure after too many losses."""
        self._release(worker)
        # A worker that ends before its first message fails on start, for example because `sweep` is called at the top
        # level of a script, which every spawned process runs again.
        self.failed_starts += not worker.ready
        if self.failed_starts >= MOST_LOSSES:
            raise SimulationError(
                f"{MOST_LOSSES} processes ended before simulating a point; in a script, call sweep below "
                '`if __name__ == "__main__":`, or use --jobs 1'
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
        """Terminate every worker process, also during the simulation of a point."""
        for worker in self.by_pipe.values():
            worker.process.terminate()
        for worker in list(self.by_pipe.values()):
            self._release(worker)


def lost_text(what: str, times: int) -> str:
    """Return the error text for a point whose process or worker (`what`) was killed several times."""
    return f"the {what} of this point was killed {times} times, perhaps because memory ran out; use fewer processes"


def _worker_main(pipe: Connection) -> None:
    """Run a worker process: simulate each point that arrives at the pipe, until the parent closes it or has ended."""
    ignore_interrupts()
    from simulator.run.scenario_cluster import Clusters
    from simulator.sweeps.outcome import play_point

    # Points with the same cluster share the cluster and its cache.
    clusters = Clusters()
    try:
        pipe.send(None)
        while True:
            index, point, keep = pipe.recv()
            try:
                answer: PointOutcome | Exception = play_point(index, point, keep, clusters)
            except Exception as error:
                # The traceback is attached as text, because tracebacks cannot be pickled.
                error.add_note(traceback.format_exc())
                answer = error
            pipe.send(answer)
    # The parent needs no more points, or has been killed.
    except (EOFError, OSError):
        # No file is open, and an orderly exit of the interpreter takes 0.1 s.
        os._exit(0)
