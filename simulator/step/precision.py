"""Which dtypes does a training step use? The keys of `precision`, which are the step's record too."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from simulator.basics import dtypes, reading
from simulator.basics.dtype_reading import matmul_dtype, stored_dtype
from simulator.basics.spec import Short, Spec

Scaling = Literal["tensor", "row", "block"]
# The matmul dtype is given only if it differs from the parameters' dtype.
PRECISIONS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "fp64": {"params": "float64"},
        "fp32": {"params": "float32"},
        "tf32": {"params": "float32", "matmul": "tf32"},
        "fp16": {"params": "float16"},
        "bf16": {"params": "bfloat16"},
        "fp8": {"params": "bfloat16", "matmul": "float8_e4m3fn"},
        "nvfp4": {"params": "bfloat16", "matmul": "float4_e2m1fn"},
    }
)
# Names from PyTorch and other libraries, each with advice.
_OTHER_PRECISIONS: Final = {
    **dict.fromkeys(("float32", "single", "float", "full"), "did you mean 'fp32'?"),
    **dict.fromkeys(("tfloat32", "tf"), "did you mean 'tf32'?"),
    **dict.fromkeys(("float16", "half"), "did you mean 'fp16'?"),
    **dict.fromkeys(("bfloat16", "mixed"), "did you mean 'bf16'?"),
    **dict.fromkeys(
        ("amp", "autocast"),
        "write {params: float32, matmul: bfloat16} for parameters in float32 under PyTorch's autocast, or bf16",
    ),
    **dict.fromkeys(("float8", "float8_e4m3fn", "float8_e5m2"), "did you mean 'fp8'?"),
    **dict.fromkeys(("int8", "int4"), "is not supported yet; the narrowest dtypes are fp8 and nvfp4"),
    **dict.fromkeys(("fp4", "float4", "float4_e2m1fn"), "did you mean 'nvfp4'?"),
    # Blackwell's tensor cores apply a scale to each 32 elements without loss of speed.
    "mxfp8": "write fp8: on Blackwell a scale for each 32 elements costs matmuls no time",
}


class Precision(Spec):
    """Dtypes used in a training step (keys of `precision`)."""

    params: Annotated[str, stored_dtype()] = Field(
        default="bfloat16", description="Dtype for working parameters and activations."
    )
    grads: Annotated[str, stored_dtype("auto")] = Field(
        default="auto", description="Dtype for accumulated gradients; auto: the parameters' dtype."
    )
    reduce: Annotated[str, stored_dtype("auto")] = Field(
        default="auto",
        description="Dtype for gradients in communication; auto: float32, or float64 for float64 gradients.",
    )
    master: Annotated[str | None, stored_dtype("auto", None)] = Field(
        default="auto",
        description="Dtype for the optimizer's parameter copy; auto: float32 for narrower parameters.",
    )
    matmul: Annotated[str, matmul_dtype()] = Field(
        default="auto",
        description=(
            "Dtype for matmul inputs; auto: the parameters' dtype. Two bytes beside params: float32 are PyTorch's "
            "autocast: matrices and attention make two bytes, norms and the residual stream stay float32."
        ),
    )
    scaling: Annotated[Scaling, reading.choice(get_args(Scaling))] = Field(
        default="tensor",
        description=(
            "Scale of matmul inputs in eight bits: one for each tensor, for each row (torchao's rowwise), or for each "
            "block of 128 (DeepSeek-V3)."
        ),
    )

    @property
    def updated(self) -> str:
        """Dtype of the numbers that the optimizer updates: the master copy, or working parameters without one."""
        return self.master or self.params

    def resolved(self) -> Precision:
        """Return the dtypes with each "auto" replaced: gradients and matmuls take the parameters' dtype; the wire takes
        float32 (float64 for such gradients), and so does the master copy of narrower parameters.

        >>> Precision(params="float32").resolved().master is None
        True
        >>> Precision(params="float64").resolved().reduce
        'float64'
        """
        # A float32 master copy is needed only for narrower parameters. Gradients travel in float32, or wider.
        narrow = dtypes.find(self.params).bits < dtypes.find("float32").bits
        grads = self.params if self.grads == "auto" else self.grads
        followed = {
            "grads": self.params,
            "reduce": "float64" if grads == "float64" else "float32",
            "master": "float32" if narrow else None,
            "matmul": self.params,
        }
        return self.replaced(**{name: dtype for name, dtype in followed.items() if getattr(self, name) == "auto"})


# The default: bfloat16 beside a float32 master copy.
MIXED: Final = Precision().resolved()

SHORT_PRECISIONS: Final = Short(PRECISIONS, _OTHER_PRECISIONS)
