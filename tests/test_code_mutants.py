"""Mutants: every operator changes what it says, and those of the list can be put into the present code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import entered, mutants
from tools.faults import edits

SOURCE = '''
"""Docstring with 1 < 2."""

import os
__all__ = ["f"]

def f(a: "Literal[1]", b: int = 3, *, key: bool = True) -> dict["str", 4]:
    """Return 1 < 2."""
    if a < b and key:
        raise ValueError("1 < 2", a < b)
    c = a + b // max(a, b)
    d = {"name": c}["name"]
    label = f"{a < b}" + "text"
    g(a, key=not key)
    return d

if TYPE_CHECKING:
    x = 1 < 2
'''

CHANGES = {
    ("number", 'def f(a: "Literal[1]", b: int = 4, *, key: bool = True) -> dict["str", 4]:'),
    ("comparison", "if a <= b and key:"),
    ("boolean operator", "if a < b or key:"),
    ("negated condition", "if not (a < b and key):"),
    ("arithmetic", "c = a - b // max(a, b)"),
    ("arithmetic", "c = a + b / max(a, b)"),
    ("min max", "c = a + b // min(a, b)"),
    ("string key", 'd = {"name_": c}["name"]'),
    ("string key", 'd = {"name": c}["name_"]'),
    ("dropped argument", "g(a)"),
    ("dropped not", "g(a, key=key)"),
    ("returned None", "return None"),
}


def test_every_operator_changes_code_and_nothing_else() -> None:
    assert {(operator, line.strip()) for operator, _, line in edits(SOURCE)} == CHANGES


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("    f(\n        a=b,\n    )", ""),
        ("f(a=b, c=d(1))", "f(c=d(1))"),
        ("f(a=b)", "f()"),
        ("f(a, *b, c=d)", "f(a, *b)"),
    ],
)
def test_an_argument_is_dropped_with_its_comma(line: str, changed: str) -> None:
    text = f"if x:\n    {line.strip()}"
    assert changed in [new.strip() for operator, _, new in edits(text) if operator == "dropped argument"]


def package(root: Path) -> Path:
    """Two folders of a package: one with the functions of SOURCE, one with a small module."""
    for folder, text in {"large": 3 * SOURCE.replace("__all__", "NAMES"), "small": SOURCE}.items():
        (root / "simulator" / folder).mkdir(parents=True)
        (root / "simulator" / folder / "__init__.py").write_text("")
        (root / "simulator" / folder / "code.py").write_text(text if folder == "small" else renamed(text))
    return root


def renamed(text: str) -> str:
    """Give every function of a text a name of its own."""
    first, *others = text.split("def f(")
    return first + "".join(f"def f{number}({other}" for number, other in enumerate(others))


def test_draws_are_deterministic_and_take_from_every_folder(tmp_path: Path) -> None:
    root = package(tmp_path)
    drawn = mutants.draw(61, 4, root)
    assert drawn == mutants.draw(61, 4, root) != mutants.draw(62, 4, root)
    assert sorted(mutant.package for mutant in drawn) == ["simulator/large"] * 3 + ["simulator/small"]
    for mutant in drawn:
        file, text = mutants.applied(mutant, root) or pytest.fail(f"gone: {mutant}")
        compile(text, file, "exec")
        assert text != file.read_text()


def test_a_mutant_follows_its_function_into_another_file(tmp_path: Path) -> None:
    root = package(tmp_path)
    mutant = mutants.Mutant(
        "simulator/small", "simulator/small/code.py", "f", "return d", "return None", "returned None"
    )
    moved = root / "simulator" / "large" / "elsewhere.py"
    (root / mutant.file).rename(moved)
    assert mutants.applied(mutant, root) == (moved, SOURCE.replace("return d\n", "return None\n"))
    moved.write_text(SOURCE.replace("return d\n", "return c\n"))
    assert mutants.applied(mutant, root) is None


def test_functions_and_classes_have_qualified_names() -> None:
    names = entered.qualified_names(
        mutants.ast.parse("class A:\n    x = 1\n    def f(self):\n        def g(): ...\ny = 2")
    )
    assert names == {0: "A", 1: "A", 2: "A.f", 3: "A.f.g"}


def test_every_mutant_of_the_list_can_be_put_into_the_present_code() -> None:
    """Whoever changes the line of a mutant, changes the line in tools/mutants.json too."""
    assert [mutant for mutant in mutants.read() if mutants.applied(mutant) is None] == []
