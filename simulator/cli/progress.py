"""Shows the progress of a simulation on stderr: a bar on a terminal, a line every ten seconds in a file or pipe.

Work that ends within ten seconds leaves no line in a file. Three parts act at the same time::

    main thread     simulates, and updates `simulated` (stage, share)   calls step() after each point
    this thread     reads `simulated` every 0.5 s or 10 s               writes a description
    rich's thread   redraws the bar on a terminal
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from simulator.basics.progress import Progress, watched
from simulator.basics.units import format_duration, format_time

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

# Time between two updates, on a terminal (True) and elsewhere (False) [s].
_EVERY: Final = {True: 0.5, False: 10.0}


@contextmanager
def progress(
    total: int, done: int = 0, what: str = "", counted: str = "points simulated", *, lasting: bool = True
) -> Iterator[Callable[[], None]]:
    """Show on stderr how many of `total` points are done; yield a function to count a finished point.

    Parameters
    ----------
    total, done : int
        Number of points, and number of points that an earlier command has finished.
    what, counted : str
        Work in progress, such as the scenario's name, and its unit.
    lasting : bool
        Whether the bar remains after the end.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from simulator.cli.console import console as console_of

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console_of(stderr=True)
    # In a file or pipe only the final bar is printed; for a single point the final bar says nothing.
    hidden = (total == 1 or not lasting) and not console.is_terminal
    with Bars(*columns, console=console, disable=hidden, transient=not lasting) as bars:
        task = bars.add_task(what, total=total, completed=done)
        began = time.monotonic()

        def number_done() -> str:
            finished = int(bars.tasks[0].completed)
            return f"; {share_done(finished, total, counted, time.monotonic() - began, done)}"

        try:
            with _telling(bars, what, number_done):
                yield lambda: bars.advance(task)
        except BaseException:
            # A bar without progress would only precede the error line.
            if bars.tasks[0].completed == done:
                bars.live.transient = True
                bars.live.stop()
                bars.disable = True
            raise


@contextmanager
def phase(what: str) -> Iterator[None]:
    """Show on stderr that work of unknown extent goes on, such as "big: writing the report", in the `with` block."""
    from rich.progress import Progress as Bars
    from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

    from simulator.cli.console import console as console_of

    columns, console = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()), console_of(stderr=True)
    with Bars(*columns, console=console, disable=not console.is_terminal, transient=True) as bars:
        bars.add_task(what, total=None)
        with _telling(bars, what, lambda: ""):
            yield


@contextmanager
def _telling(bars: Bars, what: str, number_done: Callable[[], str]) -> Iterator[None]:
    """Show the running point's progress from a separate thread during the `with` block."""
    simulated, over, terminal = Progress(), Event(), bars.console.is_terminal

    def tell() -> None:
        while not over.wait(_EVERY[terminal]):
            # Read without a lock: a stale number is harmless.
            text = described(simulated, what)
            if terminal:
                bars.update(bars.tasks[0].id, description=text)
            else:
                bars.console.file.write(f"{text}{number_done()}\n")
                bars.console.file.flush()

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        with watched(simulated):
            yield
    finally:
        over.set()
        thread.join()


def share_done(finished: int, total: int, counted: str, elapsed: float, before: int = 0) -> str:
    """Format the number of finished points, and the time left at the mean rate so far.

    Parameters
    ----------
    finished, total, before : int
        Number of finished points, of all points, and of points finished before the elapsed time began.
    counted : str
        Unit and verb.
    elapsed : float
        Time since the work began [s].

    Examples
    --------
    >>> share_done(15, 32, "points checked", 30.0), share_done(0, 32, "points checked", 30.0)
    ('15 of 32 points checked, about 34 seconds left', '0 of 32 points checked')
    """
    text = f"{finished} of {total} {counted}"
    if before < finished < total:
        text += f", about {format_duration(elapsed * (total - finished) / (finished - before))} left"
    return text


def described(simulated: Progress, what: str) -> str:
    """Format the scenario's name and the running point's progress.

    >>> described(Progress("simulating", 0.42, 0.31), "llama")
    'llama: simulating, 310 ms, 42 % done'
    """
    if not simulated.stage:
        return what
    if simulated.share is None:
        return f"{what}: {simulated.stage}"
    return f"{what}: {simulated.stage}, {format_time(simulated.now)}, {100 * simulated.share:.0f} % done"
