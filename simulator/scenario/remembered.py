"""Questions about files, each asked once: the answer is remembered, and so is the fault.

Rule: knows neither the question nor the file. Every combination of a sweep asks again; a file is read once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from simulator.errors import ScenarioError

Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def remembered(ask: Callable[Asked, Answer]) -> Callable[Asked, Answer]:
    """Ask once for the same arguments, which may be mappings; whatever goes wrong is a ScenarioError."""
    known: dict[str, Answer | ScenarioError] = {}

    def answer(*args: Asked.args, **kwargs: Asked.kwargs) -> Answer:
        question = repr((args, kwargs))
        if question not in known:
            try:
                known[question] = ask(*args, **kwargs)
            except ScenarioError as error:
                known[question] = error
            except (ValueError, TypeError, OSError) as error:
                known[question] = ScenarioError(f"cannot be used: {error}")
        found = known[question]
        if isinstance(found, ScenarioError):
            raise found
        return found

    return answer
