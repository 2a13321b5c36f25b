"""Which keys does a scenario file or a topology file have? The pages are written from their schemas.

Nothing is stated twice: the pages show the output of `simulator schema` and `simulator schema topology`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from simulator.cluster import topology_schema
from simulator.cluster.builder import BUILDERS
from simulator.scenario import schema as scenario_schema

Schema = Mapping[str, Any]

# Description for each quantity, found by a part of the validation pattern.
_QUANTITIES: Final = {
    "[Bb]/s": "bandwidth, such as `12.5 GB/s` or `100 Gb/s`",
    "(ns|us|": "time, such as `10 us`",
    "i)?B\\s*$": "size, such as `16 MiB`",
}
_HEAD: Final = "| key | meaning | values | default | example |\n|---|---|---|---|---|"
# Examples for keys whose values have a form of their own.
_EXAMPLES: Final = {
    "name": "my_run",
    "question": '"Is ring faster than tree?"',
    "topology": "dgx_h100",
    "gpu": "h200",
    "model": "llama3_8b",
    "stragglers": "{3: 0.5}",
    "link_factors": '{"gpu0->switch0": 0.1}',
    "placement": "[1, 0, 3, 2]",
    "rank_order": "[0, 2, 1, 3]",
    "group": "[0, 1, 2, 3]",
    "links": "[[0, 1, 2], [1, 2, 1]]",
    "tensors": "[4 MiB, 1 MiB]",
    "compare": "{collective.algorithm: [ring, tree]}",
    "sweep": "{cluster.world_size: [8, 16]}",
    "baseline": "{training.sharding: ddp}",
    "plots": "[timeline]",
    "answer": "[best]",
    "global_batch": "4M",
    "fix": "{tp: 8}",
    "among": "{pp: [1, 2, 4]}",
    "without": "[zero3]",
    "deadline": "30d",
    "stages": "[7, 8, 8, 7]",
    "context": "{ulysses: 2, ring: 4}",
    "order": "[tp, cp, ep, dp, pp]",
    "imbalance": "{zipf: 0.5}",
    "capacity": "1.25",
    "activation_checkpointing": "full",
    "along": "training.seq_len",
    "between": "[1, 64]",
    "betas": "[0.9, 0.95]",
    "budget.tokens": "15e12",
    "budget.price": "2.5",
    "budget.watts": "1000",
    "training.learning.tokens": "corpus.txt",
    "training.learning.decay": "0.1",
    "training.learning.momentum": "0.95",
    "training.learning.eps": "1e-5",
    "training.precision": "fp8",
    "training.attention_generation": "3",
    "training.dropout": "0.1",
    "training.clip_norm": "1.0",
    "training.algorithm": "ring",
    "training.faults.collective": "all_reduce 0",
    "cluster.jitter.compute": "0.05",
    "cluster.jitter.latency": "0.1",
    "training.parallelism.schedule": "zb_h1",
    "training.sharding.keep_below": "100000",
    "batches": "batches.npy",
    "initial": "initial.npz",
    "collective": "",
    "dp": "8",
    "seq_len": "8k",
    "world_size": "64",
    "steps": "100",
    "options": "{gpus: 8}",
    "graph": "fabric.graphml",
}
# Most names listed in full; for more names, the page states their number.
_LISTED: Final = 16


class Section(NamedTuple):
    """A mapping in a file.

    Attributes
    ----------
    path : str
        Dotted keys, such as "training.parallelism"; empty for the file itself.
    schema : mapping
        JSON schema of the mapping.
    """

    path: str
    schema: Schema


def scenario_page() -> str:
    """Return the page about scenario keys, as Markdown."""
    document = scenario_schema.schema()
    intro = (
        "# Scenario keys\n\nThis page lists every key of a scenario file. It is for authors of scenario files. "
        "`simulator schema` prints the same as a JSON schema for editors, and `simulator check` also checks rules "
        "between keys. The first comment of a file is its question.\n\n"
        "`compare` and `sweep` take nearly every key, with dots: `collective.size: [64 KiB, 16 MiB]`."
    )
    return _page(intro, document, "scenario")


def topology_page() -> str:
    """Return the page about topology keys and the builders' options, as Markdown."""
    document = topology_schema.schema()
    intro = (
        "# Topology keys\n\nThis page lists every key of a topology file. It is for users who describe a cluster of "
        "their own; [Topology files](../topologies.md) explains the builders. `simulator schema topology` prints the "
        "same as a JSON schema for editors."
    )
    options = [_options(name, topology_schema.schema()["allOf"]) for name in BUILDERS.names()]
    return "\n\n".join([_page(intro, document, "topology"), *options]) + "\n"


