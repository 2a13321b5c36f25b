"""How are the lists of an import shown: what was understood, assumed, and left out?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.yaml_dialect import dump
from simulator.cli.console import print_table, print_text
from simulator.importing.settings import Ignored, Missing, Reason, Understood
from simulator.report.tables.layout import text_columns

# Longest value in the printed table.
_WIDEST: Final = 40


@dataclass(frozen=True, slots=True)
class Words:
    """Words of the lists: heading of what is understood, the result, what idle settings do not change, heading of
    reasons.
    """

    key: str
    result: str
    unchanged: str
    reason: str


def show(
    words: Words,
    formats: Mapping[str, str],
    understood: Sequence[Understood],
    missing: Sequence[Missing],
    ignored: Sequence[Ignored],
    warnings: Sequence[str],
) -> None:
    """Print each file's format, the lists of an import, and its warnings; an empty list is left out."""
    for file, name in formats.items():
        print_text(f"{file}: read as {name}")
    rows = [[entry.key, _value(entry.value), entry.origin, entry.place] for entry in understood]
    _section("Understood", (words.key, "value", "setting", "place"), rows)
    rows = [[entry.key, _value(entry.assumed), entry.why] for entry in missing]
    _section("Missing in the files, and assumed", (words.key, "value", "reason"), rows)
    for reason in (Reason.NOT_MODELLED, Reason.CONDITIONAL, Reason.UNKNOWN):
        several = [entry for entry in ignored if entry.reason is reason]
        _section(f"Not in {words.result}: {reason.value}", *_reasons(several, words.reason))
    without = [entry for entry in ignored if entry.reason is Reason.NO_MEANING]
    explained = [entry for entry in without if entry.why]
    _section(f"Without effect on {words.unchanged}, with the reason", *_reasons(explained, "reason"))
    idle = list(dict.fromkeys(entry.setting.key for entry in without if not entry.why))
    if idle:
        print_text(f"\nWithout effect on {words.unchanged} ({len(idle)}): {', '.join(idle)}")
    for line in warnings:
        print_text(f"note: {line}", stderr=True)


def data(
    key: str, understood: Sequence[Understood], missing: Sequence[Missing], ignored: Sequence[Ignored]
) -> dict[str, Any]:
    """Return the lists of an import as plain data for --json; `key` names the field of what is understood."""
    return {
        "understood": [
            {key: entry.key, "value": entry.value, "settings": [
                {"key": setting.key, "file": setting.source, "line": setting.line} for setting in entry.settings
            ]}
            for entry in understood
        ],
        "ignored": [
            {"key": entry.setting.key, "file": entry.setting.source, "line": entry.setting.line,
             "reason": entry.reason.value, "why": entry.why}
            for entry in ignored
        ],
        "missing": [{key: entry.key, "assumed": entry.assumed, "why": entry.why} for entry in missing],
    }  # fmt: skip


def _reasons(ignored: Sequence[Ignored], reason: str) -> tuple[tuple[str, ...], list[list[str]]]:
    """Return the headings and the rows of ignored settings, with a column `reason` if any setting has one."""
    if not any(entry.why for entry in ignored):
        return ("setting", "place"), [[entry.setting.key, entry.setting.name_and_line] for entry in ignored]
    return ("setting", "place", reason), [
        [entry.setting.key, entry.setting.name_and_line, entry.why] for entry in ignored
    ]


def _section(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print_text(f"\n{title}")
        print_table(text_columns(*headings), rows, indent="  ")


def _value(value: Any) -> str:
    text = dump(value, one_line=True)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 3]}..."
