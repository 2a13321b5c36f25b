"""How are the settings of a TOML file read? Nested keys are joined with dots."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.plain_data import DEEPEST, is_deep
from simulator.basics.yaml_dialect import MOST_VALUES
from simulator.importing.settings import Setting

_TABLE: Final = re.compile(r"\s*\[+\s*([A-Za-z0-9_.\"' -]+?)\s*\]+")
# Characters of a row that may hold a name; the patterns would take long on a row of blanks.
_LONGEST: Final = 200
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_.-]+)\s*=")


def read(text: str, source: str) -> list[list[Setting]]:
    r"""Return the settings of a TOML text, as a single reading.

    Raises
    ------
    ScenarioError
        The text is no TOML, nested too deeply, or has more than 100,000 values.

    Examples
    --------
    >>> [(setting.key, setting.value) for setting in read("[model]\ntp = 2", "job.toml")[0]]
    [('model.tp', 2)]
    """
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise ScenarioError(f"{source}: nested too deeply; at most {DEEPEST} levels") from None
    # tomllib's own error is a ValueError, as is that of a number with thousands of digits.
    except ValueError as error:
        raise ScenarioError(one_line(f"{source}: not TOML: {error}")) from error
    if is_deep(data):
        raise ScenarioError(f"{source}: nested too deeply; at most {DEEPEST} levels")
    settings = list(islice(_leaves(data, "", source, _lines(text)), MOST_VALUES + 1))
    if len(settings) > MOST_VALUES:
        raise ScenarioError(f"{source}: more than {MOST_VALUES} values")
    return [settings]


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key, by its dotted name: tomllib tells none."""
    line_of, table = dict[str, int](), ""
    for line, raw in enumerate(text.split("\n"), 1):
        row = raw[:_LONGEST]
        if opened := _TABLE.match(row):
            table = f"{opened[1]}."
        elif key := _KEY.match(row):
            line_of.setdefault(f"{table}{key[1]}", line)
    return line_of


def _leaves(data: Mapping[str, Any], at: str, source: str, lines: Mapping[str, int]) -> Iterator[Setting]:
    for name, value in data.items():
        key = f"{at}{name}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{key}.", source, lines)
        else:
            yield Setting(key, value, source, lines.get(key))
