"""Shows how far playing is: a bar on a terminal, a line every ten seconds in a file or a pipe.

Rule: on stderr, and nothing that ends within ten seconds leaves a line in a file.
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

# Of a bar on a terminal, and of lines elsewhere [s].
_EVERY: Final = {True: 0.5, False: 10.0}


@contextmanager
def progress(total: int, done: int = 0, what: str = "") -> Iterator[Callable[[], None]]:
    """Show how many of `total` are done, and how far the one is that is played here; yields what counts one more."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    from simulator.cli.console import console as console_of

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = console_of(stderr=True)
    # In a file or a pipe only the last state of the bar is printed, which for a single point says nothing.
    with Bars(*columns, console=console, disable=total == 1 and not console.is_terminal) as bars:
        task = bars.add_task(what, total=total, completed=done)
        try:
            with _telling(bars, what):
                yield lambda: bars.advance(task)
        except BaseException:
            # A bar that has not moved would only stand before the error's line.
            if bars.tasks[0].completed == done:
                bars.live.transient = True
                bars.live.stop()
                bars.disable = True
            raise


@contextmanager
def _telling(bars: Bars, what: str) -> Iterator[None]:
    """Tell now and then of what is played in this process, from a thread of its own: no engine stops for it."""
    played, over, terminal = Progress(), Event(), bars.console.is_terminal

    def tell() -> None:
        while not over.wait(_EVERY[terminal]):
            text = described(played, what)
            if terminal:
                bars.update(bars.tasks[0].id, description=text)
            else:
                task = bars.tasks[0]
                bars.console.file.write(f"{text}; {task.completed:.0f} of {task.total:.0f} points are done\n")
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
    """What is played, and how far it is.

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
