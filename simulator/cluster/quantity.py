"""Types for builder options and catalog figures: text with a unit in a file, an SI number in a function.

A parameter annotated `Bandwidth` is "12.5 GB/s" in YAML and 12.5e9 in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, WithJsonSchema

from simulator.basics import units

# Upper bound for counts of machine parts. A scenario has at most this many ranks, ten times the largest machine in
# operation; a larger number is probably a typing error.
MOST_PARTS: Final = 1_000_000


def _reader(kind: units.Kind, *, positive: bool) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        number = units.parse(value, kind)
        # Zero bandwidth would make transfer times infinite.
        if positive and number == 0.0:
            raise ValueError(f"got {value!r}; must be more than 0")
        return number

    return read


_bandwidth = _reader("bandwidth", positive=True)


def _one_or_more(value: Any) -> float | list[float]:
    if not isinstance(value, list):
        return _bandwidth(value)
    if not value:
        raise ValueError("got an empty list; give one bandwidth, or several bandwidths that repeat")
    return [_bandwidth(item) for item in value]


def _text(example: str) -> WithJsonSchema:
    """Return the JSON schema of a quantity, for editors: text with a unit."""
    return WithJsonSchema({"type": "string", "examples": [example]})


_ONE_OR_MORE: Final[dict[str, Any]] = {
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
    "examples": ["12.5 GB/s"],
}

Bandwidth = Annotated[float, BeforeValidator(_bandwidth), _text("12.5 GB/s")]
"""Bandwidth of a link in one direction [B/s]; "12.5 GB/s" in a file."""

Bandwidths = Annotated[float | Sequence[float], BeforeValidator(_one_or_more), WithJsonSchema(_ONE_OR_MORE)]
"""One bandwidth for all links, or several bandwidths that repeat over the links [B/s]."""

AnyBandwidth = Annotated[float, BeforeValidator(_reader("bandwidth", positive=False)), _text("12.5 GB/s")]
"""Bandwidth in one direction, or 0 without such a link [B/s]."""

Seconds = Annotated[float, BeforeValidator(_reader("time", positive=False)), _text("5 us")]
"""Time [s]; "5 us" in a file."""

Size = Annotated[float, BeforeValidator(_reader("bytes", positive=False)), _text("8 MiB")]
"""Size [B]; "8 MiB" in a file."""

FlopRate = Annotated[float, BeforeValidator(_reader("flop_rate", positive=True)), _text("312 TFLOP/s")]
"""Arithmetic rate [FLOP/s]; "312 TFLOP/s" in a file."""

Count = Annotated[int, Field(ge=1, le=MOST_PARTS)]
"""Number of parts of a machine, at least 1."""

CountOrZero = Annotated[int, Field(ge=0, le=MOST_PARTS)]
"""Number of parts of a machine, such as network cards; 0 or more."""
