"""What does a format declare, and which format does a file have?

A file's syntax gives its settings. The format is the one with a mark in the file whose table knows the most settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from simulator.basics.catalog import Catalog
from simulator.basics.errors import ScenarioError, few
from simulator.importing.facts import Facts
from simulator.importing.rules import Table
from simulator.importing.settings import Setting

# Alternative readings of a file: the settings of each command in a script; one reading of other files.
Readings = Sequence[Sequence[Setting]]


# Formats are compared by identity, because a table cannot be hashed.
@dataclass(frozen=True, slots=True, eq=False)
class Format:
    """A configuration format.

    Attributes
    ----------
    name : str
        Name in messages.
    syntaxes : tuple of str
        Syntaxes in which it is written: "shell", "mapping", "toml", "python".
    table : mapping of str to rule
        Meaning of each setting, by the key's plain spelling.
    marks : frozenset of str
        Plain keys of which a file has at least one; shell patterns.
    derive : function
        Completes the facts whose meaning depends on several settings, and assumes the framework's defaults.
    idle : tuple of str
        Shell patterns of plain keys that change no step: logs, checkpoints, data.
    plain : function
        Spelling of a setting's key in the table.
    framework : str
        Scenario's framework.
    companion : bool
        Whether the file usually stands beside another program's configuration, which then tells the framework.
    """

    name: str
    syntaxes: tuple[str, ...]
    table: Table
    marks: frozenset[str]
    derive: Callable[[Facts], None]
    idle: tuple[str, ...] = ()
    plain: Callable[[str], str] = field(default=str)
    framework: str = "torchtitan"
    companion: bool = False

    def known(self, settings: Sequence[Setting]) -> int:
        """Return the number of settings that the table knows; 0 without a mark."""
        names = {self.plain(setting.key) for setting in settings}
        if not any(fnmatchcase(name, mark) for mark in self.marks for name in names):
            return 0
        return sum(name in self.table for name in names)


FORMATS: Final = Catalog[Format]("simulator.importing.formats", "FORMAT", Format, "format")


def formats() -> Mapping[str, Format]:
    """Return every format, by name."""
    return FORMATS.by_name


def format_of(source: str, syntax: str, readings: Readings) -> tuple[Format, Sequence[Setting]]:
    """Return the format of a file, and its settings in the reading that the format knows best.

    Raises
    ------
    ScenarioError
        No format knows the file's settings.
    """
    able = [kind for kind in formats().values() if syntax in kind.syntaxes]
    scores = [(kind.known(settings), kind, settings) for settings in readings for kind in able]
    best = max(scores, key=lambda entry: entry[0], default=None)
    if best is not None and best[0]:
        return best[1], best[2]
    keys = few([setting.key for settings in readings for setting in settings][:8], 6)
    names = ", ".join(formats())
    # Keys of a model's file at Hugging Face.
    is_model = any(setting.key == "model_type" for settings in readings for setting in settings)
    hint = "; a model's config.json is given with --model" if is_model else ""
    has = f"its settings are {keys}" if keys else "it has no settings"
    raise ScenarioError(f"{source}: no known configuration: {has}; read are {names}{hint}")
