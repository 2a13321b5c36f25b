"""Which number formats exist (float32, bfloat16, fp8, int8, ...): their bits, range, and numpy dtype?

Formats are named as in numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from simulator.basics.errors import UnknownNameError

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class MatmulFormat:
    """Facts of matmuls with inputs of a number format."""

    fitted: str  # format whose fitted constants stand for this one
    output_bytes: int  # bytes of an output's element: wider than the inputs for eight and four bits [B]
    cast_bytes: float = 0.0  # bytes of an operand's element after the cast from a wider dtype, with its scales; 0: none
    cast_reads: int = 1  # times that the cast reads its input


@dataclass(frozen=True, slots=True)
class Dtype:
    """A number format for array elements, such as bfloat16.

    Attributes
    ----------
    kind : {"float", "int", "uint"}
        Kind of number.
    exponent, fraction : int
        Bits of the exponent and of the fraction; 0 for integers.
    """

    name: str  # name in numpy or ml_dtypes
    kind: Literal["float", "int", "uint"]
    bits: int  # bits of an element in memory (tf32: 19 bits that count, 32 stored)
    exponent: int
    fraction: int
    largest: float  # largest finite value; exact for floats, and for integers as an int
    smallest_normal: float  # smallest positive normal value; 1 for integers
    # True for tf32 and float4_e2m1fn: tensor cores multiply in these formats, but no array is stored or sent in them
    compute_only: bool = False
    matmul: MatmulFormat | None = None  # facts of matmuls with such inputs; None if none are simulated
    nccl: str = ""  # name in NCCL's kernels (src/device/generate.py); empty without arrays
    torch: str = ""  # name in PyTorch's traces

    @property
    def itemsize(self) -> int:
        """Bytes of an element in memory [B]; 0 for four bits, of which no array is stored."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True if the number format is a floating-point format."""
        return self.kind == "float"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; numpy (and ml_dtypes for bfloat16 and fp8) is imported on first use."""
        import numpy as np

        if self.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            import ml_dtypes

            special: np.dtype[Any] = np.dtype(getattr(ml_dtypes, self.name))
            return special
        return np.dtype(self.name)


def _float(name: str, bits: int, exponent: int, fraction: int, largest: float | None = None, **facts: Any) -> Dtype:
    bias = 2 ** (exponent - 1) - 1
    # The all-ones exponent means infinity or not-a-number; the largest usable exponent is the bias.
    top = largest if largest is not None else (2.0 - 2.0**-fraction) * 2.0**bias
    return Dtype(name, "float", bits, exponent, fraction, top, 2.0 ** (1 - bias), **facts)


def _integer(name: str, bits: int, *, signed: bool, **facts: Any) -> Dtype:
    return Dtype(name, "int" if signed else "uint", bits, 0, 0, 2 ** (bits - signed) - 1, 1, **facts)


_EIGHT: Final = MatmulFormat("float8_e4m3fn", 2, cast_bytes=1.0)
# NVFP4 has a scale of eight bits for every 16 elements, and a scale of the whole tensor: a first pass reads the tensor
# for its largest element (NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv:2509.25149, section 2).
_NVFP4: Final = MatmulFormat("float4_e2m1fn", 2, cast_bytes=0.5 + 1 / 16, cast_reads=2)
# IEEE 754-2019 for float64/32/16; Kalamkar et al. 2019 (bfloat16); Micikevicius et al. 2022, arXiv:2209.05433 (fp8:
# e4m3fn gives up infinity for one more binade, so its largest is 448); OCP Microscaling Formats 1.0 (float4_e2m1fn:
# neither infinity nor not-a-number, largest 6); NVIDIA Ampere white paper (tf32: 8 + 10 bits).
DTYPES: Final = MappingProxyType(
    {
        d.name: d
        for d in (
            _float("float64", 64, 11, 52, matmul=MatmulFormat("tf32", 8), nccl="f64", torch="Double"),
            _float("float32", 32, 8, 23, matmul=MatmulFormat("tf32", 4), nccl="f32", torch="Float"),
            _float("tf32", 32, 8, 10, compute_only=True, matmul=MatmulFormat("tf32", 4)),
            _float("float16", 16, 5, 10, matmul=MatmulFormat("bfloat16", 2), nccl="f16", torch="Half"),
            _float("bfloat16", 16, 8, 7, matmul=MatmulFormat("bfloat16", 2), nccl="bf16", torch="BFloat16"),
            # Matmuls in eight bits write bfloat16, as measured.
            _float("float8_e4m3fn", 8, 4, 3, 448.0, matmul=_EIGHT, nccl="f8e4m3", torch="Float8_e4m3fn"),
            _float("float8_e5m2", 8, 5, 2, matmul=_EIGHT, nccl="f8e5m2", torch="Float8_e5m2"),
            _float("float4_e2m1fn", 4, 2, 1, 6.0, compute_only=True, matmul=_NVFP4),
            _integer("int64", 64, signed=True, nccl="i64", torch="Long"),
            _integer("int32", 32, signed=True, nccl="i32", torch="Int"),
            _integer("int8", 8, signed=True, matmul=MatmulFormat("float8_e4m3fn", 4, 1.0), nccl="i8", torch="Char"),
            _integer("uint8", 8, signed=False, nccl="u8", torch="Byte"),
        )
    }
)

# Bytes of an element, by PyTorch's names of dtypes, as traces and dumps write them.
TORCH_ITEMSIZES: Final = {
    "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "Half": 2, "BFloat16": 2, "Short": 2, "Char": 1,
    "Byte": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1,
}  # fmt: skip
_ALIASES: Final = {
    "fp64": "float64", "double": "float64", "fp32": "float32", "float": "float32", "single": "float32",
    "fp16": "float16", "half": "float16", "bf16": "bfloat16", "tfloat32": "tf32", "float8": "float8_e4m3fn",
    "fp8": "float8_e4m3fn", "e4m3": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2",
    "e5m2": "float8_e5m2", "long": "int64", "int": "int32", "i64": "int64", "i32": "int32", "i8": "int8", "u8": "uint8",
    "byte": "uint8", "nvfp4": "float4_e2m1fn", "fp4": "float4_e2m1fn", "float4": "float4_e2m1fn",
}  # fmt: skip


def is_narrow(dtype: str) -> bool:
    """Return True if a dtype has at most eight bits: matmul inputs are then cast from a wider dtype.

    >>> is_narrow("float8_e4m3fn"), is_narrow("bfloat16")
    (True, False)
    """
    return find(dtype, stored=False).bits <= 8


def find(name: str, *, stored: bool = True) -> Dtype:
    """Return the dtype with a given name.

    Parameters
    ----------
    name : str
        Name in numpy or ml_dtypes.
    stored : bool
        Whether the dtype must be storable and sendable, which tf32 is not.

    Raises
    ------
    UnknownNameError
        Unknown name; the message contains the right name for aliases such as "fp32".

    Examples
    --------
    >>> find("bfloat16").itemsize
    2
    """
    # Programs of millions of operations ask for the same few dtypes: the list of allowed names is for the error alone.
    dtype = DTYPES.get(name)
    if dtype is not None and not (stored and dtype.compute_only):
        return dtype
    allowed = [d.name for d in DTYPES.values() if not (stored and d.compute_only)]
    # Similar spelling is not enough for "fp32" or "half", so aliases replace the suggestion.
    error = UnknownNameError("dtype", name, allowed)
    meant = _ALIASES.get(str(name).lower())
    if meant is not None:
        error.args = (f"dtype: got {name!r}; one of {', '.join(error.allowed)}; did you mean {meant!r}?",)
    elif name == "tf32":
        error.args = ("dtype: got 'tf32'; tf32 is a compute format and is stored and sent as float32; write 'float32'",)
    raise error