def _page(intro: str, document: Schema, name: str) -> str:
    sections = [Section("", document), *_nested(document, document, "")]
    return "\n\n".join([intro, *(_section(section, document, name) for section in sections)]) + "\n"


def _nested(node: Schema, document: Schema, path: str) -> Iterator[Section]:
    """Yield the mappings below a mapping, each before its own children."""
    for key, value in node.get("properties", {}).items():
        below = f"{path}.{key}" if path else key
        # pydantic stores inner mappings under $defs; keys only refer to them.
        for definition in _definitions(value):
            yield Section(below, document["$defs"][definition])
            yield from _nested(document["$defs"][definition], document, below)


def _definitions(value: Schema) -> Iterator[str]:
    """Yield the names of the mappings that a value may be or contain."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2]
    for part in (*value.get("anyOf", ()), value.get("items"), value.get("additionalProperties")):
        if isinstance(part, Mapping):
            yield from _definitions(part)


def _section(section: Section, document: Schema, name: str) -> str:
    title = f"`{section.path}`" if section.path else f"The {name}"
    # The document itself has its introduction above.
    required = section.schema.get("required", ())
    before = f"{section.path}." if section.path else ""
    rows = [
        _row(before + key, _told(value, document), key in required, _anchor(before + key))
        for key, value in section.schema.get("properties", {}).items()
    ]
    about = section.schema.get("description", "") if section.path else ""
    return "\n\n".join(filter(None, [f"## {title}", about, "\n".join([_HEAD, *rows])]))


def _told(value: Schema, document: Schema) -> Schema:
    """Return a key's schema; without a description, use the description of the key's mapping."""
    names = list(_definitions(value)) if "description" not in value else []
    said = document["$defs"][names[0]].get("description") if names else None
    return {**value, "description": said} if said else value


def _anchor(path: str) -> str:
    """Return the anchor that a code host and Sphinx give to the heading of a mapping's section."""
    return path.lower().replace(".", "")


def _row(path: str, value: Schema, required: bool, anchor: str) -> str:
    """Return the table's row for a key with this dotted path."""
    key = path.rpartition(".")[2]
    default = "required" if required else _default(value)
    meaning, example = str(value.get("description", "")), _example(path, value)
    cells = [f"`{key}`", meaning, _kind(value, anchor), default, f"`{key}: {example}`" if example else ""]
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _example(path: str, value: Schema) -> str:
    """Return an allowed value other than the default, as YAML; empty for a mapping with keys of its own."""
    for known in (path, path.rpartition(".")[2]):
        if known in _EXAMPLES:
            return _EXAMPLES[known]
    default = value.get("default")
    for form in value.get("anyOf", [value]):
        if "$ref" in form or form.get("type") in ("null", "object"):
            continue
        others = [word for word in form.get("enum", [form["const"]] if "const" in form else []) if word != default]
        if others:
            return others[-1] if isinstance(others[-1], str) else json.dumps(others[-1])
        if form.get("type") == "array":
            inner = _example("", form.get("items", {}))
            return f"[{inner}]" if inner else ""
        found = _plain_example(form, default)
        if found:
            return found
    return ""


def _plain_example(form: Schema, default: Any) -> str:
    """Return an allowed number, text or truth value other than the default."""
    kind = form.get("type")
    if kind == "boolean":
        return json.dumps(not default)
    if kind in ("integer", "number"):
        low, high = form.get("minimum", form.get("exclusiveMinimum", 0)), form.get("maximum", 1e18)
        wanted = 2 * default if isinstance(default, int | float) and 0 < 2 * default <= high else max(low, 4)
        return f"{wanted if wanted <= high else high / 2:g}"
    text = next((words for part, words in _QUANTITIES.items() if part in form.get("pattern", "")), "")
    found = re.search("`([^`]+)`", text)
    return found.group(1) if found else str(form.get("examples", [""])[0])


