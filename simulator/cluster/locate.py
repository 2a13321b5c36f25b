"""Where a named file lies: shipped, beside the file that names it, or in the working directory.

Rule: a shipped name wins, then the folder of the file that names it. Like asking for a book: on the shelf first, then
next door.
"""

from __future__ import annotations

from pathlib import Path

from simulator import registry


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
    if name not in registry.names(kind) and base is not None and (base / name).is_file():
        return base / name
    return registry.find(kind, name)
