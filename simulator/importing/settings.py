"""Which records pass from a configuration file to a scenario? Settings as written, and the result of an import.

file --syntax--> Setting --format's table--> Understood, Ignored --derivation, defaults--> Imported
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

# Settings of an origin that are written out.
_MOST_SHOWN: Final = 3
# Largest configuration file that is read [B].
MOST_BYTES: Final = 4 * 2**20
# Largest Python file [B]: its syntax tree takes a hundred times as much memory.
MOST_PYTHON_BYTES: Final = 2**20


@dataclass(frozen=True, slots=True)
class Unresolved:
    """A value that the file does not give: its text contains a variable, a command or an expression."""

    text: str  # the value as written
    # What helps: options of the command, or a written value.
    remedy: str = "write the value in its place"
    variable: bool = False  # whether the value is a single variable of a command, which may be empty


# Settings are compared by identity: a value may be a list, and two files may have equal settings.
@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """A setting of a configuration file, as written there.

    Attributes
    ----------
    key : str
        The file's own name: "--seq-length", "zero_optimization.stage".
    value : Any
        Plain data; from a shell script True for an option without value, text, a tuple of texts, or Unresolved.
    source : str
        Name of the file.
    line : int or None
        Line in the file, from 1; None if unknown.
    conditional : bool
        Whether the setting stands in a branch of a script (`if`, `case`, a loop).
    note : str
        Origin of the value if it is not the written text, such as the default in ${TP:-8}.
    """

    key: str
    value: Any
    source: str
    line: int | None = None
    conditional: bool = False
    note: str = ""

    @property
    def place(self) -> str:
        """File and line: "train.sh:31"."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    @property
    def name_and_line(self) -> str:
        """File name without folders, and line."""
        return self.place.replace("\\", "/").rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Understood:
    """A scenario key with its value, and the settings from which the value follows."""

    key: str
    value: Any
    settings: tuple[Setting, ...]

    @property
    def origin(self) -> str:
        """The settings' own keys, the first few of many: "--nnodes, --nproc_per_node"."""
        keys = list(dict.fromkeys(setting.key for setting in self.settings))
        return ", ".join(keys[:_MOST_SHOWN]) + (f" and {len(keys) - _MOST_SHOWN} more" if keys[_MOST_SHOWN:] else "")

    @property
    def place(self) -> str:
        """File and line of the first setting, and the origin of values that are not written there."""
        notes = dict.fromkeys(setting.note for setting in self.settings if setting.note)
        return ", ".join([self.settings[0].name_and_line, *notes])


class Reason(Enum):
    """Kind of reason for which a setting is not in the scenario."""

    NO_MEANING = "changes no step"
    NOT_MODELLED = "changes the step, but is not modelled"
    CONDITIONAL = "stands under a condition of the script, which is not evaluated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting that is not in the scenario, with the reason in words."""

    setting: Setting
    reason: Reason
    why: str = ""


@dataclass(frozen=True, slots=True)
class Missing:
    """A scenario key that no file gives, with the value taken and the value's origin in words."""

    key: str
    assumed: Any
    why: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import.

    Attributes
    ----------
    formats : mapping of str to str
        Format of each file, by file name.
    understood : tuple of Understood
        Scenario keys from the files.
    ignored : tuple of Ignored
        Settings that are not in the scenario.
    missing : tuple of Missing
        Scenario keys that no file gives.
    text : str
        The scenario as YAML.
    warnings : tuple of str
        Lines of the scenario's own check, such as keys without effect.
    """

    formats: Mapping[str, str]
    understood: tuple[Understood, ...]
    ignored: tuple[Ignored, ...]
    missing: tuple[Missing, ...]
    text: str
    warnings: tuple[str, ...] = ()

    def ignored_for(self, reason: Reason) -> tuple[Ignored, ...]:
        """Return the settings that are ignored for a kind of reason."""
        return tuple(entry for entry in self.ignored if entry.reason is reason)
