"""Puts faults into the package, one at a time, to see which tests notice: before and after tests are removed.

`python -m tools.mutants draw --seed 61 --number 80` draws faults (mutants) over all folders of the package, by their
lines of code, and writes tools/mutants.json. `python -m tools.mutants try [NUMBER ...] --out FILE` puts each into a copy
of the checkout, runs tests until the first failure, and appends the outcome to FILE; with the same FILE it goes on where
it stopped. A mutant's number is its place in the list, from 1. Outcomes:

- caught: the named test fails with the mutant, and passes without it;
- survived: every chosen test passes;
- timeout: the time was over, while the named test ran;
- gone: the line is no longer in a function of its name, or stands there twice.

Tests are chosen by the source text, because a recording of what they enter takes as long as the whole suite: files of
tests from which imports lead to the mutated module, short chains of imports and small tests first.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib.util import cache_from_source
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final, NamedTuple

import networkx as nx

ROOT: Final = Path(__file__).parents[1]
LIST: Final = ROOT / "tools" / "mutants.json"
# Folders of tests, small tests first; the files of tests/ itself come after them.
_FOLDERS: Final = ["unit", "theory", "traces", "golden", "contracts", "properties", "traced", "tests", "browser"]
_TOKENS: Final = dict(
    pair.split(" to ")
    for pair in (
        "< to <=, <= to <, > to >=, >= to >, == to !=, != to ==, in to not in, not in to in, is to is not, is not to is, "
        "+ to -, - to +, * to /, / to *, // to /, % to *, ** to *, += to -=, -= to +=, *= to /=, /= to *=, //= to /=, "
        "and to or, or to and"
    ).split(", ")
)
_EXTREMES: Final = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
# Arguments without an effect on results: texts for people, `strict` of zip, and what a dataclass forbids.
_IDLE_ARGUMENTS: Final = ("description", "help", "strict", "encoding", "stacklevel", "frozen", "slots")
# From here on a number is doubled: one more would be lost in roundings.
_LARGE: Final = 1000


@dataclass(frozen=True)
class Mutant:
    """A fault: `line` of `function` (its qualified name; "" outside functions) becomes `mutated`, both stripped."""

    package: str
    file: str
    function: str
    line: str
    mutated: str
    operator: str


class Edit(NamedTuple):
    """A change of a line (its row from 0) by one operator."""

    operator: str
    row: int
    line: str


def edits(text: str) -> Iterator[Edit]:
    """Yield every change of a single line of a module that the operators provide."""
    lines, pending = text.split("\n"), [ast.parse(text)]
    while pending:
        node = pending.pop()
        yield from _edits(node, lines)
        pending += _code(node)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that may change: no annotations, imports, docstrings, messages, and no `__all__`."""
    for name, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            match part:
                case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Raise() | ast.Expr(value=ast.Constant()):
                    continue
                case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assign(targets=[ast.Name(id="__all__")]):
                    continue
                case ast.AST() if name not in ("annotation", "returns"):
                    yield part


