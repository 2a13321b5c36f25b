"""Which dtypes may `training.precision` name? Dtypes for stored tensors, and dtypes for matmul inputs.

Same form as reading.py.
"""

from __future__ import annotations

from typing import Any, Final, cast

from simulator.basics import dtypes, reading
from simulator.basics.errors import UnknownNameError, one_of

_STATES: Final = ("float64", "float32", "float16", "bfloat16")
_MATMULS: Final = (*_STATES, *(name for name, dtype in dtypes.DTYPES.items() if dtype.is_float and name not in _STATES))


def stored_dtype(*more: str | None) -> reading.ValueReader:
    """Return a validator for the dtype of a stored or sent tensor; `more` are further allowed words. With None among
    these, the word none, which other keys have for nothing, is read as None.
    """

    def reader(value: Any) -> str | None:
        if value == "none" and None in more:
            return None
        if value in _STATES or value in more:
            return cast("str | None", value)
        words = tuple("none" if word is None else word for word in (*_STATES, *more))
        # Narrow dtypes exist only as matmul inputs; advise the right key.
        if value == "tf32" or (isinstance(value, str) and value.startswith(("float8", "fp8", "float4"))):
            raise ValueError(f"got {value!r}, a dtype only for matmuls; write the dtype at training.precision.matmul")
        raise ValueError(f"got {reading.shown(value)}; {_one_dtype(words, value)}")

    spelled = ("none",) if None in more else ()
    return reading.ValueReader(reader, lambda: {"enum": [*_STATES, *more, *spelled]})


def matmul_dtype() -> reading.ValueReader:
    """Return a validator for the dtype of matmul inputs, or "auto"."""

    def reader(value: Any) -> str:
        if isinstance(value, str) and value in (*_MATMULS, "auto"):
            return value
        raise ValueError(f"got {reading.shown(value)}; {_one_dtype((*_MATMULS, 'auto'), value)}")

    return reading.ValueReader(reader, lambda: {"enum": [*_MATMULS, "auto"]})


def _one_dtype(allowed: tuple[str, ...], value: Any) -> str:
    """Return an error message with the allowed dtypes and, for a short name such as bf16, the full name meant."""
    menu = one_of(allowed, value if isinstance(value, str) else "")
    # `dtypes.find` knows short names; its suggestion counts only if allowed here.
    try:
        dtypes.find(str(value))
    except UnknownNameError as error:
        meant = str(error).rpartition("; did you mean ")[2].strip("'?")
        if meant in allowed:
            return f"{menu.partition('; did you mean')[0]}; did you mean {meant!r}?"
    return menu
