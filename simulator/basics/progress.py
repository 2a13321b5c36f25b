"""What is an engine doing? A stage in words, and the share done, for a second thread that displays progress.

Engines write the progress and never read it. It is stored in a context variable, like the context for warnings: ten
functions lie between a command and the core, and none should pass progress through its signature.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """A simulation's present state, for a progress display."""

    # "finding routes", "simulating"; empty before the first stage.
    stage: str = ""
    # Share of the stage that is done, in operations and transfers; None if unknown.
    share: float | None = None
    now: float = 0.0  # simulated time [s]


# None if nobody watches: reporting is then free.
_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def watched(progress: Progress) -> Iterator[None]:
    """Context manager: simulations inside it, in this thread, write their state into `progress`."""
    token = _CURRENT.set(progress)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def stage(name: str) -> None:
    """Report that a simulation's stage `name` begins, such as "finding routes"."""
    tell(name, None, 0.0)


def tell(name: str, share: float | None, now: float) -> None:
    """Report a simulation's stage `name`, the share done in this stage, and the simulated time `now` [s]."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.stage, progress.share, progress.now = name, share, now
