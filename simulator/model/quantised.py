"""Formats of a frozen model's matrices (nf4, gptq, int8): bytes of a matrix, and kernels of its products.

Matrices in 4 bits are written out in the activations' dtype before each matmul. LLM.int8() multiplies x (T x k) and W
(n x k) in 8 bits; inputs with an element of at least 6 (outlier columns, o of k) are multiplied in 16 bits:

    forward    find outliers in x    quantise x by rows    x8 W8' (int32)    scale to 16 bits    x_o W_o'    add
    backward   W8 in 16 bits         scale by rows         dy W

References
----------
.. [1] Dettmers et al., "LLM.int8(): 8-bit matrix multiplication for transformers at scale", NeurIPS 2022,
   arXiv:2208.07339.
.. [2] Dettmers et al., "QLoRA: efficient finetuning of quantized LLMs", NeurIPS 2023, arXiv:2305.14314.
.. [3] Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers", ICLR 2023,
   arXiv:2210.17323.
.. [4] bitsandbytes, 95f9af309d: bitsandbytes/autograd/_functions.py, `MatMul8bitLt`; backends/cuda/ops.py,
   `int8_vectorwise_quant`; backends/default/ops.py, `int8_mixed_scaled_mm`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from simulator.model.kernel import Elementwise, Kernel, Matmul

# Outlier columns of an input: at most 7 in models of up to 13 billion parameters ([1]_, section 3.2).
_OUTLIERS: Final = 7
# Bytes of an element in int32, float32, float16 and int8.
_INT32, _FLOAT32, _FLOAT16, _INT8 = 4, 4, 2, 1


@dataclass(frozen=True, slots=True)
class QuantisedFormat:
    """Storage of a quantised matrix."""

    bits: float  # bits per parameter, with the scales of groups of parameters
    row_bytes: int = 0  # bytes of the scale of each output [B]
    # Whether forward matmuls take the matrix in eight bits; otherwise the matrix is written out before each matmul
    multiplies: bool = False
    table: bool = False  # whether a table of 16 numbers gives a parameter's value (NF4)

    def bits_per_element(self, inputs: int) -> float:
        """Return the bits per parameter, all scales included, of a matrix with this number of inputs.

        >>> FORMATS["gptq"].bits_per_element(4096), FORMATS["int8"].bits_per_element(64)
        (4.15625, 8.5)
        """
        return self.bits + 8 * self.row_bytes / inputs

    def written_out(self, outputs: int, inputs: int, itemsize: int) -> tuple[int, tuple[tuple[str, float, float], ...]]:
        """Return the bytes of an element of the dequantised matrix, and the passes that dequantise it: name, bytes
        read, bytes written [B]. bitsandbytes writes eight bits out in float32.

        >>> FORMATS["int8"].written_out(64, 128, 2)
        (4, (('dequantisation', 8448.0, 32768), ('dequantisation scale', 32768, 32768)))
        """
        elements = outputs * inputs
        read = elements * self.bits / 8 + self.row_bytes * outputs
        if not self.multiplies:
            return itemsize, (("dequantisation", read, elements * itemsize),)
        wide = elements * _FLOAT32
        return _FLOAT32, (("dequantisation", read, wide), ("dequantisation scale", wide, wide))


# NF4 with double quantisation: 4 bits, a scale of 8 bits for 64 parameters, and a float32 for 256 scales ([2]_, section
# 3: 0.127 bits a parameter). NF4 without: a float32 for 64. GPTQ in AutoGPTQ: 4 bits, and a scale of 16 bits and a zero
# point of 4 bits for 128 parameters; the order of inputs (`g_idx`, 4 bytes an input) is neglected. LLM.int8(): 8 bits
# and a float32 for each output.
FORMATS: Final[Mapping[str, QuantisedFormat]] = MappingProxyType(
    {
        "nf4": QuantisedFormat(4 + 8 / 64 + 32 / (64 * 256), table=True),
        "nf4_single": QuantisedFormat(4 + 32 / 64, table=True),
        "gptq": QuantisedFormat(4 + 20 / 128),
        "int8": QuantisedFormat(8, row_bytes=_FLOAT32, multiplies=True),
    }
)


@dataclass(frozen=True, slots=True)
class Product:
    """Kernels of products with a quantised matrix, and what they save."""

    # `forward`, `backward`: Kernels of the output, and of the gradient of the input.
    forward: tuple[Kernel, ...]
    backward: tuple[Kernel, ...]
    # Bytes of the outlier columns saved for the backward pass [B]; the input itself is then saved too
    outliers: int = 0


def product(
    form: QuantisedFormat,
    plain: tuple[Matmul, Matmul],
    parts: Sequence[tuple[str, int]],
    itemsize: int,
    *,
    float16: bool,
) -> Product:
    """Return the kernels of a quantised matrix on a micro-batch.

    Parameters
    ----------
    plain : (Matmul, Matmul)
        Matmuls of the output and of the input's gradient, as with a matrix that is not quantised.
    parts : sequence of (str, int)
        Matrices that a merged matrix consists of, each with its number of outputs; a matrix in eight bits quantises its
        own input.
    itemsize : int
        Bytes of an activation element [B].
    float16 : bool
        Whether activations are float16, the only dtype that bitsandbytes quantises.
    """
    forward, backward = plain
    outputs = forward.batch * forward.n
    if not form.multiplies:
        passes = form.written_out(outputs, forward.k, itemsize)[1]
        decoded = float(outputs * forward.k) if form.table else 0.0
        wide = tuple(
            Elementwise(f"{forward.name} {name}", read, written, decoded=decoded) for name, read, written in passes
        )
        return Product((*wide, forward), (*wide, backward))
    eight = [
        kernel
        for part, outputs in parts
        for kernel in _in_eight_bits(part, forward, outputs, itemsize, float16=float16)
    ]
    elements = outputs * forward.k
    written = (
        _moved(f"{forward.name} dequantisation", elements * _INT8, elements * itemsize),
        _moved(f"{forward.name} scale", elements * itemsize + outputs * _FLOAT32, elements * itemsize),
    )
    saved = len(parts) * forward.batch * forward.m * min(_OUTLIERS, forward.k) * itemsize
    return Product(tuple(eight), (*written, backward), saved)


def _moved(name: str, read: float, written: float) -> Elementwise:
    return Elementwise(name, read, written)


def _in_eight_bits(part: str, product: Matmul, outputs: int, itemsize: int, *, float16: bool) -> tuple[Kernel, ...]:
    """Return the forward kernels of a matrix in eight bits with this number of outputs; `product` has its inputs."""
    rows, outliers = product.batch * product.m, min(_OUTLIERS, product.k)
    entered, left = rows * product.k, rows * outputs
    narrow, wide = product.batch * outputs * outliers * _INT8, product.batch * outputs * outliers * itemsize
    casts = () if float16 else (_moved(f"{part} cast to float16", itemsize * entered, _FLOAT16 * entered),)
    back = () if float16 else (_moved(f"{part} cast back", _FLOAT16 * left, itemsize * left),)
    return (
        *casts,
        # |x| >= 6, whether any element is, and in which columns.
        _moved(f"{part} magnitudes", _FLOAT16 * entered, _FLOAT16 * entered),
        _moved(f"{part} outliers", _FLOAT16 * entered, _INT8 * entered),
        _moved(f"{part} any outlier", _INT8 * entered, _INT8),
        _moved(f"{part} outlier columns", _INT8 * entered, _INT8 * product.batch * product.k),
        _moved(f"{part} quantisation", _FLOAT16 * entered, _INT8 * entered + _FLOAT32 * rows),
        _moved(f"{part} zeros in outlier columns", 0, _INT8 * rows * outliers),
        # Outlier columns of the input, and of the matrix.
        _moved(f"{part} outlier input", itemsize * rows * outliers, itemsize * rows * outliers),
        _moved(f"{part} outlier weights", narrow, narrow),
        _moved(f"{part} outlier weights dequantisation", narrow + _FLOAT32 * outputs, wide),
        Matmul(part, product.m, outputs, product.k, product.batch, dtype="int8"),
        _moved(f"{part} dequantisation", _INT32 * left + _FLOAT32 * (rows + outputs), _FLOAT16 * left),
        *back,
        # addmm copies the output, which its matmul then reads and overwrites.
        _moved(f"{part} copy", 2 * itemsize * left, itemsize * left),
        Matmul(f"{part} outlier product", product.m, outputs, outliers, product.batch),
    )
