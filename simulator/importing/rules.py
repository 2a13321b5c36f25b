"""What does a setting of a configuration file mean? The entries of a format's table, and readers of values.

A reader returns the value of a setting, or raises ValueError with the allowed values. It accepts plain data and the
texts of a command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.errors import one_of
from simulator.importing.settings import Unresolved

Reader = Callable[[Any], Any]
# Larger numbers are typing errors; products of a few such numbers stay within what Python computes at once.
_LARGEST: Final = 10**15
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
# Number of ranks that stands for the ranks that are left.
REST: Final = -1
# Longest text of a value in a message.
_SHOWN: Final = 60


@dataclass(frozen=True, slots=True)
class Means:
    """A setting with the meaning of a fact: a scenario key ("training.seq_len"), or a name that a derivation reads."""

    fact: str  # name of the fact
    # Reader of the value; a value that it reads as None counts as not given.
    read: Reader
    # False if options of the command can replace the value: it may then be unresolved.
    needed: bool = True


@dataclass(frozen=True, slots=True)
class NotModelled:
    """A setting that changes a step in a way that the simulator does not model, unless the value is harmless."""

    why: str
    harmless: Sequence[Any] = (None, False, "", 0, "0", "false", "none", "null")


Rule = Means | NotModelled
Table = Mapping[str, Rule]


def shown(value: Any) -> str:
    """Return a value as it appears in a message, shortened.

    >>> shown("a" * 200)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    text = value.text if isinstance(value, Unresolved) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def single(value: Any) -> Any:
    """Return the first of several words of a command line; return any other value unchanged.

    >>> single(("8", "train.py")), single(8)
    ('8', 8)
    """
    return value[0] if isinstance(value, tuple) and value else value


def whole(value: Any) -> int:
    """Return a whole number of at least 0.

    >>> whole("1_000"), whole(5e8)
    (1000, 500000000)
    """
    scalar = single(value)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float | str):
        raise ValueError(f"got {shown(scalar)}; must be a whole number")
    try:
        number = float(scalar.replace("_", "")) if isinstance(scalar, str) else float(scalar)
    except (ValueError, OverflowError):
        raise ValueError(f"got {shown(scalar)}; must be a whole number") from None
    if not (0 <= number <= _LARGEST and number.is_integer()):
        raise ValueError(f"got {shown(scalar)}; must be a whole number from 0 to 1e15")
    return int(number)


def size(value: Any) -> int:
    """Return a whole number of at least 1.

    >>> size("8")
    8
    """
    number = whole(value)
    if number < 1:
        raise ValueError(f"got {number}; must be at least 1")
    return number


def size_or_rest(value: Any) -> int:
    """Return a number of at least 1; REST for -1.

    >>> size_or_rest("8"), size_or_rest("-1") == REST
    (8, True)
    """
    return REST if single(value) in (REST, str(REST)) else size(value)


def size_if_given(value: Any) -> int | None:
    """Return a number of at least 1; None if no number is given.

    >>> size_if_given("8"), size_if_given(-1)
    (8, None)
    """
    return None if size_or_rest(value) == REST else size(value)


def number(value: Any) -> float:
    """Return a number of at least 0.

    >>> number("3e-4"), number(8)
    (0.0003, 8.0)
    """
    scalar = single(value)
    if isinstance(scalar, bool) or not isinstance(scalar, int | float | str):
        raise ValueError(f"got {shown(scalar)}; must be a number")
    try:
        result = float(scalar)
    except (ValueError, OverflowError):
        raise ValueError(f"got {shown(scalar)}; must be a number") from None
    if not 0 <= result <= _LARGEST:
        raise ValueError(f"got {shown(scalar)}; must be a number from 0 to 1e15")
    return result


def flag(value: Any) -> bool:
    """Return a boolean; an option without value is True.

    >>> flag(True), flag("on"), flag("0")
    (True, True, False)
    """
    scalar = single(value)
    if isinstance(scalar, bool):
        return scalar
    word = str(scalar).lower() if isinstance(scalar, str | int) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError(f"got {shown(scalar)}; must be true or false")


def off(value: Any) -> bool:
    """Return the opposite of a boolean, for options such as --no-overlap and --disable-bias.

    >>> off(True), off("false")
    (False, True)
    """
    return not flag(value)


def text(value: Any) -> str:
    """Return a text."""
    scalar = single(value)
    if isinstance(scalar, str):
        return scalar
    raise ValueError(f"got {shown(scalar)}; must be text")


def words(value: Any) -> tuple[str, ...]:
    """Return a list of words; a text is split at blanks and commas.

    >>> words("q_proj, v_proj"), words(["q_proj"])
    (('q_proj', 'v_proj'), ('q_proj',))
    """
    parts = value if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    if isinstance(value, bool | dict) or not all(isinstance(part, str) for part in parts):
        raise ValueError(f"got {shown(value)}; must be a list of words")
    return tuple(parts)


def choice(names: Mapping[str, Any]) -> Reader:
    """Return a reader of one of several words, each with its value; case does not count.

    >>> choice({"bf16": "bfloat16"})("BF16")
    'bfloat16'
    """

    def read(value: Any) -> Any:
        scalar = single(value)
        word = str(scalar).lower() if isinstance(scalar, str | int | float) else ""
        if word not in names:
            raise ValueError(f"got {shown(scalar)}; {one_of(names, word)}")
        return names[word]

    return read


def unless_auto(read: Reader) -> Reader:
    """Return a reader that takes "auto" as not given (None)."""

    def reader(value: Any) -> Any:
        return None if single(value) == "auto" else read(value)

    return reader


def constant(result: Any, when: Any = True) -> Reader:
    """Return a reader of a boolean that stands for `result` if it equals `when`, and for nothing otherwise.

    >>> read = constant("zero1", when=False)
    >>> read("false"), read("true")
    ('zero1', None)
    """

    def read(value: Any) -> Any:
        return result if flag(value) is when else None

    return read
