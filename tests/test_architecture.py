"""The house stands as docs/design.md draws it: who may import whom, and what no room may do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import networkx as nx
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "simulator").rglob("*.py"))


@cache
def text_of(module: Path) -> str:
    return module.read_text(encoding="utf-8")


@cache
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    """Return the nodes of a module's syntax tree, the module's own first; every check reads the same ones."""
    return tuple(ast.walk(ast.parse(text_of(module))))


def test_every_import_contract_is_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out


def imported(module: Path) -> Iterator[str]:
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def test_no_text_counts_bytes_in_decimal_units() -> None:
    """Amounts of bytes are printed in GiB and MiB, rates in GB/s."""
    found = [
        (path.relative_to(ROOT).as_posix(), part.value)
        for path in MODULES
        for node in nodes_of(path)
        if isinstance(node, ast.JoinedStr)
        for before, part in pairwise(node.values)
        if isinstance(before, ast.FormattedValue) and isinstance(part, ast.Constant)
        and re.match(r" ?[kMGT]B\b(?!/s)", str(part.value))
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("simpy", ("simulator/engine",)),
        (
            "matplotlib",
            (
                "simulator/report/plots",
                "simulator/calibration",
                "simulator/results",
                "simulator/testing/looking.py",
                "simulator/api/figures.py",
                "simulator/api/runs.py",
            ),
        ),
        ("yaml", ("simulator/basics/document.py", "simulator/basics/yaml_dialect.py")),
        ("distributed", ("simulator/sweeps/dask_cluster.py",)),
    ],
)
def test_a_package_is_imported_only_where_it_is_at_home(package: str, homes: tuple[str, ...]) -> None:
    users = [m.relative_to(ROOT).as_posix() for m in MODULES if package in set(imported(m))]
    assert users
    assert [user for user in users if not user.startswith(homes)] == []


def test_a_module_says_its_rule_asserts_nothing() -> None:
    without, asserting, vague = [], [], []
    for module in MODULES:
        tree, *nodes = nodes_of(module)
        name = module.relative_to(ROOT).as_posix()
        without += [] if isinstance(tree, ast.Module) and ast.get_docstring(tree) else [name]
        asserting += [f"{name}:{node.lineno}" for node in nodes if isinstance(node, ast.Assert)]
        vague += [name] if module.stem in ("utils", "helpers", "common", "base") else []
    assert without == [], "every module opens with what it is"
    assert asserting == [], "assert is gone under -O"
    assert vague == []


def loaded_by(statement: str) -> set[str]:
    """Packages of a fresh interpreter after a statement."""
    show = f"import sys; {statement}; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", show], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_importing_the_package_for_its_names_loads_nothing_heavy() -> None:
    heavy = {"numpy", "matplotlib", "pandas", "networkx", "simpy", "pydantic", "yaml", "scipy"}
    assert (
        loaded_by("import simulator, simulator.basics.errors; from simulator.basics import units, registry, dtypes")
        & heavy
        == set()
    )


def test_playing_a_scenario_draws_nothing() -> None:
    play = (
        "from simulator import load_scenario, simulate; simulate(load_scenario({'name': 'x', 'cluster': {'topology': "
    )
    play += "'star_100g', 'world_size': 2}, 'collective': {'operation': 'all_reduce', 'size': '8 B'}}))"
    assert loaded_by(play) & {"matplotlib", "pandas", "scipy"} == set()


def test_an_algorithm_is_one_file_that_is_found_by_itself() -> None:
    from simulator.collectives.algorithm import ALGORITHMS

    folder = ROOT / "simulator" / "collectives"
    declaring = {m.stem for m in folder.glob("*.py") if "\nALGORITHM = " in text_of(m)}
    assert set(ALGORITHMS.names()) == declaring
    for name in ALGORITHMS.names():
        # Nobody else knows it by name, but for the choice, which falls back on a ring where nothing is foreseen.
        users = [m.stem for m in folder.glob("*.py") if f'"{name}"' in text_of(m) and m.stem != name]
        assert set(users) <= {"choose"}, name


def test_nobody_asks_for_a_strategy_by_its_name() -> None:
    """What differs between strategies stands in their records; comparing names is how one of them is forgotten."""
    from simulator.step.strategies.strategy import STRATEGIES

    asking = []
    for module in MODULES:
        for node in nodes_of(module):
            parts = ast.walk(node) if isinstance(node, ast.Compare | ast.MatchValue) else ()
            if any(isinstance(part, ast.Constant) and part.value in STRATEGIES.names() for part in parts):
                asking.append(f"{module.relative_to(ROOT)}:{node.lineno}")
    assert asking == []


def test_a_strategy_is_one_file_that_is_found_by_itself() -> None:
    from simulator.step.strategies.strategy import STRATEGIES

    folder = ROOT / "simulator" / "step" / "strategies"
    assert set(STRATEGIES.names()) == {m.stem for m in folder.glob("*.py") if "\nSTRATEGY = " in text_of(m)}
    assert [name for name in STRATEGIES.names() if STRATEGIES.find(name).name != name] == []


def test_a_plot_is_one_file_that_is_found_by_itself() -> None:
    from simulator.report.plots import catalog as plot_catalog
    from simulator.scenario import plot_names

    # A module without a PLOT would be a name that scenarios may write and nothing draws.
    for kind in ("collective", "training"):
        assert tuple(plot_catalog.of(kind)) == plot_names.names_of(kind)
    # Who draws them brings what they need, and knows none by name.
    pictures = (ROOT / "simulator" / "results" / "pictures.py").read_text()
    assert [name for name in plot_names.names() if f'"{name}"' in pictures] == []


def imports_of(module: Path) -> Iterator[str]:
    """Return the modules of the package that a module imports: at its top, inside functions, or for its types alone."""
    for node in nodes_of(module):
        if isinstance(node, ast.ImportFrom) and node.module:
            wanted = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in NAMES else node.module for name in wanted)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def name_of(module: Path) -> str:
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


NAMES = frozenset(map(name_of, MODULES))


@cache
def import_graph() -> nx.DiGraph:
    """Return the graph of modules, with an edge from each to the modules that it imports."""
    graph = nx.DiGraph()
    for module in MODULES:
        found = (name for name in imports_of(module) if name.startswith("simulator."))
        graph.add_edges_from((name_of(module), name) for name in found)
    return graph


def test_no_modules_import_each_other() -> None:
    assert [sorted(ring) for ring in nx.strongly_connected_components(import_graph()) if len(ring) > 1] == []


def test_packages_have_at_most_nine_layers() -> None:
    """Packages on the longest chain of imports between packages; the single modules above them are doors."""
    folders = {path.parent.name for path in (ROOT / "simulator").glob("*/__init__.py")}
    ends = ((one.split(".")[1], other.split(".")[1]) for one, other in import_graph().edges if one != "simulator")
    packages = nx.DiGraph(end for end in ends if end[0] != end[1] and folders.issuperset(end))
    assert nx.dag_longest_path_length(packages) + 1 <= 9


def test_the_whole_way_is_said_on_one_page() -> None:
    assert len((ROOT / "simulator" / "run" / "simulate.py").read_text().splitlines()) <= 100
    loose = {module.stem for module in (ROOT / "simulator").glob("*.py")}
    assert loose == {"__init__", "__main__", "errors", "parts", "plots"}
