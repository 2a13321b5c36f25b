"""Types of layers in a file of layers: output shape, parameters, kernels and saved tensors of each.

Shapes are those of a single sample: (channels, height, width), (tokens, width), or (width,). Kernels are those of eager
PyTorch: a matmul or convolution per layer and pass, and a kernel per elementwise operation. Tensors are saved as by
PyTorch's autograd: a ReLU keeps its output, GELU and norms their input, a matmul its input.

Examples
--------
>>> made = LAYER_TYPES["linear"].build(LayerKeys({"in": 1024, "out": 4096}), Tensor("input", (1024,)), "linear 1")
>>> made.output.shape, [p.elements for p in made.parameters], made.operations[0].forward[0].m
((4096,), [4194304, 4096], Count(fixed=0, per_sample=1))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any, Final

from simulator.model.convolution import Convolution
from simulator.model.layer_list import (
    Amount,
    AttentionCounts,
    Count,
    ElementwiseCounts,
    KernelCounts,
    LayerOperation,
    MatmulCounts,
    SavedTensor,
)
from simulator.model.parameters import Parameter

Shape = tuple[int, ...]

# Largest size in a file of layers; no published layer comes near.
_LARGEST: Final = 10**9
_FLOAT32: Final = 4
# Passes over its arrays of a batch norm, whose sums over a channel lie in every sample: one for the sums, one for the
# result.
BATCH_NORM_PASSES: Final = 2
_LABEL: Final = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor between two operations: its name, unique within a layer, and its shape for a sample."""

    name: str
    shape: Shape

    @property
    def elements(self) -> int:
        """Number of elements of a sample."""
        return prod(self.shape)

    @property
    def size(self) -> Amount:
        """Size of the tensor."""
        return amount(self.elements)

    @property
    def rows(self) -> int:
        """Number of rows of a sample, if the last dimension is the width of a row."""
        return prod(self.shape[:-1])

    def saved(self) -> SavedTensor:
        """Return the tensor as one that is kept for the backward pass."""
        return SavedTensor("input" if self.name == "input" else f"{self.name} output", self.size, self.name)


@dataclass(frozen=True, slots=True)
class Built:
    """A layer of some type on an input: its output, parameters and operations."""

    output: Tensor
    parameters: tuple[Parameter, ...] = ()
    operations: tuple[LayerOperation, ...] = ()


