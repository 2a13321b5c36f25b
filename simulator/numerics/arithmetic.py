"""Number formats of a training run: what is stored, and in what one computes.

Rule: float32 and float64 are native; float16 and bfloat16 are stored as they are and computed in float32, each
operation's result rounded; tf32 is float32 whose matmuls see fewer digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from simulator.basics.arrays import Array

# Digits of a fraction that tf32 keeps, of float32's 23.
_TF32_DROPPED: Final = 13


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One number format.

    Attributes
    ----------
    name : str
        "float64", "float32", "tf32", "float16" or "bfloat16".
    stored, computed : dtype
        Of arrays at rest, and of arithmetic.

    Examples
    --------
    >>> float(arithmetic("float16").rounded(np.float32(1 / 3)))
    0.333251953125
    """

    name: str
    stored: np.dtype[Any]
    computed: np.dtype[Any]

    def store(self, x: Array) -> Array:
        """As it is kept."""
        return x.astype(self.stored, copy=False)

    def load(self, x: Array) -> Array:
        """As it is computed with."""
        return x.astype(self.computed, copy=False)

    def rounded(self, x: Array) -> Array:
        """What is left of a result that is kept, to compute on with."""
        return x if self.stored == self.computed else x.astype(self.stored).astype(self.computed)

    def operand(self, x: Array) -> Array:
        """What a matmul sees of an operand."""
        if self.name != "tf32":
            return x
        # Round to nearest, ties to even, on the bits: add half of the last kept digit, and what makes ties even.
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        half = np.uint32(1 << (_TF32_DROPPED - 1))
        even = (bits >> np.uint32(_TF32_DROPPED)) & np.uint32(1)
        kept = (bits + half - np.uint32(1) + even) & np.uint32(0xFFFFFFFF << _TF32_DROPPED & 0xFFFFFFFF)
        rounded: Array = np.where(np.isfinite(x), kept.view(np.float32), x)
        return rounded

    def product(self, a: Array, b: Array) -> Array:
        """a @ b, rounded once."""
        return self.rounded(self.operand(a) @ self.operand(b))


_FORMATS: Final = {
    "float64": (np.float64, np.float64),
    "float32": (np.float32, np.float32),
    "tf32": (np.float32, np.float32),
    "float16": (np.float16, np.float32),
    "bfloat16": (ml_dtypes.bfloat16, np.float32),
}


def arithmetic(name: str) -> Arithmetic:
    """The arithmetic of a dtype.

    Raises
    ------
    ValueError
        One that nothing is trained in here.
    """
    if name not in _FORMATS:
        raise ValueError(f"got dtype {name!r}; one of {', '.join(_FORMATS)}")
    stored, computed = _FORMATS[name]
    return Arithmetic(name, np.dtype(stored), np.dtype(computed))
