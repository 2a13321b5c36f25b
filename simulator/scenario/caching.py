"""Calls a function once for equal arguments, and keeps its result, or its ScenarioError.

Unlike functools.cache, it accepts mappings and lists as arguments, and keeps errors too. Rules that read a file are
checked for every point of a sweep; the file is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulator.basics.errors import ScenarioError

P = ParamSpec("P")
Result = TypeVar("Result")


def memoized(function: Callable[P, Result]) -> Callable[P, Result]:
    """Return a function that calls `function` once for equal arguments; errors become ScenarioError.

    >>> square = memoized(lambda numbers: print("called") or sum(numbers))
    >>> square([1, 2]), square([1, 2])
    called
    (3, 3)
    """
    answers: dict[str, Result | ScenarioError] = {}

    def answer(*args: P.args, **kwargs: P.kwargs) -> Result:
        # Text instead of the arguments, because mappings and lists cannot be hashed.
        arguments = repr((args, kwargs))
        if arguments not in answers:
            try:
                answers[arguments] = function(*args, **kwargs)
            except ScenarioError as error:
                answers[arguments] = error
            except (ValueError, TypeError, OSError) as error:
                answers[arguments] = ScenarioError(f"cannot be used: {error}")
        remembered = answers[arguments]
        if isinstance(remembered, ScenarioError):
            raise remembered
        return remembered

    return answer
