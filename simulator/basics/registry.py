"""Finds shipped topologies, scenarios, GPUs, links, models and frameworks by name: the name of their file.

Nothing is registered by hand: every file in a folder can be named. Other spellings of a file's name have the same
meaning (`spelling.py`), and so have the names in catalog/other_names.yaml.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Final, Literal, get_args

from simulator.basics.errors import ScenarioError, UnknownNameError, one_of
from simulator.basics.installed_files import installed_frameworks
from simulator.basics.spelling import meant

if TYPE_CHECKING:
    from simulator.basics.document import Document

Kind = Literal["topology", "scenario", "jobs", "days", "gpu", "model", "framework"]

_PACKAGE: Final = Path(__file__).parents[1]
# In the wheel, topologies/ and scenarios/ are inside the package; in a checkout they are beside the package.
_FOLDERS: Final[dict[Kind, tuple[tuple[Path, ...], tuple[str, ...]]]] = {
    "topology": ((_PACKAGE / "topologies", _PACKAGE.parent / "topologies"), (".yaml",)),
    "scenario": ((_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios"), (".yaml",)),
    "jobs": ((_PACKAGE / "scenarios" / "jobs", _PACKAGE.parent / "scenarios" / "jobs"), (".yaml",)),
    "days": ((_PACKAGE / "scenarios" / "days", _PACKAGE.parent / "scenarios" / "days"), (".yaml",)),
    "gpu": ((_PACKAGE / "catalog" / "gpus",), (".yaml",)),
    "model": ((_PACKAGE / "catalog" / "models",), (".json", ".yaml")),
    "framework": ((_PACKAGE / "catalog" / "frameworks",), (".yaml",)),
}
# Boards in tables of measured runs that differ from a shipped GPU in a few keys, and how to write them.
_MEASURED_BOARDS: Final = {
    "h100_hbm2e_500w": "copy gpus/h100_sxm.yaml of the catalog, change power to 500, hbm_bytes to 96 GB and "
    "hbm_bandwidth to 2.4 TB/s, and give the file's path",
}
# Kinds of files with keys that tell them apart, and what to do with such a file; the first that applies counts.
_KEYS_OF_KINDS: Final[tuple[tuple[str, tuple[frozenset[str], ...], str], ...]] = (
    ("jobs", (frozenset({"jobs"}),), "this is a file of several jobs; use `simulator jobs {}`"),
    (
        "scenario",
        (frozenset({"training"}), frozenset({"collective"}), frozenset({"cluster", "name"})),
        "this is a scenario; use `simulator run {}`",
    ),
    ("days", (frozenset({"scenario"}),), "this is a file of days; use `simulator goodput {}`"),
    (
        "topology",
        (frozenset({"builder"}), frozenset({"graph"})),
        "this is a topology; write cluster.topology: {} in a scenario, or use `simulator show {}`",
    ),
    (
        "model",
        (frozenset({"layers", "input"}), frozenset({"layers", "loss"})),
        "this is a file of layers; write training.model: {} in a scenario, or use `simulator kernels {}`",
    ),
    (
        "plan",
        (frozenset({"sentences", "sequences"}),),
        "this is the answer of a plan; use `simulator run {best}`, its fastest setting",
    ),
    ("answer", (frozenset({"sentences"}),), "this is an answer and no file to simulate; use the file that it answers"),
)
_OTHER_NAMES: Final = _PACKAGE / "catalog" / "other_names.yaml"


@cache
def _files(kind: Kind) -> dict[str, Path]:
    folders, suffixes = _FOLDERS[kind]
    for folder in folders:
        if folder.is_dir():
            return {p.stem: p for p in sorted(folder.iterdir(), key=lambda path: path.stem) if p.suffix in suffixes}
    return {}


def names(kind: Kind) -> tuple[str, ...]:
    """Return every shipped file's name for a kind such as "topology" or "gpu", sorted."""
    return tuple(_files(kind))


@cache
def other_names(kind: Kind) -> dict[str, str]:
    """Return other names for shipped files, as a dict from other name to shipped name; `kind` is "gpu", "model", ..."""
    # Imported here: callers that use shipped names need no YAML reader, which takes a while to import.
    from simulator.basics.document import load

    listed = load(_OTHER_NAMES).data.get(kind, {})
    aliases = {other: name for name, others in listed.items() for other in others}
    # Ids on a model hub, such as meta-llama/Llama-3.1-8B, are also accepted without their organisation.
    return aliases | {other.rpartition("/")[2]: name for other, name in aliases.items()}


