"""How does a framework change a model's operations? Early end of recompute, copies, casts to eight or four bits.

The functions change kernels and saved tensors, and know no durations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.basics.dtypes import find as find_dtype
from simulator.model.adapters import until_saved
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.layer import LAST_UNNEEDED
from simulator.model.operation import Batch, Operation, Saved
from simulator.model.shape import Transformer

# Duration of matmuls with scales for 1 x 128 by 1 x 128 blocks, relative to 1 x 128 by 128 x 128 blocks. Medians over
# three shapes of cuBLAS 13 on an H200 (catalog/measured/kernels.csv), relative to a scale for each tensor: 1.10, 1.17,
# 1.18; and 1.33, 1.41, 1.42.
_ROWS_OF_BLOCKS: Final = 1.41 / 1.17
# Bytes of an operand's element before the cast [B].
_WIDE: Final = 2
_FLOAT32: Final = 4
_INT64: Final = 8
# Elements of an NF4 matrix with a common scale (torchao, `to_nf4`: block_size).
_SCALED: Final = 64


def until_needed(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return a layer's operations without those at the end that no backward pass needs: its last matmul and
    addition.

    PyTorch's non-reentrant checkpointing ends the recompute when the last tensor is saved (torch.utils.checkpoint,
    early stop, since 2.1). An adapter on the last matrix saves A x, for which the matrix itself runs again: PEFT
    computes W x before A x. B and the sum do not run again.
    """
    # Only the next layer reads these outputs, and checkpointing has saved its input. Experts' outputs are recomputed
    # only if combine saves them.
    end, experts = len(operations), any(op.name == "router" for op in operations)
    while end and operations[end - 1].name in (*LAST_UNNEEDED, *(() if experts else ("down",))):
        if operations[end - 1].saves_own:
            last = operations[end - 1]
            return (*operations[: end - 1], replace(last, forward=until_saved(last.forward)))
        end -= 1
    return operations[:end]


def second_maps(model: Transformer, batch: Batch) -> tuple[Matmul, ...]:
    """Return the matmuls that the policy `selective_op` recomputes besides whole operations: keys, and "up" of a gated
    MLP or of gated shared experts.

    torchtitan saves every second matmul's output, and its layers have separate matrices for queries, keys and values,
    and for gate and up.
    """
    keys = (Matmul("keys", batch.tokens, model.kv_width, model.hidden_size),) if "*" in model.layer_blocks else ()
    # Grouped matmuls of experts run again as whole operations.
    width = model.ffn_size * (model.shared_experts if model.num_experts else 1)
    return (*keys, Matmul("up", batch.tokens, width, model.hidden_size)) if model.gated and width else keys


def with_copies(
    operations: tuple[Operation, ...], model: Transformer, batch: Batch, *, split_maps: bool
) -> tuple[Operation, ...]:
    """Return a layer's operations with additional saved tensors: copies that eager PyTorch modules save and merged
    kernels avoid.

    A gated activation saves its function's output besides the product. If one matmul makes queries, keys and values,
    queries and keys with positions are new arrays, while the values are a view that keeps the whole array alive, and
    attention's output is copied into token order for the next matmul. If three matmuls make them (`split_maps`), rotary
    embeddings save only their own sines and cosines.
    """
    rewrites = []
    for op in operations:
        saved = op.saved
        if op.name == "activation" and model.gated:
            saved += (Saved("activation function output", op.output, op.name),)
        if op.name == "attention" and not split_maps:
            tensors = {tensor.name: tensor for tensor in op.saved}
            # The view of the values keeps queries and keys without positions alive.
            beside = [tensors[name].nbytes for name in ("queries", "keys") if name in tensors]
            saved += (Saved("queries and keys without positions", sum(beside), "qkv"),)
            saved += (_output_by_tokens(op),)
        rewrites.append(replace(op, saved=saved))
    return tuple(rewrites)


