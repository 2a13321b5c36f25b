"""How do worker processes take Ctrl-C? They ignore it, and their parent stops them.

A terminal sends Ctrl-C to every process of a command. A worker that took it would print a traceback of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker


def ignore_interrupts() -> None:
    """Ignore Ctrl-C in this worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Block Ctrl-C within a `with` block in which a process starts.

    The process inherits the block, and prints no traceback during imports.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    # The first process would otherwise start the resource tracker, whose start unblocks signals again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