def _edits(node: ast.AST, lines: list[str]) -> Iterator[Edit]:
    """Yield the changes of one node."""

    def replaced(operator: str, part: ast.AST, text: str) -> Iterator[Edit]:
        # Columns count bytes; `{}` stands for the old text.
        line = lines[part.lineno - 1]
        if part.end_lineno == part.lineno and line.isascii():
            start, end = part.col_offset, part.end_col_offset
            yield Edit(operator, part.lineno - 1, line[:start] + text.replace("{}", line[start:end]) + line[end:])

    def swapped(operator: str, *operands: ast.expr) -> Iterator[Edit]:
        for left, right in pairwise(operands):
            line, start, end = lines[right.lineno - 1], left.end_col_offset, right.col_offset
            token = line[start:end].strip(" ()")
            if left.end_lineno == right.lineno and line.isascii() and token in _TOKENS:
                between = line[start:end].replace(token, _TOKENS[token])
                yield Edit(operator, right.lineno - 1, line[:start] + between + line[end:])

    match node:
        case ast.Compare(left=left, comparators=others):
            yield from swapped("comparison", left, *others)
        case ast.BoolOp(values=operands):
            yield from swapped("boolean operator", *operands)
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            # Texts are joined, and patterns filled in, by the same tokens.
            if not any(isinstance(side, ast.JoinedStr) or isinstance(_constant(side), str) for side in (left, right)):
                yield from swapped("arithmetic", left, right)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            yield from replaced("number", node, repr(2 * number if number >= _LARGE else number + 1))
        case ast.UnaryOp(op=ast.Not()):
            for edit in replaced("dropped not", node, "{}"):
                yield edit._replace(line=edit.line[: node.col_offset] + edit.line[node.col_offset + 3 :].lstrip())
        case ast.Return(value=ast.expr() as value) if _constant(value, "text") is not None:
            yield from replaced("returned None", node, "return None")
        case ast.keyword(arg=str(name)) if name not in _IDLE_ARGUMENTS:
            for edit in replaced("dropped argument", node, ""):
                before, after = edit.line[: node.col_offset], edit.line[node.col_offset :]
                comma = after.startswith(",")
                line = before + after[1:].lstrip() if comma else before.removesuffix(", ") + after
                yield edit._replace(line=line)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.comprehension(ifs=[test, *_]):
            yield from replaced("negated condition", test, "not ({})")
        case ast.Call(func=ast.Name(id=name) as function) if name in _EXTREMES:
            yield from replaced("min max", function, _EXTREMES[name])
    match node:
        case ast.Subscript(value=ast.Name(id="Literal")):
            keys: list[ast.expr | None] = []
        case ast.Subscript(slice=key) | ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[key, *_]):
            keys = [key]
        case _:
            keys = getattr(node, "keys", [])
    for key in keys:
        if isinstance(text := _constant(key), str):
            yield from replaced("string key", key, repr(f"{text}_").replace("'", '"'))


def _constant(node: ast.expr | None, other: object = None) -> object:
    return node.value if isinstance(node, ast.Constant) else other


def _scopes(text: str) -> dict[int, str]:
    """Return the qualified name of the innermost function or class of every row (from 0) that lies in one."""
    names: dict[int, str] = {}

    def enter(node: ast.AST, outer: str) -> None:
        for part in ast.iter_child_nodes(node):
            inner = outer
            if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                inner = f"{outer}.{part.name}".lstrip(".")
                names.update(dict.fromkeys(range(part.lineno - 1, part.end_lineno), inner))
            enter(part, inner)

    enter(ast.parse(text), "")
    return names


def _places(mutant: Mutant, files: Iterable[Path]) -> list[tuple[Path, int]]:
    """Return the files and rows where the mutant's line stands in a function of its name."""
    texts = {file: file.read_text() for file in files if file.exists()}
    scopes = {file: _scopes(text) for file, text in texts.items() if mutant.line in text}
    lines = [(file, row, line) for file in scopes for row, line in enumerate(texts[file].split("\n"))]
    return [
        (file, row)
        for file, row, line in lines
        if line.strip() == mutant.line and scopes[file].get(row, "") == mutant.function
    ]


def applied(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str] | None:
    """Return the file that the mutant changes and its changed text; None if its line is gone.

    A function that left the file is looked for in the whole package.
    """
    places = _places(mutant, [root / mutant.file]) or _places(mutant, sorted((root / "simulator").rglob("*.py")))
    if len(places) != 1:
        return None
    file, row = places[0]
    lines = file.read_text().split("\n")
    lines[row] = lines[row].replace(mutant.line, mutant.mutated)
    return file, "\n".join(lines)


