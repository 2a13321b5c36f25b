"""What an engine is at, for whoever waits for it: a stage in words, and how much of it is done.

Rule: written by who plays, read by who shows it, from another thread. Nobody who plays looks at it.

A context variable holds it, as warnings have a context: the way from a command to the core has ten signatures, and
none of them has anything to do with who is waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Progress:
    """What is being done.

    Attributes
    ----------
    stage : str
        "finding routes", "playing"; empty before anything has begun.
    share : float or None
        Of the stage, by operations (and transfers) that have ended; None where nobody knows.
    now : float
        Simulated time [s].
    """

    stage: str = ""
    share: float | None = None
    now: float = 0.0


_CURRENT: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def watched(progress: Progress) -> Iterator[None]:
    """Have what is played meanwhile in this thread tell of itself."""
    token = _CURRENT.set(progress)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def stage(name: str) -> None:
    """A stage begins."""
    tell(name, None, 0.0)


def tell(name: str, share: float | None, now: float) -> None:
    """So much of a stage is done."""
    progress = _CURRENT.get()
    if progress is not None:
        progress.stage, progress.share, progress.now = name, share, now
