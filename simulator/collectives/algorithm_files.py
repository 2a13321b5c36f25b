"""Where is the algorithm that a scenario names: in this package, in an installed package, or in a file of the user?

A name with the ending .py is a Python file, which is run; .xml is an MSCCL program, which is read. Any other name is a
shipped algorithm, or an entry point of an installed package. `auto` chooses among shipped algorithms alone.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.basics.input_files import read_bytes
from simulator.collectives.algorithm import ALGORITHMS, Algorithm
from simulator.collectives.foreign_code import algorithm_of, refuse_if_forbidden, run_file
from simulator.collectives.msccl.convert import algorithm_of_program
from simulator.collectives.msccl.read import MOST_BYTES

PYTHON: Final = ".py"
PROGRAM: Final = ".xml"
SUFFIXES: Final = (PYTHON, PROGRAM)
# Group of entry points under which other packages install algorithms: name -> object of class Algorithm.
GROUP: Final = "cluster_simulator.plugins"


def is_file_name(name: str) -> bool:
    """Return True if an algorithm's name is the path of a file."""
    return name.endswith(SUFFIXES)


def runs_code(name: str) -> bool:
    """Return True if code from outside this package runs to find the algorithm `name`."""
    return name.endswith(PYTHON) or (name not in ALGORITHMS.names() and name in installed_names())


def located(name: str, base: Path | None = None) -> str:
    """Return an algorithm's name with a file's path made absolute; `base` is the folder for relative paths."""
    return str(((base or Path()) / name).absolute()) if is_file_name(name) else name


def find_algorithm(name: str, base: Path | None = None) -> Algorithm:
    """Return the algorithm of a name or a file's path; `base` is the folder for relative paths.

    An unchanged file is loaded once in a process.

    Raises
    ------
    ScenarioError
        The file cannot be read or declares no algorithm, or code from outside is forbidden.
    UnknownNameError
        There is no such name.
    """
    if is_file_name(name):
        if name.endswith(PYTHON):
            refuse_if_forbidden(name)
        path = located(name, base)
        return _loaded(path, read_bytes(path, source=name, most=MOST_BYTES))
    if name in ALGORITHMS.names():
        return ALGORITHMS.find(name)
    for entry in _installed():
        if entry.name == name:
            refuse_if_forbidden(name)
            return _of_entry(entry)
    raise UnknownNameError("algorithm", name, (*ALGORITHMS.names(), *installed_names()))


@cache
def _loaded(path: str, content: bytes) -> Algorithm:
    # The content is part of the cache's key: a file that was changed in the meantime is loaded again.
    name = Path(path).name
    return run_file(name, path, content) if name.endswith(PYTHON) else algorithm_of_program(content, name)


def installed_names() -> tuple[str, ...]:
    """Return the names of algorithms of other installed packages, sorted, without importing them."""
    return tuple(sorted({entry.name for entry in _installed()}))


@cache
def _installed() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP))


@cache
def _of_entry(entry: EntryPoint) -> Algorithm:
    try:
        declared = entry.load()
    # The package's code may raise any error.
    except Exception as error:
        raise ScenarioError(f"{entry.name}: {entry.value} cannot be imported: {error}") from error
    return algorithm_of(declared, entry.name, entry.value)