def draw(seed: int, number: int, root: Path = ROOT) -> list[Mutant]:
    """Draw mutants over the folders of the package: one of each, the others by lines of code."""
    folders = {
        file.parent: sorted(file.parent.rglob("*.py")) for file in sorted((root / "simulator").glob("*/__init__.py"))
    }
    lines = {folder: sum(len(file.read_text().split("\n")) for file in files) for folder, files in folders.items()}
    counts = dict.fromkeys(lines, 1)
    while sum(counts.values()) < number:
        counts[max(lines, key=lambda folder: lines[folder] / counts[folder])] += 1
    mutants = [
        mutant
        for folder, count in counts.items()
        for mutant in islice(_drawn(folders[folder], root, random.Random(f"{seed} {folder.name}")), count)
    ]
    # Whoever tries only the first of the list tries some of every folder.
    random.Random(seed).shuffle(mutants)
    return mutants


def _drawn(files: list[Path], root: Path, dice: random.Random) -> Iterator[Mutant]:
    """Yield mutants of files, every operator as often and no function twice."""
    choices = defaultdict(list)
    for file in files:
        for edit in edits(file.read_text()):
            choices[edit.operator].append((file, edit))
    functions = set()
    while choices:
        operator = dice.choice(sorted(choices))
        file, edit = choices[operator].pop(dice.randrange(len(choices[operator])))
        if not choices[operator]:
            del choices[operator]
        text, place = file.read_text(), file.relative_to(root)
        function = _scopes(text).get(edit.row, "")
        line = text.split("\n")[edit.row].strip()
        mutant = Mutant("/".join(place.parts[:2]), place.as_posix(), function, line, edit.line.strip(), operator)
        changed = applied(mutant, root)
        if changed and (file, function) not in functions and _differs(text, changed[1]):
            functions.add((file, function))
            yield mutant


def _differs(text: str, changed: str) -> bool:
    """Return whether a changed text compiles, and to something else."""
    with suppress(SyntaxError):
        compile(changed, "mutant", "exec")
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    return False


@cache
def _imports() -> nx.DiGraph:
    """Return the graph of modules of the package and of tests, with an edge from each to those it imports or names.

    Parts are found by the name of their folder, so that a folder stands for all modules in it.
    """
    files = {
        ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
        for folder in ("simulator", "tests")
        for file in sorted((ROOT / folder).rglob("*.py"))
    }
    graph = nx.DiGraph()
    for module, file in files.items():
        names = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names |= {f"{node.module}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Constant) and re.fullmatch(r"simulator(\.\w+)+\.?", str(node.value)):
                names.add(str(node.value).rstrip("."))
        for name in names:
            name = name if name in files else name.rpartition(".")[0]
            inside = [other for other in files if other.startswith(f"{name}.")] if name != "simulator" else []
            graph.add_edges_from((other, module) for other in [name, *inside] if other in files)
    return graph


def tests_of(file: str, function: str) -> list[str]:
    """Return the files of tests that reach a module by imports, those first that are likely to notice a mutant soon."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    ranks = {}
    for reached, distance in nx.single_source_shortest_path_length(_imports(), module).items():
        path = ROOT / f"{reached.replace('.', '/')}.py"
        if path.name.startswith("test_"):
            mentioned = re.search(rf"\b{function.rpartition('.')[2] or 'no function'}\b", path.read_text()) is not None
            rank = distance * (not mentioned) + _FOLDERS.index(path.parent.name)
            ranks[path.relative_to(ROOT).as_posix()] = 0 if module.rpartition(".")[2] in path.name else rank
    # The module first: it may have examples in its docstrings.
    return [file, *sorted(ranks, key=lambda path: (ranks[path], path))]


@contextmanager
def scratch() -> Iterator[Path]:
    """Copy the checkout, with the compiled core, into a folder that is removed afterwards."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    cores = [core.relative_to(ROOT) for core in ROOT.glob("simulator/engine/compiled/_core-*.so")]
    with TemporaryDirectory(prefix="mutants-") as folder:
        for name in [*listed.split("\0")[:-1], *cores]:
            if (ROOT / name).is_file():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder, name))
        yield Path(folder)


