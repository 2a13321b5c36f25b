"""Checks whether plain data from a file is the report of a point.

Fields and types come from the report's own record, so nothing is listed twice.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

from simulator.report.numbers.summary import CollectiveReport
from simulator.report.numbers.training_summary import TrainingReport


def is_report(read: Any, *, training: bool) -> bool:
    """Return True if plain data has every figure of a collective's or a training step's report, with the right types.

    >>> is_report({}, training=False), is_report({"time_s": "soon"}, training=False)
    (False, False)
    """
    return _is(read, TrainingReport if training else CollectiveReport)


def _is(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_is(value, option) for option in inner)
    if origin is tuple:
        # In JSON, a number that is not finite is null.
        return isinstance(value, list) and all(entry is None or _is(entry, inner[0]) for entry in value)
    if origin is dict:
        return isinstance(value, Mapping) and all(_is(entry, inner[1]) for entry in value.values())
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return (
            isinstance(value, Mapping)
            and value.keys() == hints.keys()
            and all(_is(value[name], hint) for name, hint in hints.items())
        )
    # A whole number counts as a float: other programs may write 1.0 as 1. A boolean does not count.
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is kind
