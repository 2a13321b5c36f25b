"""Handles signals that end the program with time to clean up: Ctrl-C, and SIGTERM from schedulers and `kill`.

The handler raises an exception in the main thread. A second thread watches. If the main thread does not run the
handler, or if the exception object vanishes before the command has heard it, this thread sends the signal again, as
often as needed. A command cleans up in the same way after either signal.

Example: Ctrl-C arrives during an import, in a weak reference's callback::

    main thread                                  watching thread
    handler raises CtrlCError, writes 0          reads 2 (SIGINT, from Python), then 0 (handled)
    Python drops the error: the callback         waits 10 ms: the exception is gone, heard 0 < handled 1
    ...                                          sends SIGINT to the main thread
    handler raises CtrlCError, writes 0          reads 2, then 0
    the command catches it, calls hear()         waits: heard 2 = handled 2, nothing left to do
"""

from __future__ import annotations

import shlex
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final


class InterruptionError(BaseException):
    """Error raised in the main thread when a signal to end the program arrives.

    The class does not derive from KeyboardInterrupt, because typer turns KeyboardInterrupt into an exit code without a
    message. Weak references to the exception are possible, unlike to KeyboardInterrupt.
    """

    delivery: Delivery | None = None


class CtrlCError(InterruptionError):
    """Error raised when SIGINT (Ctrl-C) arrives."""


class TerminatedError(InterruptionError):
    """Error raised when SIGTERM arrives."""


INTERRUPTIONS: Final = (KeyboardInterrupt, InterruptionError)

# Pause between two checks by the watching thread [s]. No result depends on it.
_PAUSE_S: Final = 0.01
# Byte that means "the handler has run". Any other byte is a signal's number.
_HANDLED: Final = 0


@dataclass(slots=True, eq=False)
class Delivery:
    """Raises each signal as an exception, and sends the signal again until the command has heard it.

    A signal can be lost in two ways.

    - Python runs handlers only in the main thread, between two instructions. A signal in another thread, or just before
      the main thread starts to wait, does not end this wait, which may last for ever.
    - Python drops an exception raised in a weak reference's callback (each import calls some) or in `__del__`; a
      library may also swallow an exception. In both cases the exception object is freed. While the object exists, the
      exception is on its way to the command, or somebody cleans up, and a second exception would disturb.

    Therefore the watching thread reads a stream of bytes. Python writes each signal's number on arrival, in any thread;
    the handler then writes `_HANDLED`.
    """

    raised: list[weakref.ref[BaseException]] = field(default_factory=list)  # exceptions not yet heard by the command
    # `handled`, `heard`: Number of signals handled by the handler, and number of these heard by the command.
    handled: int = 0
    heard: int = 0
    # `reader`, `writer`: Ends of the stream.
    reader: socket.socket = field(init=False)
    writer: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        """Open the stream to which signals write; from now on, a signal may write at any moment."""
        self.reader, self.writer = socket.socketpair()
        # Signals write to the stream, and a write during a signal must never wait.
        self.writer.setblocking(False)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Raise the exception for a signal; inside `drop`, where Python would print and drop it, raise nothing."""
        if _is_inside(frame, Delivery.drop):
            self._note_handled()
        else:
            # No local variable: an exception in a local variable of its own traceback is a cycle, and is not freed.
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
        """Print an exception that Python has dropped, as Python does; print no interruption, which is sent again."""
        if not isinstance(unraisable.exc_value, INTERRUPTIONS):
            sys.__unraisablehook__(unraisable)

    def send_lost_signals_again(self) -> None:
        """Send each signal that the command has not heard to the main thread again, until signals are ignored.

        This is the watching thread's function.
        """
        # `last` is the last byte read, `number` the last signal. Until the first signal, the thread only waits.
        last, number = _HANDLED, 0
        while number == 0 or signal.getsignal(number) is not signal.SIG_IGN:
            # Settled: every signal was handled and heard. Then wait without a limit for the next signal.
            settled = last == _HANDLED and self.heard == self.handled
            self.reader.settimeout(None if settled else _PAUSE_S)
            try:
                last = self.reader.recv(1)[0]
            except TimeoutError:
                # Check existence first, then the counts: the command counts an exception as heard while it exists.
                exists = any(error() is not None for error in self.raised)
                # Lost: the last byte is a signal without handler run, or a handled signal was never heard.
                if not exists and (last != _HANDLED or self.heard < self.handled):
                    _send_to_main_thread(number)
            else:
                # A 0 byte (_HANDLED) keeps the signal's number.
                number = last or number


def heed_interruptions() -> None:
    """Raise CtrlCError at Ctrl-C and TerminatedError at SIGTERM in this process, and lose neither.

    Worker processes keep Python's default and end at once.
    """
    delivery = Delivery()
    # Python calls this hook for dropped exceptions.
    sys.unraisablehook = delivery.drop
    signal.set_wakeup_fd(delivery.writer.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=delivery.send_lost_signals_again, daemon=True).start()
    signal.signal(signal.SIGTERM, delivery.handle)
    # A shell starts background commands with Ctrl-C ignored; this is kept.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, delivery.handle)


def hear(error: BaseException) -> None:
    """Record that the command has caught this interruption and every earlier one; later signals are raised again."""
    delivery = error.delivery if isinstance(error, InterruptionError) else None
    if delivery is not None:
        delivery.heard = delivery.handled
        delivery.raised.clear()


def heed_no_more() -> None:
    """Ignore every further signal: the process cleans up and ends."""
    # Only the main thread may change a handler.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def interruption_behind(error: BaseException | None) -> BaseException | None:
    """Return the interruption behind an error: the error itself, or an interruption that the error replaced."""
    while error is not None and not isinstance(error, INTERRUPTIONS):
        error = error.__cause__ or error.__context__
    return error


def word(error: BaseException | None) -> str:
    """Return "interrupted" or "terminated" (after SIGTERM), for a message about an interruption."""
    return "terminated" if _signal_of(error) is signal.SIGTERM else "interrupted"


def exit_code(error: BaseException | None) -> int:
    """Return the exit code for an interruption, 128 plus the signal's number, like shells."""
    return 128 + _signal_of(error)


