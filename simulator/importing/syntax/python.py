"""Which data does a Python configuration hold? The file is parsed and never executed.

Read are functions that return a call with keyword arguments, such as `return Trainer.Config(training=...)`: literals,
and calls with further keyword arguments. A function may also start from another function of the same file and assign
literals to attributes. Everything else is unresolved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.plain_data import DEEPEST
from simulator.importing.settings import Setting, Unresolved

# Key of the setting that holds the function's name.
FUNCTION: Final = "function"


def read(text: str, source: str, function: str | None) -> list[list[Setting]]:
    """Return the settings that a function of a Python file returns, as a single reading.

    Parameters
    ----------
    text : str
        The file's text.
    source : str
        Name of the file.
    function : str or None
        Name of the function; None if the file has only one.

    Raises
    ------
    ScenarioError
        The text is no Python, or the function is missing.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise ScenarioError(f"{source}:{error.lineno or 1}: not Python: {error.msg}") from error
    # Raised for text that is nested too deeply, and for a zero byte.
    except (RecursionError, MemoryError, ValueError) as error:
        raise ScenarioError(f"{source}: not readable as Python: {str(error) or 'nested too deeply'}") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if function is None and len(functions) == 1:
        function = next(iter(functions))
    if function not in functions:
        hint = one_of(functions, function or "") if functions else "the file has no function"
        raise ScenarioError(f"{source}: name the function, as in {source}:NAME; {hint}")
    found = _Configuration(source, functions).of(function)
    return [[Setting(FUNCTION, function, source, functions[function].lineno), *found.values()]]


@dataclass(frozen=True, slots=True)
class _Configuration:
    source: str
    functions: dict[str, ast.FunctionDef]

    def of(self, name: str, depth: int = 0) -> dict[str, Setting]:
        """Return the settings that a function returns, by key."""
        if depth > DEEPEST:
            raise ScenarioError(f"{self.source}: {name}: functions start from each other without an end")
        found, variable = dict[str, Setting](), ""
        for statement in self.functions[name].body:
            if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Call):
                found |= self._call(statement.value, depth)
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name) and isinstance(statement.value, ast.Call) and not variable:
                    variable = target.id
                    found |= self._call(statement.value, depth)
                    continue
                key = _attribute(target, variable)
                # An assigned section replaces the section's earlier settings.
                found = {one: setting for one, setting in found.items() if not f"{one}.".startswith(f"{key}.")}
                found |= {one.key: one for one in self._settings(key, statement.value, 0)}
            elif not _is_idle(statement):
                line = statement.lineno
                key = f"{type(statement).__name__} in line {line}"
                found[key] = Setting(key, Unresolved("a statement that is not evaluated"), self.source, line)
        return found

    def _call(self, call: ast.Call, depth: int) -> dict[str, Setting]:
        """Return the settings of a call: of a function of the file, or of keyword arguments."""
        if isinstance(call.func, ast.Name) and call.func.id in self.functions and not call.args:
            return self.of(call.func.id, depth + 1)
        return {one.key: one for keyword in call.keywords for one in self._settings(keyword.arg, keyword.value, 0)}

    def _settings(self, key: str | None, node: ast.expr, depth: int) -> Iterator[Setting]:
        """Yield the settings of an argument: of a literal, of a call's keyword arguments, of the calls in a list."""
        name = key or "**"
        if depth > DEEPEST:
            raise ScenarioError(f"{self.source}:{node.lineno}: nested too deeply; at most {DEEPEST} levels")
        if isinstance(node, ast.Call):
            # An argument by position, as in model_registry("8B").
            if len(node.args) == 1 and (literal := _literal(node.args[0])) is not None:
                yield Setting(name, literal, self.source, node.lineno)
            elif not node.keywords:
                yield Setting(f"{name}.{_called(node)}", True, self.source, node.lineno)
            for keyword in node.keywords:
                yield from self._settings(f"{name}.{keyword.arg or '**'}", keyword.value, depth + 1)
            return
        if isinstance(node, ast.List | ast.Tuple) and any(isinstance(one, ast.Call) for one in node.elts):
            for one in node.elts:
                if isinstance(one, ast.Call):
                    inner = f"{name}.{_called(one)}"
                    yield Setting(inner, True, self.source, one.lineno)
                    for keyword in one.keywords:
                        yield from self._settings(f"{inner}.{keyword.arg or '**'}", keyword.value, depth + 1)
            return
        literal = _literal(node)
        if literal is not None:
            yield Setting(name, literal, self.source, node.lineno)
        elif not (isinstance(node, ast.Constant) and node.value is None):
            yield Setting(name, Unresolved(f"a {type(node).__name__.lower()}"), self.source, node.lineno)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for None and for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.List | ast.Tuple):
        found = [_literal(one) if isinstance(one, ast.Constant) else None for one in node.elts]
        return None if any(one is None for one in found) else found
    return None


def _called(call: ast.Call) -> str:
    """Return the name of what is called, without `.Config` and modules."""
    node = call.func
    while isinstance(node, ast.Attribute) and node.attr == "Config":
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "call"


def _attribute(target: ast.expr, variable: str) -> str:
    """Return the dotted key of an assigned attribute, as in config.training.seq_len."""
    names = list[str]()
    while isinstance(target, ast.Attribute) and len(names) < DEEPEST:
        names.append(target.attr)
        target = target.value
    known = isinstance(target, ast.Name) and target.id == variable
    return ".".join(reversed(names)) if known and names else f"assignment in line {target.lineno}"


def _is_idle(statement: ast.stmt) -> bool:
    """Return True for a statement that sets nothing: a docstring, `pass`, `return config`, an import."""
    if isinstance(statement, ast.Return):
        return isinstance(statement.value, ast.Name)
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return text or isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom)
