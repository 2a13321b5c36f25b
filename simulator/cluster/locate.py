"""In which place is a named topology, GPU or model: shipped, beside the naming file, or in the working directory?

A shipped name wins, then the folder of the file that contains the name.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator.basics import registry
from simulator.basics.document import Document, parse
from simulator.basics.input_files import read_text


def read_named(
    kind: registry.Kind, thing: str | Path | Mapping[str, Any], base: Path | None = None
) -> tuple[str, Document]:
    """Return a description's name and parsed contents; a description is a mapping, or a file by name.

    Parameters
    ----------
    kind, base
        As for `locate`.
    thing : str, Path or mapping
        A catalog name, a path, or the keys of such a file; a mapping is named after its `product`.

    Raises
    ------
    UnknownNameError, ScenarioError
        Unknown name or path, or invalid YAML.
    """
    if isinstance(thing, Mapping):
        return str(thing.get("product", "inline")), Document(kind, dict(thing))
    path = thing if isinstance(thing, Path) else locate(kind, thing, base)
    return path.stem, read(path)


def read(path: Path) -> Document:
    """Return the parsed contents of a YAML file; equal texts are parsed once, because a Document is never changed."""
    return _parsed(read_text(path, source=str(path)), str(path))


@lru_cache(maxsize=32)
def _parsed(text: str, source: str) -> Document:
    return parse(text, source)


def locate(kind: registry.Kind, name: str, base: Path | None = None) -> Path:
    """Return the path of the file that a shipped name or a path refers to.

    Parameters
    ----------
    kind : str
        "topology", "gpu" or another kind in the registry.
    name : str
        A shipped name, or a path.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    UnknownNameError, ScenarioError
        Unknown name, or no such path.
    """
    # A shipped name wins over a file with the same name beside the scenario.
    if name not in registry.names(kind) and base is not None and registry.is_file(base / name):
        return base / name
    return registry.find(kind, name)
