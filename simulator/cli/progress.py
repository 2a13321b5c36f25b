"""Shows the progress of a simulation on stderr: a bar on a terminal, a line every ten seconds in a file or pipe.

Work that ends within ten seconds leaves no line in a file. Three parts act at the same time::

    main thread     simulates, and updates `played` (stage, share)    calls step() after each point
    this thread     reads `played` every 0.5 s or 10 s                writes a description
    rich's thread   redraws the bar on a terminal
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from simulator.basics.units import format_time
from simulator.engine.progress import Progress, watched

if TYPE_CHECKING:
    from rich.progress import Progress as Bars

# Time between two updates, on a terminal (True) and elsewhere (False) [s].
_EVERY: Final = {True: 0.5, False: 10.0}


@contextmanager
def progress(total: int, done: int = 0, what: str = "") -> Iterator[Callable[[], None]]:
    """Show on stderr how many of `total` points are done; yield a function to count a finished point."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from simulator.cli.console import console as console_of

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console_of(stderr=True)
    # In a file or pipe only the final bar is printed; for a single point the final bar says nothing.
    with Bars(*columns, console=console, disable=total == 1 and not console.is_terminal) as bars:
        task = bars.add_task(what, total=total, completed=done)
        try:
            with _telling(bars, what):
                yield lambda: bars.advance(task)
        except BaseException:
            # A bar without progress would only precede the error line.
            if bars.tasks[0].completed == done:
                bars.live.transient = True
                bars.live.stop()
                bars.disable = True
            raise


@contextmanager
def _telling(bars: Bars, what: str) -> Iterator[None]:
    """Show the running point's progress from a separate thread during the `with` block."""
    played, over, terminal = Progress(), Event(), bars.console.is_terminal

    def tell() -> None:
        while not over.wait(_EVERY[terminal]):
            # Read without a lock: a stale number is harmless.
            text = described(played, what)
            if terminal:
                bars.update(bars.tasks[0].id, description=text)
            else:
                task = bars.tasks[0]
                bars.console.file.write(f"{text}; {task.completed:.0f} of {task.total:.0f} points simulated\n")
                bars.console.file.flush()

    thread = Thread(target=tell, daemon=True)
    thread.start()
    try:
        with watched(played):
            yield
    finally:
        over.set()
        thread.join()


def described(played: Progress, what: str) -> str:
    """Format the scenario's name and the running point's progress.

    Examples
    --------
    >>> described(Progress("playing", 0.42, 0.31), "llama")
    'llama: playing, 310 ms, 42 % done'
    """
    if not played.stage:
        return what
    if played.share is None:
        return f"{what}: {played.stage}"
    return f"{what}: {played.stage}, {format_time(played.now)}, {100 * played.share:.0f} % done"
