"""Calls the core: gives it a problem, and brings back when everything started and ended.

Rule: the only module that calls the library.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.errors import SimulationError
from simulator.engine.compiled import library
from simulator.engine.compiled.fields import Problem, ProblemStruct, ResultStruct
from simulator.engine.progress import tell

PLAYED: Final = 0
NO_MEMORY: Final = 1
STUCK: Final = 2
# So many transfers are played within milliseconds, whatever they meet: a thread would take longer than they.
_SOON_PLAYED: Final = 2000
# How often the play is looked at [s].
_GLANCE: Final = 0.2


@dataclass(frozen=True, eq=False)
class Times:
    """What the core gives back.

    Attributes
    ----------
    start, end : float array, shape (operations,)
        Of every operation of the played ranks, as `Problem.out_begin` numbers them; NaN where it did not happen [s].
    enter, through : float array, shape (logged transfers,)
    taps : float array, shape (flows, 2)
        Enter and end of the flows on tapped routes [s].
    stuck : bool
        Whether nothing could happen any more though not all had ended.
    now : float
        When the last thing happened [s].
    followed, in_order : int
        Transfers that the clock followed, and those that needed none.
    """

    start: Floats
    end: Floats
    enter: Floats
    through: Floats
    taps: Floats
    stuck: bool
    now: float
    followed: int
    in_order: int


def run(problem: Problem) -> Times:
    """Play a problem.

    Raises
    ------
    SimulationError
        There is no core, or not enough memory.
    """
    core = library.load()
    if core is None:
        raise SimulationError("engine: the compiled engine is not there: no C compiler built it; write engine: auto")
    struct, result = problem.struct(), ResultStruct()
    start, end = (np.full(problem.operations, np.nan) for _ in range(2))
    enter, through = (np.full(problem.logged, np.nan) for _ in range(2))
    result.start, result.end = start.ctypes.data, end.ctypes.data
    result.enter, result.through = enter.ctypes.data, through.ctypes.data
    outcome = _played(core, struct, result, problem)
    taps = _taken(result)
    core.core_free(ctypes.byref(result))
    if outcome == NO_MEMORY:
        raise SimulationError("engine: too little memory to follow this program; write collectives: closed_form")
    if outcome not in (PLAYED, STUCK):
        raise AssertionError(f"the core ends with outcome {outcome}")
    stuck = outcome == STUCK
    return Times(start, end, enter, through, taps, stuck, result.now, result.followed, result.in_order)


def _played(core: ctypes.CDLL, struct: ProblemStruct, result: ResultStruct, problem: Problem) -> int:
    """Play, in a thread of its own where it may last: this one is there for Ctrl-C, and tells how far the play is."""
    if problem.transfers <= _SOON_PLAYED:
        return int(core.core_play(ctypes.byref(struct), ctypes.byref(result)))
    outcomes: list[int] = []
    # No join of the thread: one that Ctrl-C interrupts takes the thread for ended (CPython issue 90882).
    over = Event()

    def play() -> None:
        outcomes.append(core.core_play(ctypes.byref(struct), ctypes.byref(result)))
        over.set()

    Thread(target=play, daemon=True).start()
    everything = problem.operations + problem.transfers
    try:
        while not over.wait(_GLANCE):
            tell("playing", (result.ended + result.followed + result.in_order) / everything, result.now)
    except BaseException:
        # The core may not write into arrays that are gone, however often Ctrl-C is pressed.
        result.stop = 1
        while not over.is_set():
            with suppress(BaseException):
                over.wait()
        raise
    return outcomes[0]


def _taken(result: ResultStruct) -> Floats:
    if not result.taps:
        return np.zeros((0, 2))
    flat = np.ctypeslib.as_array(ctypes.cast(result.tap, ctypes.POINTER(ctypes.c_double)), (result.taps, 3))
    return flat[:, :2].copy()