def _signal_of(error: BaseException | None) -> signal.Signals:
    return signal.SIGTERM if isinstance(error, TerminatedError) else signal.SIGINT


def _is_inside(frame: FrameType | None, function: object) -> bool:
    """Return True if a stack frame is the function's own, or one of its callers is."""
    code = getattr(function, "__code__", None)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None


def _send_to_main_thread(number: int) -> None:
    if sys.platform == "win32":
        # Python runs the handler in the main thread, whichever thread raises the signal.
        signal.raise_signal(number)
    else:
        # A signal sent to the main thread itself also ends a waiting system call.
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def continuing_command(words: Sequence[str], folder: Path) -> str:
    """Return the command that continues an interrupted `run`, `sweep` or `plan`, ready for a shell.

    Parameters
    ----------
    words : sequence of str
        Words of the interrupted command after the program's name, as in `sys.argv[1:]`.
    folder : Path
        Directory of the interrupted run.

    Examples
    --------
    >>> continuing_command(["run", "my job.yaml", "--out", "a", "--set", "seed=1,2"], Path("a"))
    "simulator sweep 'my job.yaml' --set seed=1,2 --resume --out a"
    >>> continuing_command(["plan", "--out=a", "job.yaml", "--resume"], Path("a"))
    'simulator plan job.yaml --resume --out a'
    """
    command, *arguments = words
    others: list[str] = []
    rest = iter(arguments)
    for word in rest:
        if word == "--out":
            next(rest, None)
        elif word != "--resume" and not word.startswith("--out="):
            others.append(word)
    # `run` has no --resume; `sweep` simulates the same points.
    again = "sweep" if command == "run" else command
    return shlex.join(["simulator", again, *others, "--resume", "--out", str(folder)])
