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
from simulator.basics.work_unit import work_unit
from simulator.records.setting_text import label
from simulator.run.outcome import PointOutcome
from simulator.scenario.records import axis_keys

if TYPE_CHECKING:
    import pandas as pd


_GPUS: Final = "cluster.world_size"
# Efficiencies above 1 by less than this are printed as 1.
_VISIBLE: Final = 0.005
# Parts of a step in a report, and what they are called.
_PARTS: Final = {
    "recompute_time_s": "recomputation",
    "optimizer_time_s": "time of the optimizer's update",
    "bubble_time_s": "idle time",
    "exposed_comm_time_s": "exposed communication",
}


def row(outcome: PointOutcome) -> dict[str, Any]:
    """Return a point's outcome as a flat table row: {column name: value}.

    >>> row(PointOutcome(0, {"collective.size": 1024}, "fast", {"time_s": 0.5, "links": {"nvlink": 2}}))
    {'collective.size': 1024, 'time_s': 0.5, 'links.nvlink': 2, 'engine': 'fast', 'error': None}
    """
    # A setting of a whole section gives a column with a short text, for grouping, and a column for each of its keys.
    flat = {key: label(key, value) if key in SECTIONS else value for key, value in outcome.settings.items()}
    for section in (key for key in outcome.settings if key in SECTIONS):
        flat |= _keys(outcome.settings[section], section)
    # Tables group and sort by settings; a mapping or list can do neither.
    flat = {
        key: label(key, value) if isinstance(value, Mapping | list | tuple) else value for key, value in flat.items()
    }
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

    Both are relative to the row with the fewest GPUs and otherwise equal settings. `speedup` is the ratio of speeds.
    `efficiency` is the speedup over the ratio of GPUs: 1.0 if every GPU is as fast as with the fewest GPUs.

    >>> points = [PointOutcome(n, {"cluster.world_size": gpus}, "compiled", {"tokens_per_s": speed})
    ...     for n, (gpus, speed) in enumerate([(8, 100.0), (16, 150.0)])]
    >>> [(row["speedup"], row["efficiency"]) for row in rows(points)]
    [(1.0, 1.0), (1.5, 0.75)]
    """
    flat = [row(outcome) for outcome in outcomes]
    for fields, first in _with_fewest(flat, outcomes):
        fields["speedup"] = fields["tokens_per_s"] / first["tokens_per_s"]
        fields["efficiency"] = fields["speedup"] * first[_GPUS] / fields[_GPUS]
    return flat


def efficiency_note(outcomes: Sequence[PointOutcome]) -> str:
    """Return a sentence on the highest efficiency, if it is above 1: its reference, and the part of a step that shrank.

    The part is named only if its GPU time per token fell by at least half of the fall of the whole step. Empty text if
    no efficiency is above 1.
    """
    flat = rows(outcomes)
    pairs = [pair for pair in _with_fewest(flat, outcomes) if pair[0]["efficiency"] > 1 + _VISIBLE]
    if not pairs:
        return ""
    best, first = max(pairs, key=lambda pair: float(pair[0]["efficiency"]))
    falls = {text: _gpu_time(first, key) - _gpu_time(best, key) for key, text in _PARTS.items()}
    part, fall = max(falls.items(), key=lambda pair: pair[1])
    total = _gpu_time(first, "step_time_s") - _gpu_time(best, "step_time_s")
    why = f", mainly because of less {part} per {work_unit([best])}" if fall >= total / 2 else ""
    return (
        f"Efficiency is relative to the fewest GPUs with equal settings. With {best[_GPUS]:,} GPUs it is "
        f"{best['efficiency']:.2f}: each GPU is faster than with {first[_GPUS]:,} GPUs{why}."
    )


def _gpu_time(fields: Mapping[str, Any], key: str) -> float:
    """Return the GPU time per token of a part of a step [s]; `key` is the part's time in the report."""
    return float((fields.get(key) or 0.0) * fields[_GPUS] / (fields["tokens_per_s"] * fields["step_time_s"]))


def _with_fewest(
    flat: Sequence[dict[str, Any]], outcomes: Sequence[PointOutcome]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return the rows of steps on several numbers of GPUs, each with the fewest GPUs' row of equal settings."""
    trained = [place for place, fields in enumerate(flat) if _GPUS in fields and fields.get("tokens_per_s")]
    if len({flat[place][_GPUS] for place in trained}) < 2:
        return []
    pairs = []
    fewest: dict[str, dict[str, Any]] = {}
    for place in sorted(trained, key=lambda place: int(flat[place][_GPUS])):
        fields = flat[place]
        # Settings besides the number of GPUs; a column for a whole section contains the number of GPUs.
        settings = row(replace(outcomes[place], report=None, engine=None))
        others = {key: value for key, value in settings.items() if key not in (_GPUS, *SECTIONS)}
        pairs.append((fields, fewest.setdefault(str(others), fields)))
    return pairs


def frame(outcomes: Iterable[PointOutcome]) -> pd.DataFrame:
    """Return a pandas table with a row for each outcome, in the given order."""
    import pandas as pd

    return pd.DataFrame(rows(list(outcomes)))


def table_text(outcomes: Iterable[PointOutcome]) -> str:
    r"""Return the table as CSV; a missing figure is an empty field, and numbers read back exactly.

    >>> table_text([PointOutcome(0, {"tp": 1}, "fast", {"s": 0.1}), PointOutcome(1, {"tp": 2}, None, None, "full")])
    'tp,s,engine,error\n1,0.1,fast,\n2,,,full\n'
    """
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
