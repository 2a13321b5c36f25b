"""Parts of a layer as bare kernels: each norm, activation or addition is one kernel that saves as little as possible.

A framework's parts differ where the framework launches other kernels; each such difference overrides a method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from simulator.model.adapters import Target
from simulator.model.kernel import Elementwise, Kernel
from simulator.model.operation import Batch, Operation, Saved, columns
from simulator.model.programs.tape import Array, Shape, Tape
from simulator.model.shape import Transformer

_DTYPES: Final = {1: "uint8", 2: "bfloat16", 4: "float32", 8: "float64"}


def saved_as(array: Array, name: str = "") -> Saved:
    """Return an array as a saved tensor, with this name unless its memory has one already."""
    storage = array.storage
    return Saved(storage.named(name), storage.nbytes, storage.part)


class Heads(NamedTuple):
    """Queries, keys and values of a rank's heads."""

    queries: Array
    keys: Array
    values: Array


@dataclass(frozen=True, slots=True)
class Parts:
    """Writes the parts of a layer of a model, on a micro-batch, on a tape.

    Attributes
    ----------
    model : Transformer
        A model of equal layers (see `Transformer.of_layer`).
    """

    model: Transformer
    batch: Batch
    # A residual addition counts the sum of gradients among its own kernels.
    tape: Tape = field(default_factory=lambda: Tape(adds=False))
    # Arrays that names in the layer's function keep alive until it returns.
    alive: list[Array] = field(default_factory=list)

    def entered(self) -> Array:
        """Return the hidden states that enter a layer."""
        shape = self.between(self.model.hidden_size)
        dtype = "float32" if self.batch.autocast else self.dtype(self.batch.stream)
        return self.tape.leaf("input", shape, dtype, trained=not self.batch.begins, kind="input")

    def dtype(self, batch: Batch) -> str:
        """Return the dtype of a micro-batch's activations."""
        return _DTYPES[batch.itemsize]

    def between(self, width: int) -> Shape:
        """Return the shape of an array with this width between a layer's matrices."""
        return self._shape(self.batch.tokens_between, width)

    def inside(self, width: int) -> Shape:
        """Return the shape of an array with this width inside attention or the feed-forward block."""
        return self._shape(self.batch.tokens, width)

    def _shape(self, tokens: int, width: int) -> Shape:
        sequences = self.batch.sequences if tokens % self.batch.sequences == 0 else 1
        return sequences, tokens // sequences, width

    def run(
        self,
        operation: Operation,
        inputs: Sequence[Array],
        shapes: Sequence[Shape],
        batch: Batch | None = None,
        name: str = "",
        *,
        passes: bool = False,
    ) -> list[Array]:
        """Return the results of an operation whose kernels are known, and put the operation on the tape.

        Parameters
        ----------
        shapes : sequence of shapes
            Shapes of the results, in the dtype of `batch`, by default the micro-batch of the residual stream.
        name : str
            Name of the first result as a saved tensor; empty for the operation's output.
        passes : bool
            Whether the inputs have the gradient of the first result.
        """
        dtype = self.dtype(batch or self.batch.stream)
        with self.tape.named(operation.name):
            results = [self.tape.array(shape, dtype) for shape in shapes]
            if name:
                results[0].storage.named(name)
            self.tape.apply(operation, inputs, results, trained=self._trained(operation), passes=passes)
        return results

    def _trained(self, operation: Operation) -> bool:
        """Return True if an operation has a parameter that needs a gradient: its own or an adapter's."""
        names = {name.rpartition(".")[0] for name in self.batch.trained}
        of_weights = any(kernel.of_weights for kernel in operation.backward)
        return self.batch.adapters is None or operation.name in names or of_weights

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values made by a single matrix."""
        return Heads(*self.projected(hidden, self.head_widths))

    def projected(self, hidden: Array, widths_on_rank: Sequence[int]) -> list[Array]:
        """Return arrays with these widths, which the matrix for queries, keys and values makes."""
        model, batch = self.model, self.batch.stream
        cut, hidden = batch.cut, self.operand("qkv", hidden)
        widths = model.attention_width + 2 * model.kv_width
        # Fewer key heads than ranks: a rank's columns do not hold whole heads, so the output is gathered.
        gathers = widths if cut.gathers_queries(model) else 0
        product = columns(
            "qkv",
            widths,
            model.hidden_size,
            batch,
            saved_as(hidden),
            bias=model.attention_bias,
            gathers=gathers,
            parts=(("q", model.attention_width), ("k", model.kv_width), ("v", model.kv_width)),
        )
        return self.run(product, [hidden], [self.inside(width) for width in widths_on_rank])

    @property
    def head_widths(self) -> tuple[int, int, int]:
        """Widths of queries, keys and values on a rank."""
        keys = self.batch.cut.kv_heads(self.model) * self.model.head_dim
        return self.model.attention_width // self.batch.cut.tensor, keys, keys

    @property
    def kv_heads(self) -> int:
        """Number of key heads that attention reads on a rank."""
        return self.batch.cut.kv_heads(self.model)

    def attended(self, heads: Heads) -> Heads:
        """Return queries, keys and values as attention reads them."""
        return heads

    def activated(self, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
        """Return the activated first product of an MLP of this width, whose operations have a name before theirs;
        `targets` are what adapters may be added to in the first matrix, without the gate.
        """
        model, batch = self.model, self.batch.stream
        cut, hidden = batch.cut.tensor, self.operand(f"{name}up", hidden)
        # A gated MLP's two projections are a single matmul of twice the width.
        wide = 2 * width if model.gated else width
        gate: tuple[tuple[Target, int], ...] = (("gate", width),) if model.gated and targets else ()
        up = columns(
            f"{name}up",
            wide,
            model.hidden_size,
            batch,
            saved_as(hidden),
            bias=model.mlp_bias,
            parts=(*gate, *targets),
        )
        (product,) = self.run(up, [hidden], [self.inside(wide // cut)])
        del hidden
        return self.activation(f"{name}activation", product, width // cut)

    def narrowed(self, array: Array) -> Array:
        """Return an array in the activations' dtype, which attention reads beside wider hidden states."""
        dtype = self.dtype(self.batch)
        if array.dtype == dtype:
            return array
        result, shape, before = self.tape.array(array.shape, dtype), array.shape, array.dtype
        result.storage.part = array.storage.part
        self.tape.node([array], [result], (), lambda gradients: [self.tape.array(shape, before)])
        return result

    def operand(self, name: str, array: Array) -> Array:
        """Return the operand that an operation with this name reads: the array, or under autocast its narrow copy."""
        return array

    def norm(self, name: str, hidden: Array) -> Array:
        """Return the norm of the hidden states, by one kernel that saves its input and the statistics."""
        batch = self.batch.stream
        # With sequence parallelism each rank norms its part of the sequence. LayerNorm saves mean and deviation,
        # RMSNorm only the deviation.
        means = 1 if self.model.norm == "rmsnorm" else 2
        return self._normed(name, [hidden], means * batch.tokens_between)[0]

    def qk_norm(self, queries: Array, keys: Array, rows: int) -> tuple[Array, Array]:
        """Return normed queries and keys, with statistics of `rows` rows together."""
        queries, keys = self._normed("query and key norm", [queries, keys], rows)
        return queries, keys

    def _normed(self, name: str, arrays: list[Array], statistics: int) -> list[Array]:
        batch = self.batch.stream
        size, rows = sum(array.nbytes for array in arrays), statistics * batch.statistics_itemsize
        # Under autocast a compiler's norm writes what the next matrix reads.
        written = sum(array.elements for array in arrays) * batch.itemsize
        operation = Operation(
            name,
            (Elementwise(name, size, written + rows, fusible=True),),
            (Elementwise(f"{name} gradient", size + written + rows, size, fusible=True),),
            (*map(saved_as, arrays), Saved(f"{name} statistics", rows, name)),
            written,
        )
        return self.run(operation, arrays, [array.shape for array in arrays], batch)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions in `turned` bytes of them, changed in place by one kernel."""
        operation = _rotary(turned)
        with self.tape.named(operation.name):
            results = queries.view(), keys.view()
            self.tape.apply(operation, [queries, keys], results)
        return results

    def short_norm(self, name: str, short: Array) -> Array:
        """Return the norm of latent attention's short vectors."""
        return self._normed(name, [short], self.batch.tokens_between)[0]

    def latent_rotary(self, queries: Array, keys: Array, turned: int, shape: Shape) -> tuple[Array, Array]:
        """Return latent attention's queries with rotary positions, and keys of this shape put together from their plain
        part and the rotary part that all heads share, by one kernel that turns `turned` bytes.
        """
        operation = _rotary(turned, "latent rotary")
        with self.tape.named(operation.name):
            results = queries.view(), self.tape.array(shape, keys.dtype)
            self.tape.apply(operation, [queries, keys], results)
        return results

    def activation(self, name: str, entered: Array, width: int) -> Array:
        """Return the activation function with this many outputs for each row, by one kernel that saves its input."""
        before, after = entered.nbytes, entered.nbytes // entered.shape[-1] * width
        operation = Operation(
            name,
            (Elementwise(name, before, after, fusible=True),),
            # Reads the activation's input and the output's gradient.
            (Elementwise(f"{name} gradient", before + after, before, fusible=True),),
            (saved_as(entered),),
            after,
        )
        shape = (*entered.shape[:-1], width)
        return self.run(operation, [entered], [shape])[0]

    def residual(self, name: str, stream: Array, *blocks: Array) -> Array:
        """Return the residual stream plus the outputs of blocks, after dropout if the model trains with it."""
        # Under autocast the residual stream is wider than the blocks' outputs.
        batch, count = replace(self.batch.stream, itemsize=stream.itemsize), len(blocks)
        size, elements = stream.nbytes, stream.elements
        forward = [Elementwise(f"{name} add", (1 + count) * size, size, fusible=True)]
        backward: list[Kernel] = []
        saved: tuple[Saved, ...] = ()
        if batch.dropout:
            forward.insert(0, Elementwise(f"{name} dropout", count * size, count * (size + elements), fusible=True))
            dropped = count * (size + elements), count * size
            backward.append(Elementwise(f"{name} dropout gradient", *dropped, fusible=True))
            saved = (Saved(f"{name} mask", count * elements, name),)
        # Backward, the gradients of residual stream and blocks are added.
        backward.append(Elementwise(f"{name} gradient add", (1 + count) * size, size, fusible=True))
        operation = Operation(name, tuple(forward), tuple(backward), saved, size)
        # A dropped block's gradient is an array of its own, which is neglected.
        return self.run(operation, [stream, *blocks], [stream.shape], batch, passes=True)[0]


def _rotary(turned: int, name: str = "rotary") -> Operation:
    """Return the operation that applies rotary position embeddings to `turned` bytes of queries and keys."""
    return Operation(
        name,
        (Elementwise(name, turned, turned, fusible=True),),
        (Elementwise(f"{name} gradient", turned, turned, fusible=True),),
        output=turned,
    )


PARTS: Final = Parts
