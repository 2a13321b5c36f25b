"""Number formats of a training run: the dtype for storing arrays, and the dtype for computing.

float32 and float64 are native. Operations on float16 and bfloat16 compute in float32 and round each result to the
stored dtype. tf32 is float32 with matmuls that round their operands to fewer bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import ml_dtypes
import numpy as np

from simulator.basics.arrays import Array

# float32 has 23 bits of fraction, tf32 has 10.
_TF32_DROPPED: Final = 13


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A number format: the dtype for storing arrays, and the dtype for computing.

    >>> float(arithmetic("float16").rounded(np.float32(1 / 3)))
    0.333251953125
    """

    name: str  # "float64", "float32", "tf32", "float16" or "bfloat16"
    stored: np.dtype[Any]  # dtype of arrays in memory
    computed: np.dtype[Any]  # dtype of the operations

    def store(self, x: Array) -> Array:
        """Return an array in the stored dtype of the number format."""
        return x.astype(self.stored, copy=False)

    def load(self, x: Array) -> Array:
        """Return an array in the computed dtype of the number format."""
        return x.astype(self.computed, copy=False)

    def rounded(self, x: Array) -> Array:
        """Return an array rounded to the stored dtype, as an array of the computed dtype."""
        return x if self.stored == self.computed else x.astype(self.stored).astype(self.computed)

    def operand(self, x: Array) -> Array:
        """Return a matmul operand rounded to tf32 precision; other formats return the operand unchanged."""
        if self.name != "tf32":
            return x
        # numpy has no tf32, so round the bit pattern: to nearest, ties to even. Add half of the last kept bit, less 1
        # if the last kept bit is 0, then cut off the lower 13 bits.
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
        half = np.uint32(1 << (_TF32_DROPPED - 1))
        even = (bits >> np.uint32(_TF32_DROPPED)) & np.uint32(1)
        top_bits = (bits + half - np.uint32(1) + even) & np.uint32(0xFFFFFFFF << _TF32_DROPPED & 0xFFFFFFFF)
        # The addition would turn some NaN patterns into infinities or zeros; infinities and NaN stay unchanged.
        rounded: Array = np.where(np.isfinite(x), top_bits.view(np.float32), x)
        return rounded

    def product(self, a: Array, b: Array) -> Array:
        """Return the matrix product a @ b, rounded once to the stored dtype."""
        # GPUs accumulate a float16 matmul in float32 and round only the sum; the same happens here.
        return self.rounded(self.operand(a) @ self.operand(b))


# Name: (stored dtype, computed dtype).
_FORMATS: Final = {
    "float64": (np.float64, np.float64),
    "float32": (np.float32, np.float32),
    "tf32": (np.float32, np.float32),
    "float16": (np.float16, np.float32),
    "bfloat16": (ml_dtypes.bfloat16, np.float32),
}


def arithmetic(name: str) -> Arithmetic:
    """Return the number format with this name: "float64", "float32", "tf32", "float16" or "bfloat16".

    Raises
    ------
    ValueError
        The simulator cannot train in this dtype.

    Examples
    --------
    >>> arithmetic("bfloat16")
    Arithmetic(name='bfloat16', stored=dtype(bfloat16), computed=dtype('float32'))
    """
    if name not in _FORMATS:
        raise ValueError(f"got dtype {name!r}; one of {', '.join(_FORMATS)}")
    stored, computed = _FORMATS[name]
    return Arithmetic(name, np.dtype(stored), np.dtype(computed))
