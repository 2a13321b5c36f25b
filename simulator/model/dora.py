"""DoRA: an adapter's matrix W + s B A is scaled to trained lengths m of its rows; which kernels does this add?

The output is y = (m / |W + s B A|) (W x + s B A x), with a length for each of n outputs. The norm counts as a constant
for gradients ([1]_, section 4.3), but is computed in each forward pass from the whole product B A, k x n, which PEFT
computes as B (A I) with the identity I. With f = m / |W + s B A|, PEFT adds (f - 1) W x + f s B A x to W x:

    forward    I    A I    B (A I)    W in the adapter's dtype    s B A    W + s B A    norm    f    f - 1
               (f - 1) W x    f B A x    their sum
    backward   gradients of both products' inputs, and of f: a product and a sum over tokens for each

With dropout, W x is computed a second time, from the dropped input and in the adapter's dtype.

References
----------
.. [1] Liu et al., "DoRA: weight-decomposed low-rank adaptation", ICML 2024, arXiv:2402.09353.
.. [2] huggingface/peft, 5d602fdbff: src/peft/tuners/lora/dora.py, `DoraLinearLayer.forward`.
"""

from __future__ import annotations

from simulator.model.adapters import AdapterKernels, Lora, Target
from simulator.model.kernel import Elementwise, Kernel, Matmul


def dora_kernels(
    adapters: Lora, target: Target, outputs: int, tokens: int, inputs: int, itemsize: int
) -> AdapterKernels:
    """Return the kernels that DoRA adds to those of an adapter (`adapter_kernels`) on a micro-batch.

    Parameters
    ----------
    outputs, inputs : int
        Outputs and inputs of the adapted matrix.
    tokens : int
        Rows of the micro-batch.
    itemsize : int
        Bytes of an activation element [B].
    """
    name, wide = f"{target} dora", adapters.itemsize
    weights, left, entered = outputs * inputs, tokens * outputs, tokens * inputs
    # With dropout, the matrix's output is computed again in the adapter's dtype.
    base = wide if adapters.dropout else itemsize

    def moved(what: str, read: float, written: float, *, of_weights: bool = False) -> Elementwise:
        return Elementwise(f"{name} {what}", read, written, fusible=True, of_weights=of_weights)

    def matmul(what: str, m: int, n: int, k: int) -> Matmul:
        return Matmul(f"{name} {what}", m, n, k, dtype=adapters.dtype)

    form = adapters.base_format
    stored, copies = (itemsize, ()) if form is None else form.written_out(outputs, inputs, itemsize)
    norm = (
        moved("identity", 0, wide * inputs**2),
        matmul("A", inputs, adapters.rank, inputs),
        matmul("B", inputs, outputs, adapters.rank),
        *(moved(what, read, written) for what, read, written in copies),
        *((moved("matrix cast", stored * weights, wide * weights),) if stored != wide else ()),
        moved("scale", wide * weights, wide * weights),
        moved("matrix sum", 2 * wide * weights, wide * weights),
        moved("norm", wide * weights, wide * outputs),
        moved("factor", 2 * wide * outputs, wide * outputs),
        moved("factor less one", wide * outputs, wide * outputs),
    )
    again: tuple[Kernel, ...] = (matmul("base", tokens, outputs, inputs),) if adapters.dropout else ()
    forward = (
        *norm,
        *again,
        moved("base product", base * left + wide * outputs, wide * left),
        moved("adapter product", wide * (left + outputs), wide * left),
        moved("sum", 2 * wide * left, wide * left),
    )
    back: tuple[Kernel, ...]
    if adapters.dropout:
        back = (
            matmul("base input gradient", tokens, inputs, outputs),
            moved("input gradient add", 2 * wide * entered, wide * entered),
        )
    else:
        casts = (moved("base gradient cast", wide * left, itemsize * left),) if wide != itemsize else ()
        back = (*casts, moved("base gradient add", 2 * itemsize * left, itemsize * left))
    gradients = (
        moved("adapter product gradient", wide * (left + outputs), wide * left),
        moved("base product gradient", wide * (left + outputs), wide * left),
        *back,
    )
    magnitude = (
        moved("adapter times gradient", 2 * wide * left, wide * left, of_weights=True),
        moved("adapter sum over tokens", wide * left, wide * outputs, of_weights=True),
        moved("base times gradient", (wide + base) * left, wide * left, of_weights=True),
        moved("base sum over tokens", wide * left, wide * outputs, of_weights=True),
        moved("factor gradient", 2 * wide * outputs, wide * outputs, of_weights=True),
        moved("magnitude gradient", 2 * wide * outputs, wide * outputs, of_weights=True),
    )
    return AdapterKernels(forward, gradients, magnitude)


def kept_by_dora(adapters: Lora, outputs: int, tokens: int, inputs: int, itemsize: int) -> int:
    """Return the bytes that DoRA saves for the backward pass of a micro-batch beside an adapter's [B]: the outputs of
    the matrix and of the adapter, f, f - 1 and the norm; with dropout also the matrix, if it is a copy.

    >>> kept_by_dora(Lora(rank=8, dtype="bfloat16", dora=True), outputs=64, tokens=10, inputs=32, itemsize=2)
    2944
    """
    wide = adapters.itemsize
    base = wide if adapters.dropout else itemsize
    copied = bool(adapters.dropout) and (adapters.base_format is not None or wide != itemsize)
    return tokens * outputs * (base + wide) + 3 * wide * outputs + copied * wide * outputs * inputs


def dora_peaks(adapters: Lora, outputs: int, tokens: int, inputs: int, itemsize: int) -> tuple[int, int]:
    """Return the most bytes allocated at once in the forward pass of an adapted matrix, with its saved tensors and
    output, and in its backward pass, beside its saved tensors and the gradient of its output [B].

    Forward, the identity (k x k) and B A (k x n) exist until the adapter ends. The first peak is the sum W + s B A:
    W x, the adapter's input, I, A I, B A, W if it is a copy, s B A and the sum. The second peak is the sum of both
    products for each token: three arrays of the output's size, without the two matrices of the norm.

    Backward, five arrays of the output's size exist at the gradient of f: the gradient in the adapter's dtype, its copy
    for W x, and gradients of f s B A x, of B A x and of f before its sum.

    >>> dora_peaks(Lora(rank=4, dora=True), outputs=96, tokens=10, inputs=64, itemsize=2)
    (120192, 17664)
    """
    wide, copied = adapters.itemsize, adapters.base_format is not None or adapters.itemsize != itemsize
    left, matrix = tokens * outputs, wide * outputs * inputs
    entered = itemsize * left + adapters.kept_per_input(itemsize) * tokens * inputs
    product = wide * (inputs**2 + inputs * adapters.rank) + matrix * (1 + copied)
    again = wide * left if adapters.dropout else 0
    both = again + wide * (tokens * adapters.rank + 4 * left + 3 * outputs)
    casts = (wide + itemsize) * left if wide != itemsize else 0
    return entered + product + max(2 * matrix, both), casts + wide * (3 * left + outputs)
