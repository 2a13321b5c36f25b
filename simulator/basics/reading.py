"""How is a single value in a scenario file read and checked: whole numbers, sizes, durations, rates, names, choices?

A reader gets a written value and returns a typed value, or raises ValueError with the value and the allowed values. It
sees nothing around the value; rules between keys are in *_rules.py. Every reader also has a JSON schema, therefore an
editor refuses the same values as the reader.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from simulator.basics import counts, registry, units
from simulator.basics.errors import UnknownNameError, one_of
from simulator.basics.foreign_code import PYTHON, installed_names
from simulator.basics.spelling import meant

# Longest text of a value shown in a message, and longest text of a quantity [characters].
_LONGEST: Final = 60
# Largest array [B], 1 PiB: products of its element count with small factors still fit into 64 bits.
_LARGEST: Final = 2**50
_NUMBER: Final = r"\s*\+?([0-9]+(_[0-9]+)*\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,2})?\s*"


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Pydantic annotation that validates a field with a reader, a function from the written value to a typed value."""

    reader: Callable[[Any], Any]  # raises ValueError with the complete message
    # A function, because allowed names come from listing folders; they are listed late.
    schema: Callable[[], dict[str, Any]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Return a pydantic schema that uses the reader alone; pydantic checks nothing itself."""
        return core_schema.no_info_plain_validator_function(self.reader)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the JSON schema of the values accepted by the reader."""
        return self.schema()


def shown(value: Any) -> str:
    """Return a value as written in YAML, shortened, for messages.

    >>> shown("rng"), shown(True), shown(None), shown({"a": 1})
    ("'rng'", 'true', 'nothing', 'a mapping')
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    # Python refuses to convert integers with thousands of digits into text.
    if isinstance(value, int) and value.bit_length() > 200:
        return "a very large number"
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + "..." + text[-1]


def whole(least: int, most: int | None = None) -> ValueReader:
    """Return a validator for a whole number within bounds; its error hints at the right form.

    >>> whole(1).reader(8.0)
    Traceback (most recent call last):
        ...
    ValueError: got 8.0; must be a whole number; write 8
    """

    def reader(value: Any) -> int:
        # True is an int in Python.
        if isinstance(value, bool) or not isinstance(value, int):
            hint = f"; write {int(value)}" if isinstance(value, float) and value.is_integer() else ""
            hint = (
                "; remove the quotes" if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{1,18}", value) else hint
            )
            raise ValueError(f"got {shown(value)}; must be a whole number{hint}")
        if value < least:
            raise ValueError(f"got {shown(value)}; must be at least {least}")
        if most is not None and value > most:
            raise ValueError(f"got {shown(value)}; must be at most {most}")
        return value

    bounds = {"minimum": least} | ({} if most is None else {"maximum": most})
    return ValueReader(reader, lambda: {"type": "integer", **bounds})


def whole_or(word: str, least: int, most: int) -> ValueReader:
    """Return a validator for a whole number within bounds, or a word.

    >>> [whole_or("all", 1, 8).reader(value) for value in (8, "all")]
    [8, 'all']
    """
    number = whole(least, most)

    def reader(value: Any) -> int | str:
        if isinstance(value, str) and value == word:
            return word
        try:
            return int(number.reader(value))
        except ValueError as error:
            raise ValueError(f"{error}, or {word}") from error

    return ValueReader(reader, lambda: {"anyOf": [number.schema(), {"const": word}]})


def count(least: int, most: int | None, k: int) -> ValueReader:
    """Return a validator for a whole number within bounds, also written 8k, 1_000_000 or 1e6; k means `k` units.

    >>> [count(1, None, 1024).reader(value) for value in (8, "8k", 1e6)]
    [8, 8192, 1000000]
    """
    bounded = whole(least, most)

    def reader(value: Any) -> int:
        if isinstance(value, float) and counts.is_thousands(value):
            value = int(value)
        # Digits in quotes are a mistake: `whole` refuses them and says "remove the quotes".
        elif isinstance(value, str) and not re.fullmatch(r"[-+]?[0-9]*", value):
            value = counts.parse_count(value, k)
        return int(bounded.reader(value))

    written = {"type": "string", "pattern": f"^({counts.WRITTEN})$", "examples": ["8k"]}
    return ValueReader(reader, lambda: {"anyOf": [bounded.schema(), written]})


def number(*, positive: bool, most: float) -> ValueReader:
    """Return a validator for a plain number above 0 (or from 0 on) and up to `most`, without a unit.

    Positive numbers serve as divisors elsewhere. A lower bound, shared with quantities with a unit, keeps the quotient
    from overflowing.

    >>> [number(positive=False, most=1.0).reader(value) for value in (0, 1)]
    [0.0, 1.0]
    """

    def reader(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"got {shown(value)}; must be a number")
        if value < 0 or (positive and value == 0):
            raise ValueError(f"got {shown(value)}; must be {'greater than 0' if positive else 'at least 0'}")
        # `not value <= most` also refuses nan.
        if not value <= most:
            raise ValueError(f"got {shown(value)}; must be at most {most:g}")
        if positive and not units.within(value):
            raise ValueError(f"got {shown(value)}; must be at least {units.LEAST:g}")
        return float(value)

    lower = {"minimum": units.LEAST if positive else 0}
    return ValueReader(reader, lambda: {"type": "number", "maximum": most, **lower})


def choice(
    allowed: tuple[str | bool, ...], refused: dict[str, str] | None = None, aliases: dict[str, str] | None = None
) -> ValueReader:
    """Return a validator for a word from a short list, in any spelling.

    Parameters
    ----------
    allowed : tuple of str or bool
        Allowed words.
    refused : dict of str to str, optional
        Known words from elsewhere, with a message for each.
    aliases : dict of str to str, optional
        Other words for an allowed word.

    Examples
    --------
    >>> choice(("full", "none"), aliases={"off": "none"}).reader("Off")
    'none'
    """

    def reader(value: Any) -> str | bool:
        # `is` for booleans: 1 == True in Python, and 1 must not be read as true.
        if any(value is a or (isinstance(value, str) and value == a) for a in allowed):
            return value  # type: ignore[no-any-return]
        if refused and isinstance(value, str) and value in refused:
            raise ValueError(f"got {value!r}; {refused[value]}")
        spelled = meant(value, [a for a in allowed if isinstance(a, str)], aliases) if isinstance(value, str) else None
        if spelled is not None:
            return spelled
        words = (str(a).lower() for a in allowed)
        raise ValueError(f"got {shown(value)}; {one_of(words, value)}")

    return ValueReader(reader, lambda: {"enum": [*allowed, *(aliases or ())]})


YES_NO: Final = choice((True, False))


def known(
    names: Callable[[], Iterable[str]], find: Callable[[str], object] | None = None, listed_by: str = ""
) -> ValueReader:
    """Return a validator for a name from `names()`, in any spelling.

    Parameters
    ----------
    names : function
        Returns the allowed names; called late, for each value.
    find : function, optional
        May raise an UnknownNameError with a better message.
    listed_by : str, optional
        Command that lists the names, such as "simulator list algorithms".

    Examples
    --------
    >>> known(lambda: ["zero1", "zero3"]).reader("ZeRO-3")
    'zero3'
    """

    def reader(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"got {shown(value)}; {one_of(names(), '', listed_by)}")
        spelled = meant(value, names())
        if spelled is not None:
            return spelled
        if find is not None:
            try:
                find(value)
            except UnknownNameError as error:
                raise ValueError(str(error).removeprefix(f"{error.kind}: ")) from error
        raise ValueError(f"got {shown(value)}; {one_of(names(), value, listed_by)}")

    return ValueReader(reader, lambda: {"enum": sorted(names())})


def known_or_path(
    names: Callable[[], Iterable[str]],
    suffixes: tuple[str, ...],
    listed_by: str,
    installed: Callable[[], Iterable[str]] = tuple,
) -> ValueReader:
    """Return a validator for a name from `names()`, in any spelling, or the path of a file with one of the suffixes.

    `installed` returns further names, of files that installed packages bring. Paths are returned unchanged; the file is
    checked at its use.

    >>> known_or_path(lambda: ["ring"], (".py",), "simulator list algorithms").reader("./own.py")
    './own.py'
    """
    return part(known(names, listed_by=listed_by), suffixes, installed)


def _or_path(fault: str, suffixes: tuple[str, ...]) -> str:
    """Return the text of a fault in a name, with the hint that a path is possible.

    A text that resembles a name is a mistyped name, and gets no further hint.
    """
    unlike = "did you mean" not in fault and ("one of" in fault or "lists all" in fault)
    return f"{fault}; or the path of a file that ends in {' or '.join(suffixes)}" if unlike else fault


def _enum(names: Iterable[str]) -> list[dict[str, Any]]:
    """Return the schema of one of the names, in a list; an empty list without names."""
    return [{"enum": listed}] if (listed := list(names)) else []


def _path_schema(suffixes: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "string", "pattern": "({})$".format("|".join(map(re.escape, suffixes)))}


def part(
    values: ValueReader,
    suffixes: tuple[str, ...] = (PYTHON,),
    installed: Callable[[], Iterable[str]] = lambda: installed_names(),
) -> ValueReader:
    """Return a validator for a part such as a strategy or a schedule.

    A part is a value of `values`, the path of a file with one of the suffixes, or a name from `installed()`, by default
    an entry point of an installed package. Paths are returned unchanged; the file is checked at its use.
    """

    def reader(value: Any) -> str:
        if isinstance(value, str) and value.isprintable() and value.endswith(suffixes):
            return value
        try:
            return str(values.reader(value))
        except ValueError as error:
            # Asked last, because reading the entry points takes a while.
            if isinstance(value, str) and value in installed():
                return value
            raise ValueError(_or_path(str(error), suffixes)) from error

    def schema() -> dict[str, Any]:
        return {"anyOf": [values.schema(), *_enum(installed()), _path_schema(suffixes)]}

    return ValueReader(reader, schema)


def text(pattern: str, rule: str) -> ValueReader:
    """Return a validator for text that matches a pattern; `rule` describes the pattern in words."""

    def reader(value: Any) -> str:
        if not isinstance(value, str):
            quotes = "; put it in quotes" if isinstance(value, int | float) else ""
            raise ValueError(f"got {shown(value)}; must be text{quotes}")
        if not re.fullmatch(pattern, value):
            raise ValueError(f"got {shown(value)}; must be {rule}")
        return value

    return ValueReader(reader, lambda: {"type": "string", "pattern": f"^(?:{pattern})$"})


def size(least: int) -> ValueReader:
    """Return a validator for a number of bytes written with a unit, at least `least` [B].

    >>> size(1).reader("256 MiB")
    268435456
    """

    def reader(value: Any) -> int:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"got {shown(value)}, which has no unit; write '{shown(value)} B' for bytes, or '256 MiB'")
        # A number without unit was refused above: 256 could mean bytes or MiB.
        nbytes = units.parse_bytes(_sane(value, "'256 MiB'"))
        if nbytes < least:
            raise ValueError(f"got {shown(value)}; must be at least {least} B")
        if nbytes > _LARGEST:
            raise ValueError(f"got {shown(value)}; must be at most 1 PiB")
        return nbytes

    return ValueReader(reader, lambda: _quantity(r"([kMGTPE]|[KMGTP]i)?B"))


def duration() -> ValueReader:
    """Return a validator for a time written with a unit; it gives seconds."""
    return _with_unit("time", "ms", "'5 us' or '1.5 ms'", r"(ns|us|µs|ms|s|min|h)")


def rate() -> ValueReader:
    """Return a validator for a bandwidth above 0 written with a unit; it gives B/s."""
    quantity = _with_unit("bandwidth", "GB/s", "'50 GB/s' or '400 Gb/s'", r"([kMGT]|[KMGT]i)?([Bb]/s|[Bb]ps|bit/s)")

    def reader(value: Any) -> float:
        bandwidth: float = quantity.reader(value)
        if not bandwidth:
            raise ValueError(f"got {shown(value)}; must be above 0")
        return bandwidth

    return ValueReader(reader, quantity.schema)


def _with_unit(kind: units.Kind, unit: str, example: str, pattern: str) -> ValueReader:
    def reader(value: Any) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f"got {shown(value)}, which has no unit; write for example '{shown(value)} {unit}'")
        return units.parse(_sane(value, example), kind)

    return ValueReader(reader, lambda: _quantity(pattern))


def named_or_written_out(kind: registry.Kind, what: str) -> ValueReader:
    """Return a validator for a shipped name in any spelling, a path, or the content itself as a mapping.

    Paths and mappings are returned unchanged; their content is checked at its use.
    """

    def reader(value: Any) -> str | dict[str, Any]:
        if isinstance(value, dict) and value:
            return value
        if isinstance(value, str) and value.strip() and value.isprintable():
            # A shipped name gets its proper spelling; any other text is a path.
            return registry.shipped(kind, value) or value
        raise ValueError(f"got {shown(value)}; must be {what}, a path, or a mapping")

    return ValueReader(reader, lambda: {"type": ["string", "object"], "minLength": 1, "minProperties": 1})


def _quantity(unit: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{_NUMBER}{unit}\\s*$"}


def _sane(value: Any, example: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"got {shown(value)}; must be text with a unit, such as {example}")
    # Text such as 1e999999999 would expand to a billion digits during parsing.
    if len(value) > _LONGEST or re.search(r"[eE][+-]?0*[0-9]{3,}", value):
        raise ValueError(f"got {shown(value)}; must be a number in the supported range and a unit, such as {example}")
    return value


def yes_no_or_probability() -> ValueReader:
    """Return a validator for a boolean or a probability."""
    share = number(positive=False, most=0.99)

    def reader(value: Any) -> bool | float:
        # Booleans first: in Python True is an int.
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return float(share.reader(value))
        raise ValueError(f"got {shown(value)}; must be true, false, or a probability such as 0.1")

    return ValueReader(reader, lambda: {"anyOf": [{"type": "boolean"}, share.schema()]})
