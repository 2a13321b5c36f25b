"""How do people write a count: 8192, 8k, 1_000_000, 1e6?

Ki and Mi are 1,024 and 1,024 x 1,024 everywhere. The value of "k" depends on the things counted, so the caller gives
it: 1,024 for tokens of a sequence, a batch or a generation (a context of "128k" has 131,072 tokens), and 1,000 for
GPUs and steps. M is k x k. Tokens of a
whole training are decimal ("15T"), and durations are in days ("6w" is 42 days).
"""

from __future__ import annotations

import re
from typing import Final

# Value of "k" for tokens, and for anything else.
TOKENS: Final = 1024
THINGS: Final = 1000
# Spellings of numbers unknown to YAML and JSON.
WRITTEN: Final = r"[0-9]{1,3}(_[0-9]{3}){1,5}|[0-9]{1,9}([kKM]|[KM]i)"
_EXPONENT: Final = r"[0-9]{1,3}(\.[0-9]{1,9})?[eE]\+?[0-9]{1,2}"
_MOST_DIGITS: Final = 18
# Every whole number up to this limit is exact as a float.
_MOST: Final = 2**53


def number_of(count: int, noun: str) -> str:
    """Return a count and a noun as text, the noun in the plural if needed: "1 rank", "8 ranks".

    >>> number_of(1, "point"), number_of(1398, "step")
    ('1 point', '1,398 steps')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def divisors(number: int) -> list[int]:
    """Return the divisors of a positive number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [size for size in range(1, number + 1) if number % size == 0]


def parse_count(text: str, k: int) -> int:
    """Return the whole number written in a text such as 8192, 8k, 1_000_000 or 1e6.

    Parameters
    ----------
    text : str
        The written count.
    k : int
        Value of "k": TOKENS or THINGS.

    Raises
    ------
    ValueError
        The text is not a whole number in one of these spellings; the message lists them.

    Examples
    --------
    >>> parse_count("8k", TOKENS), parse_count("16k", THINGS), parse_count("1_000_000", THINGS)
    (8192, 16000, 1000000)
    >>> parse_count("1e6", THINGS), parse_count("8Ki", THINGS)
    (1000000, 8192)
    """
    if re.fullmatch(WRITTEN, text):
        digits = text.rstrip("kKMi").replace("_", "")
        factors = {"k": k, "K": k, "M": k * k, "Ki": TOKENS, "Mi": TOKENS * TOKENS}
        return int(digits) * factors.get(text.lstrip("0123456789_"), 1)
    # Longer numbers are typing errors, and would be slow to convert.
    if text.isdecimal() and len(text) <= _MOST_DIGITS:
        return int(text)
    if re.fullmatch(_EXPONENT, text) and is_thousands(float(text)):
        return int(float(text))
    raise ValueError(f"got {text[:60]!r}; {allowed(k)}")


# Units for a whole training: tokens, and days.
_LENGTHS: Final = {"": 1.0, "M": 1e6, "B": 1e9, "T": 1e12}
_DAYS: Final = {"": 1.0, "d": 1.0, "h": 1 / 24, "w": 7.0}


def parse_length(text: str) -> float:
    """Return the number of tokens in a whole training, written like "15e12", "1T" or "300B".

    Raises
    ------
    ValueError
        The text is not a number of tokens.

    Examples
    --------
    >>> parse_length("15T"), parse_length("1e12")
    (15000000000000.0, 1000000000000.0)
    """
    return _with_unit(text, _LENGTHS, "a number of tokens, such as 15e12, 1T or 300B")


def parse_days(text: str) -> float:
    """Return a duration in days, written like "30", "30d", "6w" or "12h".

    Raises
    ------
    ValueError
        The text is not a duration.

    Examples
    --------
    >>> parse_days("30"), parse_days("6w"), parse_days("12h")
    (30.0, 42.0, 0.5)
    """
    return _with_unit(text, _DAYS, "a time in days, such as 30, 30d, 6w or 12h")


def _with_unit(text: str, units: dict[str, float], allowed: str) -> float:
    """Return the positive number in a text, multiplied by its unit's factor; otherwise ValueError with `allowed`."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?(?:[eE]\+?[0-9]{1,2})?)\s?([a-zA-Z]?)", text.strip())
    if match is None or match[2] not in units or float(match[1]) <= 0:
        raise ValueError(f"got {text[:60]!r}; must be {allowed}")
    return float(match[1]) * units[match[2]]


def is_thousands(number: float) -> bool:
    """Return True if a float looks like a count written as 1e6, and not like a quotient that happens to be whole.

    >>> is_thousands(8000.0), is_thousands(0.5 / 0.125)
    (True, False)
    """
    return 0 < number <= _MOST and number % 1000 == 0


def allowed(k: int) -> str:
    """Return a text about allowed counts, for error messages.

    >>> allowed(1024)
    'must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is 8192'
    """
    return f"must be a whole number, such as 8000, 1e6, 8Ki or 8k, which is {8 * k}"
