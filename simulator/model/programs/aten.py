"""Operations of eager PyTorch, each with its kernel and autograd's formula for its gradients.

Formulas: PyTorch, tools/autograd/derivatives.yaml and torch/csrc/autograd/FunctionsManual.cpp. Recordings of real
modules prove them (tests/test_recordings.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.model.programs.tape import Array, Shape, Tape


def _tape(array: Array) -> Tape:
    return array.storage.tape


def _pointwise(name: str, inputs: Sequence[Array], shape: Shape, dtype: str) -> Array:
    """Return the result of a kernel that reads its inputs once and writes an array."""
    tape = _tape(inputs[0])
    # The order in memory is that of the first input with the result's dimensions (aten/src/ATen/TensorIterator.cpp).
    order = next((array.order for array in inputs if array.shape == shape), ())
    result = tape.array(shape, dtype, order)
    tape.moved(name, inputs, [result])
    return result


def _rows(name: str, inputs: Sequence[Array], shape: Shape) -> Array:
    """Return the result of a kernel that writes plain rows in the first input's dtype."""
    tape = _tape(inputs[0])
    result = tape.array(shape, inputs[0].dtype)
    tape.moved(name, inputs, [result])
    return result


def _binary(name: str, x: Array, y: Array) -> Array:
    """Return the result of two arrays, in the wider dtype; one may have dimensions of 1 or lack the first ones."""
    longer, shorter = (x, y) if len(x.shape) >= len(y.shape) else (y, x)
    padded = (1,) * (len(longer.shape) - len(shorter.shape)) + shorter.shape
    shape = tuple(max(pair) for pair in zip(longer.shape, padded, strict=True))
    return _pointwise(name, [x, y], shape, x.dtype if x.itemsize >= y.itemsize else y.dtype)


def mul(x: Array, y: Array) -> Array:
    """Return the product of two arrays; each factor is saved if the other one needs a gradient."""
    result = _binary("mul", x, y)
    left, right = x.view() if y.needs_gradient else None, y.view() if x.needs_gradient else None

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        # The generated code computes the gradient of the second factor first.
        second = None if left is None else mul(gradients[0], left)
        return [None if right is None else mul(gradients[0], right), second]

    _tape(x).node([x, y], [result], [array for array in (left, right) if array is not None], formula)
    return result


def scaled(x: Array) -> Array:
    """Return an array times a number."""
    result = _pointwise("mul", [x], x.shape, x.dtype)
    _tape(x).node([x], [result], (), lambda gradients: [scaled(gradients[0])])
    return result


def add(x: Array, y: Array) -> Array:
    """Return the sum of two arrays."""
    result = _binary("add", x, y)
    _tape(x).node([x, y], [result], (), lambda gradients: [gradients[0], gradients[0]])
    return result


def sub(x: Array, y: Array) -> Array:
    """Return the difference of two arrays."""
    result = _binary("sub", x, y)
    _tape(x).node([x, y], [result], (), lambda gradients: [gradients[0], neg(gradients[0])])
    return result


def plus(x: Array, *, in_place: bool = False) -> Array:
    """Return an array plus a number, as a new array or in the array's place."""
    if in_place:
        result = x.view()
        _tape(x).moved("add_", [x], [result])
    else:
        result = _pointwise("add", [x], x.shape, x.dtype)
    _tape(x).node([x], [result], (), lambda gradients: [gradients[0]])
    return result


def neg(x: Array) -> Array:
    """Return the array with the opposite sign."""
    result = _pointwise("neg", [x], x.shape, x.dtype)
    _tape(x).node([x], [result], (), lambda gradients: [neg(gradients[0])])
    return result


def to(x: Array, dtype: str) -> Array:
    """Return the array in a dtype: itself, or a copy."""
    if x.dtype == dtype:
        return x
    result, before = _pointwise("_to_copy", [x], x.shape, dtype), x.dtype
    _tape(x).node([x], [result], (), lambda gradients: [to(gradients[0], before)])
    return result


def square(x: Array) -> Array:
    """Return the squares, `pow(2)`; backward the power of 1 is a copy, which a number and the gradient multiply."""
    result, saved = _pointwise("pow", [x], x.shape, x.dtype), x.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        power = _pointwise("pow", [saved], saved.shape, saved.dtype)
        return [mul(gradients[0], scaled(power))]

    _tape(x).node([x], [result], [saved], formula)
    return result


def mean(x: Array) -> Array:
    """Return the mean over the last dimension, which stays with size 1."""
    tape, shape = _tape(x), x.shape
    result = tape.array((*shape[:-1], 1), x.dtype)
    tape.moved("mean", [x], [result], reduces=True)

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        spread = gradients[0].view(shape, repeats=shape[-1])
        return [_pointwise("div", [spread], shape, spread.dtype)]

    tape.node([x], [result], (), formula)
    return result


def rsqrt(x: Array) -> Array:
    """Return 1 divided by the root; the result is saved."""
    result = _pointwise("rsqrt", [x], x.shape, x.dtype)
    saved = result.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        cubed = _pointwise("pow", [saved], saved.shape, saved.dtype)
        return [mul(scaled(gradients[0]), cubed)]

    _tape(x).node([x], [result], [saved], formula)
    return result


