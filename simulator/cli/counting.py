"""How does an option take a number that is written as people do: `--seq-len 8k`, `--tokens 15T`, `--deadline 6w`?"""

from __future__ import annotations

import re
from typing import Final

import typer

from simulator.basics.counts import TOKENS, parse_count


def as_tokens(text: str | int) -> int:
    """The number of tokens; typer's own error, which names the option, where the text is none."""
    try:
        return text if isinstance(text, int) else parse_count(text, TOKENS)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


# Of tokens of a whole training these are thousands, as people say them; days in what they say instead.
_LENGTHS: Final = {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}
_DAYS: Final = {"": 1.0, "d": 1.0, "h": 1 / 24, "w": 7.0}


def as_length(text: str | float) -> float:
    """Tokens of a whole training: '15T', '1e12'."""
    return _with_unit(text, _LENGTHS, "a number of tokens, such as 15e12, 1T or 300B")


def as_days(text: str | float) -> float:
    """Days: '30', '30d', '6w', '12h'."""
    return _with_unit(text, _DAYS, "a time in days, such as 30, 30d, 6w or 12h")


def _with_unit(text: str | float, units: dict[str, float], allowed: str) -> float:
    """A number above 0 and its unit; typer's own error, which names the option, where the text is none."""
    if not isinstance(text, str):
        return text
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?(?:[eE]\+?[0-9]{1,2})?)\s?([a-zA-Z]?)", text.strip())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        raise typer.BadParameter(f"got {text[:60]!r}; must be {allowed}")
    return float(found[1]) * units[found[2]]