@dataclass(slots=True)
class LayerKeys:
    """Keys of one layer in a file; records every fault, and reads a faulty size as 1."""

    data: Mapping[str, Any]
    # Faults so far; the key is empty for the layer itself.
    faults: list[tuple[str, str]] = field(default_factory=list)

    def fault(self, key: str, message: str) -> None:
        """Record a fault."""
        self.faults.append((key, message))

    def size(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number, or its default if the key is missing."""
        value = self.data.get(key, default)
        if value is None:
            self.fault("", f"{key} is missing; give it")
        elif isinstance(value, bool) or not isinstance(value, int):
            self.fault(key, f"got {value!r}; must be a whole number")
        elif not least <= value <= _LARGEST:
            self.fault(key, f"got {value}; must be from {least} to {_LARGEST}")
        else:
            return value
        return 1

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a boolean, or its default if the key is missing."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            self.fault(key, f"got {value!r}; must be true or false")
            return default
        return value

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return one of some words; the first if the key is missing."""
        value = self.data.get(key, allowed[0])
        if value not in allowed:
            self.fault(key, f"got {value!r}; one of {', '.join(allowed)}")
            return allowed[0]
        return str(value)

    def must_equal(self, key: str, size: int, what: str) -> None:
        """Record a fault if a key is given and is not the number `size` that the layer's input has."""
        if key in self.data and self.size(key) != size:
            self.fault(key, f"got {self.data[key]}; the layer's input has {size} {what}")


Build = Callable[[LayerKeys, Tensor, str], Built]


@dataclass(frozen=True, slots=True)
class LayerKey:
    """A key of a type of layer: its meaning, and its default as text; None if every layer of the type needs the key."""

    meaning: str
    default: str | None = None


@dataclass(frozen=True, slots=True)
class LayerType:
    """A type of layer: how it is built, and what its keys mean."""

    # Builds the layer; `name` is unique within a layer of the model.
    build: Build
    meaning: str
    keys: Mapping[str, LayerKey]  # meaning and default of each key
    short: tuple[str, ...] = ()  # keys that a list of numbers, or a single number, stands for, in this order


def amount(elements: int = 0, nbytes: int = 0) -> Amount:
    """Return an amount of so many elements, and bytes of fixed dtypes, per sample.

    >>> amount(4, 8)
    Amount(elements=Count(fixed=0, per_sample=4), nbytes=Count(fixed=0, per_sample=8))
    """
    return Amount(Count(0, elements), Count(0, nbytes))


def elementwise(
    name: str,
    forward: tuple[Amount, Amount],
    backward: tuple[Amount, Amount],
    saved: tuple[SavedTensor, ...] = (),
    *,
    output: Amount,
    weights: tuple[Amount, Amount] | None = None,
) -> LayerOperation:
    """Return an operation limited by HBM, from the amounts that each pass reads and writes; `weights` are those of a
    kernel that computes gradients of parameters alone.
    """
    back: tuple[KernelCounts, ...] = (ElementwiseCounts(f"{name} gradient", *backward, fusible=True),)
    if weights is not None:
        back += (ElementwiseCounts(f"{name} weight gradient", *weights, of_weights=True),)
    return LayerOperation(name, (ElementwiseCounts(name, *forward, fusible=True),), back, saved, output)


def matmul(
    name: str, source: Tensor, rows: int, n: int, *, bias: bool, out: Shape
) -> tuple[Tensor, tuple[Parameter, ...], LayerOperation]:
    """Return output, parameters and operation of a matrix with n outputs, applied to `rows` rows of a sample."""
    k = source.elements // rows
    m, output = Count(0, rows), Tensor(name, out)
    back: tuple[KernelCounts, ...] = (
        MatmulCounts(f"{name} input gradient", m, Count(k), Count(n)),
        MatmulCounts(f"{name} weight gradient", Count(n), Count(k), m, of_weights=True),
    )
    parameters: tuple[Parameter, ...] = (Parameter(f"{name}.weight", (n, k)),)
    if bias:
        parameters += (Parameter(f"{name}.bias", (n,)),)
        back += (ElementwiseCounts(f"{name} bias gradient", output.size, Amount(Count(n)), of_weights=True),)
    forward = (MatmulCounts(name, m, Count(n), Count(k)),)
    return output, parameters, LayerOperation(name, forward, back, (source.saved(),), output.size)


def _linear(keys: LayerKeys, source: Tensor, name: str) -> Built:
    keys.must_equal("in", source.shape[-1], "numbers in its last dimension")
    out = (*source.shape[:-1], keys.size("out"))
    bias = keys.flag("bias", default=True)
    output, parameters, operation = matmul(name, source, source.rows, out[-1], bias=bias, out=out)
    return Built(output, parameters, (operation,))


def _plane(keys: LayerKeys, source: Tensor) -> Shape:
    """Return (channels, height, width) of an image; record a fault for another shape."""
    if len(source.shape) != 3:
        keys.fault("", f"needs an image (channels, height, width); the layer's input is {shape_text(source.shape)}")
        return 1, 1, 1
    return source.shape


def _slid(keys: LayerKeys, side: int, kernel: int, stride: int, padding: int, which: str) -> int:
    """Return the number of places of a window of `kernel` pixels that slides over `side` pixels."""
    places = (side + 2 * padding - kernel) // stride + 1
    if places < 1:
        keys.fault("kernel", f"got {kernel}; the layer's input has {which} {side} and padding {padding}")
        return 1
    return places


def _conv2d(keys: LayerKeys, source: Tensor, name: str) -> Built:
    channels, height, width = _plane(keys, source)
    keys.must_equal("in", channels, "channels")
    out, kernel, stride = keys.size("out"), keys.size("kernel"), keys.size("stride", 1)
    padding, groups = keys.size("padding", 0, least=0), keys.size("groups", 1)
    if channels % groups or out % groups:
        keys.fault("groups", f"got {groups}; must divide {channels} channels and {out} outputs")
        groups = 1
    rows, columns = (
        _slid(keys, side, kernel, stride, padding, which) for side, which in ((height, "height"), (width, "width"))
    )
    output = Tensor(name, (out, rows, columns))
    weight = Parameter(f"{name}.weight", (out, channels // groups, kernel, kernel))
    parameters: tuple[Parameter, ...] = (weight,)
    of = Convolution(
        name, Count(0, rows * columns), channels // groups, out // groups, kernel * kernel, groups,
        Count(0, source.elements),
    )  # fmt: skip
    backward: tuple[KernelCounts, ...] = (of.input_gradient(), of.weight_gradient())
    if keys.flag("bias", default=True):
        parameters += (Parameter(f"{name}.bias", (out,)),)
        backward += (ElementwiseCounts(f"{name} bias gradient", output.size, Amount(Count(out)), of_weights=True),)
    return Built(output, parameters, (LayerOperation(name, (of.forward(),), backward, (source.saved(),), output.size),))


def _norm(
    width_of: Callable[[Tensor], int], statistics: Callable[[Tensor], Amount], *, passes: int = 1, bias: bool = True
) -> Build:
    """Return the builder of a norm: its width, its saved statistics, and how often each pass reads its arrays: once if
    a row stays on the chip, more often if a channel's numbers lie in every sample.
    """

    def build(keys: LayerKeys, source: Tensor, name: str) -> Built:
        size, width, moments = source.size, width_of(source), statistics(source)
        weight = keys.flag("weight", default=True)
        parameters = [Parameter(f"{name}.weight", (width,))] if weight else []
        if keys.flag("bias", default=bias and weight):
            parameters.append(Parameter(f"{name}.bias", (width,)))
        saved = source.saved(), SavedTensor(f"{name} statistics", moments, name)
        operation = elementwise(
            name, (size.times(passes), size + moments), (size.times(2 * passes) + moments, size), saved, output=size
        )
        return Built(Tensor(name, source.shape), tuple(parameters), (operation,))

    return build


def _groups(keys: LayerKeys, source: Tensor, name: str) -> Built:
    groups = keys.size("groups")
    if source.shape[0] % groups:
        keys.fault("groups", f"got {groups}; must divide {source.shape[0]} channels")
        groups = 1
    return _norm(lambda t: t.shape[0], lambda t: amount(nbytes=2 * _FLOAT32 * groups))(keys, source, name)


def _activation(*, of_output: bool) -> Build:
    """Return the builder of an activation function whose gradient needs its output, or its input."""

    def build(keys: LayerKeys, source: Tensor, name: str) -> Built:
        output, size = Tensor(name, source.shape), source.size
        tensor = output.saved() if of_output else source.saved()
        operation = elementwise(name, (size, size), (size.times(2), size), (tensor,), output=size)
        return Built(output, (), (operation,))

    return build


def _dropout(keys: LayerKeys, source: Tensor, name: str) -> Built:
    size, mask = source.size, amount(nbytes=source.elements)
    operation = elementwise(
        name, (size, size + mask), (size + mask, size), (SavedTensor(f"{name} mask", mask, name),), output=size
    )
    return Built(Tensor(name, source.shape), (), (operation,))


def _pool(*, largest: bool) -> Build:
    """Return the builder of a pooling layer; the largest of a window is found again backward by its place."""

    def build(keys: LayerKeys, source: Tensor, name: str) -> Built:
        channels, height, width = _plane(keys, source)
        kernel, padding = keys.size("kernel"), keys.size("padding", 0, least=0)
        stride = keys.size("stride", kernel)
        sides = (
            _slid(keys, side, kernel, stride, padding, which) for side, which in ((height, "height"), (width, "width"))
        )
        output = Tensor(name, (channels, *sides))
        places = amount(nbytes=_LABEL * output.elements) if largest else Amount()
        saved = (source.saved(), SavedTensor(f"{name} places", places, name)) if largest else ()
        passes = (source.size, output.size + places), (output.size + places, source.size)
        return Built(output, (), (elementwise(name, *passes, saved, output=output.size),))

    return build


def _global_pool(keys: LayerKeys, source: Tensor, name: str) -> Built:
    channels = _plane(keys, source)[0]
    output = Tensor(name, (channels,))
    operation = elementwise(name, (source.size, output.size), (output.size, source.size), output=output.size)
    return Built(output, (), (operation,))


def _flatten(keys: LayerKeys, source: Tensor, name: str) -> Built:
    return Built(Tensor(source.name, (source.elements,)))


def _to_tokens(keys: LayerKeys, source: Tensor, name: str) -> Built:
    channels, height, width = _plane(keys, source)
    output = Tensor(name, (height * width, channels))
    size = source.size
    return Built(output, (), (elementwise(name, (size, size), (size, size), output=size),))


def _upsample(keys: LayerKeys, source: Tensor, name: str) -> Built:
    channels, height, width = _plane(keys, source)
    factor = keys.size("factor", 2)
    output = Tensor(name, (channels, height * factor, width * factor))
    passes = (source.size, output.size), (output.size, source.size)
    return Built(output, (), (elementwise(name, *passes, output=output.size),))


def _embedding(keys: LayerKeys, source: Tensor, name: str) -> Built:
    rows, width = keys.size("rows"), keys.size("width")
    output = Tensor(name, (*source.shape, width))
    numbers = amount(nbytes=_LABEL * source.elements)
    table = Amount(Count(rows * width))
    operation = LayerOperation(
        name,
        (ElementwiseCounts(name, output.size + numbers, output.size),),
        (ElementwiseCounts(f"{name} weight gradient", output.size + numbers, table, of_weights=True),),
        (SavedTensor(f"{name} numbers", numbers, "input"),),
        output.size,
    )
    return Built(output, (Parameter(f"{name}.weight", (rows, width)),), (operation,))


def _positions(keys: LayerKeys, source: Tensor, name: str) -> Built:
    output, size, table = Tensor(name, source.shape), source.size, Amount(Count(source.elements))
    learned = keys.flag("learned", default=True)
    operation = elementwise(
        name, (size + table, size), (size, size), output=size, weights=(size, table) if learned else None
    )
    parameters = (Parameter(f"{name}.weight", source.shape, trained=learned),)
    return Built(output, parameters, (operation,))


def _class_token(keys: LayerKeys, source: Tensor, name: str) -> Built:
    if len(source.shape) != 2:
        keys.fault("", f"needs tokens (tokens, width); the layer's input is {shape_text(source.shape)}")
        return Built(source)
    tokens, width = source.shape
    output = Tensor(name, (tokens + 1, width))
    operation = elementwise(name, (source.size, output.size), (output.size, source.size), output=output.size)
    return Built(output, (Parameter(f"{name}.weight", (1, width)),), (operation,))


def _first_token(keys: LayerKeys, source: Tensor, name: str) -> Built:
    output = Tensor(name, source.shape[-1:])
    operation = elementwise(name, (output.size, output.size), (output.size, source.size), output=output.size)
    return Built(output, (), (operation,))


def _attention(keys: LayerKeys, source: Tensor, name: str) -> Built:
    if len(source.shape) != 2:
        keys.fault("", f"needs tokens (tokens, width); the layer's input is {shape_text(source.shape)}")
        return Built(source)
    tokens, width = source.shape
    heads = keys.size("heads")
    kv_heads = keys.size("kv_heads", heads)
    head_dim = keys.size("head_dim", max(1, width // heads))
    if heads % kv_heads:
        keys.fault("kv_heads", f"got {kv_heads}; must divide {heads} heads")
    causal, bias = keys.flag("causal", default=False), keys.flag("bias", default=True)
    wide, narrow = heads * head_dim, kv_heads * head_dim
    qkv, parameters, first = matmul(
        f"{name} qkv", source, tokens, wide + 2 * narrow, bias=bias, out=(tokens, wide + 2 * narrow)
    )
    result = Tensor(f"{name} scores", (tokens, wide))
    sizes = Count(0, 1), heads, kv_heads, tokens, head_dim, causal
    # Flash attention keeps the log-sum-exp of each row and head for its backward pass, in float32.
    statistics = SavedTensor(f"{name} log-sum-exp", amount(nbytes=_FLOAT32 * tokens * heads), result.name)
    scores = LayerOperation(
        result.name,
        (AttentionCounts(result.name, *sizes, backward=False),),
        (AttentionCounts(f"{result.name} gradient", *sizes, backward=True),),
        (qkv.saved(), result.saved(), statistics),
        result.size,
    )
    output, more, last = matmul(f"{name} output", result, tokens, width, bias=bias, out=(tokens, width))
    return Built(output, parameters + more, (first, scores, last))


def _mlp(keys: LayerKeys, source: Tensor, name: str) -> Built:
    hidden, gated, bias = keys.size("hidden"), keys.flag("gated", default=False), keys.flag("bias", default=True)
    width, rows = source.shape[-1], source.rows
    before = (*source.shape[:-1], hidden * (2 if gated else 1))
    wide, parameters, first = matmul(f"{name} up", source, rows, before[-1], bias=bias, out=before)
    active = Tensor(f"{name} activation", (*source.shape[:-1], hidden))
    # Eager modules multiply the activation's output by the second half in a kernel of their own.
    between = elementwise(
        active.name, (wide.size, active.size), (wide.size + active.size, wide.size), (wide.saved(),),
        output=active.size,
    )  # fmt: skip
    output, more, last = matmul(f"{name} down", active, rows, width, bias=bias, out=source.shape)
    return Built(output, parameters + more, (first, between, last))


def _modulate(keys: LayerKeys, source: Tensor, name: str) -> Built:
    output, size = Tensor(name, source.shape), source.size
    operation = elementwise(name, (size, size), (size.times(2), size), (source.saved(),), output=size)
    return Built(output, (), (operation,))


def _cost(keys: LayerKeys, source: Tensor, name: str) -> Built:
    shape = keys.data.get("output", list(source.shape))
    if not (isinstance(shape, list) and shape and all(type(n) is int and 1 <= n <= _LARGEST for n in shape)):
        keys.fault("output", f"got {shape!r}; must be a list of sizes, such as [64, 56, 56]")
        shape = [1]
    output = Tensor(name, tuple(shape))
    flops, parameters = keys.size("flops", 0, least=0), keys.size("parameters", 0, least=0)
    activations = keys.size("activations", 0, least=0)
    # A matmul of equal FLOPs whose output has the shape of the layer's: 2 m n k FLOP.
    inner = max(1, round(flops / (2 * output.elements)))
    rows = Count(0, output.rows)
    wide, deep = Count(output.shape[-1]), Count(inner)
    saved = (SavedTensor(f"{name} activations", amount(nbytes=activations), name),) if activations else ()
    if flops:
        operation = LayerOperation(
            name,
            (MatmulCounts(name, rows, wide, deep),),
            (
                MatmulCounts(f"{name} input gradient", rows, deep, wide),
                MatmulCounts(f"{name} weight gradient", deep, wide, rows, of_weights=True),
            ),
            saved,
            output.size,
        )
    else:
        passes = (source.size, output.size), (output.size, source.size)
        operation = elementwise(name, *passes, saved, output=output.size)
    return Built(output, (Parameter(f"{name}.weight", (parameters,)),) if parameters else (), (operation,))


def shape_text(shape: Shape) -> str:
    """Return a shape as text: "[3, 224, 224]"."""
    return str(list(shape))


def _width(tensor: Tensor) -> int:
    """Return the last dimension of a tensor."""
    return tensor.shape[-1]


def _channels(tensor: Tensor) -> int:
    """Return the channels of an image."""
    return tensor.shape[0]


_BIAS: Final = {"bias": LayerKey("true if the layer adds a number per output", "true")}
_NORM: Final = {
    "weight": LayerKey("false if the norm has no weights", "true"),
    "bias": LayerKey("true if the layer adds a number per output", "the value of weight"),
}
_RMS_NORM: Final = _NORM | {"bias": LayerKey("true if the layer adds a number per output", "false")}
_KERNEL: Final = {"kernel": LayerKey("side of the window [pixels]")}
_PADDING: Final = {"padding": LayerKey("pixels added on each side", "0")}
_CONVOLUTION: Final = _KERNEL | {"stride": LayerKey("pixels between two windows", "1")} | _PADDING
_POOLING: Final = _KERNEL | {"stride": LayerKey("pixels between two windows", "the value of kernel")} | _PADDING

LAYER_TYPES: Final[Mapping[str, LayerType]] = MappingProxyType(
    {
        "linear": LayerType(
            _linear, "Matrix on the last dimension.",
            {"in": LayerKey("inputs", "the input's last dimension, against which it is checked"),
             "out": LayerKey("outputs")} | _BIAS, ("in", "out"),
        ),
        "conv2d": LayerType(
            _conv2d, "Convolution of an image, square kernel.",
            {"in": LayerKey("channels", "the input's channels, against which it is checked"),
             "out": LayerKey("output channels"), **_CONVOLUTION,
             "groups": LayerKey("groups of channels, each with filters of its own", "1")} | _BIAS,
        ),
        "attention": LayerType(
            _attention, "Self-attention of tokens: Q, K and V, scores kept on the chip, output matrix.",
            {"heads": LayerKey("query heads"), "kv_heads": LayerKey("heads of keys and values", "the value of heads"),
             "head_dim": LayerKey("width of a head", "the input's width / heads"),
             "causal": LayerKey("true if a token sees no later token", "false")} | _BIAS,
        ),
        "mlp": LayerType(
            _mlp, "Two matrices with an activation function between them.",
            {"hidden": LayerKey("width between the matrices"),
             "gated": LayerKey("true if two first matrices are multiplied (SwiGLU)", "false")} | _BIAS, ("hidden",),
        ),
        "embedding": LayerType(
            _embedding, "Table from which a row is read for each number of the input.",
            {"rows": LayerKey("rows of the table"), "width": LayerKey("numbers in a row")}, ("rows", "width"),
        ),
        "positions": LayerType(
            _positions, "Table of the input's shape that is added.",
            {"learned": LayerKey("false if the table is fixed", "true")},
        ),
        "class_token": LayerType(_class_token, "Learned token before the others.", {}),
        "first_token": LayerType(_first_token, "First token alone.", {}),
        "to_tokens": LayerType(_to_tokens, "An image's pixels as tokens: [c, h, w] to [h w, c].", {}),
        "flatten": LayerType(_flatten, "Reshape a sample to a single dimension.", {}),
        "layer_norm": LayerType(
            _norm(_width, lambda t: amount(nbytes=2 * _FLOAT32 * t.rows)), "LayerNorm of the last dimension.", _NORM
        ),
        "rms_norm": LayerType(
            _norm(_width, lambda t: amount(nbytes=_FLOAT32 * t.rows), bias=False), "RMSNorm of the last dimension.",
            _RMS_NORM,
        ),
        "batch_norm": LayerType(
            _norm(_channels, lambda t: Amount(nbytes=Count(2 * _FLOAT32 * t.shape[0])), passes=BATCH_NORM_PASSES),
            "Norm of each channel over the micro-batch.", _NORM,
        ),
        "group_norm": LayerType(
            _groups, "Norm of groups of channels.", {"groups": LayerKey("groups of channels")} | _NORM, ("groups",)
        ),
        "relu": LayerType(_activation(of_output=True), "max(x, 0).", {}),
        "sigmoid": LayerType(_activation(of_output=True), "1 / (1 + exp(-x)).", {}),
        "tanh": LayerType(_activation(of_output=True), "Hyperbolic tangent.", {}),
        "softmax": LayerType(_activation(of_output=True), "Softmax of the last dimension.", {}),
        "gelu": LayerType(_activation(of_output=False), "x Phi(x).", {}),
        "silu": LayerType(_activation(of_output=False), "x / (1 + exp(-x)).", {}),
        "dropout": LayerType(_dropout, "Dropout; its rate changes no time.", {}),
        "modulate": LayerType(
            _modulate, "x (1 + scale) + shift, or x gate, with numbers per sample from a branch.", {}
        ),
        "max_pool": LayerType(_pool(largest=True), "Largest number of each window.", _POOLING, ("kernel", "stride")),
        "avg_pool": LayerType(_pool(largest=False), "Mean of each window.", _POOLING, ("kernel", "stride")),
        "global_pool": LayerType(_global_pool, "Mean of each channel.", {}),
        "upsample": LayerType(
            _upsample, "Each pixel repeated.", {"factor": LayerKey("copies in each direction", "2")},
            ("factor",),
        ),
        "cost": LayerType(
            _cost, "A layer known by its costs alone.",
            {"flops": LayerKey("forward pass of a sample [FLOP]", "0"),
             "parameters": LayerKey("number of parameters", "0"),
             "activations": LayerKey("bytes saved for the backward pass, for a sample [B]", "0"),
             "output": LayerKey("shape of the output", "the shape of the input")},
        ),
    }
)  # fmt: skip