def run_tests(copy: Path, seconds: float, *arguments: str) -> tuple[str, str]:
    """Run pytest in a copy until the first failure; return "caught", "survived" or "timeout", and the last test."""
    command = [sys.executable, "-m", "pytest", "-xv", "--tb=no", "-p", "no:cacheprovider", "--hypothesis-seed=61"]
    # The copy precedes the checkout that this environment's Python has in its path.
    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "999", "MPLCONFIGDIR": f"{sys.prefix}/matplotlib"}
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [*command, *arguments], cwd=copy, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(max(0, seconds))
        except subprocess.TimeoutExpired:
            code = None
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        text = log.read()
    # A line is the test's name, and its outcome once it ended; a file that cannot be read is in the summary.
    names = re.findall(r"^(?:ERROR )?((?:tests|simulator)/.+?)(?: (?:[A-Z]{4,} |- ).*)?\s*$", text, re.M)
    return {0: "survived", 5: "survived", None: "timeout"}.get(code, "caught"), names[-1] if names else text[-200:]


def outcome(mutant: Mutant, copy: Path, limit: float, sound: dict[str, bool]) -> dict[str, str]:
    """Return the outcome of a mutant in a copy, and its test; `sound`: whether a test passes without a mutant."""
    change = applied(mutant, copy)
    if change is None:
        return {"outcome": "gone"}
    file, text = change
    original, end = file.read_text(), time.monotonic() + limit
    tests, size = tests_of(file.relative_to(copy).as_posix(), mutant.function), 4

    def write(content: str) -> None:
        # Compiled code is recognised by seconds and bytes, which a mutant may share.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)
        file.write_text(content)

    try:
        while tests:
            write(text)
            unsound = [f"--deselect={name}" for name in sound if not sound[name]]
            verdict, test = run_tests(copy, end - time.monotonic(), *unsound, *tests[:size])
            write(original)
            if verdict == "caught" and test not in sound:
                only = [] if "::" in test else ["--collect-only"]
                sound[test] = run_tests(copy, limit, *only, test)[0] == "survived"
            if verdict == "caught" and not sound[test]:
                continue
            if verdict != "survived":
                return {"outcome": verdict, "test": test}
            # Pytest reads all files before the first test: few at first, because most mutants are caught there.
            tests, size = tests[size:], 2 * size
    finally:
        write(original)
    return {"outcome": "survived"}


def main() -> None:
    """Draw mutants, or try those of the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, trying = commands.add_parser("draw"), commands.add_parser("try")
    drawing.add_argument("--seed", type=int, default=61)
    drawing.add_argument("--number", type=int, default=80)
    trying.add_argument("numbers", type=int, nargs="*")
    trying.add_argument("--out", type=Path, required=True)
    trying.add_argument("--limit", type=float, default=240, help="seconds for one mutant")
    options = parser.parse_args()
    if options.command == "draw":
        LIST.write_text(json.dumps([asdict(mutant) for mutant in draw(options.seed, options.number)], indent=1) + "\n")
        return
    mutants = read()
    results = json.loads(options.out.read_text()) if options.out.exists() else []
    numbers = [n for n in options.numbers or range(1, len(mutants) + 1) if n not in {r["number"] for r in results}]
    with scratch() as copy:
        sound: dict[str, bool] = {}
        for number in numbers:
            start, mutant = time.monotonic(), mutants[number - 1]
            result = outcome(mutant, copy, options.limit, sound)
            results.append({"number": number, **result, "seconds": round(time.monotonic() - start), **asdict(mutant)})
            options.out.write_text(json.dumps(results, indent=1) + "\n")
            print(number, *result.values(), flush=True)


def read() -> list[Mutant]:
    """Return the drawn mutants."""
    return [Mutant(**fields) for fields in json.loads(LIST.read_text())]


if __name__ == "__main__":
    main()
