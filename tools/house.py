"""Counts of the package's weight and order: `python -m tools.house` prints each figure with its limit.

A figure over its limit ends with exit code 1; tests/test_house.py holds the limits in `make test`. A limit is lowered
when a change lowers the figure, and is never raised without a reason in the commit.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Final

import networkx as nx

ROOT: Final = Path(__file__).parents[1]
PACKAGE: Final = "simulator"
# Local names that say how a value came about or that it is one of several, and not what it is.
VAGUE: Final = frozenset(
    [
        "told",
        "one",
        "own",
        "made",
        "found",
        "whole",
        "apart",
        "kept",
        "known",
        "wanted",
        "asked",
        "named",
        "held",
        "there",
        "shown",
        "chosen",
        "played",
        "drawn",
        "given",
        "said",
        "alone",
        "alike",
        "taken",
        "seen",
    ]
)
# A record has at most this many fields, a function at most this many parameters.
FIELDS: Final = 20
PARAMETERS: Final = 8
# A record repeats another one if it has at least this many of its fields, and half of them.
REPEATED: Final = 4
# A name of modules stands for too much from this many on.
SHARED_NAME: Final = 4


@dataclass(frozen=True)
class Source:
    """A module of the package: its dotted name, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """First folder below the package that holds the module; the module itself if it lies in none."""
        return self.name.split(".")[1] if "." in self.name else self.name


@dataclass(frozen=True)
class Record:
    """A class with declared fields.

    Attributes
    ----------
    name, module : str
        Name of the class, and of its module.
    kind : str
        "model" (of pydantic), "dataclass", "tuple" or "keys" (a TypedDict).
    fields : tuple of str
        Fields that the class itself declares.
    """

    name: str
    module: str
    kind: str
    fields: tuple[str, ...]


@cache
def sources() -> tuple[Source, ...]:
    """Return the modules of the package, in order of their paths."""
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    texts = ((path, path.read_text()) for path in paths)
    return tuple(
        Source(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"), text, ast.parse(text))
        for path, text in texts
    )


@cache
def records() -> tuple[Record, ...]:
    """Return the classes with declared fields: models, dataclasses, named tuples and typed dictionaries."""
    classes = [(each, node) for each in sources() for node in ast.walk(each.tree) if isinstance(node, ast.ClassDef)]
    bases = {node.name: {_last_name(base) for base in node.bases} for _, node in classes}

    def ancestors(name: str) -> set[str]:
        direct = bases.get(name, set())
        return direct | {far for base in direct if base != name for far in ancestors(base)}

    def kind(node: ast.ClassDef) -> str | None:
        above = ancestors(node.name)
        if any("dataclass" in _last_name(decorator) for decorator in node.decorator_list):
            return "dataclass"
        kinds = {"BaseModel": "model", "NamedTuple": "tuple", "TypedDict": "keys"}
        return next((kinds[base] for base in kinds if base in above), None)

    return tuple(
        Record(node.name, each.name, of, fields)
        for each, node in classes
        if (of := kind(node)) is not None
        for fields in [tuple(_fields(node))]
        if fields
    )


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression such as `pydantic.BaseModel`, `Generic[T]` or `dataclass(frozen=True)`."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """Yield the fields that a class declares; constants of the class are none."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if _last_name(statement.annotation) not in ("ClassVar", "Final"):
            yield statement.target.id


def lines() -> list[str]:
    """Return every line of the package's modules."""
    return [line for each in sources() for line in each.text.splitlines()]


def modules() -> list[str]:
    """Return the names of the package's modules."""
    return [each.name for each in sources()]


def fields_twice() -> list[str]:
    """Return the fields of scenario models that a dataclass declares again."""
    twice = []
    for model in (record for record in records() if record.kind == "model"):
        shared = [
            (set(model.fields) & set(record.fields), record)
            for record in records()
            if record.kind == "dataclass" and record.module != model.module
        ]
        most, record = max(shared, key=lambda pair: len(pair[0]))
        if len(most) >= max(REPEATED, len(model.fields) / 2):
            twice += [f"{model.name}.{name} = {record.name}.{name}" for name in sorted(most)]
    return twice


def large_records() -> list[str]:
    """Return the records with more than FIELDS fields; typed keys for editors repeat a model and are counted there."""
    large = [record for record in records() if len(record.fields) > FIELDS and record.kind != "keys"]
    return [f"{record.module}.{record.name} ({len(record.fields)})" for record in large]


def long_signatures() -> list[str]:
    """Return the functions with more than PARAMETERS parameters, commands and the builders of clusters apart."""
    found = []
    for each in sources():
        if each.package == "cli" or ".builders" in each.name:
            continue
        for node in ast.walk(each.tree):
            if isinstance(node, ast.FunctionDef):
                count = len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs])
                if count > PARAMETERS:
                    found.append(f"{each.name}.{node.name} ({count})")
    return found


