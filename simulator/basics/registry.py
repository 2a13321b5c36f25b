"""Finds shipped topologies, scenarios, GPUs, links, models and frameworks by name: the name of their file.

Rule: nothing is registered by hand; what is in a folder can be named.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Final, Literal, TypeVar

from simulator.errors import ScenarioError, UnknownNameError

T = TypeVar("T")
Kind = Literal["topology", "scenario", "gpu", "link", "model", "framework"]

_PACKAGE: Final = Path(__file__).parents[1]
# In the wheel topologies/ and scenarios/ lie inside the package; in a checkout beside it.
_FOLDERS: Final[dict[Kind, tuple[tuple[Path, ...], str]]] = {
    "topology": ((_PACKAGE / "topologies", _PACKAGE.parent / "topologies"), ".yaml"),
    "scenario": ((_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios"), ".yaml"),
    "gpu": ((_PACKAGE / "catalog" / "gpus",), ".yaml"),
    "link": ((_PACKAGE / "catalog" / "links",), ".yaml"),
    "model": ((_PACKAGE / "catalog" / "models",), ".json"),
    "framework": ((_PACKAGE / "catalog" / "frameworks",), ".yaml"),
}


@cache
def _files(kind: Kind) -> dict[str, Path]:
    folders, suffix = _FOLDERS[kind]
    for folder in folders:
        if folder.is_dir():
            return {p.stem: p for p in sorted(folder.glob(f"*{suffix}"))}
    return {}


def names(kind: Kind) -> tuple[str, ...]:
    """List every name of a kind, sorted."""
    return tuple(_files(kind))


def is_file(path: Path) -> bool:
    """Whether a file is there; a name that no file can have, for its length or its letters, is of none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find(kind: Kind, name: str) -> Path:
    """Find the file behind a shipped name, or the file that a path names.

    A text with a slash or a file suffix is a path; all else is a shipped name.

    Raises
    ------
    UnknownNameError
        No such name; with "did you mean".
    ScenarioError
        A path to nothing.
    """
    shipped = _files(kind)
    if name in shipped:
        return shipped[name]
    path = Path(name)
    try:
        if path.is_file():
            return path
    except (OSError, ValueError) as error:  # a name too long for the file system, or with a zero byte in it
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{kind}: got {name[:60]!r}, which cannot be read: {why}") from error
    if "/" in name or path.suffix in (".yaml", ".yml", ".json", ".graphml"):
        shown = name if name.isprintable() else repr(name)
        raise ScenarioError(f"{shown}: no such {kind} file; give an existing path or {_some(shipped)}")
    raise UnknownNameError(kind, name, shipped)


def declared(package: ModuleType, constant: str, kind: type[T]) -> dict[str, T]:
    """What modules of a package declare under a constant's name, by module; modules without it are left out."""
    loaded = {
        module.name: import_module(f"{package.__name__}.{module.name}") for module in iter_modules(package.__path__)
    }
    values = {name: getattr(module, constant, None) for name, module in loaded.items()}
    return {name: value for name, value in values.items() if isinstance(value, kind)}


def _some(names: dict[str, Path]) -> str:
    return "one of " + ", ".join(names) if names else "a path"
