"""Changes of single lines of Python, each of which is probably a fault; tools/mutants.py draws from them.

Operators: a comparison, an arithmetic or a boolean token is swapped, a number is changed, `not` is dropped, a condition
is negated, `min` and `max` are swapped, None is returned, an argument of a call is dropped, a key that is a text is
changed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

_TOKENS: Final = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "in": "not in", "not in": "in"}
_TOKENS.update({"is": "is not", "is not": "is", "and": "or", "or": "and", "+": "-", "-": "+", "*": "/", "/": "*"})
_TOKENS.update({"//": "/", "%": "*", "**": "*", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "//=": "/="})
_EXTREMES: Final = {"min": "max", "max": "min"}
# Arguments without an effect on results: texts for people, `strict` of zip, and what a dataclass forbids.
_IDLE_ARGUMENTS: Final = ("description", "help", "strict", "encoding", "stacklevel", "frozen", "slots")
# From here on a number is doubled: one more would be lost in roundings.
_LARGE: Final = 1000


def edits(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield every change of one line of a module: its operator, the row (from 0), and the changed line."""
    lines, pending = text.split("\n"), [ast.parse(text)]
    while pending:
        node = pending.pop()
        for operator, row, start, end, new in _edits(node, lines):
            # Columns count bytes.
            if lines[row].isascii():
                yield operator, row, lines[row][:start] + new + lines[row][end:]
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


def _edits(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield the changes of a node: operator, row, the columns between which the row changes, and what stands there."""
    match node:
        case ast.Compare(left=left, comparators=others):
            yield from _swapped("comparison", [left, *others], lines)
        case ast.BoolOp(values=operands):
            yield from _swapped("boolean operator", operands, lines)
        case ast.BinOp(left=left, right=right) | ast.AugAssign(target=left, value=right):
            # Texts are joined, and patterns filled in, by the same tokens.
            if not any(isinstance(side, ast.JoinedStr) or _text(side) is not None for side in (left, right)):
                yield from _swapped("arithmetic", [left, right], lines)
        case ast.If(test=part) | ast.While(test=part) | ast.IfExp(test=part) | ast.comprehension(ifs=[part, *_]):
            for row, start, end in _span(part):
                yield "negated condition", row, start, end, f"not ({lines[row][start:end]})"
    for row, start, end in _span(node):
        match node:
            case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
                yield "number", row, start, end, repr(2 * number if number >= _LARGE else number + 1)
            case ast.UnaryOp(op=ast.Not()):
                yield "dropped not", row, start, end, lines[row][start + len("not") : end].lstrip()
            case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
                yield "returned None", row, start, end, "return None"
            case ast.keyword(arg=str(name)) if name not in _IDLE_ARGUMENTS:
                comma, comma_before = re.match(r", ?", lines[row][end:]), lines[row][:start].endswith(", ")
                yield (
                    "dropped argument",
                    row,
                    start - 2 * (comma_before and not comma),
                    end + len(comma[0] if comma else ""),
                    "",
                )
            case ast.Name(id=name) if name in _EXTREMES:
                yield "min max", row, start, end, _EXTREMES[name]
    match node:
        case ast.Subscript(value=ast.Name(id="Literal")):
            keys = []
        case ast.Subscript(slice=key) | ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[key, *_]):
            keys = [key]
        case _:
            keys = getattr(node, "keys", [])
    for key in keys:
        for row, start, end in _span(key) if _text(key) is not None else ():
            yield "string key", row, start, end, f'"{_text(key)}_"'


def _swapped(operator: str, operands: list[ast.expr], lines: list[str]) -> Iterator[tuple[str, int, int, int, str]]:
    """Yield the changes of the token between two operands."""
    for left, right in pairwise(operands):
        row, start, end = right.lineno - 1, left.end_col_offset, right.col_offset
        token = lines[row][start:end].strip(" ()")
        if left.end_lineno == right.lineno and token in _TOKENS:
            yield operator, row, start, end, lines[row][start:end].replace(token, _TOKENS[token])


def _span(node: ast.AST) -> list[tuple[int, int, int]]:
    """Return the row and the columns of a node; nothing, if it takes several rows or none."""
    if getattr(node, "lineno", None) is None or node.lineno != node.end_lineno:
        return []
    return [(node.lineno - 1, node.col_offset, node.end_col_offset)]


def _text(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
