"""Runs code from outside this package: may it run at all, where is it, and what is wrong with it?

The code is a Python file of the user, or a module of an installed package (an entry point). It declares records in the
form of this package's own modules. Faults of the code are told in one line, with the file and the line.

No other module runs such code. A ForeignCodeWarning precedes the first run of a file in a process; worker processes are
silent, because their parent has warned.
"""

from __future__ import annotations

import hashlib
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from simulator.basics.errors import ForeignCodeWarning, ScenarioError, SimulatorError
from simulator.basics.input_files import read_bytes

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PYTHON: Final = ".py"
# Environment variable that forbids code from outside this package; worker processes inherit it.
NO_PLUGINS: Final = "SIMULATOR_NO_PLUGINS"
# Group of entry points under which other packages install parts: name -> a record, or a module with records.
GROUP: Final = "cluster_simulator.plugins"
# A file of code above this size was not written by a person.
_MOST_BYTES: Final = 2**24

P = ParamSpec("P")
R = TypeVar("R")


def refuse_if_forbidden(name: str) -> None:
    """Raise ScenarioError if the user has forbidden code from outside this package; `name` is the code's name."""
    if os.environ.get(NO_PLUGINS, "0") not in ("", "0"):
        raise ScenarioError(
            f"got {name!r}, whose code is not run, because --no-plugins or {NO_PLUGINS} forbids it; omit the option, "
            "or write a shipped name"
        )


def is_python_file(name: object) -> bool:
    """Return True if a value is the path of a Python file."""
    return isinstance(name, str) and name.endswith(PYTHON)


def is_foreign(name: str) -> bool:
    """Return True if a name is the path of a Python file, or an entry point of an installed package."""
    return is_python_file(name) or name in installed_names()


def located(name: str, base: Path | None = None) -> str:
    """Return a name unchanged, and the path of a Python file made absolute; relative paths start from `base`.

    >>> located("ring.py", Path("/parts")), located("ring", Path("/parts"))
    ('/parts/ring.py', 'ring')
    """
    return str(((base or Path()) / name).absolute()) if is_python_file(name) else name


def file_name(name: str) -> str:
    """Return a name unchanged, and the path of a Python file without its folders.

    >>> file_name("/home/parts/ring.py"), file_name("ring")
    ('ring.py', 'ring')
    """
    return Path(name).name if is_python_file(name) else name


