"""Where is the algorithm that a scenario names: in this package, in an installed package, or in a file of the user?

A name with the ending .py is a Python file, which is run; .xml is an MSCCL program, which is read. Any other name is a
shipped algorithm, or an entry point of an installed package. `auto` chooses among shipped algorithms alone.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import PYTHON
from simulator.basics.input_files import read_bytes
from simulator.collectives.algorithm import ALGORITHMS, Algorithm

PROGRAM: Final = ".xml"
SUFFIXES: Final = (PYTHON, PROGRAM)


def refuse_plan(name: str) -> None:
    """Raise ValueError for a JSON file, such as an execution plan of MSCCL++, which is no program of transfers."""
    if name.lower().endswith(".json"):
        raise ValueError(
            f"got {name!r}; JSON files, such as execution plans of MSCCL++ (mscclpp), are not read: their steps are "
            "copies through channels, without the promise of a result; give an MSCCL program (.xml) or a Python file"
        )


def is_file_name(name: str) -> bool:
    """Return True if an algorithm's name is the path of a file.

    >>> is_file_name("./bruck.py"), is_file_name("bruck.xml"), is_file_name("bruck")
    (True, True, False)
    """
    return name.endswith(SUFFIXES)


def located(name: str, base: Path | None = None) -> str:
    """Return an algorithm's name with a file's path made absolute; `base` is the folder for relative paths.

    >>> located("bruck.xml", Path("/parts")), located("bruck", Path("/parts"))
    ('/parts/bruck.xml', 'bruck')
    """
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
    if name.endswith(PROGRAM):
        # Imported late, here and below, because few scenarios name such a file.
        from simulator.collectives.msccl.xml_reader import MOST_BYTES

        path = located(name, base)
        return _program(path, read_bytes(path, source=name, most=MOST_BYTES))
    try:
        refuse_plan(name)
    except ValueError as error:
        raise ScenarioError(f"algorithm: {error}") from None
    return ALGORITHMS.find(name, base)


@cache
def _program(path: str, content: bytes) -> Algorithm:
    from simulator.collectives.msccl.convert import algorithm_of_program

    # The content is part of the cache's key: a file that was changed in the meantime is read again.
    return algorithm_of_program(content, Path(path).name)
