"""Parts of a layer as Hugging Face's Transformers launches them: eager PyTorch, matrix by matrix.

Sources: modeling_llama.py and its like in Transformers 4.40 to 5.24; tests/recordings has what their layers launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from simulator.model.adapters import Target
from simulator.model.operation import columns
from simulator.model.programs import aten
from simulator.model.programs.bare import Heads, Parts, saved_as
from simulator.model.programs.tape import Array, Shape, Tape


def rms_norm(hidden: Array, weight: Array) -> Array:
    """Return the norm in float32, times its weight (LlamaRMSNorm)."""
    before = hidden.dtype
    hidden = aten.to(hidden, "float32")
    variance = aten.mean(aten.square(hidden))
    hidden = aten.mul(hidden, aten.rsqrt(aten.plus(variance)))
    return aten.mul(weight, aten.to(hidden, before))


def gelu_new(x: Array, *, autocast: bool = False) -> Array:
    """Return GELU as 0.5 x (1 + tanh(c (x + d x^3))), an operation at a time (`NewGELUActivation`); autocast takes
    powers in float32, which the following operations keep (aten/src/ATen/autocast_mode.h).
    """
    half = aten.scaled(x)
    cube = aten.square(aten.to(x, "float32") if autocast else x)
    inner = aten.scaled(aten.add(x, aten.scaled(cube)))
    return aten.mul(half, aten.plus(aten.tanh(inner)))


def rotate_half(x: Array) -> Array:
    """Return the second half of the last dimension with the opposite sign, and the first half (`rotate_half`)."""
    first, second = (aten.part_of_last(x, x.shape[-1] // 2) for _ in range(2))
    return aten.cat_last(aten.neg(second), first)


def rotated(x: Array, cos: Array, sin: Array) -> Array:
    """Return queries or keys with rotary positions (`apply_rotary_pos_emb`)."""
    return aten.add(aten.mul(x, cos), aten.mul(rotate_half(x), sin))


@dataclass(frozen=True, slots=True)
class TransformersParts(Parts):
    """Writes the parts of a layer as Transformers' modules compute them."""

    # Autograd adds the gradients of an array with several readers by a kernel for each further one.
    tape: Tape = field(default_factory=Tape)

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the RMSNorm of an array with a weight."""
        return rms_norm(hidden, weight)

    def norm(self, name: str, hidden: Array) -> Array:
        """Return the norm: the framework's RMSNorm, or PyTorch's own LayerNorm, which is one kernel."""
        width = (hidden.shape[-1],)
        with self.tape.named(name) as part:
            weight = self._weight(name, width, hidden.dtype)
            if self.model.norm == "rmsnorm":
                normed = self.rms_norm(hidden, weight)
            else:
                trained = self.batch.trains(f"{name}.bias")
                bias = self.tape.leaf(f"{name}.bias", width, hidden.dtype, trained=trained)
                normed = aten.layer_norm(hidden, weight, bias if self.model.norm_bias else None)
            part.output = normed.nbytes
        return normed

    def qk_norm(self, queries: Array, keys: Array, rows: int) -> tuple[Array, Array]:
        """Return queries and keys after a norm each."""
        with self.tape.named("query and key norm") as part:
            queries, keys = (
                self.rms_norm(array, self._weight(f"{name} norm", (array.shape[-1],), array.dtype))
                for name, array in (("query", queries), ("key", keys))
            )
            part.output = queries.nbytes + keys.nbytes
        return queries, keys

    def short_norm(self, name: str, short: Array) -> Array:
        """Return the norm of latent attention's short vectors."""
        return self.norm(name, short)

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values, each made by a matrix of its own, with heads as a dimension.

        Models with LayerNorm (GPT-2, GPTBigCode, GPT-NeoX, MPT) have one matrix for the three.
        """
        model = self.model
        if model.norm != "rmsnorm":
            (product,) = self.projected(hidden, [sum(self.head_widths)])
            with self.tape.named("qkv"):
                return Heads(*map(self._by_heads, aten.joined(product, self.head_widths)))
        if self.batch.cut.gathers_queries(model):
            # Ranks have parts of heads until they gather the product of one matrix.
            merged = Parts.queries_keys_values(self, hidden)
            with self.tape.named("qkv"):
                return Heads(*(self._by_heads(array) for array in merged))
        maps: tuple[tuple[str, Target, int], ...] = (
            ("queries", "q", model.attention_width),
            ("keys", "k", model.kv_width),
            ("values", "v", model.kv_width),
        )
        heads = []
        for name, target, width in maps:
            product = self.product(name, target, hidden, width, bias=model.attention_bias, first=name == "queries")
            with self.tape.named(name):
                heads.append(self._by_heads(product))
        return Heads(*heads)

    def product(self, name: str, target: Target | None, hidden: Array, width: int, *, bias: bool, first: bool) -> Array:
        """Return a product with a matrix of this width on all ranks; the first one of those with the same input
        exchanges the input and its gradient among tensor-parallel ranks.
        """
        batch, hidden = self.batch.stream, self.operand(name, hidden)
        parts: tuple[tuple[Target, int], ...] = ((target, width),) if target else ()
        product = columns(name, width, hidden.shape[-1], batch, saved_as(hidden), bias=bias, parts=parts)
        product = product if first else replace(product, communications=())
        return self.run(product, [hidden], [self.inside(width // batch.cut.tensor)])[0]

    def _by_heads(self, array: Array) -> Array:
        """Return queries, keys or values as (sequences, heads, tokens, width of a head), a view."""
        return aten.transposed(self._with_heads(array), 1, 2)

    def _with_heads(self, array: Array) -> Array:
        """Return queries, keys or values as (sequences, tokens, heads, width of a head), a view."""
        sequences, tokens, width = array.shape
        head = self.model.head_dim
        return aten.reshaped(array, (sequences, tokens, width // head, head))

    def operand(self, name: str, array: Array) -> Array:
        """Return the operand that an operation with this name reads: the array, or under autocast its narrow copy."""
        with self.tape.named(name):
            return aten.to(array, self.dtype(self.batch)) if self.batch.autocast else array

    def narrowed(self, array: Array) -> Array:
        """Return an array in the activations' dtype, which attention reads."""
        return self.operand("attention", array) if self.batch.autocast else Parts.narrowed(self, array)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions."""
        if self.model.norm != "rmsnorm":
            return Parts.rotary(self, queries, keys, turned)
        shape = (1, 1, *queries.shape[-2:])
        # Sines and cosines have the dtype of the hidden states.
        dtype = "float32" if self.batch.autocast else queries.dtype
        with self.tape.named("rotary") as part:
            cos, sin = (self.tape.leaf(name, shape, dtype, trained=False) for name in ("cos", "sin"))
            arrays = rotated(queries, cos, sin), rotated(keys, cos, sin)
            part.output = sum(array.nbytes for array in arrays)
        return arrays

    def activated(self, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
        """Return the activated gate times the second product, each made by a matrix of its own."""
        model = self.model
        if not model.gated:
            return Parts.activated(self, name, hidden, width, targets)
        gate: Target | None = "gate" if targets else None
        up: Target | None = "up" if targets else None
        gated = self.product(f"{name}gating", gate, hidden, width, bias=model.mlp_bias, first=True)
        with self.tape.named(f"{name}activation") as part:
            active = aten.silu(gated)
            part.output = active.nbytes
        del gated
        raised = self.product(f"{name}up", up, hidden, width, bias=model.mlp_bias, first=False)
        with self.tape.named(f"{name}activation product") as part:
            product = aten.mul(active, raised)
            part.output = product.nbytes
        return product

    def activation(self, name: str, entered: Array, width: int) -> Array:
        """Return the activation without a gate; with a gate, see `activated`."""
        if self.model.gated:
            return Parts.activation(self, name, entered, width)
        with self.tape.named(name) as part:
            active = self.gelu(entered)
            part.output = active.nbytes
        return active

    def gelu(self, entered: Array) -> Array:
        """Return the activation of an array without a gate."""
        return aten.gelu(entered)

    def residual(self, name: str, stream: Array, *blocks: Array) -> Array:
        """Return the residual stream plus the outputs of blocks, one after the other."""
        if self.batch.dropout:
            return Parts.residual(self, name, stream, *blocks)
        with self.tape.named(name) as part:
            for block in blocks:
                stream = aten.add(stream, block)
            part.output = stream.nbytes
        return stream

    def _weight(self, name: str, shape: Shape, dtype: str) -> Array:
        dtype = "float32" if self.batch.autocast else dtype
        return self.tape.leaf(f"{name}.weight", shape, dtype, trained=self.batch.trains(f"{name}.weight"))


@dataclass(frozen=True, slots=True)
class HuggingFaceParts(TransformersParts):
    """Writes the parts of a layer of a model in Transformers itself, with its own activations."""

    def gelu(self, entered: Array) -> Array:
        """Return the activation without a gate, by one kernel or by GPT-2's eight."""
        if self.model.fused_activation or self.model.norm == "rmsnorm":
            return aten.gelu(entered)
        return gelu_new(entered, autocast=self.batch.autocast)


PARTS: Final = HuggingFaceParts
