"""Handles signals that end the program with time to clean up: Ctrl-C, and SIGTERM as schedulers and `kill` send it.

The handler raises an exception in the main thread. A thread watches: it sends the signal again, as often as needed, if
the main thread does not handle it, or if the exception ceases to exist before the command has heard it.

Rule: a command cleans up in the same way after either signal.
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import weakref
from dataclasses import dataclass, field
from types import FrameType
from typing import Final


class InterruptionError(BaseException):
    """A signal has arrived that ends the program.

    The class is no KeyboardInterrupt, because typer turns that into an exit code without a message. Unlike
    KeyboardInterrupt it allows weak references.
    """

    delivery: Delivery | None = None


class CtrlCError(InterruptionError):
    """SIGINT has arrived."""


class TerminatedError(InterruptionError):
    """SIGTERM has arrived."""


INTERRUPTIONS: Final = (KeyboardInterrupt, InterruptionError)

# Pause between two looks of the thread that sends signals again [s]. No result depends on it.
_PAUSE_S: Final = 0.01
# Byte for the thread: the handler has run. Other bytes are numbers of signals.
_HANDLED: Final = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """Raises each signal as an exception, and sends the signal again until the command has heard it.

    A signal can be lost in two ways.

    - Python runs handlers in the main thread only, between two instructions. A signal that arrives in another thread,
      or just before the main thread begins to wait, does not end that wait, which may last for ever.
    - Python drops an exception that is raised in the callback of a weak reference (each import calls some) or in
      `__del__`, and a library may swallow an exception. In both cases the exception object is freed. As long as the
      object exists, it is on its way to the command, or somebody cleans up, and a second exception would disturb that.

    So the thread reads a stream of bytes: Python writes the number of each signal as soon as it arrives, in whichever
    thread, and the handler writes `_HANDLED` behind it.

    Attributes
    ----------
    raised : list of weak references
        Exceptions that the command has not heard.
    handled, heard : int
        Signals that the handler has handled, and how many of them the command has heard.
    reader, writer : socket
        Ends of the stream.
    """

    raised: list[weakref.ref[BaseException]] = field(default_factory=list)
    handled: int = 0
    heard: int = 0
    reader: socket.socket = field(init=False)
    writer: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        """Open the stream, to which a signal may write at any moment."""
        self.reader, self.writer = socket.socketpair()
        self.writer.setblocking(False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception of a signal; raise nothing inside `drop`, where Python would print and drop it."""
        if _is_inside(frame, Delivery.drop):
            self._note_handled()
        else:
            # A local variable that holds the exception would make a cycle with its traceback: it would never be freed.
            raise self._exception(number)

    def _exception(self, number: int) -> BaseException:
        error = TerminatedError() if number == signal.SIGTERM else CtrlCError()
        error.delivery = self
        self.raised.append(weakref.ref(error))
        self._note_handled()
        return error

    def _note_handled(self) -> None:
        self.handled += 1
        self.writer.send(bytes([_HANDLED]))

    def drop(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Print an exception that Python drops, as Python does; say nothing of an interruption, which comes again."""
        if not isinstance(unraisable.exc_value, INTERRUPTIONS):
            sys.__unraisablehook__(unraisable)

    def send_lost_signals_again(self) -> None:
        """Watch until signals are ignored; the work of a thread."""
        last, number = _HANDLED, 0
        while number == 0 or signal.getsignal(number) is not signal.SIG_IGN:
            settled = last == _HANDLED and self.heard == self.handled
            self.reader.settimeout(None if settled else _PAUSE_S)
            try:
                last = self.reader.recv(1)[0]
            except TimeoutError:
                # Whether the exception exists is asked first: the command hears it while it exists.
                exists = any(error() is not None for error in self.raised)
                if not exists and (last != _HANDLED or self.heard < self.handled):
                    _send_to_main_thread(number)
            else:
                number = last or number


def heed_interruptions() -> None:
    """Raise CtrlCError at Ctrl-C and TerminatedError at SIGTERM in this process, and lose neither.

    Workers keep the default and end at once.
    """
    delivery = Delivery()
    sys.unraisablehook = delivery.drop
    signal.set_wakeup_fd(delivery.writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=delivery.send_lost_signals_again, daemon=True).start()
    signal.signal(signal.SIGTERM, delivery.handle)
    # A shell starts commands in the background with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, delivery.handle)


def hear(error: BaseException) -> None:
    """Note that the command has heard this interruption and all before it, and go on; later signals are raised."""
    delivery = error.delivery if isinstance(error, InterruptionError) else None
    if delivery is not None:
        delivery.heard = delivery.handled
        delivery.raised.clear()


def heed_no_more() -> None:
    """Ignore all further signals, because this process cleans up and ends."""
    # Only the main thread may change a handler.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def interruption_behind(error: BaseException | None) -> BaseException | None:
    """Return the interruption that led to this error: the error itself, or one that it replaced on the way."""
    while error is not None and not isinstance(error, INTERRUPTIONS):
        error = error.__cause__ or error.__context__
    return error


def word(error: BaseException | None) -> str:
    """Return the word for this interruption in a message."""
    return "terminated" if _signal_of(error) is signal.SIGTERM else "interrupted"


def exit_code(error: BaseException | None) -> int:
    """Return 128 plus the signal's number, as shells do."""
    return 128 + _signal_of(error)


def _signal_of(error: BaseException | None) -> signal.Signals:
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT


def _is_inside(frame: FrameType | None, function: object) -> bool:
    """Return True if the function is among the callers of this frame."""
    code = getattr(function, "__code__", None)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _send_to_main_thread(number: int) -> None:
    if sys.platform == "win32":
        signal.raise_signal(number)  # Python handles it in the main thread, whichever thread raises it
    else:
        # A signal to this very thread also ends a system call that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, number)
