"""Which kernels run for an operation of PyTorch? Matmuls and convolutions by their sizes, all else by its bytes.

Operations are told apart by name. Views and empty tensors run no kernel. PyTorch is imported only when a function is
called.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

from simulator.model.layer_types import BATCH_NORM_PASSES

if TYPE_CHECKING:
    from torch import Tensor

# Operations that HBM limits, by the beginning of their names; operations that PyTorch marks as pointwise need no name.
_MEMORY_BOUND: Final = (
    "_adaptive_avg_pool", "_embedding_bag", "_fused_rms_norm", "_log_softmax", "_native_batch_norm", "_softmax",
    "_to_copy", "adaptive_", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "argsort", "avg_pool",
    "batch_norm", "bernoulli", "binary_cross_entropy", "bincount", "cat", "clone", "col2im", "constant_pad",
    "convert", "copy", "count_nonzero", "cross_entropy_loss", "cummax", "cumprod", "cumsum", "diagonal", "dropout",
    "embedding", "eye", "fill", "flip", "full", "gather", "grid_sampler", "group_norm", "hardsigmoid", "hardswish",
    "hardtanh", "huber_loss", "im2col", "index", "kthvalue", "layer_norm", "lift_fresh", "linspace", "log_softmax",
    "logcumsumexp", "logsumexp", "masked", "max", "mean", "min", "mse_loss", "multinomial", "native_batch_norm",
    "native_dropout", "native_group_norm", "native_layer_norm", "new_full", "new_ones", "new_zeros", "nll_loss",
    "norm", "normal", "one_hot", "ones", "pixel_shuffle", "pixel_unshuffle", "prod", "put", "rand", "reflection_pad",
    "repeat", "replication_pad", "rms_norm", "roll", "rrelu", "scalar_tensor", "scatter", "select_backward",
    "slice_backward", "slice_scatter", "smooth_l1_loss", "sort", "split_with_sizes_copy", "stack", "std", "sum",
    "take", "topk", "trace", "tril", "triu", "unbind", "unfold_backward", "uniform", "upsample",
    "value_selecting_reduction_backward", "var", "where", "zero", "zeros",
)  # fmt: skip
# Operations that touch no memory.
_FREE: Final = (
    "as_strided", "empty", "new_empty", "detach", "alias", "_unsafe_view", "_reshape_alias", "set_", "resize_",
)  # fmt: skip
_MATMULS: Final = ("mm", "addmm", "bmm", "baddbmm")
# Attention of modules that PyTorch's own functions call: one kernel, as on a GPU.
_ATTENTION: Final = "_scaled_dot_product_flash_attention"
# A batch norm reads its arrays several times, since a channel's numbers lie in every sample.
_READ_AGAIN: Final = "batch_norm"

# Elements in the working dtype, and bytes of other dtypes.
TensorBytes = tuple[int, int]


@dataclass(slots=True)
class TracedKernel:
    """A kernel with its numbers for one micro-batch."""

    kind: str  # "matmul", "attention" or "elementwise", or the pass of a convolution
    numbers: tuple[int, ...]  # sizes that may grow with the samples
    fixed: tuple[Any, ...] = ()  # sizes and switches that may not
    of_weights: bool = False


def storage_of(tensor: Tensor) -> int:
    """Return a number that tensors with the same memory share."""
    return tensor.untyped_storage()._cdata


def tensors_in(value: Any) -> list[Any]:
    """Return the tensors in nested lists, tuples and mappings, in order."""
    import torch
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def size_of(tensors: Iterable[Any], dtype: Any) -> TensorBytes:
    """Return the size of some tensors together, each storage once; elements of `dtype` and bytes of other dtypes."""
    elements = nbytes = 0
    for tensor in {storage_of(tensor_given): tensor_given for tensor_given in tensors}.values():
        elements_held = tensor.untyped_storage().nbytes() // tensor.element_size()
        count = min(tensor.numel(), elements_held)
        if tensor.dtype == dtype:
            elements += count
        else:
            nbytes += count * tensor.element_size()
    return elements, nbytes


def runs_no_kernel(func: Any, name: str) -> bool:
    """Return True if an operation touches no memory: a view, or an empty tensor."""
    return bool(func.is_view) or name.startswith(_FREE)


def is_attention(name: str) -> bool:
    """Return True for PyTorch's fused attention and its backward pass.

    >>> is_attention("_scaled_dot_product_flash_attention"), is_attention("bmm")
    (True, False)
    """
    return name.startswith(_ATTENTION)


def is_known(func: Any, name: str) -> bool:
    """Return True if an operation's kernels are known: others count by the bytes that they read and write."""
    import torch

    if name in (*_MATMULS, "convolution", "convolution_backward"):
        return True
    if torch.Tag.pointwise in func.tags or torch.Tag.reduction in func.tags:
        return True
    return name.lstrip("_").startswith(tuple(prefix.lstrip("_") for prefix in _MEMORY_BOUND))


def kernels_of(
    func: Any, name: str, args: Any, inputs: Sequence[Any], outputs: Sequence[Any], dtype: Any
) -> list[TracedKernel]:
    """Return the kernels of an operation, attention excepted, from its arguments, their tensors and its results."""
    import torch

    if name in _MATMULS:
        return [_matmul(inputs[-2:] if name.startswith(("ad", "ba")) else inputs)]
    if name == "convolution":
        return [_convolution("forward", args[0], args[1], outputs[0], args[6], args[8])]
    if name == "convolution_backward":
        return _convolution_backward(args)
    passes = BATCH_NORM_PASSES if _READ_AGAIN in name else 1
    read, written = size_of(inputs, dtype), size_of(outputs, dtype)
    moved = (passes * read[0], passes * read[1], *written)
    fusible = torch.Tag.pointwise in func.tags or "norm" in name or "softmax" in name
    return [TracedKernel("elementwise", moved, (fusible,))]


def _matmul(operands: Sequence[Any]) -> TracedKernel:
    """Return the kernel of a matmul of two matrices, or of two batches of matrices."""
    a, b = operands[-2], operands[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    return TracedKernel("matmul", (a.shape[-2], b.shape[-1], a.shape[-1], batch))


def _convolution(
    which: str, image: Tensor, weight: Tensor, output: Tensor, transposed: bool, groups: int
) -> TracedKernel:
    """Return a kernel of a convolution; a transposed one is the input gradient of a convolution of its output."""
    if transposed:
        image, output = output, image
        which = {"forward": "input gradient", "input gradient": "forward"}.get(which, which)
    places = output.shape[0] * prod(output.shape[2:])
    sizes = image.shape[1] // groups, output.shape[1] // groups, prod(weight.shape[2:]), groups
    return TracedKernel(which, (places, image.numel()), sizes, of_weights=which == "weight gradient")


def _convolution_backward(args: Sequence[Any]) -> list[TracedKernel]:
    """Return the kernels of a convolution's backward pass: those of the gradients that are wanted."""
    output, image, weight, transposed, groups, needs = args[0], args[1], args[2], args[7], args[9], args[10]
    passes = [which for which, needed in zip(("input gradient", "weight gradient"), needs, strict=False) if needed]
    kernels = [_convolution(which, image, weight, output, transposed, groups) for which in passes]
    if needs[2]:
        kernels.append(TracedKernel("elementwise", (output.numel(), 0, weight.shape[0], 0), (False,), of_weights=True))
    return kernels
