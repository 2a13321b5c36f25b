"""Handles signals that end the program with time to clean up: Ctrl-C, and SIGTERM as schedulers and `kill` send it.

Rule: whoever keeps or removes something for the one does so for the other.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final


class TerminatedError(BaseException):
    """Somebody wants this process to end, and has not pressed Ctrl-C for it.

    No KeyboardInterrupt, of which typer would make an exit code on the way that says no more which of the two it was.
    """


INTERRUPTIONS: Final = (KeyboardInterrupt, TerminatedError)


def heed_termination() -> None:
    """Raise TerminatedError at SIGTERM in this process; its workers keep the default and end at once."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError


def heed_no_more() -> None:
    """Clean up and end, whoever presses Ctrl-C again meanwhile: for good, for this process is on its way out."""
    # Elsewhere than in the main thread no signal arrives, and none may be handled.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def word(error: BaseException | None) -> str:
    """What has happened, as a word for a message."""
    return "terminated" if isinstance(error, TerminatedError) else "interrupted"


def exit_code(error: BaseException | None) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + (signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT)
