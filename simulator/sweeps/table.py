"""Writes outcomes as a table (CSV, Parquet, pandas): one row a point.

Rule: the same columns everywhere: axes, then the report's figures, then `engine` and `error`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.atomic_files import write_atomically
from simulator.basics.csv_text import csv_text
from simulator.basics.sections import SECTIONS
from simulator.records.setting_text import label
from simulator.run.outcome import PointOutcome
from simulator.scenario.records import axis_keys

if TYPE_CHECKING:
    import pandas as pd


def row(outcome: PointOutcome) -> dict[str, Any]:
    """One outcome as a flat row of a table."""
    # A setting of a whole section has a word for it, by which rows can be grouped, and a column for each key.
    flat = {key: label(key, value) if key in SECTIONS else value for key, value in outcome.settings.items()}
    for section in (key for key in outcome.settings if key in SECTIONS):
        flat |= _keys(outcome.settings[section], section)
    for key, value in (outcome.report or {}).items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": v for inner, v in value.items()}
        else:
            flat[key] = value
    return flat | {"engine": outcome.engine, "error": outcome.error}


def _keys(value: Any, key: str) -> dict[str, Any]:
    """Dotted keys of a setting, as far down as a scenario has keys of its own."""
    names = {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, Mapping) else {}
    if not names or not set(names) <= set(axis_keys()):
        return {key: value}
    return {dotted: last for name, inner in names.items() for dotted, last in _keys(inner, name).items()}


def frame(outcomes: Iterable[PointOutcome]) -> pd.DataFrame:
    """Outcomes as a pandas table, in their order."""
    import pandas as pd

    return pd.DataFrame([row(outcome) for outcome in outcomes])


def table_text(outcomes: Iterable[PointOutcome]) -> str:
    """The same table as CSV; a figure that a point does not have is empty, numbers read back exactly."""
    rows = [row(outcome) for outcome in outcomes]
    columns = list(dict.fromkeys(column for fields in rows for column in fields))
    return csv_text([columns, *([fields.get(column) for column in columns] for fields in rows)])


def write_parquet(outcomes: Iterable[PointOutcome], path: Path) -> None:
    """The same table as Parquet; a column whose values are not of one plain kind is text, as in CSV."""
    table = frame(outcomes)
    for name in table.columns:
        kinds = {type(value) for value in table[name].dropna()}
        if table[name].dtype == object and (len(kinds) > 1 or not kinds <= {str, bool, int, float}):
            table[name] = table[name].map(str, na_action="ignore")
    write_atomically(path, table.to_parquet(None, engine="pyarrow", index=False))
