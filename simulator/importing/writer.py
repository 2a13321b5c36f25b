"""How is an imported training written as a scenario? YAML with the origin of each key, checked by the loader.

The loader reads the text that is written. Keys without effect are removed, and faults name the setting of the file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.basics import yaml_dialect
from simulator.basics.document import parse
from simulator.basics.errors import ScenarioError, in_lines
from simulator.importing.facts import Facts
from simulator.importing.settings import Missing, Understood
from simulator.scenario.load import parse_scenario
from simulator.scenario.records import default_of
from simulator.scenario.resolve import bytes_text

_NAME: Final = "imported"
# Rounds of removing keys without effect; a removed key can make another key ineffective.
_MOST_ROUNDS: Final = 5
# Part of the loader's reason for a bucket size with the effect of the default size.
_LIKE_DEFAULT: Final = "acts like the default"
_WARNING: Final = re.compile(r"^[^ ]+: (?P<key>[a-z_.]+): has no effect here: (?P<why>.*)$")
_FAULT: Final = re.compile(r"^[^ ]+?(?::\d+:\d+)?: (?P<key>[a-z_]+(?:\.[\w.-]+)?): (?P<message>.*)$")


@dataclass(frozen=True, slots=True)
class Written:
    """A scenario's text, and the lines of the loader's warnings."""

    text: str
    warnings: tuple[str, ...]


def written(facts: Facts, question: str, name: str, base: Path) -> Written:
    """Return the scenario of some facts as text that the loader accepts.

    Raises
    ------
    ScenarioError
        The loader refuses the scenario; each line names the setting of the file.
    """
    for _ in range(_MOST_ROUNDS):
        understood, missing = facts.understood(), facts.missing()
        text = scenario_text(understood, missing, question, name)
        try:
            scenario = parse_scenario(parse(text, _NAME), base)
        except ScenarioError as error:
            raise ScenarioError(
                in_lines([_fault_text(line, understood) for line in str(error).splitlines()])
            ) from error
        idle = [match for line in scenario.warnings if (match := _WARNING.match(line)) is not None]
        present = {entry.key for entry in understood} | {entry.key for entry in missing}
        dropped = [match for match in idle if match["key"] in present]
        if not dropped:
            return Written(text, tuple(line.removeprefix(f"{_NAME}:") for line in scenario.warnings))
        for match in dropped:
            if _LIKE_DEFAULT in match["why"]:
                # The setting counts; only its size makes no difference.
                facts.replace(match["key"], bytes_text(default_of(match["key"])))
            else:
                facts.drop(match["key"], match["why"])
    return Written(text, scenario.warnings)


def _fault_text(line: str, understood: Sequence[Understood]) -> str:
    """Return a fault of the loader with the setting of the file in place of the scenario's key."""
    match = _FAULT.match(line)
    if match is None:
        return line
    key = match["key"]
    # The longest known key that the fault's key begins with, or that begins with the fault's key.
    near = [entry for entry in understood if f"{key}.".startswith(f"{entry.key}.") or entry.key.startswith(f"{key}.")]
    if not near:
        return f"{key}: {match['message']}"
    longest = max(near, key=lambda entry: len(entry.key))
    place = f"{longest.settings[0].place}: {longest.settings[0].key}" if longest.settings else key
    return f"{place} ({key}): {match['message']}"


def scenario_text(understood: Sequence[Understood], missing: Sequence[Missing], question: str, name: str) -> str:
    """Return a scenario as YAML, a line for each key with its origin as comment."""
    origin = {entry.key: f"{entry.origin}, {entry.place}" for entry in understood if entry.settings}
    origin |= {entry.key: f"assumed: {entry.why}" for entry in missing}
    values = {entry.key: entry.value for entry in understood} | {entry.key: entry.assumed for entry in missing}
    # Only keys of the scenario: an assumption may also tell a part of another key.
    values = {key: value for key, value in values.items() if re.fullmatch(r"[a-z_.]+", key)}
    lines = [f"# {_comment(question)}", f"name: {yaml_dialect.dump(name, one_line=True)}"]
    tree: dict[str, Any] = {"cluster": {}, "training": {}}
    for key, value in sorted(values.items(), key=lambda entry: order(entry[0])):
        *at, last = key.split(".")
        node = tree
        for step in at:
            node = node.setdefault(step, {})
        node[last] = value
    lines.extend(_lines(tree, (), origin))
    return "\n".join(lines) + "\n"


_FIRST: Final = ("cluster.topology", "cluster.world_size", "cluster.gpu", "training.model", "training.seq_len")


def order(key: str) -> tuple[int, str]:
    """Return the sorting key of a scenario's key: machine, model and length first.

    >>> sorted(["training.sharding", "training.model", "cluster.world_size"], key=order)
    ['cluster.world_size', 'training.model', 'training.sharding']
    """
    return (_FIRST.index(key), "") if key in _FIRST else (len(_FIRST), key)


def _lines(tree: Mapping[str, Any], at: tuple[str, ...], origin: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value in tree.items():
        key = ".".join((*at, name))
        indent = "  " * len(at)
        if isinstance(value, dict) and key not in origin:
            lines += [f"{indent}{name}:", *_lines(value, (*at, name), origin)]
            continue
        text = yaml_dialect.dump({name: value}, one_line=True)[1:-1]
        comment = f"  # {_comment(origin[key])}" if key in origin else ""
        lines.append(f"{indent}{text}{comment}")
    return lines


def _comment(text: str) -> str:
    """Return a text that fits in a comment: one line of printable characters."""
    return "".join(char if char.isprintable() else " " for char in text)
