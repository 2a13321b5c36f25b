"""Writes outcomes as a table (CSV, Parquet, pandas), with a row per point.

Every format has the same columns: axes, then the report's figures, then `engine` and `error`. Training steps on several
numbers of GPUs have two more columns, `speedup` and `efficiency`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.atomic_files import write_atomically
from simulator.basics.csv_text import csv_text
from simulator.basics.sections import SECTIONS
from simulator.records.setting_text import label
from simulator.run.outcome import PointOutcome
from simulator.scenario.records import axis_keys

if TYPE_CHECKING:
    import pandas as pd


_GPUS: Final = "cluster.world_size"


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


def rows(outcomes: Sequence[PointOutcome]) -> list[dict[str, Any]]:
    """Return a flat table row for each outcome, with `speedup` and `efficiency` of training steps on several GPUs.

    Both are relative to the row with the fewest GPUs and otherwise equal settings. `speedup` is the ratio of tokens/s.
    `efficiency` is the speedup over the ratio of GPUs: 1.0 if every GPU is as fast as with the fewest GPUs.

    Examples
    --------
    >>> points = [PointOutcome(n, {"cluster.world_size": gpus}, "compiled", {"tokens_per_s": speed})
    ...     for n, (gpus, speed) in enumerate([(8, 100.0), (16, 150.0)])]
    >>> [(row["speedup"], row["efficiency"]) for row in rows(points)]
    [(1.0, 1.0), (1.5, 0.75)]
    """
    flat = [row(outcome) for outcome in outcomes]
    trained = [place for place, fields in enumerate(flat) if _GPUS in fields and fields.get("tokens_per_s")]
    if len({flat[place][_GPUS] for place in trained}) < 2:
        return flat
    fewest: dict[str, dict[str, Any]] = {}
    for place in sorted(trained, key=lambda place: int(flat[place][_GPUS])):
        fields = flat[place]
        # Settings besides the number of GPUs; a column for a whole section contains the number of GPUs.
        settings = row(replace(outcomes[place], report=None, engine=None))
        others = {key: value for key, value in settings.items() if key not in (_GPUS, *SECTIONS)}
        first = fewest.setdefault(str(others), fields)
        fields["speedup"] = fields["tokens_per_s"] / first["tokens_per_s"]
        fields["efficiency"] = fields["speedup"] * first[_GPUS] / fields[_GPUS]
    return flat


def frame(outcomes: Iterable[PointOutcome]) -> pd.DataFrame:
    """Return a pandas table with a row for each outcome, in the given order."""
    import pandas as pd

    return pd.DataFrame(rows(list(outcomes)))


def table_text(outcomes: Iterable[PointOutcome]) -> str:
    """Return the table as CSV; a missing figure is an empty field, and numbers read back exactly."""
    flat = rows(list(outcomes))
    # Points may have different report keys: the columns are the union, in order of first appearance.
    columns = list(dict.fromkeys(column for fields in flat for column in fields))
    return csv_text([columns, *([fields.get(column) for column in columns] for fields in flat)])


def write_parquet(outcomes: Iterable[PointOutcome], path: Path) -> None:
    """Write a table with a row for each outcome to `path` as Parquet; mixed or structured columns become text."""
    table = frame(outcomes)
    for name in table.columns:
        kinds = {type(value) for value in table[name].dropna()}
        # A Parquet column has a single type.
        if table[name].dtype == object and (len(kinds) > 1 or not kinds <= {str, bool, int, float}):
            table[name] = table[name].map(str, na_action="ignore")
    write_atomically(path, table.to_parquet(None, engine="pyarrow", index=False))