def silu(x: Array) -> Array:
    """Return the SiLU activation, x times its sigmoid; the input is saved."""
    result, saved = _pointwise("silu", [x], x.shape, x.dtype), x.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        return [_pointwise("silu_backward", [gradients[0], saved], saved.shape, saved.dtype)]

    _tape(x).node([x], [result], [saved], formula)
    return result


def tanh(x: Array) -> Array:
    """Return the hyperbolic tangents, which are saved."""
    result = _pointwise("tanh", [x], x.shape, x.dtype)
    saved = result.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        return [_pointwise("tanh_backward", [gradients[0], saved], saved.shape, saved.dtype)]

    _tape(x).node([x], [result], [saved], formula)
    return result


def gelu(x: Array) -> Array:
    """Return the GELU activation; the input is saved."""
    result, saved = _pointwise("gelu", [x], x.shape, x.dtype), x.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        return [_pointwise("gelu_backward", [gradients[0], saved], saved.shape, saved.dtype)]

    _tape(x).node([x], [result], [saved], formula)
    return result


def layer_norm(x: Array, weight: Array, bias: Array | None) -> Array:
    """Return PyTorch's LayerNorm, which saves its input, mean and deviation; backward a single operation."""
    tape, parameters = _tape(x), [array for array in (weight, bias) if array is not None]
    result = tape.array(x.shape, x.dtype)
    statistics = [tape.array((*x.shape[:-1], 1), "float32") for _ in range(2)]
    tape.moved("native_layer_norm", [x, *parameters], [result, *statistics], reduces=True)
    saved = [x.view(), *(array.view() for array in (*statistics, *parameters))]

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        results = [tape.array(array.shape, array.dtype) for array in (saved[0], *saved[3:])]
        tape.moved("native_layer_norm_backward", [gradients[0], *saved], results, reduces=True)
        return [*results]

    tape.node([x, *parameters], [result], saved, formula)
    return result


def joined(x: Array, widths: Sequence[int]) -> list[Array]:
    """Return views of parts of the last dimension; backward a copy joins their gradients."""
    tape, shape = _tape(x), x.shape
    parts = [x.view((*shape[:-1], width), dense=False) for width in widths]

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        result = tape.array(shape, gradients[0].dtype)
        tape.moved("cat", gradients, [result])
        return [result]

    tape.node([x], parts, (), formula)
    return parts


def reshaped(x: Array, shape: Shape) -> Array:
    """Return the elements with another shape: a view, or a copy if they lie in another order in memory."""
    before = x.shape
    result = x.view(shape) if x.is_plain else _rows("clone", [x], shape)
    _tape(x).node([x], [result], (), lambda gradients: [reshaped(gradients[0], before)])
    return result


def transposed(x: Array, first: int, second: int) -> Array:
    """Return a view with two dimensions exchanged, which launches nothing."""
    places = list(range(len(x.shape)))
    places[first], places[second] = second, first
    shape, order = tuple(x.shape[place] for place in places), tuple(places[place] for place in x.order)
    result = x.view(shape, order=order)
    _tape(x).node([x], [result], (), lambda gradients: [transposed(gradients[0], first, second)])
    return result


def part_of_last(x: Array, width: int) -> Array:
    """Return a view of `width` elements of the last dimension; backward they are copied into an array of zeros.

    The elements may lie together (a slice) or apart (every second one, of numbers in pairs).
    """
    tape, shape = _tape(x), x.shape
    result = x.view((*shape[:-1], width), order=x.order, dense=False)

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        zeros = tape.array(shape, gradients[0].dtype)
        tape.moved("zeros", [], [zeros])
        tape.moved("copy_", [gradients[0]], [zeros.view(gradients[0].shape, dense=False)])
        return [zeros]

    tape.node([x], [result], (), formula)
    return result


def cat_last(*arrays: Array, name: str = "cat") -> Array:
    """Return arrays joined along the last dimension, or stacked in pairs; backward each takes a view of the
    gradient.
    """
    first, shapes = arrays[0], [array.shape for array in arrays]
    result = _rows(name, arrays, (*first.shape[:-1], sum(shape[-1] for shape in shapes)))

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        return [gradients[0].view(shape, order=gradients[0].order, dense=False) for shape in shapes]

    _tape(first).node(arrays, [result], (), formula)
    return result


def repeated_heads(x: Array, heads: int) -> Array:
    """Return keys or values (sequences, key heads, tokens, width) copied for this number of heads; backward the
    gradients of the copies are added.
    """
    tape, shape = _tape(x), x.shape
    result = tape.array((shape[0], heads, *shape[2:]), x.dtype)
    tape.moved("clone", [x], [result])

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        summed = tape.array(shape, gradients[0].dtype)
        tape.moved("sum", gradients, [summed], reduces=True)
        return [summed]

    tape.node([x], [result], (), formula)
    return result