def shipped(kind: Kind, written: str) -> str | None:
    """Return the shipped name of a kind that a user's text refers to, in any spelling; None if there is none.

    >>> shipped("model", "meta-llama/Llama-3.1-8B"), shipped("gpu", "A100 (80 GB)"), shipped("gpu", "my_gpu.yaml")
    ('llama3_8b', 'a100_sxm_80gb', None)
    """
    listed = _files(kind)
    return written if written in listed else meant(written, listed, other_names(kind))


def installed_files(kind: Kind) -> dict[str, Path]:
    """Return the files of a kind that installed packages bring, by name; only frameworks may be installed."""
    return installed_frameworks() if kind == "framework" else {}


def is_file(path: Path) -> bool:
    """Return True if `path` is an existing file; also False for names with too many or invalid characters.

    >>> is_file(Path("x" * 5000))
    False
    """
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def listed_by(kind: Kind) -> str:
    """Return the command that lists the shipped names of a kind: "simulator list topologies"."""
    return "simulator list " + (
        kind if kind.endswith("s") else f"{kind.removesuffix('y')}{'ies' if kind.endswith('y') else 's'}"
    )


def find(kind: Kind, name: str) -> Path:
    """Return the path of the shipped file with this name, or of the file at this path.

    A shipped name wins, then an existing file, then another spelling of a shipped name, then an installed name.

    Raises
    ------
    UnknownNameError
        Unknown name; the message suggests a similar name.
    ScenarioError
        A path without a file.
    """
    files = _files(kind)
    if name in files:
        return files[name]
    path = Path(name)
    try:
        if path.is_file():
            return path
    # The name may be too long for the file system, or contain a zero byte.
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise ScenarioError(f"{kind}: got {name[:60]!r}, which cannot be read: {why}") from error
    match = shipped(kind, name)
    if match is not None:
        return files[match]
    if name in (installed := installed_files(kind)):
        if not is_file(installed[name]):
            raise ScenarioError(
                f"{kind}: got {name!r}, which an installed package names, but {installed[name]} is missing"
            )
        return installed[name]
    if path.is_dir():
        raise ScenarioError(f"{name}: is a directory; {_directory_hint(kind, path)}")
    # A text that looks like a path gets a message about files; any other text gets a message about names.
    if "/" in name or path.suffix in (".yaml", ".yml", ".json", ".graphml"):
        text = name if name.isprintable() else repr(name)
        shipped_names = one_of(files, path.stem, listed_by(kind))
        raise ScenarioError(f"{text}: no such {kind} file; give an existing path or a name; {shipped_names}")
    hint, instead = "or give the path of a config.json" if kind == "model" else "", _other_kind(kind, name)
    raise UnknownNameError(kind, name, (*files, *installed), hint, listed_by(kind), instead)


def _directory_hint(kind: Kind, path: Path) -> str:
    """Return the command that repeats an earlier run, if a directory given as a scenario is a run's directory."""
    if kind == "scenario" and is_file(path / "run.json"):
        return f"to simulate this earlier run again, use `simulator rerun {shlex.quote(str(path))}`"
    return f"give the path of a {kind} file or a name; {one_of(_files(kind), path.name, listed_by(kind))}"


def refuse_other_kind(document: Document, expected: Kind) -> None:
    """Raise ScenarioError if a file's keys are those of another kind; the message names the command for that kind."""
    if not isinstance(document.data, Mapping):
        return
    kind, advice = next(
        ((kind, advice) for kind, marks, advice in _KEYS_OF_KINDS if any(mark <= set(document.data) for mark in marks)),
        (expected, ""),
    )
    if kind != expected:
        best = Path(document.source).with_name("best.yaml")
        message = advice.replace("{}", document.source).replace("{best}", str(best))
        document.refuse([document.fault((), message)])


def _other_kind(kind: Kind, name: str) -> str:
    """Return a hint if the name belongs to another kind ("l4 is a gpu"), or to a board of measured runs; else ""."""
    if kind == "gpu" and name in _MEASURED_BOARDS:
        return f"this is a board of measured runs; {_MEASURED_BOARDS[name]}"
    others = (other for other in get_args(Kind) if other != kind)
    matches = ((other, match) for other in others if (match := shipped(other, name)) is not None)
    commands = {"jobs": "simulator jobs", "days": "simulator goodput"}
    hints = (
        f"use `{commands[other]} {match}`" if other in commands else f"{match} is the name of a {other}"
        for other, match in matches
    )
    return next(hints, "")


def module_names(package: str) -> tuple[str, ...]:
    """Return the names of a package's modules, sorted, without importing any module."""
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec is not None else None
    return tuple(sorted(module.name for module in iter_modules(folders)))