def with_weighted_activations(operations: tuple[Operation, ...], batch: Batch) -> tuple[Operation, ...]:
    """Return a layer's operations with the router's weights multiplied into the experts' activation: combine only adds,
    and saves no outputs of experts. The biases of the experts' second matrices are multiplied by the weights and added
    expert by expert.
    """

    def adding(op: Operation) -> Operation:
        saved = sum(tensor.nbytes for tensor in op.saved)
        backward = tuple(
            replace(kernel, read=kernel.read - saved) if isinstance(kernel, Elementwise) else kernel
            for kernel in op.backward
        )
        return replace(op, saved=(), backward=backward)

    changed = list[Operation]()
    for op in operations:
        has_bias = any(kernel.name == "down bias gradient" for kernel in op.backward)
        matmul = op.forward[0] if has_bias else None
        if isinstance(matmul, Matmul) and matmul.kind == "grouped":
            changed.append(replace(op, backward=tuple(k for k in op.backward if isinstance(k, Matmul))))
            changed.append(_weighted_biases(matmul, batch.itemsize))
        else:
            changed.append(adding(op) if op.name == "combine" else op)
    return tuple(changed)


def _weighted_biases(matmul: Matmul, itemsize: int) -> Operation:
    """Return the operation that adds the bias of each expert, times the router's float32 weights, to the outputs of a
    grouped matmul.

    Weights in float32 make the sums float32; the sums of all experts are joined and cast. Backward, each expert's
    gradient is cast for the output, and multiplied and summed for bias and weights. Source: NVIDIA/Megatron-LM,
    Megatron-Core 0.16.1, core/transformer/moe/experts.py, `TEGroupedMLP._apply_bias`.
    """
    each = float(matmul.m * matmul.n)
    every, name = matmul.batch * each, "expert bias"

    def moved(what: str, read: float, written: float) -> Elementwise:
        # A broadcast or a cast.
        elements = max(read, written) / _FLOAT32
        return Elementwise(f"{name} {what}", read, written, scattered=elements)

    def summed(what: str) -> Elementwise:
        return Elementwise(f"{name} {what}", _FLOAT32 * each, 0.0)

    add = (moved("weighting", 0.0, _FLOAT32 * each), moved("add", (itemsize + _FLOAT32) * each, _FLOAT32 * each))
    gradient = (
        moved("gradient cast", _FLOAT32 * each, itemsize * each),
        moved("gradient times weight", _FLOAT32 * each, _FLOAT32 * each),
        summed("gradient sum"),
        moved("gradient times bias", _FLOAT32 * each, _FLOAT32 * each),
        summed("weight gradient sum"),
    )
    return Operation(
        name,
        (
            *(matmul.batch * add),
            Elementwise(f"{name} join", _FLOAT32 * every, _FLOAT32 * every),
            moved("cast", _FLOAT32 * every, itemsize * every),
        ),
        (moved("gradient widening", itemsize * every, _FLOAT32 * every), *(matmul.batch * gradient)),
        output=int(itemsize * every),
    )


