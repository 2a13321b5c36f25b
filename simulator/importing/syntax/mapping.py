"""How are the settings of a YAML or JSON file read? Nested keys are joined with dots, and every value has its line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simulator.basics.document import Document, Key, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import parse_json
from simulator.importing.settings import Setting, Unresolved


def read(text: str, source: str) -> list[list[Setting]]:
    """Return the settings of a YAML or JSON text, as a single reading.

    Raises
    ------
    ScenarioError
        The text is neither, too deep, or no mapping.

    Examples
    --------
    >>> [(setting.key, setting.value) for setting in read("model: {tp: 2, pp: null}", "job.yaml")[0]]
    [('model.tp', 2)]
    """
    if source.endswith(".json"):
        # YAML would also accept comments and trailing commas, which programs that read JSON refuse.
        parse_json(text, source)
    document = parse(text.replace("\t", " ") if source.endswith(".json") else text, source)
    if not isinstance(document.data, dict):
        raise ScenarioError(f"{source}: must be a mapping (key: value)")
    return [list(_leaves(document, document.data, ()))]


def _leaves(document: Document, data: dict[Any, Any], at: Key) -> Iterator[Setting]:
    for name, value in data.items():
        key = (*at, name)
        if isinstance(value, dict):
            yield from _leaves(document, value, key)
        elif value is not None:
            # Interpolations of the environment or of Hydra, and Hydra's word for a missing value.
            plain = not (isinstance(value, str) and ("${" in value or value == "???"))
            line = document.place(key, of_key=True)[0]
            yield Setting(".".join(map(str, key)), value if plain else Unresolved(value), document.source, line)