def vague_names() -> list[str]:
    """Return every assigned name or parameter that stands in VAGUE."""
    return [name for name in _assigned() if name in VAGUE]


@cache
def _assigned() -> tuple[str, ...]:
    """Return every name that the package assigns, parameters included, as often as it does."""
    nodes = [node for each in sources() for node in ast.walk(each.tree)]
    stored = (node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return (*stored, *(node.arg for node in nodes if isinstance(node, ast.arg)))


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Return pairs (module, imported module) inside the package: at the top, inside functions, and for types alone.

    The names that the package gives its users (`simulator/__init__.py`) are imported when they are used, and count.
    """
    names = set(modules())
    pairs = []
    for each in sources():
        for node in ast.walk(each.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                full = (f"{node.module}.{alias.name}" for alias in node.names)
                pairs += [(each.name, name if name in names else node.module) for name in full]
            elif isinstance(node, ast.Import):
                pairs += [(each.name, alias.name) for alias in node.names]
    return tuple(dict.fromkeys((one, other) for one, other in pairs if other in names and one != other))


def single_module_edges() -> list[str]:
    """Return the edges between packages for which a single module imports, and this module's imports."""
    importers: dict[tuple[str, str], set[str]] = defaultdict(set)
    targets: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, imported in imports():
        edge = (_package(module), _package(imported))
        if edge[0] != edge[1]:
            importers[edge].add(module)
            targets[edge].add(imported)
    return [
        f"{start} -> {end}: {', '.join(importers[start, end])} imports {', '.join(sorted(targets[start, end]))}"
        for start, end in sorted(importers)
        if len(importers[start, end]) == 1
    ]


def _package(module: str) -> str:
    return module.split(".")[1] if "." in module else module


@cache
def package_graph() -> nx.DiGraph:
    """Return the graph of the package's folders and single modules, with an edge from each to those it imports."""
    edges = {(_package(one), _package(other)) for one, other in imports()}
    return nx.DiGraph(sorted(edge for edge in edges if edge[0] != edge[1]))


def layers() -> list[list[str]]:
    """Return the packages by layer, lowest first: a package stands one above the highest that it imports."""
    graph = nx.condensation(package_graph())
    height: dict[int, int] = {}
    for node in reversed(list(nx.topological_sort(graph))):
        height[node] = 1 + max((height[below] for below in graph.successors(node)), default=-1)
    floors: list[list[str]] = [[] for _ in range(max(height.values()) + 1)]
    for node, at in height.items():
        floors[at] += sorted(graph.nodes[node]["members"])
    return floors


def upward_edges() -> list[str]:
    """Return the edges between packages that import each other, directly or through others."""
    rings = [ring for ring in nx.strongly_connected_components(package_graph()) if len(ring) > 1]
    return [f"{one} -> {other}" for one, other in package_graph().edges for ring in rings if {one, other} <= ring]


def class_names_twice() -> list[str]:
    """Return the names that stand for two public classes or more."""
    homes = defaultdict(list)
    for each in sources():
        for node in each.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(each.name)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(homes.items()) if len(where) > 1]


def common_module_names() -> list[str]:
    """Return the module names that SHARED_NAME modules or more have."""
    counts = Counter(module.split(".")[-1] for module in modules() if not _is_folder(module))
    return [f"{name} ({count})" for name, count in sorted(counts.items()) if count >= SHARED_NAME]


