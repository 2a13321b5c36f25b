"""How do options accept numbers as people write them: `--seq-len 8k`, `--tokens 15T`, `--deadline 6w`?"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from simulator.basics import units
from simulator.basics.counts import TOKENS, parse_count, parse_days, parse_length

Number = TypeVar("Number", int, float)


def as_tokens(text: str | int) -> int:
    """Return a number of tokens from an option's text; return an int unchanged.

    >>> as_tokens("8k"), as_tokens(4096)
    (8192, 4096)
    """
    # The default is an int, and typer passes it through the parser too.
    return text if isinstance(text, int) else _read(lambda text: parse_count(text, TOKENS), text)


def as_length(text: str | float) -> float:
    """Return the number of tokens in a whole training from an option's text.

    >>> as_length("15T"), as_length("1e12")
    (15000000000000.0, 1000000000000.0)
    """
    return _read(parse_length, text) if isinstance(text, str) else text


def as_days(text: str | float) -> float:
    """Return a number of days from an option's text.

    >>> as_days("30"), as_days("6w"), as_days("12h")
    (30.0, 42.0, 0.5)
    """
    return _read(parse_days, text) if isinstance(text, str) else text


def as_duration(text: str | float) -> float:
    """Return a time in seconds from an option's text with a unit.

    >>> as_duration("600 s"), as_duration("10min"), as_duration("1.5 h")
    (600.0, 600.0, 5400.0)
    """
    return _with_unit(text, "time", "s")


def as_rate(text: str | float) -> float:
    """Return a bandwidth in B/s from an option's text with a unit.

    >>> as_rate("20 GB/s"), as_rate("400 Gb/s")
    (20000000000.0, 50000000000.0)
    """
    return _with_unit(text, "bandwidth", "GB/s")


def _with_unit(text: str | float, kind: units.Kind, unit: str) -> float:
    """Return the quantity in the text of a command-line option, as a number in SI units; a number passes unchanged.

    `kind` is "time" [s] or "bandwidth" [B/s]. A number without a unit is a BadParameter of typer; `unit` follows the
    number in the example of the message.
    """

    def parse(text: str) -> float:
        if text.strip().replace(".", "", 1).isdecimal():
            raise ValueError(f"got {text!r}, which has no unit; write for example '{text.strip()} {unit}'")
        return units.parse(text, kind)

    return _read(parse, text) if isinstance(text, str) else text


def _read(parse: Callable[[str], Number], text: str) -> Number:
    """Return the parsed text; raise typer's own error, which names the option, if the text is invalid."""
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
