"""Ctrl-C and SIGTERM reach the command wherever they arrive, and disturb nobody who cleans up.

Each program here sends the signal to itself at the very moment that matters, so that no test depends on who is faster.
Its last wait has a limit only so that a lost signal fails the test instead of stopping it for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.interrupting import PATIENCE_S

ROOT = Path(__file__).parents[1]

HEAD = f"""
import os, signal, sys, threading, time, weakref
from simulator.cli.guard import guarded
from simulator.cli.interruption import heed_interruptions

number = signal.Signals(int(sys.argv[1]))

class Module: pass

def in_a_callback(act):
    module = Module()
    kept = weakref.ref(module, lambda _: act())
    del module

def send():
    os.kill(os.getpid(), number)

def wait():
    began = time.monotonic()
    try:
        threading.Event().wait({PATIENCE_S})
    finally:
        if time.monotonic() - began >= {PATIENCE_S}:  # the signal was lost, or comes only now
            os._exit(1)

def run(command):
    # Also where the tests run with Ctrl-C ignored, which processes inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    heed_interruptions()
    sys.exit(guarded(command))
"""


def ended(program: str, number: signal.Signals) -> subprocess.CompletedProcess[str]:
    """The process that ran this program."""
    return subprocess.run(
        [sys.executable, "-c", HEAD + textwrap.dedent(program), str(int(number))],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * PATIENCE_S,
    )


# Programs in which the signal arrives at a bad moment, and what each prints before the command hears the signal.
MOMENTS = {
    # Python drops what is raised in the callback of a weak reference; each import calls some.
    "in a callback": (
        """
        def command():
            in_a_callback(lambda: (send(), wait()))
            wait()

        run(command)
        """,
        "",
    ),
    # Ten callbacks in a row each wait until the signal is raised in them.
    "in ten callbacks": (
        """
        def command():
            in_a_callback(lambda: (send(), wait()))
            for _ in range(10):
                in_a_callback(wait)
            print("dropped")
            wait()

        run(command)
        """,
        "dropped\n",
    ),
    # Python drops, and prints, what is raised in its hook for dropped exceptions. On a loaded machine a signal that was
    # sent again arrived there.
    "while the one before is dropped": (
        """
        def profile(frame, event, _):
            if event == "call" and frame.f_code is sys.unraisablehook.__code__:
                sys.setprofile(None)
                send()

        def command():
            sys.setprofile(profile)
            in_a_callback(lambda: (send(), wait()))
            wait()

        run(command)
        """,
        "",
    ),
    # Python notes the signal in the other thread, and would run the handler when the main thread's wait is over.
    "in another thread while the main one waits": (
        """
        def state_of_main_thread():
            return open(f"/proc/self/task/{os.getpid()}/stat").read().rpartition(")")[2].split()[0]

        def receive():
            while not waits or (linux and state_of_main_thread() != "S"):
                time.sleep(0.001)
            signal.pthread_kill(threading.get_ident(), number)

        waits, linux = [], os.path.exists("/proc/self/task")

        def command():
            threading.Thread(target=receive, daemon=True).start()
            waits.append(True)
            wait()

        run(command)
        """,
        "",
    ),
    "where a library swallows it": (
        """
        def command():
            try:
                send()
                wait()
            except:
                pass
            wait()

        run(command)
        """,
        "",
    ),
    # Cleaning up takes fifty times as long as the thread pauses, and no second exception ends it.
    "before a long cleaning up": (
        """
        def command():
            try:
                send()
                wait()
            finally:
                time.sleep(0.5)
                print("cleaned up")

        run(command)
        """,
        "cleaned up\n",
    ),
    "before an error while cleaning up": (
        """
        def command():
            try:
                send()
                wait()
            finally:
                raise OSError("while cleaning up")

        run(command)
        """,
        "",
    ),
    # `simulator plan` writes the best so far; a second signal ends that, also where it is dropped at first.
    "after the command has heard one": (
        """
        from simulator.cli.interruption import INTERRUPTIONS, hear

        def command():
            try:
                send()
                wait()
            except INTERRUPTIONS as error:
                hear(error)
                kept = error
            time.sleep(0.5)
            print("went on")
            in_a_callback(lambda: (send(), wait()))
            wait()

        run(command)
        """,
        "went on\n",
    ),
    # Typer ends a command without a word at KeyboardInterrupt.
    "in the command line": (
        """
        from simulator.cli import main
        from simulator.cli.commands import schema

        def wait_for_a_signal():
            send()
            wait()

        schema.command = wait_for_a_signal
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["simulator", "schema"]
        main()
        """,
        "",
    ),
}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_is_not_lost(moment: str, number: signal.Signals, code: int) -> None:
    program, printed = MOMENTS[moment]
    process = ended(program, number)
    word = {130: "interrupted", 143: "terminated"}[code]
    assert (process.returncode, process.stdout) == (code, printed)
    assert process.stderr == f"{word}; no file was left incomplete\n"


def test_other_dropped_exceptions_are_printed_as_python_prints_them() -> None:
    process = ended(
        """
        run(lambda: in_a_callback(lambda: 1 / 0))
        """,
        signal.SIGINT,
    )
    assert process.returncode == 0
    assert process.stderr.startswith("Exception ignored in: ")
    assert process.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_ctrl_c_that_the_shell_ignores_stays_ignored() -> None:
    """A shell starts `simulator run ... &` so that Ctrl-C in the terminal does not end it."""
    process = ended(
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        heed_interruptions()
        send()
        sys.exit(guarded(lambda: print("goes on")))
        """,
        signal.SIGINT,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "goes on\n", "")