def _default(value: Schema) -> str:
    default = value.get("default")
    if default is None or default in ({}, [], ""):
        return "none"
    # JSON has no infinity.
    if isinstance(default, float) and math.isinf(default):
        return "no bound"
    if isinstance(default, dict):
        return "its own defaults"
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def _kind(value: Schema, anchor: str) -> str:
    """Return the allowed values in words."""
    # Inner mappings have a section of their own, linked here.
    if "$ref" in value:
        return f"[keys of its own](#{anchor})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        names = [json.dumps(name) if not isinstance(name, str) else name for name in value["enum"]]
        return ", ".join(f"`{name}`" for name in names)
    if "anyOf" in value:
        parts = [_kind(part, anchor) for part in value["anyOf"] if part.get("type") != "null"]
        return "; or ".join(dict.fromkeys(parts))
    return _plain_kind(value, anchor)


def _plain_kind(value: Schema, anchor: str) -> str:
    kinds = value.get("type", "anything")
    if kinds == "array":
        return f"list: {_kind(value.get('items', {}), anchor)}"
    if kinds == "object":
        return _mapping(value, anchor)
    if isinstance(kinds, list):
        return " or ".join("mapping" if kind == "object" else "text" for kind in kinds)
    if kinds == "string":
        pattern, example = value.get("pattern", ""), value.get("examples", [""])[0]
        # Quantities are strings with a pattern; the pattern's unit tells their kind.
        quantity = next((words for part, words in _QUANTITIES.items() if part in pattern), "")
        # Paths are strings with a pattern of their endings: (\.yaml|\.yml)$.
        endings = re.findall(r"\\(\.\w+)", pattern) if pattern.startswith("(\\.") else []
        if endings:
            return f"path of a file ({', '.join(endings)})"
        return quantity or (f"text, such as `{example}`" if example else "text")
    words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`"}.get(kinds, "anything")
    return words + _bounds(value)


def _mapping(value: Schema, anchor: str) -> str:
    if "properties" in value and len(value["properties"]) <= _LISTED:
        inner = ", ".join(f"`{key}`: {_kind(part, anchor)}" for key, part in value["properties"].items())
        return f"mapping with {inner}"
    if "properties" in value:
        return f"mapping of any of {len(value['properties'])} keys to lists"
    parts = [*value.get("patternProperties", {}).values(), value.get("additionalProperties")]
    inner = next((_kind(part, anchor) for part in parts if isinstance(part, Mapping)), "")
    return f"mapping to {inner}" if inner else "mapping"


def _bounds(value: Schema) -> str:
    low = value.get("minimum", value.get("exclusiveMinimum"))
    high = value.get("maximum", value.get("exclusiveMaximum"))
    # A tiny lower bound means "greater than 0" (units.LEAST).
    low = 0 if low is not None and 0 < low < 1e-20 else low
    if low is None and high is None:
        return ""
    if high is None or high >= 1e15:
        return f" from {_short(low)}"
    return f" up to {_short(high)}" if low is None else f", {_short(low)} to {_short(high)}"


def _short(number: float) -> str:
    return f"{number:,.0f}" if number == int(number) and number < 1e9 else f"{number:g}"


def _options(builder: str, conditions: list[Schema]) -> str:
    """Return the options of a builder."""
    # Each builder has exactly one condition.
    [then] = [c["then"] for c in conditions if c["if"]["properties"]["builder"]["const"] == builder]
    mapping = then["properties"]["options"]
    required = mapping.get("required", ())
    rows = [_row(key, _without_type(value), key in required, "") for key, value in mapping["properties"].items()]
    return "\n\n".join([f"## `options` of `{builder}`", "\n".join([_HEAD, *rows])])


def _without_type(value: Schema) -> Schema:
    """Return an option without the type at the start of its description; the type has its own column."""
    return {**value, "description": str(value.get("description", "")).partition(": ")[2]}
