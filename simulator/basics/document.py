"""Reads a YAML (or JSON) file as plain data with the line and column of every key and value.

The module does not know what keys mean. YAML scalars are read by version 1.2: `on`, `off`, `yes` and `no` are words,
1e9 is a number, 12:30:45 and dates are text. A duplicate key is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml

from simulator.basics.errors import ScenarioError, in_lines, one_line
from simulator.basics.input_files import MOST_DIGITS, read_text
from simulator.basics.natural_order import natural
from simulator.basics.plain_data import DEEPEST, at
from simulator.basics.yaml_dialect import MOST_VALUES, Loader

Key = tuple[str | int, ...]
# Place at the beginning of a message: "net.yaml:9:3: ".
_PLACE: Final = re.compile(r"\S+:\d+:\d+: ")


@dataclass(frozen=True, slots=True)
class Fault:
    """A single fault in a file."""

    key: Key  # path of the faulty key, such as ("collective", "algorithm")
    message: str  # text such as "got 'rng'; one of naive, ring; did you mean 'ring'?"
    # `line`, `column`: Place in the text, from 1; None for data without text (a dict from Python, --set).
    line: int | None = None
    column: int | None = None
    source: str | None = None  # source of the value, if different from the document ("--set seed=x")

    def as_line(self, source: str) -> str:
        """Return the fault as a line, place first; `source` is the document's name."""
        name = self.source or source
        place = name if self.line is None else f"{name}:{self.line}:{self.column}"
        dotted = ".".join(map(str, self.key))
        return one_line(f"{place}: {dotted}: {self.message}" if dotted else f"{place}: {self.message}")


@dataclass(frozen=True, slots=True)
class Document:
    """The plain data in a YAML or JSON file, with the line and column of every key and value."""

    source: str  # the path as the user wrote it, or a word for the data's origin
    data: Any  # dict, list, str, int, float, bool, None
    # `keys`, `values`: Start of each key, and start of each value, from 1; empty for data without text.
    keys: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    values: Mapping[Key, tuple[int, int]] = field(default_factory=dict)
    question: str = ""  # first comment in the file: the question that the file answers
    # Faults in the text itself (duplicate keys, tags), if the caller reports them together with other faults
    faults: tuple[Fault, ...] = ()

    def place(self, key: Key, *, of_key: bool = False) -> tuple[int | None, int | None]:
        """Return (line, column) for the value at a key path, or for its key; else for the nearest parent.

        A mapping or list may begin on a line below its key. The result is then the key's place, because people
        look for that line.
        """
        # Shorter and shorter paths: the key itself, its parent, ..., the whole document.
        for end in range(len(key), -1, -1):
            value, name = self.values.get(key[:end]), self.keys.get(key[:end])
            if value is None:
                continue
            below = name is not None and value[0] > name[0] and isinstance(at(self.data, key[:end]), dict | list)
            return name if name is not None and (of_key or below) else value
        return None, None

    def fault(self, key: Key, message: str, *, of_key: bool = False) -> Fault:
        """Return a Fault with this message at the value with the given key path; at its key if `of_key`."""
        return Fault(key, message, *self.place(key, of_key=of_key))

    def refuse(self, faults: Iterable[Fault]) -> None:
        """Raise a single ScenarioError with every fault, in file order; do nothing without faults."""
        if lines := self.lines(faults):
            raise ScenarioError(in_lines(lines))

    def lines(self, faults: Iterable[Fault]) -> tuple[str, ...]:
        """Return the faults as lines, in file order; a list of allowed keys appears only once."""
        ordered = sorted(
            set(faults), key=lambda f: (f.line or 0, f.column or 0, tuple(map(str, f.key)), _order(f.message))
        )
        listed = set[str]()
        return tuple(_without_list(fault, listed).as_line(self.source) for fault in ordered)


def _order(message: str) -> tuple[tuple[int, str], ...]:
    """Return a key that sorts messages as text, and messages of a file that this file names by line and column.

    Such a message begins with the place: "net.yaml:9:3: ..." is listed before "net.yaml:10:3: ...".
    """
    return natural(message) if _PLACE.match(message) else ((-1, message),)


