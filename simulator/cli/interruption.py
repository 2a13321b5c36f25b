"""Handles signals that end the program with time to clean up: Ctrl-C, and SIGTERM as schedulers and `kill` send it.

Rule: whoever keeps or removes something for the one does so for the other.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Final


class TerminatedError(BaseException):
    """Somebody wants this process to end, and has not pressed Ctrl-C for it.

    No KeyboardInterrupt, of which typer would make an exit code on the way that says no more which of the two it was.
    """


INTERRUPTIONS: Final = (KeyboardInterrupt, TerminatedError)


# A callback in which an exception is lost takes microseconds; this long after, it has ended, and nobody has waited.
_REDELIVERY_S: Final = 0.01


def heed_interruptions() -> None:
    """Raise KeyboardInterrupt at Ctrl-C and TerminatedError at SIGTERM in this process, and lose neither.

    Workers keep the default and end at once.
    """
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _redeliver_interruption


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError


def _redeliver_interruption(unraisable: sys.UnraisableHookArgs) -> None:
    """Send the signal again whose exception Python has to drop; print every other dropped exception as Python does.

    Exceptions in callbacks of weak references, of which each import calls some, and in `__del__` reach no caller: the
    command would play on as if nobody had pressed Ctrl-C. In this hook an exception would be dropped too, so the signal
    comes from another thread, after the callback.
    """
    if isinstance(unraisable.exc_value, INTERRUPTIONS):
        resend = threading.Timer(_REDELIVERY_S, _interrupt_main_thread, [_signal_of(unraisable.exc_value)])
        resend.daemon = True
        resend.start()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_main_thread(number: signal.Signals) -> None:
    if sys.platform == "win32":
        signal.raise_signal(number)  # Python handles it in the main thread, whichever raises it
    else:
        # Sent to that thread, so that it also ends a system call that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def heed_no_more() -> None:
    """Clean up and end, whoever presses Ctrl-C again meanwhile: for good, for this process is on its way out."""
    # Elsewhere than in the main thread no signal arrives, and none may be handled.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def word(error: BaseException | None) -> str:
    """What has happened, as a word for a message."""
    return "terminated" if _signal_of(error) is signal.SIGTERM else "interrupted"


def exit_code(error: BaseException | None) -> int:
    """128 and the signal's number, as shells have it."""
    return 128 + _signal_of(error)


def _signal_of(error: BaseException | None) -> signal.Signals:
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT
