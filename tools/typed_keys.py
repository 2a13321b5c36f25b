"""Which keyword arguments does a scenario from Python take? Writes simulator/scenario/typed_keys.py from the schema.

    python -m tools.typed_keys

The schema of scenario files (`simulator.scenario.schema`) states all keys. Editors and type checkers do not run the
package, and therefore read the keys from a module with one TypedDict for each mapping of a scenario file.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from simulator.scenario.records import PlotsSpec
from simulator.scenario.schema import schema

FILE: Final = Path(__file__).resolve().parents[1] / "simulator" / "scenario" / "typed_keys.py"
# Words under these keys grow with a new part (an algorithm, a strategy, an optimizer, ...). The keys are plain text
# here, so that a new part needs no new version of the written module.
_OPEN: Final = frozenset(
    {
        ("ScenarioKeys", "plots"),
        ("ScenarioKeys", "answer"),
        ("PlotsKeys", "kinds"),
        ("FindingKeys", "finding"),
        ("FindingKeys", "of"),
        ("CollectiveKeys", "algorithm"),
        ("TrainingKeys", "algorithm"),
        ("TrainingKeys", "framework"),
        ("TrainingKeys", "sharding"),
        ("TrainingKeys", "activation_checkpointing"),
        ("TrainingKeys", "optimizer"),
        ("ParallelismKeys", "schedule"),
        ("ShardingKeys", "strategy"),
        ("OptimizerKeys", "name"),
    }
)
# Keys of the scenario with a mapping that has a class here; the schema writes `plots`, `compare` and `sweep` out.
_SCENARIO: Final = {
    "plots": "Sequence[str] | PlotsKeys",
    "compare": "Mapping[str, Sequence[Any]]",
    "sweep": "Mapping[str, Sequence[Any]]",
}
# The keyword arguments of `collective_scenario` and `training_scenario` are keys of three mappings.
_WITH_CLUSTER: Final = ("CollectiveKeys", "TrainingKeys")
_BASE: Final = {"integer": "int", "number": "float", "string": "str", "boolean": "bool", "null": "None"}
_HEAD: Final = '''\
"""Which keyword arguments does a scenario from Python take, and of which types? For editors and type checkers.

Written by `python -m tools.typed_keys` from the schema of scenario files; do not edit. Each class has the keys of a
mapping in a scenario file. Values are written like in a file: quantities are text with a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict
'''


def main() -> None:
    """Write the module."""
    FILE.write_text(text(), encoding="utf-8")


def text() -> str:
    """Return the module's text."""
    whole = schema()
    parts = {f"{name.removesuffix('Spec')}Keys": form for name, form in whole["$defs"].items()}
    own = {key: form for key, form in whole["properties"].items() if key not in ("cluster", "collective", "training")}
    plots = PlotsSpec.model_json_schema()
    parts = {**parts, "PlotsKeys": plots, "ScenarioKeys": {"description": "Keys of a scenario.", "properties": own}}
    last = ("ScenarioKeys", "ClusterKeys", *_WITH_CLUSTER)
    written = _HEAD + "".join(_class(name, parts[name]) for name in (*sorted(set(parts) - set(last)), *last))
    # Lines with many words are too long; ruff breaks them.
    ruff = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(FILE), "-"]
    return subprocess.run(ruff, input=written, capture_output=True, text=True, check=True).stdout


def _class(name: str, form: Mapping[str, Any]) -> str:
    bases = "ScenarioKeys, ClusterKeys" if name in _WITH_CLUSTER else "TypedDict"
    needed = form.get("required", ())
    lines = [f"\n\nclass {name}({bases}, total=False):", f'    """{form["description"]}"""', ""]
    for key, value in form["properties"].items():
        hint = _SCENARIO.get(key) if name == "ScenarioKeys" else None
        hint = hint or _hint(value, is_open=(name, key) in _OPEN)
        lines.append(f"    {key}: {f'Required[{hint}]' if key in needed else hint}")
        lines += _docstring(value["description"])
    return "\n".join(lines) + "\n"


def _docstring(description: str) -> Iterator[str]:
    """Yield the lines of a key's description as a docstring, which editors show."""
    yield from textwrap.wrap(f'"""{description}"""', 120, initial_indent="    ", subsequent_indent="    ")


def _hint(form: Mapping[str, Any], *, is_open: bool) -> str:
    """Return the Python type of a key's value as text, from the key's form in the schema."""
    if "$ref" in form:
        return f"{str(form['$ref']).rsplit('/', 1)[1].removesuffix('Spec')}Keys"
    if "anyOf" in form:
        # `null` with the default `null` stands for an omitted key; elsewhere it is a value.
        forms = [each for each in form["anyOf"] if each.get("type") != "null"]
        return " | ".join(dict.fromkeys(_hint(each, is_open=is_open) for each in forms))
    words = form.get("enum", [form["const"]] if "const" in form else [])
    if words:
        if is_open:
            return "str"
        if set(words) == {True, False}:
            return "bool"
        literals = ", ".join(f'"{word}"' if isinstance(word, str) else repr(word) for word in words)
        return f"Literal[{literals}]"
    kinds = form.get("type", "any")
    return " | ".join(_of_kind(kind, form, is_open=is_open) for kind in ([kinds] if isinstance(kinds, str) else kinds))


def _of_kind(kind: str, form: Mapping[str, Any], *, is_open: bool) -> str:
    if kind == "array":
        return f"Sequence[{_hint(form['items'], is_open=is_open)}]"
    if kind == "object":
        values = [form.get("additionalProperties"), *form.get("patternProperties", {}).values()]
        hints = {_hint(each, is_open=is_open) for each in values if isinstance(each, Mapping)}
        is_number = form.get("propertyNames", {}).get("pattern", "").startswith("^[0-9]")
        return f"Mapping[{'int' if is_number else 'str'}, {hints.pop() if len(hints) == 1 else 'Any'}]"
    return _BASE.get(kind, "Any")


if __name__ == "__main__":
    main()
