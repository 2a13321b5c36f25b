"""Points on processes of this machine, of which any may be ended at any moment.

Rule: each process has a pipe of its own and one point at a time, so what a lost process was playing is known, goes to
another one, and nothing else is touched. Like desks in an office: who falls ill leaves one file on the desk.

What processes need can be imported while it is not yet known what is to be played, so nothing that takes long is
imported here.

Why not `concurrent.futures`: there one lost process ends the whole pool and does not say which point it was at, and the
processes of a parent that was killed wait for ever. Here they see their pipe close, and leave.
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

from simulator.errors import SimulationError

if TYPE_CHECKING:
    from simulator.sweeps.outcome import Keep, Numbered, Outcome

# So often a point may lose the process that plays it, and so many processes in a row may end before they could play.
MOST_LOST: Final = 3
# Spawned, not forked: the parent may hold threads of numpy or of a notebook.
_SPAWN: Final = get_context("spawn")


def play(
    numbered: Sequence[Numbered], jobs: int, keep: Keep | None = None, crew: Crew | None = None
) -> Generator[Outcome]:
    """Play points on processes and yield their outcomes as they come.

    Parameters
    ----------
    numbered : sequence of (int, Point)
    jobs : int
        Processes.
    keep : callable (int, Run), optional
        Called where the point is played; must be picklable.
    crew : Crew, optional
        From `warmed_up`.

    Raises
    ------
    SimulationError
        Processes end before they can play anything. A point whose process is ended from outside is played again, and
        fails with the third.
    """
    crew = crew or Crew()
    crew.waiting, crew.keep = deque(numbered), keep
    try:
        for _ in range(min(jobs, len(numbered))):
            crew.hire()
        while crew.by_pipe:
            for pipe in connection.wait(crew.by_pipe):
                outcome = crew.heard(crew.by_pipe[pipe])  # type: ignore[index]
                if outcome is not None:
                    yield outcome
    finally:
        crew.dismiss()


def warmed_up(*imports: str) -> Crew:
    """Processes that will be copies of one that imports these modules, and what plays, from now on.

    For a program that is in nobody's hands but ours: it is a setting of `multiprocessing` for the whole process.
    """
    if "forkserver" not in get_all_start_methods():  # Windows
        return Crew()
    context = get_context("forkserver")
    # networkx is imported by the first cluster only.
    context.set_forkserver_preload([*imports, "simulator.sweeps.outcome", "networkx"])
    with _without_interrupts():
        forkserver.ensure_running()
    return Crew(context=context)


@dataclass(slots=True)
class _Worker:
    """A process, its pipe, and what it is playing; nothing until it has said that it is there."""

    process: BaseProcess
    pipe: Connection
    at: Numbered | None = None
    there: bool = False


@dataclass(slots=True)
class Crew:
    """The processes that play, the points that wait, how often each point has lost its process, and failed starts."""

    context: SpawnContext | ForkServerContext = _SPAWN
    waiting: deque[Numbered] = field(default_factory=deque)
    keep: Keep | None = None
    by_pipe: dict[Connection, _Worker] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    still_born: int = 0

    def hire(self) -> None:
        """Start a process; it says when it is there."""
        pipe, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs,), daemon=True)
        with _without_interrupts():
            process.start()
        theirs.close()  # only the process holds its end now, so its pipe closes with it
        self.by_pipe[pipe] = _Worker(process, pipe)

    def heard(self, worker: _Worker) -> Outcome | None:
        """Take what a process says, or that it is gone, and give it the next point."""
        try:
            said = worker.pipe.recv()
        except (EOFError, OSError):
            return self._gone(worker)
        worker.at, worker.there, self.still_born = None, True, 0
        with suppress(OSError):  # gone just now; its pipe will say so
            self._next(worker)
        if isinstance(said, Exception):
            raise said
        found: Outcome | None = said
        return found

    def _next(self, worker: _Worker) -> None:
        if self.waiting:
            worker.at = self.waiting.popleft()
            worker.pipe.send((*worker.at, self.keep))
        else:
            self._leave(worker)

    def _leave(self, worker: _Worker) -> None:
        """A process whose pipe is closed ends by itself."""
        del self.by_pipe[worker.pipe]
        worker.pipe.close()
        worker.process.join()

    def _gone(self, worker: _Worker) -> Outcome | None:
        """What was lost with a process: it waits again, or has failed."""
        self._leave(worker)
        self.still_born += not worker.there
        if self.still_born >= MOST_LOST:
            raise SimulationError(
                f"{MOST_LOST} processes ended before they could play a point; in a script of your own, sweep below "
                '`if __name__ == "__main__":`, or take --jobs 1'
            )
        given_up = None
        if worker.at is not None:
            index, point = worker.at
            self.lost[index] += 1
            if self.lost[index] < MOST_LOST:
                self.waiting.append(worker.at)
            else:
                from simulator.sweeps.outcome import failed

                given_up = failed(index, point, lost_text("process", MOST_LOST))
        if self.waiting:
            self.hire()
        return given_up

    def dismiss(self) -> None:
        """End all; where somebody gave up on them, without waiting for what they are at."""
        for worker in self.by_pipe.values():
            worker.process.terminate()
        for worker in list(self.by_pipe.values()):
            self._leave(worker)


def lost_text(what: str, times: int) -> str:
    """Why a point failed that has lost every process that played it."""
    return f"its {what} was ended from outside {times} times, perhaps because memory ran out; play fewer at once"


def _work(pipe: Connection) -> None:
    """What a process does: play what comes, until nobody is there any more."""
    # Ctrl-C is for the parent, which ends us; we would only print tracebacks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from simulator.sweeps.outcome import play_point

    try:
        pipe.send(None)
        while True:
            index, point, keep = pipe.recv()
            try:
                said: Outcome | Exception = play_point(index, point, keep)
            except Exception as error:
                error.add_note(traceback.format_exc())
                said = error
            pipe.send(said)
    except (EOFError, OSError):  # the parent has had enough, or has been killed
        # Nothing is open, and taking the interpreter down with all its modules takes a tenth of a second.
        os._exit(0)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while a process starts: it inherits that, and so stays silent until it can ignore it itself."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # It would be started by the first process, and lets signals through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
