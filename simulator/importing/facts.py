"""Which facts are known of a training? Collected from the settings of files, then completed by derivations.

A fact has a name: a scenario key ("training.seq_len"), or a name that derivations read ("shape.layers", "sequences").
The first error does not end an import: `refuse` reports every error at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from simulator.basics.errors import ScenarioError, in_lines
from simulator.importing.rules import Means, Rule, Table, shown, single
from simulator.importing.settings import Ignored, Missing, Reason, Setting, Understood, Unresolved

# Sections of a scenario: facts below them are keys.
_SECTIONS: Final = ("training.", "cluster.")


@dataclass(frozen=True, slots=True)
class Fact:
    """A value with the settings from which it follows."""

    value: Any
    settings: tuple[Setting, ...]


def _is_flag(rule: Means) -> bool:
    """Return True if an option has a meaning without a value."""
    try:
        return rule.read(True) is not None
    except ValueError:
        return False


class Facts:
    """Facts of a training, with the settings that were ignored and the values that were assumed."""

    def __init__(self) -> None:
        self._facts: dict[str, Fact] = {}
        self._defaults: dict[str, Missing] = {}
        self._faults: list[str] = []
        self._given: set[str] = set()
        # Facts whose settings have no value, or stand under a condition.
        self._lost: dict[str, str] = {}
        self._unresolved: set[str] = set()
        self.ignored: list[Ignored] = []

    def read(self, settings: Iterable[Setting], table: Table, plain: Callable[[str], str], idle: Iterable[str]) -> None:
        """Add the facts of a file's settings.

        Parameters
        ----------
        settings : iterable of Setting
            The file's settings.
        table : mapping of str to rule
            Meaning of each key.
        plain : function
            Spelling of a setting's key in the table.
        idle : iterable of str
            Shell patterns of keys that change no step.
        """
        patterns = tuple(idle)
        # Of an option that occurs twice, programs take the last; one under a condition hides no other.
        several = {
            (plain(setting.key), setting.line if setting.conditional else None, setting.conditional): setting
            for setting in settings
        }
        for setting in several.values():
            name = plain(setting.key)
            rule = table.get(name)
            if rule is None:
                is_idle = any(fnmatchcase(name, pattern) for pattern in patterns)
                self.ignore(setting, Reason.NO_MEANING if is_idle else Reason.UNKNOWN)
            else:
                self._apply(setting, rule)

    def _apply(self, setting: Setting, rule: Rule) -> None:
        if setting.conditional:
            self.ignore(setting, Reason.CONDITIONAL)
            if isinstance(rule, Means):
                prefix = "" if setting.value is True else f"{shown(single(setting.value)).strip(chr(39))} "
                self._lose(
                    rule.fact, f"{setting.place}: {setting.key}: {prefix}stands under a condition; write it outside"
                )
        elif isinstance(rule, Means):
            self._take(setting, rule)
        else:
            value = single(setting.value)
            harmless = value in rule.harmless or str(value).lower() in rule.harmless
            self.ignore(setting, Reason.NO_MEANING if harmless else Reason.NOT_MODELLED, "" if harmless else rule.why)

    def _take(self, setting: Setting, rule: Means) -> None:
        if rule.fact in self._given:
            self.ignore(setting, Reason.NO_MEANING, "replaced by an option of the command")
            return
        if isinstance(setting.value, Unresolved):
            if setting.value.variable and _is_flag(rule):
                setting = replace(setting, value=True, note=f"{setting.value.text} taken as empty")
            else:
                raw = shown(setting.value)
                self.ignore(setting, Reason.UNKNOWN, f"{raw} has no plain value in the file")
                if rule.needed:
                    text = f"{setting.place}: {setting.key}: got {raw}, which has no value in this file"
                    self._lose(rule.fact, f"{text}; {setting.value.remedy}")
                    self._unresolved.add(rule.fact)
                return
        try:
            value = rule.read(setting.value)
        except ValueError as error:
            self._faults.append(f"{setting.place}: {setting.key}: {error}")
            return
        if value is None:
            self.ignore(setting, Reason.NO_MEANING, "has no effect with this value")
        else:
            self.add(rule.fact, value, (setting,))

    def _lose(self, fact: str, text: str) -> None:
        self._lost.setdefault(fact, text)

    def lost(self, *names: str) -> list[str]:
        """Return texts of facts without a value although the files have a setting for them; by default of all."""
        present = self._facts.keys() | self._given
        return [text for name, text in self._lost.items() if name not in present and (not names or name in names)]

    def notes(self) -> tuple[str, ...]:
        """Return a line for each fact whose setting has no value, with the value that is assumed in its place."""
        lines = []
        for name in sorted(self._unresolved):
            for text in self.lost(name):
                value = f"{shown(self.assumed(name)).strip(chr(39))} is" if name in self._defaults else "the default is"
                lines.append(f"{text}; {value} assumed")
        return tuple(lines)

    def add(self, name: str, value: Any, settings: tuple[Setting, ...]) -> None:
        """Add a fact; two different values are a fault. A value from an option of the command stays."""
        fact = self._facts.get(name)
        if name in self._given:
            return
        if fact is not None and fact.value != value:
            old, new = fact.settings[0], settings[0]
            self._faults.append(
                f"{new.place}: {new.key}: got {shown(value)}, but {old.key} in {old.place} says {shown(fact.value)}; "
                "remove one of the two"
            )
        elif fact is None:
            self._facts[name] = Fact(value, settings)

    def give(self, name: str, value: Any, setting: Setting) -> None:
        """Set a fact from an option of the command, which wins over files."""
        self._facts[name] = Fact(value, (setting,))
        self._given.add(name)

    def value(self, name: str, default: Any = None) -> Any:
        """Return the value of a fact, or the default if it is unknown."""
        return self._facts[name].value if name in self._facts else default

    def has(self, name: str) -> bool:
        """Return True if a fact is known."""
        return name in self._facts

    def assumed(self, name: str) -> Any:
        """Return the value that was assumed for a key, or None."""
        return self._defaults[name].assumed if name in self._defaults else None

    def names(self) -> tuple[str, ...]:
        """Return the names of the known facts."""
        return tuple(self._facts)

    def settings(self, *names: str) -> tuple[Setting, ...]:
        """Return the settings behind some facts."""
        settings = (setting for name in names if name in self._facts for setting in self._facts[name].settings)
        return tuple(dict.fromkeys(settings))

    def derive(self, key: str, value: Any, *names: str, otherwise: str = "the program's default") -> None:
        """Add a fact that follows from the known facts among these names; assume it if none of them is known.

        `otherwise` is the reason of the assumption.
        """
        settings = self.settings(*names)
        if settings:
            self.add(key, value, settings)
        else:
            self.assume(key, value, otherwise)

    def assume(self, key: str, value: Any, why: str) -> None:
        """Assume a value for a key that no file gives; the first assumption counts."""
        self._defaults.setdefault(key, Missing(key, value, "; ".join([*self.lost(key), why])))

    def replace(self, key: str, value: Any) -> None:
        """Replace the value of a known or assumed key by another one with the same effect."""
        if key in self._facts:
            self._facts[key] = Fact(value, self._facts[key].settings)
        if key in self._defaults:
            self._defaults[key] = replace(self._defaults[key], assumed=value)

    def drop(self, key: str, why: str) -> None:
        """Remove a key that has no effect; its settings are ignored for this reason."""
        self._defaults.pop(key, None)
        fact = self._facts.pop(key, None)
        for setting in fact.settings if fact is not None else ():
            if setting not in (entry.setting for entry in self.ignored):
                self.ignore(setting, Reason.NO_MEANING, why)

    def ignore(self, setting: Setting, reason: Reason, why: str = "") -> None:
        """Note that a setting is not in the scenario."""
        self.ignored.append(Ignored(setting, reason, why))

    def ignore_unused(self) -> None:
        """Note the settings of facts from which no scenario key follows, so that no setting is passed over."""
        in_report = {setting for entry in self.understood() for setting in entry.settings}
        in_report |= {entry.setting for entry in self.ignored}
        for fact in self._facts.values():
            for setting in fact.settings:
                if setting not in in_report:
                    self.ignore(setting, Reason.NO_MEANING, "has no effect beside the other settings")
                    in_report.add(setting)

    def not_modelled(self, why: str, *names: str) -> None:
        """Note that the settings behind some facts change the step in a way that is not modelled."""
        for setting in self.settings(*names):
            self.ignore(setting, Reason.NOT_MODELLED, why)

    def fault(self, message: str, *names: str) -> None:
        """Note a fault at the first setting behind some facts."""
        at = self.settings(*names)
        self._faults.append(f"{at[0].place}: {at[0].key}: {message}" if at else message)

    def refuse(self) -> None:
        """Raise a ScenarioError with a line for each fault; do nothing without faults."""
        if self._faults:
            raise ScenarioError(in_lines(list(dict.fromkeys(self._faults))))

    def understood(self) -> tuple[Understood, ...]:
        """Return the known scenario keys."""
        return tuple(
            Understood(name, fact.value, fact.settings)
            for name, fact in self._facts.items()
            if name.startswith(_SECTIONS)
        )

    def missing(self) -> tuple[Missing, ...]:
        """Return the assumed values of scenario keys that no file gives."""
        return tuple(default for key, default in self._defaults.items() if key not in self._facts)
