"""Converts text with a unit ("400 Gb/s", "8 MiB", "5 us") to SI numbers and back.

Units are converted only here. Inside the simulator, every quantity is in seconds, bytes, B/s, FLOP or FLOP/s, and names
carry no unit. Three traps are resolved here:

- bits and bytes: network cards are sold in Gb/s, memory in GB/s. "b" is a bit, "B" a byte, and "400 Gb/s" is 50 GB/s.
  "Gbps" and "Gbit/s" are Gb/s, and "GBps" is GB/s.
- GB and GiB: 1 GB = 10^9 B, 1 GiB = 2^30 B. An "80 GB" GPU has about 80 GiB. Amounts of bytes (memory, arrays, traffic)
  are printed in binary units, as nvidia-smi and torch do; rates in decimal units (GB/s), as links and HBM are sold.
- both directions: NVLink is advertised as the sum of both directions (H100: 900 GB/s). A bandwidth here is always per
  direction (450 GB/s).
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final, Literal

Kind = Literal["bytes", "bandwidth", "time", "flops", "flop_rate"]

_SI: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_IEC: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
GIB: Final = 2**30
_BINARY: Final = (("PiB", 2**50), ("TiB", 2**40), ("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10))
# Spellings for bit rates, and for byte rates, after the prefix.
_BITS: Final = ("b/s", "bps", "bit/s")
_BYTES: Final = ("B/s", "Bps")
_TIME: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}
_EXAMPLE: Final[dict[Kind, str]] = {
    "bytes": "'256 MiB' or '80 GB'",
    "bandwidth": "'12.5 GB/s' or '100 Gb/s' (per direction)",
    "time": "'5 us' or '1.5 ms'",
    "flops": "'6 TFLOP'",
    "flop_rate": "'312 TFLOP/s'",
}
# Simulated quantities are far inside these limits: a byte in the age of the universe (4e17 s), a petabyte in a
# nanosecond. Beyond the limits, products of a few quantities would exceed the range of a float (5e-324 to 1.8e308).
LEAST: Final = 1e-30
MOST: Final = 1e30
_QUANTITY: Final = re.compile(
    r"\s*([+-]?(?:[0-9]+(?:_[0-9]+)*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([^0-9\s].*?)?\s*"
)


def _table(kind: Kind) -> dict[str, Fraction]:
    if kind == "time":
        return dict(_TIME)
    if kind == "bytes":
        return {f"{p}B": Fraction(f) for p, f in (_SI | _IEC).items()}
    if kind == "bandwidth":
        scale = (_SI | _IEC).items()
        per_byte = {f"{p}{unit}": Fraction(f) for unit in _BYTES for p, f in scale}
        return per_byte | {f"{p}{unit}": Fraction(f, 8) for unit in _BITS for p, f in scale}
    if kind == "flops":
        return {f"{p}FLOP": Fraction(f) for p, f in _SI.items()}
    return {f"{p}FLOP/s": Fraction(f) for p, f in _SI.items()}


_UNITS: Final[dict[Kind, dict[str, Fraction]]] = {k: _table(k) for k in _EXAMPLE}


def parse(text: str, kind: Kind) -> float:
    """Return a quantity, such as "400 Gb/s", as an SI number: [B], [B/s], [s], [FLOP] or [FLOP/s].

    Parameters
    ----------
    text : str
        A number and a unit. Units are case-sensitive: "Gb/s" is not "GB/s", "MB" is not "mB".
    kind : {"bytes", "bandwidth", "time", "flops", "flop_rate"}
        Quantity that the text must describe.

    Raises
    ------
    ValueError
        No number, no unit, a unit of another kind, or a negative number. The message says what is allowed.

    Examples
    --------
    >>> parse("400 Gb/s", "bandwidth")
    50000000000.0
    >>> parse("5 us", "time")
    5e-06
    """
    return float(_exact(text, kind))


def parse_bytes(text: str) -> int:
    """Return a quantity of bytes, such as "1.5 KiB", as a whole number [B].

    >>> parse_bytes("1.5 KiB")
    1536
    """
    exact = _exact(text, "bytes")
    if exact.denominator != 1:
        raise ValueError(f"got {text!r}; must be a whole number of bytes")
    return int(exact)


def _exact(text: str, kind: Kind) -> Fraction:
    if not isinstance(text, str):
        raise ValueError(f"got {text!r}; must be text with a unit, such as {_EXAMPLE[kind]}")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"got {text!r}; must be a number and a unit, such as {_EXAMPLE[kind]}")
    number, unit = match.groups()
    units = _UNITS[kind]
    if unit is None:
        raise ValueError(f"got {text!r}, which has no unit; write for example {_EXAMPLE[kind]}")
    if unit not in units:
        raise ValueError(f"got {text!r}; {_why_not(unit, kind)}")
    # Check the float first: a fraction for 1e999999999 or 1e-999999999 would have a billion digits.
    rough = float(number.replace("_", ""))
    if abs(rough) > MOST or (rough == 0.0 and re.search("[1-9]", re.split("[eE]", number)[0])):
        raise ValueError(f"got {text[:60]!r}; outside the range that can be simulated")
    # Fractions, not floats: "0.1 us" and "100 ns" must give equal numbers, and bytes must come out whole.
    exact = Fraction(number.replace("_", "")) * units[unit]
    if exact < 0:
        raise ValueError(f"got {text!r}; must not be negative")
    if exact > MOST or not within(float(exact), kind):
        raise ValueError(f"got {text[:60]!r}; outside the range that can be simulated")
    return exact


def within(quantity: float, kind: Kind | None = None) -> bool:
    """Return True if a quantity in SI units has a size that can be simulated; without `kind`, for a factor.

    >>> within(0.0), within(1e-320), within(10**400), within(1e-320, "time")
    (True, False, False, True)
    """
    # Times, bytes and work are never divisors; arbitrarily small values are fine.
    least = LEAST if kind in (None, "bandwidth", "flop_rate") else 0.0
    return quantity == 0 or least <= quantity <= MOST


def _why_not(unit: str, kind: Kind) -> str:
    close = [u for u in _UNITS[kind] if u.lower() == unit.lower()]
    # Nobody writes bytes per second as "bps".
    if kind == "bandwidth" and unit.endswith("bps"):
        close = [u for u in close if u.endswith("bps")]
    if close:
        return f"no unit {unit!r}; did you mean {' or '.join(map(repr, close))}?"
    for other, units in _UNITS.items():
        if unit in units:
            measured, required = other.replace("_", " "), kind.replace("_", " ")
            return f"{unit!r} measures {measured}, not {required}; write for example {_EXAMPLE[kind]}"
    return f"no unit {unit!r}; write for example {_EXAMPLE[kind]}"


def format_bytes(nbytes: float) -> str:
    """Return text for an array size or for bytes sent, in binary units; exact for multiples of a unit.

    >>> format_bytes(256 * 2**20), format_bytes(1000)
    ('256 MiB', '1000 B')
    """
    for unit, factor in _BINARY:
        if nbytes >= factor:
            if nbytes % factor == 0 or nbytes >= 10 * factor or unit != "KiB":
                return f"{nbytes / factor:.4g} {unit}"
            break
    return f"{nbytes:g} B"


def format_size(nbytes: float) -> str:
    """Return text for an array size as `format_bytes`, in decimal units if only these are exact.

    >>> format_size(256 * 2**20), format_size(102_400_000)
    ('256 MiB', '102.4 MB')
    """
    binary = format_bytes(nbytes)
    if _exact(binary, "bytes") == nbytes:
        return binary
    prefix = max((prefix for prefix, factor in _SI.items() if nbytes >= factor), key=lambda prefix: _SI[prefix])
    decimal = f"{nbytes / _SI[prefix]:.4g} {prefix}B"
    return decimal if _exact(decimal, "bytes") == nbytes else binary


def format_memory(nbytes: float, digits: int = 3) -> str:
    """Return bytes in a memory as text, in binary units with three digits (or `digits`), as nvidia-smi and torch do.

    >>> format_memory(80 * 2**30), format_memory(9.6e6)
    ('80 GiB', '9.16 MiB')
    """
    unit, factor = byte_unit(nbytes)
    return f"{float(f'{nbytes / factor:.{digits}g}'):g} {unit}"


def byte_unit(nbytes: float) -> tuple[str, int]:
    """Return the name of the largest binary unit not above `nbytes` bytes, and the unit's size [B].

    >>> byte_unit(3 * 2**30)
    ('GiB', 1073741824)
    """
    return next(((unit, factor) for unit, factor in _BINARY if nbytes >= factor), ("B", 1))


def format_time(seconds: float) -> str:
    """Return a time [s] as text with four digits and a fitting unit.

    >>> format_time(0.00128), format_time(0.0), format_time(87_084)
    ('1.28 ms', '0 s', '87,080 s')
    """
    if seconds == 0:
        return "0 s"
    if seconds >= 9999.5:
        return f"{float(f'{seconds:.4g}'):,.0f} s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor:
            return f"{seconds / factor:.4g} {unit}"
    return f"{seconds / 1e-9:.4g} ns"


def format_duration(seconds: float) -> str:
    """Return a waiting time [s] as text with two digits, in seconds to years.

    >>> format_duration(42), format_duration(150), format_duration(7200), format_duration(1e6), format_duration(1e9)
    ('42 seconds', '2.5 minutes', '2 hours', '12 days', '32 years')
    """
    for unit, factor in (("year", 365.25 * 86400.0), ("day", 86400.0), ("hour", 3600.0), ("minute", 60.0)):
        if seconds >= 1.5 * factor:
            number = float(f"{seconds / factor:.2g}")
            return f"{number:,g} {unit}s"
    return f"{seconds:.2g} seconds"


def format_bandwidth(bandwidth: float) -> str:
    """Return a bandwidth as text in decimal units, per direction.

    >>> format_bandwidth(12.5e9)
    '12.5 GB/s'
    """
    for unit, factor in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bandwidth >= factor:
            return f"{bandwidth / factor:.4g} {unit}"
    return f"{bandwidth:g} B/s"
