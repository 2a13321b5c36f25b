"""Records the kernels that a module launches forward, and derives its backward pass as PyTorch's autograd does.

A module is a Python function on arrays without numbers, written like the framework's own code. Kernels, saved tensors
and temporary arrays follow from it: an operation launches a kernel, autograd's formula of the operation says what it
saves and what it launches backward, and an array is freed when the function no longer names it.

Worked example: y = x * w on 6 float32 elements. `mul` reads x and w and writes y, 72 bytes, and saves both factors.
Backward it launches two kernels, gradient * w and gradient * x; both factors are freed then::

    tape = Tape()
    x, w = tape.leaf("x", (2, 3), "float32"), tape.leaf("w", (2, 3), "float32")
    tape.backward(aten.mul(x, w))

Functions of `aten.py` are the operations. The order of the backward pass is the engine's: of all nodes that are ready,
the one that was made last runs first (torch/csrc/autograd/engine.cpp).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from sys import getrefcount
from typing import Literal, cast

from simulator.basics import dtypes
from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.operation import Operation, Saved
from simulator.model.partition import Communication

Shape = tuple[int, ...]
# What a block of memory holds: activations, which a layer allocates, or what exists before and after its passes.
Kind = Literal["activation", "input", "parameter", "gradient"]


class Storage:
    """A block of memory, freed when no array refers to it."""

    __slots__ = ("kind", "name", "nbytes", "part", "tape")

    def __init__(self, tape: Tape, nbytes: int, kind: Kind, name: str = "") -> None:
        self.tape, self.nbytes, self.kind, self.name, self.part = tape, nbytes, kind, name, tape.part.name
        if kind == "activation":
            tape.allocate(nbytes)

    def __del__(self) -> None:
        if self.kind == "activation":
            self.tape.allocate(-self.nbytes)

    def named(self, name: str = "") -> str:
        """Return the storage's name as a saved tensor: the first one given, by default that of its part's output."""
        if not self.name and not name:
            self.tape.outputs[self.part] += 1
            number = self.tape.outputs[self.part]
            name = f"{self.part} output" + (f" {number}" if number > 1 else "")
        self.name = self.name or name
        return self.name

    def outlive(self) -> None:
        """Stop counting the block among activations, because it is a parameter's gradient or the module's result."""
        if self.kind == "activation":
            self.tape.allocate(-self.nbytes)
            self.kind = "gradient"


@dataclass(eq=False, slots=True)
class Array:
    """An array without numbers: a view of a storage.

    Attributes
    ----------
    dtype : str
        Name in numpy or ml_dtypes.
    repeats : int
        Number of times that each element of memory stands in the array, above 1 for expanded views.
    order : tuple of int
        Dimensions in the order of memory, the slowest first: (0, 1, 2) for rows of a plain array.
    node, output : GraphNode or None, int
        Operation in autograd's graph that made the array, and which of its results the array is.
    leaf : GraphLeaf or None
        Where a leaf's gradient goes; None for arrays that are no leaves or need no gradient.
    """

    storage: Storage
    shape: Shape
    dtype: str
    repeats: int = 1
    order: tuple[int, ...] = ()
    dense: bool = True  # whether the array's elements lie side by side
    is_view: bool = False  # whether the array was made as a view of another
    node: GraphNode | None = None
    output: int = 0
    leaf: GraphLeaf | None = None

    def __post_init__(self) -> None:
        self.order = self.order or tuple(range(len(self.shape)))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element [B]."""
        return dtypes.find(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes in memory that the array's elements occupy [B]."""
        return self.elements // self.repeats * self.itemsize

    @property
    def needs_gradient(self) -> bool:
        """True if a gradient is computed for the array."""
        return self.node is not None or self.leaf is not None

    @property
    def is_plain(self) -> bool:
        """True if the last dimension is the fastest in memory, and so on to the first."""
        return self.order == tuple(range(len(self.shape)))

    def view(
        self,
        shape: Shape | None = None,
        *,
        repeats: int = 1,
        order: tuple[int, ...] | None = None,
        dense: bool | None = None,
    ) -> Array:
        """Return a view of the same memory, without a place in autograd's graph."""
        order = (self.order if shape is None else ()) if order is None else order
        dense = self.dense if dense is None else dense
        return Array(self.storage, self.shape if shape is None else shape, self.dtype, repeats, order, dense, True)


@dataclass(eq=False, slots=True)
class GraphLeaf:
    """A parameter or the module's input, whose gradient the backward pass makes."""

    name: str
    is_parameter: bool
    gradient: Array | None = None


# Gradients of an operation's inputs, from those of its results; None for an input that needs none.
Formula = Callable[[Sequence[Array]], Sequence[Array | None]]


def _done(gradients: Sequence[Array]) -> Sequence[Array | None]:
    """Raise RuntimeError: the formula of an operation has run, and its saved tensors are freed."""
    raise RuntimeError("an operation's backward pass runs once")


@dataclass(eq=False, slots=True)
class GraphNode:
    """An operation in autograd's graph."""

    number: int
    part: LayerPart
    # What made each input (an operation with the number of its result, or a leaf), and the form of its gradient.
    edges: list[tuple[GraphNode | GraphLeaf | None, int, Shape, str]]
    formula: Formula  # autograd's formula, which holds the saved tensors until it has run
    outputs: list[Array | None]  # gradients of the outputs, as far as they have arrived


@dataclass(eq=False, slots=True)
class LayerPart:
    """Kernels and saved tensors of a part of a module, such as a norm; see `Operation`."""

    name: str
    forward: list[Kernel] = field(default_factory=list)
    backward: list[Kernel] = field(default_factory=list)
    saved: dict[str, Saved] = field(default_factory=dict)
    output: int = 0
    quadratic: bool = False
    communications: tuple[Communication, ...] = ()
    peaks: tuple[int, int] = (0, 0)  # forward and backward

    @property
    def operation(self) -> Operation:
        """The part as an operation of a layer."""
        return Operation(
            self.name,
            tuple(self.forward),
            tuple(self.backward),
            tuple(self.saved.values()),
            self.output,
            self.quadratic,
            self.communications,
            *self.peaks,
        )


@dataclass(eq=False, slots=True)
class Tape:
    """The kernels of a module, part by part, and the bytes of its arrays [B]."""

    # `live`, `most`: Bytes of activations that are allocated, and the most since the pass began, inputs and parameters
    # aside [B].
    live: int = 0
    most: int = 0
    parts: list[LayerPart] = field(default_factory=list)
    is_backward: bool = False
    part: LayerPart = field(default_factory=lambda: LayerPart("input"))  # the part whose kernels are recorded now
    saves: bool = True  # whether operations are put into autograd's graph
    adds: bool = True  # whether sums, casts and reductions of gradients between operations take kernels of their own
    outputs: Counter[str] = field(default_factory=Counter)  # named outputs of each part
    _nodes: int = 0

    @contextmanager
    def named(self, name: str) -> Iterator[LayerPart]:
        """Record a part with this name inside the block; the last part goes on if it has the name."""
        if not self.parts or self.parts[-1].name != name:
            self.parts.append(LayerPart(name))
        before, self.part = self.part, self.parts[-1]
        yield self.part
        self.part = before

    def allocate(self, nbytes: int) -> None:
        """Count bytes that are allocated, or freed if negative."""
        self.live += nbytes
        self.most = max(self.most, self.live)

    def leaf(self, name: str, shape: Shape, dtype: str, *, trained: bool = True, kind: Kind = "parameter") -> Array:
        """Return a parameter or an input of the module, which exists before its forward pass."""
        array = Array(Storage(self, prod(shape) * dtypes.find(dtype).itemsize, kind, name), shape, dtype)
        array.leaf = GraphLeaf(name, kind == "parameter") if trained else None
        return array

    def array(self, shape: Shape, dtype: str, order: tuple[int, ...] = ()) -> Array:
        """Return a new array, allocated now, with its dimensions in this order of memory."""
        storage = Storage(self, prod(shape) * dtypes.find(dtype).itemsize, "activation")
        return Array(storage, shape, dtype, order=order)

    def launch(self, kernel: Kernel) -> None:
        """Record a kernel of the present part and pass."""
        (self.part.backward if self.is_backward else self.part.forward).append(kernel)

    def moved(
        self,
        name: str,
        reads: Sequence[Array],
        writes: Sequence[Array],
        *,
        of_weights: bool = False,
        reduces: bool = False,
    ) -> None:
        """Record a kernel that reads and writes each of these arrays once; `reduces` if it sums elements."""
        read, written = (float(sum(array.nbytes for array in arrays)) for arrays in (reads, writes))
        forms = {(array.shape, array.dtype, array.order, array.dense, array.repeats) for array in (*reads, *writes)}
        # Kernels read several elements at once only where all arrays lie in memory alike; reductions always do.
        one_by_one = not reduces and (len(forms) > 1 or not all(array.dense for array in (*reads, *writes)))
        scattered = float(max(array.elements for array in (*reads, *writes))) if one_by_one else 0.0
        self.launch(
            Elementwise(
                f"{self.part.name} {name}".strip(),
                read,
                written,
                of_weights=of_weights,
                scattered=scattered,
            )
        )

    def node(
        self,
        inputs: Sequence[Array],
        results: Sequence[Array],
        saved: Sequence[Array],
        formula: Formula,
        *,
        force: bool = False,
    ) -> None:
        """Put an operation into autograd's graph, if an input needs a gradient or with `force`; `saved` are the tensors
        in `formula`.
        """
        needed = self.saves and (force or any(array.needs_gradient for array in inputs))
        if self.is_backward or not needed:
            return
        part = self.part
        edges = [(array.node or array.leaf, array.output, array.shape, array.dtype) for array in inputs]
        node = GraphNode(self._nodes, part, edges, formula, [None] * len(results))
        self._nodes += 1
        for number, result in enumerate(results):
            result.node, result.output = node, number
        for array in saved:
            if array.storage.kind != "parameter":
                self.save(array)

    def save(self, array: Array, name: str = "") -> None:
        """Note that the present part saves an array for the backward pass; its storage has one name for all parts."""
        storage = array.storage
        name = storage.named(name)
        self.part.saved.setdefault(name, Saved(name, storage.nbytes, storage.part))

    def apply(
        self,
        operation: Operation,
        inputs: Sequence[Array],
        results: Sequence[Array],
        *,
        trained: bool = False,
        passes: bool = False,
    ) -> None:
        """Record an operation whose kernels are known.

        Its saved tensors are inputs, the first result (named after the operation), or new arrays. Parameters are no
        inputs here: `trained` says whether the operation has a parameter that needs a gradient. With `passes`, the
        gradient of the first result is that of the inputs too; otherwise their gradients are new arrays.
        """
        part = self.part
        part.forward += operation.forward
        part.output, part.quadratic, part.communications = (
            operation.output,
            operation.quadratic,
            operation.communications,
        )
        part.peaks = operation.forward_peak, operation.backward_peak
        # The peak counts the result, which is allocated already.
        allocated = sum(array.storage.nbytes for array in {id(array.storage): array for array in results}.values())
        self.most = max(self.most, self.live - allocated + operation.forward_peak)
        arrays = {array.storage.name: array for array in (*inputs, *results)}
        if results:
            arrays.setdefault(f"{operation.name} output", results[0])
        saved = []
        for tensor in operation.saved if self.saves else ():
            array = arrays.get(tensor.name) or self.array((tensor.nbytes,), "uint8")
            self.save(array, tensor.name)
            saved.append(array.view())
        forms = [(array.shape, array.dtype, array.order) if array.needs_gradient else None for array in inputs]

        def formula(gradients: Sequence[Array]) -> list[Array | None]:
            part.backward.extend(operation.backward)
            self.most = max(self.most, self.live + operation.backward_peak)
            # Products of matrices make rows of tokens, of which the gradient is a view.
            of_inputs = [form and (gradients[0] if passes else self.array(*form)) for form in forms]
            for array in of_inputs:
                if array is not None and not passes:
                    array.is_view = any(isinstance(kernel, Matmul) for kernel in operation.backward)
            saved.clear()
            return of_inputs

        self.node(inputs, results, (), formula, force=trained)

    def backward(self, output: Array) -> None:
        """Record the backward pass from a module's output, whose gradient is allocated first."""
        self.is_backward, self.most = True, self.live
        if output.node is None:
            return
        ready = {output.node.number: output.node}
        output.node.outputs[output.output] = self.array(output.shape, output.dtype)
        del output
        while ready:
            node = ready.pop(max(ready))
            self.part = node.part
            arrived, node.outputs = cast("list[Array]", node.outputs), []
            gradients = list(node.formula(arrived))
            del arrived
            node.formula = _done
            for place, (source, number, shape, dtype) in enumerate(node.edges):
                gradient, gradients[place] = gradients[place], None
                if source is None or gradient is None:
                    continue
                gradient = self._as_input(gradient, shape, dtype)
                if isinstance(source, GraphLeaf):
                    self._accumulate(source, gradient)
                else:
                    before, source.outputs[number] = source.outputs[number], None
                    source.outputs[number] = gradient if before is None else self._sum(before, gradient)
                    del before
                    ready[source.number] = source
                del gradient
            node.edges = []

    def _as_input(self, gradient: Array, shape: Shape, dtype: str) -> Array:
        """Return a gradient with an input's shape and dtype (torch/csrc/autograd/engine.cpp, `validate_outputs`)."""
        if not self.adds:
            return gradient
        if prod(gradient.shape) != prod(shape):
            summed = self.array(shape, gradient.dtype)
            self.moved("sum", [gradient], [summed], reduces=True)
            gradient = summed
        if gradient.dtype != dtype:
            narrowed = self.array(shape, dtype, gradient.order)
            self.moved("_to_copy", [gradient], [narrowed])
            gradient = narrowed
        return gradient

    def _sum(self, first: Array, second: Array) -> Array:
        """Return the sum of two gradients of an array, in the place of the first one if nothing else refers to it
        (torch/csrc/autograd/input_buffer.cpp, `can_accumulate_inplace`).
        """
        if not self.adds:
            return first
        # References to the array: the caller's and this function's names, and the call's own; one to its memory.
        if getrefcount(first) == 3 and getrefcount(first.storage) == 2 and not first.is_view:
            self.moved("add_", [first, second], [first])
            return first
        total = self.array(first.shape, first.dtype, first.order)
        self.moved("add", [first, second], [total])
        return total

    def _accumulate(self, leaf: GraphLeaf, gradient: Array) -> None:
        """Add a gradient to that of a leaf; a parameter's outlives the backward pass."""
        before, leaf.gradient = leaf.gradient, None
        leaf.gradient = gradient if before is None else self._sum(before, gradient)
        if leaf.is_parameter:
            leaf.gradient.storage.outlive()
