"""Which data does a Python configuration hold? The file is parsed and never executed.

Read are functions that return a call with keyword arguments, such as `return Trainer.Config(training=...)`: literals,
products of two numbers, local variables, and calls with further keyword arguments. A function may also start from
another function of the same file and assign attributes. Everything else is unresolved.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.plain_data import DEEPEST
from simulator.basics.yaml_dialect import MOST_VALUES
from simulator.importing.settings import Setting, Unresolved

# Key of the setting that holds the function's name.
FUNCTION: Final = "function"
# Largest factor of a product that is computed.
_LARGEST: Final = 10**12


def read(text: str, source: str, function: str | None) -> list[list[Setting]]:
    r"""Return the settings that a function of a Python file returns, as a single reading.

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

    Examples
    --------
    >>> [(setting.key, setting.value) for setting in read("def f():\n    return Job(tp=2)", "job.py", None)[0]]
    [('function', 'f'), ('tp', 2)]
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
    settings = _Configuration(source, functions).of(function)
    return [[Setting(FUNCTION, function, source, functions[function].lineno), *settings.values()]]


@dataclass(frozen=True, slots=True)
class _Configuration:
    """The functions of a file; `names` are the local variables of the function that is read."""

    source: str
    functions: dict[str, ast.FunctionDef]
    names: dict[str, ast.expr] = field(default_factory=dict)
    # Variables may repeat each other: a few lines would stand for billions of settings.
    steps: Iterator[int] = field(default_factory=count)

    def of(self, name: str, depth: int = 0) -> dict[str, Setting]:
        """Return the settings that a function returns, by key."""
        if depth > DEEPEST:
            raise ScenarioError(f"{self.source}: {name}: functions start from each other without an end")
        # Each function has variables of its own.
        inner = _Configuration(self.source, self.functions, steps=self.steps)
        settings, assigned = dict[str, Setting](), list[tuple[ast.expr, ast.expr]]()
        for statement in self.functions[name].body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target = statement.targets[0]
                if isinstance(target, ast.Name):
                    inner.names.setdefault(target.id, statement.value)
                else:
                    assigned.append((target, statement.value))
            elif isinstance(statement, ast.Return) and statement.value is not None:
                settings |= inner.returned(statement.value, assigned, depth)
            elif not _is_idle(statement):
                key = f"{type(statement).__name__.lower()} in line {statement.lineno}"
                value = Unresolved("a statement that is not evaluated")
                settings[key] = Setting(key, value, self.source, statement.lineno)
        return settings

    def returned(
        self, value: ast.expr, assigned: Sequence[tuple[ast.expr, ast.expr]], depth: int
    ) -> dict[str, Setting]:
        """Return the settings of a returned call or variable, with the attributes that were assigned to it."""
        variable = value.id if isinstance(value, ast.Name) else ""
        call = self.names.get(variable, value)
        settings = self._call(call, depth) if isinstance(call, ast.Call) else {}
        for target, node in assigned:
            key = _attribute(target, variable)
            # An assigned section replaces the section's earlier settings.
            settings = {name: setting for name, setting in settings.items() if not f"{name}.".startswith(f"{key}.")}
            settings |= {setting.key: setting for setting in self._settings(key, node, 0)}
        return settings

    def _call(self, call: ast.Call, depth: int) -> dict[str, Setting]:
        """Return the settings of a call: of a function of the file, or of keyword arguments."""
        if isinstance(call.func, ast.Name) and call.func.id in self.functions and not call.args:
            return self.of(call.func.id, depth + 1)
        return {leaf.key: leaf for keyword in call.keywords for leaf in self._settings(keyword.arg, keyword.value, 0)}

    def _settings(self, key: str | None, node: ast.expr, depth: int) -> Iterator[Setting]:
        """Yield the settings of an argument: of a literal, of a call's keyword arguments, of the calls in a list."""
        name = key or "**"
        if depth > DEEPEST:
            raise ScenarioError(f"{self.source}:{node.lineno}: nested too deeply; at most {DEEPEST} levels")
        if next(self.steps) > MOST_VALUES:
            raise ScenarioError(f"{self.source}:{node.lineno}: more than {MOST_VALUES} values")
        if isinstance(node, ast.Name) and node.id in self.names:
            yield from self._settings(name, self.names[node.id], depth + 1)
        elif isinstance(node, ast.Call):
            yield from self._of_call(name, node, depth)
        elif isinstance(node, ast.List | ast.Tuple) and any(isinstance(element, ast.Call) for element in node.elts):
            for element in node.elts:
                yield from self._settings(name, element, depth + 1)
        elif (literal := _literal(node)) is not None:
            yield Setting(name, literal, self.source, node.lineno)
        elif not (isinstance(node, ast.Constant) and node.value is None):
            yield Setting(name, Unresolved(f"a {type(node).__name__.lower()}"), self.source, node.lineno)

    def _of_call(self, name: str, call: ast.Call, depth: int) -> Iterator[Setting]:
        """Yield the settings of a call: its argument by position, its name if it chooses a class, its keywords."""
        literal = _literal(call.args[0]) if len(call.args) == 1 else None
        # As in model_registry("8B").
        if literal is not None:
            yield Setting(name, literal, self.source, call.lineno)
        # As in FullAC.Config(); TrainingConfig chooses nothing.
        elif not (called := _called(call)).endswith("Config"):
            yield Setting(f"{name}.{called}", True, self.source, call.lineno)
            if _is_class(call):
                name = f"{name}.{called}" if called.endswith("Converter") else name
        for keyword in call.keywords:
            yield from self._settings(f"{name}.{keyword.arg or '**'}", keyword.value, depth + 1)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for None and for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float | str):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        # As in 8 * 8192.
        factors = [operand.value for operand in (node.left, node.right) if isinstance(operand, ast.Constant)]
        numbers = [factor for factor in factors if isinstance(factor, int) and 0 <= factor <= _LARGEST]
        return numbers[0] * numbers[1] if len(numbers) == 2 else None
    if isinstance(node, ast.List | ast.Tuple):
        values = [_literal(element) if isinstance(element, ast.Constant) else None for element in node.elts]
        return None if any(value is None for value in values) else values
    return None


def _called(call: ast.Call) -> str:
    """Return the name of what is called, without `.Config` and modules."""
    node = call.func
    while isinstance(node, ast.Attribute) and node.attr == "Config":
        node = node.value
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else "call"


def _is_class(call: ast.Call) -> bool:
    """Return True for a call of NAME.Config."""
    return isinstance(call.func, ast.Attribute) and call.func.attr == "Config"


def _attribute(target: ast.expr, variable: str) -> str:
    """Return the dotted key of an assigned attribute, as in config.training.seq_len."""
    names = list[str]()
    while isinstance(target, ast.Attribute) and len(names) < DEEPEST:
        names.append(target.attr)
        target = target.value
    is_variable = isinstance(target, ast.Name) and target.id == variable
    return ".".join(reversed(names)) if is_variable and names else f"assignment in line {target.lineno}"


def _is_idle(statement: ast.stmt) -> bool:
    """Return True for a statement that sets nothing: a docstring, `pass`, `return config`, an import."""
    if isinstance(statement, ast.Return):
        return isinstance(statement.value, ast.Name)
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return text or isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom)
