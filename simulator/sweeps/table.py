"""Writes outcomes as a table (CSV, Parquet, pandas), with a row per point.

Every format has the same columns: axes, then the report's figures, then `engine` and `error`.
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
    """Return a point's outcome as a flat table row: {column name: value}."""
    # A setting of a whole section gives a column with a short text, for grouping, and a column for each of its keys.
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
    """Return a setting as {dotted key: value}, down to the deepest keys that a scenario has."""
    names = {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, Mapping) else {}
    if not names or not set(names) <= set(axis_keys()):
        return {key: value}
    return {dotted: last for name, inner in names.items() for dotted, last in _keys(inner, name).items()}


def frame(outcomes: Iterable[PointOutcome]) -> pd.DataFrame:
    """Return a pandas table with a row for each outcome, in the given order."""
    import pandas as pd

    return pd.DataFrame([row(outcome) for outcome in outcomes])


def table_text(outcomes: Iterable[PointOutcome]) -> str:
    """Return a table with a row for each outcome in CSV format.

    A missing figure is empty, and numbers read back exactly.
    """
    rows = [row(outcome) for outcome in outcomes]
    # Points may have different report keys: the columns are the union, in order of first appearance.
    columns = list(dict.fromkeys(column for fields in rows for column in fields))
    return csv_text([columns, *([fields.get(column) for column in columns] for fields in rows)])


def write_parquet(outcomes: Iterable[PointOutcome], path: Path) -> None:
    """Write a table with a row for each outcome to `path` as Parquet; mixed or structured columns become text."""
    table = frame(outcomes)
    for name in table.columns:
        kinds = {type(value) for value in table[name].dropna()}
        # A Parquet column has a single type.
        if table[name].dtype == object and (len(kinds) > 1 or not kinds <= {str, bool, int, float}):
            table[name] = table[name].map(str, na_action="ignore")
    write_atomically(path, table.to_parquet(None, engine="pyarrow", index=False))
