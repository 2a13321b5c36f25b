"""Calls the core: gives it a problem, and brings back when everything started and ended.

Rule: the only module that calls the library. What Python is told meanwhile (Ctrl-C) comes back to the caller as the
exception that it was.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.engine.compiled import library
from simulator.engine.compiled.problem import PROGRESS, Problem, ResultStruct
from simulator.errors import SimulationError

PLAYED: Final = 0
NO_MEMORY: Final = 1
STUCK: Final = 2


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
    watch = _Watch()
    progress = PROGRESS(watch)
    struct.progress = progress
    start, end = (np.full(problem.operations, np.nan) for _ in range(2))
    enter, through = (np.full(problem.logged, np.nan) for _ in range(2))
    result.start, result.end = start.ctypes.data, end.ctypes.data
    result.enter, result.through = enter.ctypes.data, through.ctypes.data
    outcome = core.core_play(ctypes.byref(struct), ctypes.byref(result))
    taps = _taken(result)
    core.core_free(ctypes.byref(result))
    if watch.error is not None:
        raise watch.error
    if outcome == NO_MEMORY:
        raise SimulationError("engine: too little memory to follow this program; write collectives: closed_form")
    if outcome not in (PLAYED, STUCK):
        raise AssertionError(f"the core ends with outcome {outcome}")
    stuck = outcome == STUCK
    return Times(start, end, enter, through, taps, stuck, result.now, result.followed, result.in_order)


class _Watch:
    """Called by the core now and then: what is raised meanwhile, as by Ctrl-C, stops it and reaches the caller."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __call__(self, now: float, events: int) -> int:
        """Whether to stop, after so many events."""
        try:
            self.between(now, events)
        except BaseException as error:  # a callback from C cannot raise
            self.error = error
        return int(self.error is not None)

    def between(self, now: float, events: int) -> None:
        """What is done in between: nothing but letting Python handle its signals."""


def _taken(result: ResultStruct) -> Floats:
    if not result.taps:
        return np.zeros((0, 2))
    flat = np.ctypeslib.as_array(ctypes.cast(result.tap, ctypes.POINTER(ctypes.c_double)), (result.taps, 3))
    return flat[:, :2].copy()