def _is_folder(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def documented() -> list[str]:
    """Return the public functions, methods and classes with a docstring, by module and name."""
    return [name for name, _ in _public_docstrings()]


def without_example() -> list[str]:
    """Return the public functions, methods and classes whose docstring has no example."""
    return [name for name, text in _public_docstrings() if ">>>" not in text]


@cache
def _public_docstrings() -> tuple[tuple[str, str], ...]:
    """Return pairs (name, docstring); no part of a name has a leading underscore."""
    public = (each for each in sources() if "._" not in each.name)
    return tuple(pair for each in public for pair in _docstrings(each.tree, each.name))


def _docstrings(node: ast.Module | ast.ClassDef, name: str) -> Iterator[tuple[str, str]]:
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            inner = f"{name}.{child.name}"
            text = ast.get_docstring(child)
            yield from [] if text is None else [(inner, text)]
            yield from _docstrings(child, inner) if isinstance(child, ast.ClassDef) else ()


# Scenarios whose runs are counted: a collective, a step of two kinds of parallelism, and an unknown key.
_RUNS: Final = {
    "collective": """
name: collective
cluster: {topology: dgx_a100, world_size: 8}
collective: {operation: all_reduce, algorithm: ring, size: 16 MiB}
""",
    "step": """
name: step
cluster: {topology: dgx_h100, world_size: 8}
training: {model: gpt2, seq_len: 1024, sharding: zero1, parallelism: {tp: 2, pp: 2}}
""",
    "refusal": """
name: refusal
cluster: {topology: dgx_a100, world_size: 8, world_sizes: 8}
collective: {operation: all_reduce, algorithm: ring, size: 16 MiB}
""",
}
# Runs a scenario as the command does, in one process, and prints the modules of which it calls a function.
_ENTERED: Final = """
import contextlib, io, sys
from simulator.cli import main
entered = set()
def note(frame, event, argument):
    if event == "call":
        name = frame.f_globals.get("__name__", "")
        if name.startswith("simulator.") and frame.f_code.co_name != "<module>":
            entered.add(name)
sys.argv = ["simulator", "run", "s.yaml", "--out", "out"]
# A trace of calls alone: it returns nothing, and lines and returns are not traced.
sys.settrace(note)
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main()
sys.settrace(None)
print("\\n".join(sorted(entered)))
"""


def entered_by(run: str) -> Callable[[], list[str]]:
    """Return a function that returns the modules of which a run (a key of _RUNS) calls a function."""
    return partial(_entered, run)


@cache
def _entered(run: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "s.yaml").write_text(_RUNS[run])
        done = subprocess.run(
            [sys.executable, "-c", _ENTERED],
            capture_output=True,
            text=True,
            check=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    return done.stdout.split()


@dataclass(frozen=True)
class Figure:
    """A count with its limit.

    Attributes
    ----------
    items : callable
        Returns what is counted.
    limit : float
        Largest allowed figure: what it was when it was last lowered.
    aim : float
        Where it is meant to go.
    share_of : callable or None
        Returns the things of which the items are a share [%]; None: the items are counted.
    """

    items: Callable[[], Iterable[object]]
    limit: float
    aim: float
    share_of: Callable[[], Iterable[object]] | None = None

    def value(self) -> float:
        """Return the count, or the share in percent."""
        count = sum(1 for _ in self.items())
        return count if self.share_of is None else round(100 * count / sum(1 for _ in self.share_of()), 2)


FIGURES: Final[Mapping[str, Figure]] = {
    # Lines rose when programs and hosts of frameworks came, whose switches still stand, with Mamba-2, the command that
    # prints a program and its proof, records of frameworks' constants, more formats of machines, and rings over meshes.
    "lines": Figure(lines, 119_000, 100_000),
    "modules": Figure(modules, 790, 640),
    "fields written twice": Figure(fields_twice, 14, 0),
    "records of more than 20 fields": Figure(large_records, 5, 0),
    "functions of more than 8 parameters": Figure(long_signatures, 6, 0),
    "vague local names, %": Figure(vague_names, 0.2, 1.5, _assigned),
    "edges that hang on one module": Figure(single_module_edges, 18, 20),
    "layers": Figure(layers, 10, 10),
    "edges between packages that import each other": Figure(upward_edges, 0, 0),
    "class names of two things": Figure(class_names_twice, 0, 0),
    "module names that four modules have": Figure(common_module_names, 0, 0),
    "public docstrings without an example, %": Figure(without_example, 85.0, 85, documented),
    "modules that a collective enters": Figure(entered_by("collective"), 222, 160),
    "modules that a step enters": Figure(entered_by("step"), 318, 200),
    "modules that a refusal enters": Figure(entered_by("refusal"), 80, 80),
}


def main(names: list[str]) -> int:
    """Print all figures, or the items of the figures whose names begin with one of `names`; return the exit code."""
    over = 0
    for name, figure in FIGURES.items():
        if names:
            for item in figure.items() if name.startswith(tuple(names)) else ():
                print(item)
            continue
        value = figure.value()
        over += value > figure.limit
        verdict = "ok  " if value <= figure.limit else "OVER"
        print(f"{verdict} {name}: {value:g} (at most {figure.limit:g}, aim {figure.aim:g})")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
