"""A YAML (or JSON) file as plain data in which every key still knows its line and column.

Rule: text in, plain data and places out; nothing here knows what the keys mean. YAML is read as version 1.2 reads
scalars: `on`, `off`, `yes` and `no` are words, 1e9 is a number, 12:30:45 is text, dates are text; a key that stands
twice is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.errors import ScenarioError, one_of

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong in a file.

    Attributes
    ----------
    key : tuple of str and int
        Where: ("collective", "algorithm").
    message : str
        "got 'rng'; one of naive, ring; did you mean 'ring'?"
    line, column : int or None
        From 1; None where there is no text behind it (a dict from Python, --set).
    """

    key: Key
    message: str
    line: int | None = None
    column: int | None = None

    def told(self, source: str) -> str:
        """Say it in one line, the place first."""
        place = source if self.line is None else f"{source}:{self.line}:{self.column}"
        dotted = ".".join(map(str, self.key))
        return f"{place}: {dotted}: {self.message}" if dotted else f"{place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    """Plain data with the place of every key and value.

    Attributes
    ----------
    source : str
        The path as the user wrote it, or a word for where the data came from.
    data : Any
        dict, list, str, int, float, bool, None.
    keys, values : mapping of key path to (line, column)
        Where a key, and where its value, begins; from 1. Empty for data that never was text.
    question : str
        The first comment of the file: the question that it answers.
    """

    source: str
    data: Any
    keys: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    values: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    question: str = ""

    def place(self, key: Key, *, of_key: bool = False) -> tuple[int | None, int | None]:
        """Line and column of a value (or of its key); of the nearest parent where it is not in the text."""
        for end in range(len(key), -1, -1):
            known = (self.keys if of_key and end else self.values).get(key[:end])
            if known is not None:
                return known
        return None, None

    def fault(self, key: Key, message: str, *, of_key: bool = False) -> Fault:
        """Make a fault at a value, or at its key where the key itself is wrong."""
        line, column = self.place(key, of_key=of_key)
        return Fault(key, message, line, column)

    def refuse(self, faults: Iterable[Fault]) -> None:
        """Raise one ScenarioError that tells all faults, in the file's order; do nothing where there are none."""
        ordered = sorted(set(faults), key=lambda f: (f.line or 0, f.column or 0, tuple(map(str, f.key)), f.message))
        if ordered:
            raise ScenarioError("\n".join(f.told(self.source) for f in ordered))


class _Loader(yaml.SafeLoader):
    """A SafeLoader that resolves plain scalars as YAML 1.2's core schema does."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*_first, ""] if _tag == "null" else list(_first))


def load(path: Path | str, *, source: str | None = None) -> Document:
    """Read a file.

    Raises
    ------
    ScenarioError
        Unreadable, not UTF-8, not YAML, a key twice: one line with line and column.
    """
    name = source or str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{name}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name}: not a UTF-8 text file: byte {error.start} is {error.object[error.start]:#x}") from error
    return parse(text, name)


def parse(text: str, source: str = "<text>") -> Document:
    """Read YAML text; see `load`."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ScenarioError(_syntax(error, source)) from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    except (RecursionError, ValueError) as error:
        raise ScenarioError(f"{source}: not YAML that can be read: {error}") from error
    keys: dict[Key, tuple[int, int]] = {}
    values: dict[Key, tuple[int, int]] = {}
    faults: list[Fault] = []
    if root is None:
        raise ScenarioError(f"{source}:1:1: the file is empty")
    data = _build(root, (), keys, values, faults, 0)
    document = Document(source, data, keys, values, _question(text))
    document.refuse(faults)
    return document


def _syntax(error: yaml.MarkedYAMLError, source: str) -> str:
    mark = error.problem_mark or error.context_mark
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    context = f" ({error.context})" if error.context else ""
    return f"{place}: not YAML: {error.problem or 'cannot be read'}{context}; check indentation, quotes and brackets"


def _question(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            lines.append(line.lstrip("# ").rstrip())
        elif line.strip() or lines:
            break
    return " ".join(lines)


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


def _build(node: yaml.Node, key: Key, keys: dict[Key, tuple[int, int]], values: dict[Key, tuple[int, int]], faults: list[Fault], depth: int) -> Any:
    values.setdefault(key, _place(node))
    if depth > 40:
        faults.append(Fault(key, "nested too deeply", *_place(node)))
        return None
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(node, key, keys, values, faults, depth)
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*key, i), keys, values, faults, depth + 1) for i, item in enumerate(node.value)]
    return _scalar(node, key, faults)


def _build_mapping(node: yaml.MappingNode, key: Key, keys: dict[Key, tuple[int, int]], values: dict[Key, tuple[int, int]], faults: list[Fault], depth: int) -> Any:
    found: dict[Any, Any] = {}
    for name_node, value_node in node.value:
        if not isinstance(name_node, yaml.ScalarNode):
            faults.append(Fault(key, "a key must be a word", *_place(name_node)))
            continue
        name: Any = name_node.value
        if name_node.tag.endswith(":int") and name.lstrip("+-").isdigit():
            name = int(name)
        if name in found:
            first = keys[(*key, name)]
            faults.append(Fault((*key, name), f"stands twice, first in line {first[0]}; keep one", *_place(name_node)))
            continue
        keys[(*key, name)] = _place(name_node)
        found[name] = _build(value_node, (*key, name), keys, values, faults, depth + 1)
    return found


def _scalar(node: yaml.Node, key: Key, faults: list[Fault]) -> Any:
    text: str = node.value
    tag = node.tag.rsplit(":", 1)[-1]
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if tag == "null":
        return None
    if tag == "int" and re.fullmatch(r"[-+]?[0-9]{1,400}", text):
        return int(text)
    if tag == "float":
        try:
            return float(text)
        except ValueError:
            pass
    if tag not in ("str", "int", "float", "bool"):
        faults.append(Fault(key, f"YAML tag {node.tag!r} is not read here; remove it", *_place(node)))
    return text


def unknown_keys(document: Document, at: Key, allowed: Sequence[str]) -> list[Fault]:
    """Find the keys of a mapping that nothing reads, each with "did you mean"."""
    data: Any = document.data
    for step in at:
        data = data[step]
    if not isinstance(data, dict):
        return []
    return [
        document.fault((*at, name), f"unknown key; {one_of(allowed, name)}", of_key=True)
        for name in data
        if name not in allowed
    ]
