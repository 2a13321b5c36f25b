"""What was read from a description of a machine, what was assumed, and what is not in the topology?"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.importing.settings import Ignored, Missing, Reason, Setting, Understood


@dataclass(slots=True)
class Notes:
    """Lists of an import, in the order of reading; a text occurs once in each list."""

    understood: list[Understood] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)
    ignored: list[Ignored] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _told: set[tuple[str, ...]] = field(default_factory=set)

    def read(self, part: str, value: object, *settings: Setting) -> None:
        """Note a part of the machine with its value, and the settings of the file that give it."""
        if self._is_new("read", part, str(value)):
            self.understood.append(Understood(part, value, settings))

    def assume(self, part: str, value: object, why: str) -> None:
        """Note a value that no file gives, and its origin."""
        if self._is_new("assumed", part, str(value), why):
            self.missing.append(Missing(part, value, why))

    def ignore(self, setting: Setting, reason: Reason, why: str = "") -> None:
        """Note a setting that is not in the topology, at its first place."""
        if self._is_new("ignored", setting.key, reason.name, why):
            self.ignored.append(Ignored(setting, reason, why))

    def warn(self, line: str) -> None:
        """Note a line for the user."""
        if self._is_new("warning", line):
            self.warnings.append(line)

    def _is_new(self, *text: str) -> bool:
        new = text not in self._told
        self._told.add(text)
        return new
