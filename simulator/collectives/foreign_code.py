"""Runs the code of a user's algorithm: may it run at all, and what is wrong with the file?

The code is a Python file in the form of this package's algorithms: it declares `ALGORITHM = Algorithm(...)`. Faults of
the code are told in one line, with the file and the line.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from simulator.basics.errors import ScenarioError, SimulatorError, one_of
from simulator.collectives.algorithm import OPERATIONS, Algorithm, CollectiveRequest, Plan
from simulator.records.schedule import Repeat, Round, Schedule

# Environment variable that forbids code from outside this package; worker processes inherit it.
NO_PLUGINS: Final = "SIMULATOR_NO_PLUGINS"
_CONSTANT: Final = "ALGORITHM"


def refuse_if_forbidden(name: str) -> None:
    """Raise ScenarioError if the user has forbidden code from outside this package; `name` is the algorithm's name."""
    if os.environ.get(NO_PLUGINS, "0") not in ("", "0"):
        raise ScenarioError(
            f"got {name!r}, whose code is not run, because --no-plugins or {NO_PLUGINS} forbids it; omit the option, "
            "or write the name of a shipped algorithm"
        )


def run_file(name: str, path: str, content: bytes) -> Algorithm:
    """Run a Python file, and return the algorithm that it declares.

    Parameters
    ----------
    name, path : str
        The file's name in messages, and its path.
    content : bytes
        The file's content.

    Raises
    ------
    ScenarioError
        The code raises an error, or declares no algorithm.
    """
    module = ModuleType(f"simulator_plugin_{hashlib.sha256(content).hexdigest()[:16]}")
    module.__file__ = path
    # Dataclasses look up their module by name.
    sys.modules[module.__name__] = module
    try:
        # `path` as the file name makes tracebacks name the file's lines.
        exec(compile(content, path, "exec"), module.__dict__)
    # SystemExit too: a file that ends the interpreter is a fault of the file.
    except (Exception, SystemExit) as error:
        raise ScenarioError(_fault(name, path, error)) from error
    if not hasattr(module, _CONSTANT):
        raise ScenarioError(f"{name}: declares no {_CONSTANT}; write `{_CONSTANT} = Algorithm(plans=..., ...)`")
    return algorithm_of(getattr(module, _CONSTANT), name, path)


def algorithm_of(declared: Any, name: str, path: str) -> Algorithm:
    """Return the declared object if it is an algorithm, with plans whose errors become ScenarioErrors.

    Raises
    ------
    ScenarioError
        The object is no Algorithm, or has no plan or an unknown operation.
    """
    if not isinstance(declared, Algorithm):
        raise ScenarioError(f"{name}: {_CONSTANT} is a {type(declared).__name__}; must be an Algorithm")
    if not declared.plans:
        raise ScenarioError(f"{name}: {_CONSTANT}.plans is empty; must have a function for at least one operation")
    unknown = [operation for operation in declared.plans if operation not in OPERATIONS]
    if unknown:
        raise ScenarioError(f"{name}: {_CONSTANT}.plans: got {unknown[0]!r}; {one_of(OPERATIONS, unknown[0])}")
    return replace(declared, plans={key: _told(plan, name, path) for key, plan in declared.plans.items()})


def _told(plan: Plan, name: str, path: str) -> Plan:
    """Return a plan function that raises ScenarioError for every error of the code, also of its lazy rounds."""

    def guarded(request: CollectiveRequest) -> Schedule:
        try:
            schedule = plan(request)
        except (SimulatorError, ValueError):
            # A ValueError says that the request is impossible; the planner names the key.
            raise
        except Exception as error:
            raise ScenarioError(_fault(name, path, error)) from error
        if not isinstance(schedule, Schedule):
            kind = type(schedule).__name__
            raise ScenarioError(f"{name}: the plan of {request.operation} returns a {kind}; must return a Schedule")

        def parts() -> Iterator[Round | Repeat]:
            try:
                yield from schedule.parts()
            except SimulatorError:
                raise
            except Exception as error:
                raise ScenarioError(_fault(name, path, error)) from error

        return replace(schedule, parts=parts)

    return guarded


def _fault(name: str, path: str, error: BaseException) -> str:
    """Return the line for an error of the code: file, line in the file, kind and message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{name}{f':{line}' if line else ''}: {type(error).__name__}{f': {message}' if message else ''}"
