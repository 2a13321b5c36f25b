"""Calls the core library: passes a problem in and returns when every operation started and ended.

No other module calls the library's functions.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from typing import Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Floats
from simulator.basics.errors import DefectError, SimulationError
from simulator.basics.progress import tell
from simulator.engine.compiled import library
from simulator.engine.compiled.fields import Problem, ProblemStruct, ResultStruct, lengths_of

PLAYED: Final = 0
NO_MEMORY: Final = 1
STUCK: Final = 2
OUTSIDE: Final = 5
# Up to this number of transfers the core takes milliseconds, less than a thread would cost.
_SOON_PLAYED: Final = 2000
# Interval of progress reports [s].
_GLANCE: Final = 0.2


@dataclass(frozen=True, eq=False)
class Times:
    """Results of the compiled core: when each operation and transfer started and ended.

    Attributes
    ----------
    start, end : float array, shape (operations,)
        Times of each operation of the simulated ranks, numbered by `Problem.out_begin`; NaN if it did not happen [s].
    enter, through : float array, shape (logged transfers,)
        When the bytes of each logged transfer begin to flow, and when the last has arrived [s].
    took : int array, shape (logged transfers,)
        Number, in `Cluster.avoided`, of the set of links around which the route of each logged transfer leads.
    taps : float array, shape (flows, 2)
        Enter and end of each flow on a tapped route [s].
    stuck : bool
        True in a deadlock: no event was left although operations had not ended.
    now : float
        Time of the last event [s].
    followed, in_order : int
        Numbers of transfers followed by the clock, and computed in order without the clock.
    """

    start: Floats
    end: Floats
    enter: Floats
    through: Floats
    took: npt.NDArray[np.int32]
    taps: Floats
    stuck: bool
    now: float
    followed: int
    in_order: int


def run(problem: Problem) -> Times:
    """Simulate a program, written into arrays, with the compiled core; return the times of operations and transfers.

    Raises
    ------
    SimulationError
        The compiled core is missing, or memory is exhausted.
    DefectError
        An entry of the problem lies outside the array that it indexes.
    """
    core = library.load()
    if core is None:
        raise SimulationError("engine: the compiled engine is not there: no C compiler built it; write engine: auto")
    struct, lengths, result = problem.struct(), lengths_of(problem), ResultStruct()
    start, end = (np.full(problem.operations, np.nan) for _ in range(2))
    enter, through = (np.full(problem.logged, np.nan) for _ in range(2))
    result.start, result.end = start.ctypes.data, end.ctypes.data
    result.enter, result.through = enter.ctypes.data, through.ctypes.data
    took = np.zeros(problem.logged, np.int32)
    result.took = took.ctypes.data
    outcome = core.core_border(*(ctypes.byref(each) for each in (struct, lengths, result)))
    if outcome == PLAYED:
        outcome = _played(core, struct, result, problem)
    taps = _taken(result)
    core.core_free(ctypes.byref(result))
    if outcome == NO_MEMORY:
        raise SimulationError("engine: too little memory to follow this program; write collectives: closed_form")
    if outcome == OUTSIDE:
        array = result.outside.decode()
        raise DefectError(f"the core's array {array} has the entry {result.entry} outside the array that it indexes")
    if outcome not in (PLAYED, STUCK):
        raise AssertionError(f"the core ends with outcome {outcome}")
    stuck = outcome == STUCK
    return Times(start, end, enter, through, took, taps, stuck, result.now, result.followed, result.in_order)


def _played(core: ctypes.CDLL, struct: ProblemStruct, result: ResultStruct, problem: Problem) -> int:
    """Run the C core on the structs `struct` and `result`; return its outcome code.

    A long run gets a thread, while the calling thread reports progress and handles Ctrl-C.
    """
    if problem.transfers <= _SOON_PLAYED:
        return int(core.core_play(ctypes.byref(struct), ctypes.byref(result)))
    outcomes: list[int] = []
    # An Event instead of Thread.join: if Ctrl-C interrupts a join, Python considers the thread ended (CPython issue
    # 90882).
    over = Event()

    def play() -> None:
        outcomes.append(core.core_play(ctypes.byref(struct), ctypes.byref(result)))
        over.set()

    Thread(target=play, daemon=True).start()
    everything = problem.operations + problem.transfers
    try:
        while not over.wait(_GLANCE):
            tell("simulating", (result.ended + result.followed + result.in_order) / everything, result.now)
    except BaseException:
        # Wait for the core even if Ctrl-C is pressed repeatedly: the core writes into arrays freed after this function.
        result.stop = 1
        while not over.is_set():
            with suppress(BaseException):
                over.wait()
        raise
    return outcomes[0]


def _taken(result: ResultStruct) -> Floats:
    """Return the times when flows on tapped (reported) routes begin and end, shape (flows, 2) [s]."""
    if not result.taps:
        return np.zeros((0, 2))
    flat = np.ctypeslib.as_array(ctypes.cast(result.tap, ctypes.POINTER(ctypes.c_double)), (result.taps, 3))
    return flat[:, :2].copy()
