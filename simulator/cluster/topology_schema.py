"""The JSON schema for topology files, for editors: the file's keys, and under `options` the named builder's keys.

Nothing is listed twice: keys come from the file's model; options and their descriptions come from each builder's
signature and docstring.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from simulator.basics import registry
from simulator.cluster.builder import BUILDERS
from simulator.cluster.topology_file import TopologyFile

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON schema of a topology file (draft 2020-12).

    >>> sorted(schema()["properties"])
    ['builder', 'collectives', 'ecmp', 'gpu', 'graph', 'library', 'name', 'options', 'transport']
    """
    document = TopologyFile.model_json_schema()
    document["properties"]["builder"] = {
        "anyOf": [{"enum": list(BUILDERS.names())}, {"type": "string", "pattern": r"(\.py)$"}],
        "description": "Builder of the graph: a name, or the path of an own builder.",
    }
    document["properties"]["gpu"]["examples"] = list(registry.names("gpu"))
    # A topology has either a builder or a graph file.
    document["oneOf"] = [{"required": ["builder"]}, {"required": ["graph"]}]
    document["allOf"] = [_of_builder(name) for name in BUILDERS.names()]
    return {"$schema": _DIALECT, "title": "Topology of the cluster simulator", **_untitled(document)}


def options(name: str) -> dict[str, dict[str, Any]]:
    """Return the JSON schema for each option of the builder `name`, with the description from its docstring.

    >>> options("ring")["latency"]
    {'examples': ['5 us'], 'type': 'string', 'description': 'float: Latency of each cable [s].'}
    """
    properties: dict[str, dict[str, Any]] = BUILDERS.find(name).options.model_json_schema()["properties"]
    described = descriptions(name)
    return {option: {**_untitled(facts), "description": described[option]} for option, facts in properties.items()}


def descriptions(name: str) -> dict[str, str]:
    """Return each parameter's description in the docstring for the builder `name`, by parameter.

    >>> descriptions("ring")["latency"]
    'float: Latency of each cable [s].'
    """
    lines = (inspect.getdoc(BUILDERS.find(name).function) or "").splitlines()
    first = lines.index("Parameters") + 2
    described: dict[str, str] = {}
    names: list[str] = []
    for line in lines[first : lines.index("Returns")]:
        # An entry such as "a, b : float" describes several parameters; indented lines continue the entry.
        if line and not line.startswith(" "):
            names = re.split(r", ", line.partition(" : ")[0])
            described |= dict.fromkeys(names, line.partition(" : ")[2])
        elif line.strip():
            described |= {each: f"{described[each]}: {line.strip()}" for each in names}
    return described


def _of_builder(name: str) -> dict[str, Any]:
    """Return the JSON schema's rule for builder `name`: `options` must match the builder's parameters."""
    facts = BUILDERS.find(name).options.model_json_schema()
    # JSON schema's if/then: the editor checks `options` against the named builder only.
    required = facts.get("required", [])
    mapping = {"type": "object", "properties": options(name), "required": required, "additionalProperties": False}
    condition = {"properties": {"builder": {"const": name}}, "required": ["builder"]}
    then = {"properties": {"options": mapping}, **({"required": ["options"]} if required else {})}
    return {"if": condition, "then": then}


def _untitled(node: Any) -> Any:
    """Return a JSON schema without the titles that pydantic generates."""
    if isinstance(node, list):
        return [_untitled(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {key: _untitled(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