@dataclass(frozen=True, slots=True)
class Origin:
    """The file of foreign code."""

    name: str  # name in messages
    path: str  # path of the file

    def fault(self, error: BaseException) -> ScenarioError:
        """Return an error of the code as a line: file, line in the file, kind and message."""
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == self.path]
        line = error.lineno if isinstance(error, SyntaxError) else (lines or [None])[-1]
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        text = " ".join(f"{type(error).__name__}{f': {message}' if message else ''}".split())
        return ScenarioError(f"{self.name}{f':{line}' if line else ''}: {text}")

    @contextmanager
    def telling(self, refusals: tuple[type[Exception], ...] = ()) -> Iterator[None]:
        """Turn every error of the block into a ScenarioError, except errors of the simulator and `refusals`."""
        kinds: tuple[type[Exception], ...] = (SimulatorError, *refusals)
        try:
            yield
        except kinds:
            raise
        except Exception as error:
            raise self.fault(error) from error

    def guarded(self, function: Callable[P, R], refusals: tuple[type[Exception], ...] = ()) -> Callable[P, R]:
        """Return a function of the code whose errors are told as in `telling`."""

        @wraps(function)
        def told(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.telling(refusals):
                return function(*args, **kwargs)

        return told

    def guarded_record(self, record: R, refusals: tuple[type[Exception], ...] = ()) -> R:
        """Return a declared record whose functions are `guarded`; raise ScenarioError if a function is missing."""
        if not is_dataclass(record) or isinstance(record, type):
            return record
        values = {field.name: getattr(record, field.name) for field in fields(record) if field.init}
        for field in fields(record):
            if field.name in values and callable(field.default) and not callable(values[field.name]):
                what = f"{type(record).__name__}.{field.name} is a {type(values[field.name]).__name__}"
                raise ScenarioError(f"{self.name}: {what}; must be a function; omit it for the default")
        return replace(
            record, **{key: self.guarded(value, refusals) for key, value in values.items() if _is_function(value)}
        )


@dataclass(frozen=True, slots=True)
class GuardedObject:
    """An object of foreign code whose methods raise ScenarioError for every error."""

    target: Any
    origin: Origin

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        return self.origin.guarded(value) if callable(value) else value


def _is_function(value: Any) -> bool:
    # Functions of this package that a record refers to raise errors of their own.
    shipped = str(getattr(value, "__module__", "")).startswith("simulator.")
    return callable(value) and not isinstance(value, type) and not shipped


@dataclass(frozen=True, slots=True)
class Foreign:
    """Loaded code from outside this package: a module, or the object that an entry point names."""

    origin: Origin
    declared: Any


def load_file(name: str, base: Path | None = None) -> Foreign:
    """Run a Python file and return its module; an unchanged file runs once in a process.

    Parameters
    ----------
    name : str
        The file's path.
    base : Path, optional
        Folder for a relative path.

    Raises
    ------
    ScenarioError
        The file cannot be read, its code raises an error, or code from outside is forbidden.
    """
    refuse_if_forbidden(name)
    path = located(name, base)
    # The content is part of the cache's key: a file that was changed in the meantime is loaded again.
    return _run(path, read_bytes(path, source=name, most=_MOST_BYTES))


def _compiled(content: bytes, path: str) -> CodeType:
    try:
        return compile(content, path, "exec")
    # Before Python 3.11.4, null bytes are a ValueError.
    except ValueError as error:
        raise SyntaxError(str(error)) from error


@cache
def _warn(name: str) -> None:
    """Warn, once for a name in a process, that the code of this name begins to run."""
    # Imported here: most commands run no foreign code.
    from multiprocessing import parent_process

    if parent_process() is None:
        warnings.warn(f"runs the code of {_near(name)}", ForeignCodeWarning, stacklevel=2)


def _near(path: str) -> str:
    """Return the path relative to the working directory if it is inside, else unchanged."""
    return str(Path(path).relative_to(Path.cwd())) if Path(path).is_relative_to(Path.cwd()) else path


@cache
def _run(path: str, content: bytes) -> Foreign:
    # Faults are not cached: what the code lacked, such as a file that it reads, may be there the next time.
    origin = Origin(Path(path).name, path)
    digest = hashlib.sha256(path.encode() + b"/" + content).hexdigest()
    module = ModuleType(f"simulator_plugin_{digest[:16]}")
    module.__file__ = path
    # Dataclasses look up their module by name.
    sys.modules[module.__name__] = module
    try:
        # `path` as the file name makes tracebacks name the file's lines.
        code = _compiled(content, path)
    except SyntaxError as error:
        raise origin.fault(error) from error
    _warn(path)
    try:
        exec(code, module.__dict__)
    # SystemExit too: a file that ends the interpreter is a fault of the file.
    except (Exception, SystemExit) as error:
        raise origin.fault(error) from error
    return Foreign(origin, module)


def installed_names() -> tuple[str, ...]:
    """Return the names of the entry points of other installed packages, sorted, without importing them."""
    return tuple(sorted({entry.name for entry in _installed()}))


def installed_of(constant: str) -> tuple[str, ...]:
    """Return the names of entry points that may declare a record, sorted, without importing them.

    An entry point of another record (`module:SCHEDULE`) is left out; of an entry point that names a module alone, the
    records are unknown before the import.
    """
    return tuple(
        sorted({part.name for part in _installed() if not (part.attr or "").isupper() or part.attr == constant})
    )


def load_installed(name: str) -> tuple[Foreign, ...]:
    """Import the entry points of a name, and return what they name; empty if there are none.

    Raises
    ------
    ScenarioError
        An import fails, or code from outside is forbidden.
    """
    entries = [entry for entry in _installed() if entry.name == name]
    if entries:
        refuse_if_forbidden(name)
    return tuple(map(_of_entry, entries))


def require_record(name: str, constant: str, kind: str, base: Path | None = None) -> None:
    """Load foreign code by the path of a file or the name of an entry point, and check its record without its catalog.

    For records whose classes are in packages above the caller; `kind` is the name of the class.

    Raises
    ------
    ScenarioError
        The code cannot be loaded, or has no such record.
    """
    for foreign in (load_file(name, base),) if is_python_file(name) else load_installed(name):
        is_module = isinstance(foreign.declared, ModuleType)
        record = getattr(foreign.declared, constant, None) if is_module else foreign.declared
        if record is None:
            raise ScenarioError(f"{foreign.origin.name}: declares no {constant}; write `{constant} = {kind}(...)`")
        if kind not in [each.__name__ for each in type(record).__mro__]:
            class_name = type(record).__name__
            raise ScenarioError(f"{foreign.origin.name}: {constant} is a {class_name}; must be a {kind}")


@cache
def _installed() -> tuple[EntryPoint, ...]:
    # Imported here: most scenarios name shipped parts alone, and the import takes a while.
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


@cache
def _of_entry(entry: EntryPoint) -> Foreign:
    _warn(entry.name)
    try:
        declared = entry.load()
    # The package's code may raise any error.
    except Exception as error:
        raise ScenarioError(f"{entry.name}: {entry.value} cannot be imported: {error}") from error
    path = getattr(sys.modules.get(entry.module), "__file__", None) or entry.value
    return Foreign(Origin(Path(path).name, path), declared)
