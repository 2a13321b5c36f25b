"""Where a named topology, GPU, link or model lies: shipped, beside the file that names it, or in the working directory.

Rule: a shipped name wins, then the folder of the file that names it.
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
    """Read what is written out, or named: its name, and its text with places.

    Parameters
    ----------
    kind, base
        As for `locate`.
    thing : str, Path or mapping
        A catalog name, a path, or the keys of such a file, called by its product.

    Raises
    ------
    UnknownNameError, ScenarioError
        No such name or path; not YAML.
    """
    if isinstance(thing, Mapping):
        return str(thing.get("product", "inline")), Document(kind, dict(thing))
    path = thing if isinstance(thing, Path) else locate(kind, thing, base)
    return path.stem, read(path)


def read(path: Path) -> Document:
    """Read a file that describes a machine; the same text is taken apart once, for nobody changes a Document."""
    return _parsed(read_text(path, source=str(path)), str(path))


@lru_cache(maxsize=32)
def _parsed(text: str, source: str) -> Document:
    return parse(text, source)


def locate(kind: registry.Kind, name: str, base: Path | None = None) -> Path:
    """Find a shipped file or a path.

    Parameters
    ----------
    kind : str
        "topology", "gpu" or "link".
    name : str
        A shipped name, or a path.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    UnknownNameError, ScenarioError
        No such name; no such path.
    """
    if name not in registry.names(kind) and base is not None and registry.is_file(base / name):
        return base / name
    return registry.find(kind, name)
