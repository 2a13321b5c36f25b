"""Records which tests enter functions of chosen modules: a plugin of pytest, `-p tools.entered`, for tools/mutants.py.

build/covered.json has a line for every test that enters such a function: its name, its seconds, and the functions. What
other processes enter, those of a pool for instance, is not recorded. A file that ran to its end has a line without
seconds.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]
RECORDS: Final = ROOT / "build" / "covered.json"
# Environment variables: the files whose functions are recorded, and a file with the names of the tests to run.
RECORDED: Final = "ENTERED_RECORDED"
CHOSEN: Final = "ENTERED_CHOSEN"
# Folders of tests, small tests first; the package has examples.
_FOLDERS: Final = ("unit", "theory", "traces", "golden", ".", "traced", "contracts", "properties", "browser")
# Files that one process runs; it begins anew with every import.
_AT_ONCE: Final = 8


def qualified_names(tree: ast.Module) -> dict[int, str]:
    """Return the qualified name of the innermost function or class of every row (from 0) that lies in one."""
    names: dict[int, str] = {}

    def enter(node: ast.AST, outer: str) -> None:
        for part in ast.iter_child_nodes(node):
            inner = outer
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{outer}.{part.name}".lstrip(".")
                names.update(dict.fromkeys(range(part.lineno - 1, part.end_lineno or 0), inner))
            enter(part, inner)

    enter(tree, "")
    return names


class _NotingLoader(SourceFileLoader):
    """Loads a module whose functions note that they are entered."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the module's source with a note at the beginning of every function."""
        tree = ast.parse(Path(self.path).read_text())
        names, file = qualified_names(tree), Path(self.path).relative_to(ROOT).as_posix()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                note = ast.parse(f"__entered__.add('{file}::{names[node.lineno - 1]}')").body[0]
                node.body.insert(ast.get_docstring(node) is not None, ast.copy_location(note, node.body[0]))
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    @classmethod
    def find_spec(cls, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """Find a recorded module for Python's import."""
        recorded = f"{name.replace('.', '/')}.py" in os.environ[RECORDED].split()
        spec = PathFinder.find_spec(name, path) if recorded else None
        if spec and spec.origin:
            spec.loader = cls(name, spec.origin)
        return spec


def pytest_load_initial_conftests() -> None:
    """Begin to record, before the first module of the package is imported."""
    builtins.__entered__ = set()
    if RECORDED in os.environ:
        sys.meta_path.insert(0, _NotingLoader)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record a test."""
    start = time.monotonic()
    result = yield
    _record(item.nodeid, time.monotonic() - start)
    return result


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Record a file whose tests are collected; all of them may depend on what that enters, and take a while."""
    _record(report.nodeid, 30.0)


def _record(name: str, seconds: float) -> None:
    functions: set[str] = builtins.__entered__
    if functions and ".py" in name:
        _append([name, round(seconds, 3), sorted(functions)])
    functions.clear()


def _append(record: list[object]) -> None:
    with RECORDS.open("a") as out:
        out.write(f"{json.dumps(record)}\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the chosen tests, in their order; a file stands for all its tests."""
    if CHOSEN in os.environ:
        ranks = {name: rank for rank, name in enumerate(Path(os.environ[CHOSEN]).read_text().split("\n"))}
        files = {item: item.nodeid.partition("::")[0] for item in items}
        ranked = [
            (rank, item) for item in items if (rank := ranks.get(item.nodeid, ranks.get(files[item]))) is not None
        ]
        items[:] = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def cover(modules: Iterable[Path]) -> None:
    """Run the suite, without the files that ran before, and record the tests that enter functions of modules."""
    RECORDS.parent.mkdir(exist_ok=True)
    environment = {**os.environ, RECORDED: " ".join(module.relative_to(ROOT).as_posix() for module in modules)}
    files = _not_run()
    for some in (files[first : first + _AT_ONCE] for first in range(0, len(files), _AT_ONCE)):
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tools.entered", *some]
        subprocess.run(command, cwd=ROOT, env=environment, check=False)
        for file in some:
            _append([file, None, []])


def _not_run() -> list[str]:
    complete = {name for name, seconds, _ in _records() if seconds is None}
    files = [file for folder in _FOLDERS for file in sorted((ROOT / "tests" / folder).glob("test_*.py"))]
    names = [*(file.relative_to(ROOT).as_posix() for file in files), "simulator"]
    return [name for name in names if name not in complete]


def _records() -> list[tuple[str, float | None, list[str]]]:
    return [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []


def tests_of(file: str, function: str) -> list[str]:
    """Return the tests that enter a function, or one inside it; then the files that did not run yet.

    First come tests that enter little else, which are fast and notice most. A class, and a file ("" for the function),
    are entered with any of their functions.
    """
    start = f"{file}::{function}." if function else f"{file}::"
    records = [record for record in _records() if any(f"{each}.".startswith(start) for each in record[2])]
    entering = {name: (len(functions), seconds) for name, seconds, functions in records}
    return [*sorted(entering, key=lambda name: entering[name]), *_not_run()]
