"""How are the figures of two reports written: a value with its unit, and the relative change between two values?

The name of a report's field tells the unit of its value: `step_time_s` is in seconds, `peak_memory_bytes` in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from simulator.basics.units import format_bandwidth, format_memory, format_time
from simulator.records.measures import share_text

# Largest relative increase written in per cent: ten times the value.
_MOST_PER_CENT: Final = 10.0
# Most values of a list on a line.
_MOST_VALUES: Final = 12
_SHARES: Final = ("mfu", "hfu", "busy_fraction")
_RATES: Final = ("algbw", "busbw")


def figure_texts(key: str, first: Any, second: Any) -> tuple[str, str]:
    """Return two values of a report's field as texts with units; with every digit if the short texts are equal.

    Parameters
    ----------
    key : str
        Name of the field; a point separates a field and a key in the field.
    first, second : Any
        The values in SI units; None for a missing value.

    Examples
    --------
    >>> figure_texts("step_time_s", 0.325087, 0.357399), figure_texts("peak_memory_bytes", None, 2**30)
    (('325.1 ms', '357.4 ms'), ('not set', '1 GiB'))
    >>> figure_texts("time_s", 1.0, 1.0000001)
    ('1.0 s', '1.0000001 s')
    """
    unit, text = _format_of(key)
    short = _text(first, text), _text(second, text)
    return short if short[0] != short[1] else (_exact(first, unit), _exact(second, unit))


def relative_change_text(first: Any, second: Any) -> str:
    """Return the relative change from a value to another in three digits; empty for a value that is no number, or 0.

    An increase above 1,000 % is written as a factor.

    >>> relative_change_text(2.0, 2.2), relative_change_text(3.2e-10, 0.14462), relative_change_text(0, 1)
    ('+10 %', 'x 4.52e8', '')
    """
    if not (is_number(first) and is_number(second)) or first == 0:
        return ""
    change = (second - first) / abs(first)
    if abs(change) <= _MOST_PER_CENT:
        return f"{100 * change:+.3g} %"
    return f"x {second / first:.3g}".replace("e+0", "e").replace("e+", "e")


def is_number(value: Any) -> bool:
    """Return True if a value is a number.

    >>> is_number(1.5), is_number(True)
    (True, False)
    """
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format_of(key: str) -> tuple[str, Callable[[float], str]]:
    """Return the SI unit of a report's field, and the function that writes a value of the field."""
    # Fields such as peak_memory_by_category have a key for each value; a bottleneck's fields have names of their own.
    outer, _, inner = key.partition(".")
    name = inner if outer in ("bottleneck", "intervals", "learning") else outer
    for ending in ("_80_low", "_80_high", "_95_low", "_95_high"):
        name = name.removesuffix(ending)
    if name in _RATES:
        return " B/s", format_bandwidth
    if name in _SHARES:
        return "", share_text
    if "flops_per_s" in name:
        return " FLOP/s", lambda value: f"{value / 1e12:.4g} TFLOP/s"
    if "_per_s" in name:
        return "", lambda value: f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
    if name.endswith("_s") or "_time_by_" in name:
        return " s", format_time
    if "bytes" in name.split("_") or "_memory_by_" in name:
        return " B", format_memory
    return "", lambda value: f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _text(value: Any, text: Callable[[float], str]) -> str:
    if isinstance(value, list):
        more = f", and {len(value) - _MOST_VALUES:,} more" if len(value) > _MOST_VALUES else ""
        return f"[{', '.join(_text(entry, text) for entry in value[:_MOST_VALUES])}{more}]"
    if value is None:
        return "not set"
    return text(value) if is_number(value) else str(value)


def _exact(value: Any, unit: str) -> str:
    return f"{value}{unit}" if is_number(value) else "not set" if value is None else str(value)
