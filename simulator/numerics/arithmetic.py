"""Number formats of a training run: the dtype in which arrays are stored, and the one in which operations compute.

Rule: float32 and float64 are native; operations on float16 and bfloat16 compute in float32 and round each result to the
stored dtype; tf32 is float32 whose matmuls round their operands to fewer bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from simulator.basics.arrays import Array

# Bits that tf32 drops of float32's fraction of 23 bits.
_TF32_DROPPED: Final = 13


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """One number format.

    Attributes
    ----------
    name : str
        "float64", "float32", "tf32", "float16" or "bfloat16".
    stored, computed : dtype
        Of arrays in memory, and of arithmetic on them.

    Examples
    --------
    >>> float(arithmetic("float16").rounded(np.float32(1 / 3)))
    0.333251953125
    """

    name: str
    stored: np.dtype[Any]
    computed: np.dtype[Any]

    def store(self, x: Array) -> Array:
        """Convert to the stored dtype."""
        return x.astype(self.stored, copy=False)

    def load(self, x: Array) -> Array:
        """Convert to the dtype of arithmetic."""
        return x.astype(self.computed, copy=False)

    def rounded(self, x: Array) -> Array:
        """Round a result to the stored dtype, and return it in the dtype of arithmetic."""
        return x if self.stored == self.computed else x.astype(self.stored).astype(self.computed)

    def operand(self, x: Array) -> Array:
        """Round a matmul's operand as the hardware does (tf32 only)."""
        if self.name != "tf32":
            return x
        # Round to nearest, ties to even, on the bits: add half of the last kept bit, less 1 if that bit is 0.
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
        The simulator does not train in this dtype.
    """
    if name not in _FORMATS:
        raise ValueError(f"got dtype {name!r}; one of {', '.join(_FORMATS)}")
    stored, computed = _FORMATS[name]
    return Arithmetic(name, np.dtype(stored), np.dtype(computed))
