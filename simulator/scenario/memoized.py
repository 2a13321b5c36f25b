"""Calls a function once for the same arguments: keeps its result, or the ScenarioError that it raised.

Unlike functools.cache it takes mappings and lists as arguments and keeps errors too. Rules that read a file are checked
for every point of a sweep; with this the file is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulator.basics.errors import ScenarioError

P = ParamSpec("P")
Result = TypeVar("Result")


def memoized(function: Callable[P, Result]) -> Callable[P, Result]:
    """Call once for the same arguments, which may be mappings; whatever goes wrong is a ScenarioError."""
    answers: dict[str, Result | ScenarioError] = {}

    def answer(*args: P.args, **kwargs: P.kwargs) -> Result:
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