def _without_list(fault: Fault, listed: set[str]) -> Fault:
    """Return the fault without the list of allowed keys if `listed` has this list; otherwise add the list there."""
    # A long list stands behind the hint, a short one before it.
    match = re.match(r"unknown key.*?(;? (one of [^;?]+))", fault.message)
    if match is None or match[2] not in listed:
        listed |= {match[2]} if match else set()
        return fault
    return replace(fault, message=fault.message.replace(match[1], "", 1))


def load(path: Path | str, *, source: str | None = None, keep_faults: bool = False) -> Document:
    """Read a YAML or JSON file; return its data with the place of every key and value.

    Parameters
    ----------
    path : path
        Path of the file.
    source : str, optional
        Name of the file in faults; by default its path.
    keep_faults : bool
        Whether faults in the text (such as duplicate keys) are stored in `faults`, for the caller to report.

    Raises
    ------
    ScenarioError
        Unreadable file, not UTF-8, not YAML, or a duplicate key; one line with line and column.
    """
    name = source or str(path)
    return parse(read_text(path, source=name), name, keep_faults=keep_faults)


def parse(text: str, source: str = "<text>", *, keep_faults: bool = False) -> Document:
    """Return the data in a YAML text, with the place of every key and value.

    `source` names the text in faults; `keep_faults` stores faults such as duplicate keys for the caller to report.

    >>> document = parse("# Why?\\nname: demo\\nsize: 1 MiB")
    >>> document.question, document.data["size"], document.values[("size",)]
    ('Why?', '1 MiB', (3, 7))
    """
    try:
        root = yaml.compose(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        raise ScenarioError(one_line(_syntax(error, source))) from error
    except yaml.reader.ReaderError as error:
        raise ScenarioError(_unreadable(error, text, source)) from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else one_line(str(error))
        raise ScenarioError(f"{source}: not readable as YAML: {reason}") from error
    if root is None:
        raise ScenarioError(f"{source}:1:1: the file is empty; `simulator new NAME` writes a scenario to start from")
    builder = _ValueReader()
    data = builder.build(root, ())
    document = Document(source, data, builder.keys, builder.values, _question(text), tuple(builder.faults))
    # After a fault of the whole file (too deep, too many values) the data is incomplete: no further check is possible.
    if not keep_faults or any(fault.key == () for fault in builder.faults):
        document.refuse(builder.faults)
    return document


def _syntax(error: yaml.MarkedYAMLError, source: str) -> str:
    """Return a YAML syntax error as a line of text: place, problem, and a hint."""
    start, problem_mark = error.context_mark, error.problem_mark
    context, problem = error.context or "", error.problem or "cannot be read"
    mark = problem_mark or start
    # An unclosed quote or bracket is noticed much later, often at the end: report the place where it was opened.
    opened = any(word in context for word in ("quoted scalar", "flow", "simple key"))
    if start and problem_mark and opened and problem_mark.line > start.line:
        mark = start
        problem = f"{problem} in line {problem_mark.line + 1}"
    place = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    if mark and r"'\t'" in problem:
        return f"{place}: line {mark.line + 1} is indented with a tab; use spaces"
    if source.endswith(".toml"):
        return (
            f"{place}: not YAML: a TOML file is no scenario; if it is a training framework's, `simulator import-config "
            f"{source}` writes it as a scenario"
        )
    hint = f" ({context})" if context else ""
    return f"{place}: not YAML: {problem}{hint}; check indentation, quotes and brackets"


def _unreadable(error: yaml.reader.ReaderError, text: str, source: str) -> str:
    """Return a line of text about a character in a file that YAML does not allow, with line and column."""
    before = text[: error.position]
    line, column = before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1
    return f"{source}:{line}:{column}: not YAML: character #x{ord(text[error.position]):04x} is not allowed; remove it"


def _question(text: str) -> str:
    """Return the first comment block in a YAML text, joined to a single line."""
    lines: list[str] = []
    for line in text.removeprefix("\ufeff").splitlines():
        if line.startswith("# yaml-language-server:"):
            continue
        if line.startswith("#"):
            lines.append(line.lstrip("# ").rstrip())
        elif line.strip() or lines:
            break
    return " ".join(" ".join(lines).split())


def _place(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1


@dataclass(slots=True)
class _ValueReader:
    """Converter from YAML nodes to plain data; records the place of every key and value."""

    keys: dict[Key, tuple[int, int]] = field(default_factory=dict)
    values: dict[Key, tuple[int, int]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    count: int = 0

    def build(self, node: yaml.Node, key: Key) -> Any:

        self.values.setdefault(key, _place(node))
        self.count += 1
        if len(key) > DEEPEST or self.count > MOST_VALUES:
            if self.count <= MOST_VALUES + 1:
                deep = len(key) > DEEPEST
                message = (
                    "nested too deeply" if deep else (f"more than {MOST_VALUES} values; does the file contain aliases?")
                )
                self.fault((), message, node)
            # A single such fault is enough; further values would only repeat it.
            self.count = MOST_VALUES + 1
            return None
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return self.sequence(node, key)
        return self.scalar(node, key)

    def fault(self, key: Key, message: str, node: yaml.Node) -> None:
        self.faults.append(Fault(key, message, *_place(node)))

    def sequence(self, node: yaml.SequenceNode, key: Key) -> list[Any]:
        items: list[Any] = []
        for i, item in enumerate(node.value):
            if self.count > MOST_VALUES:
                break
            items.append(self.build(item, (*key, i)))
        return items

    def mapping(self, node: yaml.MappingNode, key: Key) -> dict[str | int, Any]:
        mapping: dict[str | int, Any] = {}
        for name_node, value_node in node.value:
            if self.count > MOST_VALUES:
                break
            if not isinstance(name_node, yaml.ScalarNode):
                self.fault(key, "a key must be a word", name_node)
                continue
            name = _key_name(name_node, self.whole(name_node, key))
            # Only the first value of a duplicate key is read.
            if name in mapping:
                first = self.keys[(*key, name)]
                self.fault((*key, name), f"occurs twice, first in line {first[0]}; keep one", name_node)
                continue
            self.keys[(*key, name)] = _place(name_node)
            mapping[name] = self.build(value_node, (*key, name))
        return mapping

    def whole(self, node: yaml.Node, key: Key) -> str:
        """Return a YAML scalar's text at a key path, joining characters that JSON wrote as two halves.

        An unpaired half is recorded as a fault, and the result is empty.
        """
        text: str = node.value
        try:
            text.encode()
        except UnicodeEncodeError:
            try:
                return text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self.fault(key, "contains half of a character; remove the half character", node)
                return ""
        return text

    def scalar(self, node: yaml.Node, key: Key) -> Any:
        text = self.whole(node, key)
        tag = node.tag.removeprefix("tag:yaml.org,2002:")
        # PyYAML's tag says how a plain scalar looks; quoted scalars always have the tag "str".
        if tag == "bool" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if tag == "null" and text.lower() in ("", "~", "null"):
            return None
        if tag == "int" and _is_whole(text):
            return int(text)
        if tag == "float" and re.fullmatch(r"[-+0-9.eE]+", text):
            # An explicit tag, as in `!!float 1e`, may precede a text that is not a number: the text stays text.
            try:
                return float(text)
            except ValueError:
                pass
        if tag not in ("str", "int", "float", "bool", "null"):
            self.fault(key, f"YAML tag {node.tag!r} is not supported; remove the tag", node)
        return text


def _is_whole(text: str) -> bool:
    return len(text) <= MOST_DIGITS and re.fullmatch(r"[-+]?[0-9]+", text) is not None


def _key_name(node: yaml.ScalarNode, text: str) -> str | int:
    return int(text) if node.tag.endswith(":int") and _is_whole(text) else text