def with_narrow_inputs(operations: tuple[Operation, ...], batch: Batch, dtype: str) -> tuple[Operation, ...]:
    """Return a layer's operations with the inputs of matmuls saved in eight or four bits: the copy in the order of the
    weight gradient, which the cast has written.

    Operations that compute in the activations' dtype save their inputs as they are. Source: NVIDIA/TransformerEngine,
    pytorch/module/linear.py: `inputmat.update_usage(rowwise_usage=False, columnwise_usage=True)`; recalled.
    """
    narrow = find_dtype(dtype, stored=False)
    # Bytes of an element with its share of a scale.
    each = narrow.bits / 8 if narrow.matmul is None else narrow.matmul.cast_bytes
    # With sequence parallelism a rank saves its own tokens of an input that is gathered.
    parts = (1, batch.cut.tensor if batch.cut.sequence else 1)

    def saved(op: Operation) -> Operation:
        matmul = op.forward[0] if op.forward else None
        if not isinstance(matmul, Matmul) or matmul.dtype is not None or op.name == "router":
            return op
        inputs = matmul.batch * matmul.m * matmul.k
        tensors = tuple(
            replace(tensor, name=f"{tensor.name} in {narrow.bits} bits", nbytes=int(tensor.nbytes * each) // _WIDE)
            if any(tensor.nbytes * part == _WIDE * inputs for part in parts)
            else tensor
            for tensor in op.saved
        )
        return replace(op, saved=tensors)

    return tuple(map(saved, operations))


def with_nf4_tensors(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return a layer's operations with the kernels of eager PyTorch that write out a torchao NF4Tensor, in place of the
    single kernel of bitsandbytes.
    """

    def split(kernels: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
        return tuple(
            piece
            for kernel in kernels
            for piece in (_nf4_tensor(kernel) if isinstance(kernel, Elementwise) and kernel.decoded else (kernel,))
        )

    return tuple(replace(op, forward=split(op.forward), backward=split(op.backward)) for op in operations)


def _nf4_tensor(source: Elementwise) -> tuple[Elementwise, ...]:
    """Return the kernels of NF4Tensor.get_original_weight (pytorch/ao 36027d82d,
    torchao/quantization/quantize_/workflows/nf4/nf4_tensor.py) for the matrix that the kernel `source` writes out.

    A byte has two elements, and each half of the elements is unpacked by itself: n / 2 bytes become n / 2 indices in
    int64, which select from a table of 16 numbers. A scale in int8 belongs to 64 elements.

    >>> kernels = _nf4_tensor(Elementwise("up dequantisation", 2080, 8192, decoded=4096))
    >>> len(kernels), sum(kernel.nbytes(2) for kernel in kernels) / 4096
    (13, 33.171875)
    """
    n = source.decoded
    size = source.written / n
    half, scales = n / 2, n / _SCALED
    places = ("first", "second")

    def moved(what: str, read: float, written: float) -> Elementwise:
        return Elementwise(f"{source.name} {what}", read, written)

    def unpacked(place: str) -> tuple[Elementwise, ...]:
        return (
            moved(f"unpack {place}", half, half),
            moved(f"index {place}", half, _INT64 * half),
            moved(f"table {place}", _INT64 * half, size * half),
        )

    def scaled(place: str) -> tuple[Elementwise, ...]:
        # The scales are repeated in memory, once for each half.
        return (
            moved(f"repeated scales {place}", size * scales, size * half),
            moved(f"scaling {place}", 2 * size * half, size * half),
        )

    return (
        *(kernel for place in places for kernel in unpacked(place)),
        # Division by the factor of 256 scales, and addition of the mean.
        moved("scales", scales, size * scales),
        moved("scales' mean", size * scales, size * scales),
        *(kernel for place in places for kernel in scaled(place)),
        moved("stack", size * n, size * n),
    )


def with_output_by_tokens(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Return a layer's operations with attention's output saved a second time, in the order in which the next matmul
    reads it.

    The flash-attention package saves its output with sequences outermost, Megatron-LM's activations have tokens
    outermost.
    """
    return tuple(
        replace(op, saved=(*op.saved, _output_by_tokens(op))) if op.name == "attention" else op for op in operations
    )


def _output_by_tokens(attention: Operation) -> Saved:
    """Return the saved copy of attention's output in token order."""
    return Saved("attention output by tokens", attention.output, attention.name)


def block_scaled(kernel: Matmul) -> float:
    """Return the duration of a matmul in eight bits with a scale for each block, relative to the measured kernels.

    Weights have blocks of 128 x 128, activations and gradients of 1 x 128 (DeepSeek-V3, section 3.3). A weight
    gradient multiplies two operands of the second kind.
    """
    return _ROWS_OF_BLOCKS if kernel.of_weights else 1.0


def narrow_casts(kernel: Matmul, dtype: str = "float8_e4m3fn", *, once: bool = False) -> Elementwise:
    """Return the kernel that casts both operands of a matmul to eight or four bits, in the order needed by each matmul.

    With `once`, a tensor is cast on first use and written in both orders; a weight is cast once per step, neglected
    beside the cost of every micro-batch (NVIDIA's Transformer Engine: `is_first_microbatch`, fused cast and transpose).

    4 x 16 elements of a and 16 x 8 of b: 192 elements are read in 2 B each and written in 1 B each.

    >>> cast = narrow_casts(Matmul("up", 4, 8, 16))
    >>> cast.read, cast.written
    (384.0, 192.0)
    """
    operands = kernel.batch * float(kernel.m * kernel.k + kernel.k * kernel.n)
    orders = 1
    if once:
        # A weight-gradient matmul reads operands that earlier matmuls have already cast.
        operands = 0.0 if kernel.of_weights else kernel.batch * float(kernel.m * kernel.k)
        orders = 2
    narrow = find_dtype(dtype, stored=False).matmul
    if narrow is None or not narrow.cast_bytes:
        raise ValueError(f"operands in {dtype} are not cast from a wider dtype")
    read, written = narrow.cast_reads * _WIDE * operands, orders * narrow.cast_bytes * operands
    return Elementwise(f"{kernel.name} casts", read, written, fusible=False)
