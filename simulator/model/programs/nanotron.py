"""Parts of a layer as nanotron launches them: eager PyTorch around kernels of flash-attention for norms, positions and
attention, with copies between their layouts.

Source: huggingface/nanotron e24d2483, src/nanotron/models/llama.py and nn/layer_norm.py; flash-attention 2,
flash_attn/layers/rotary.py (`RotaryEmbedding` with `kv`) and ops/triton/layer_norm.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.adapters import Target
from simulator.model.programs import aten
from simulator.model.programs.bare import Heads, Parts
from simulator.model.programs.tape import Array
from simulator.model.programs.torchtitan import fused_rms_norm, joined_gradients
from simulator.model.programs.transformers import TransformersParts


def packed(keys: Array, values: Array) -> list[Array]:
    """Return keys and values copied into one array, and again with the pair behind the tokens (`cat`, `contiguous`);
    backward a copy joins their gradients.
    """
    tape = keys.storage.tape
    widths = keys.shape[-1], values.shape[-1]
    pair = (*keys.shape[:-1], sum(widths))
    first, second = (tape.array(pair, keys.dtype) for _ in range(2))
    tape.moved("cat", [keys, values], [first])
    tape.moved("clone", [first.view(dense=False)], [second])
    del first
    parts = [second.view(array.shape, dense=False) for array in (keys, values)]

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        joined = tape.array(pair, gradients[0].dtype)
        tape.moved("cat", gradients, [joined])
        return [joined.view(gradient.shape, dense=False) for gradient in gradients]

    tape.node([keys, values], parts, (), formula)
    return parts


def flash_rotary(queries: Array, keys: Array) -> tuple[Array, Array]:
    """Return queries with rotary positions as a new array, and keys in their place; backward the queries' gradient is
    copied first.
    """
    tape = queries.storage.tape
    result, in_place = tape.array(queries.shape, queries.dtype), keys.view()
    tape.moved("rotary of queries", [queries], [result], reduces=True)
    tape.moved("rotary of keys", [keys], [keys], reduces=True)

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        of_queries, of_keys = gradients
        copied, before = (tape.array(of_queries.shape, of_queries.dtype) for _ in range(2))
        tape.moved("clone", [of_queries], [copied])
        tape.moved("rotary of queries backward", [copied], [before], reduces=True)
        tape.moved("rotary of keys backward", [of_keys], [of_keys], reduces=True)
        return [before, of_keys]

    tape.node([queries, keys], [result, in_place], (), formula)
    return result, in_place


@dataclass(frozen=True, slots=True)
class NanotronParts(TransformersParts):
    """Writes the parts of a layer as nanotron's modules compute them."""

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm by one kernel."""
        return fused_rms_norm(hidden, weight)

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values, copied out of the product of one matrix, sequence by sequence."""
        (product,) = self.projected(hidden, [sum(self.head_widths)])
        with self.tape.named("qkv"):
            return Heads(*joined_gradients(product, self.head_widths, copied=True))

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions."""
        with self.tape.named("rotary") as part:
            part.output = turned
            return flash_rotary(queries, keys)

    def attended(self, heads: Heads) -> Heads:
        """Return queries, and keys and values that lie in one array."""
        with self.tape.named("packed keys and values") as part:
            keys, values = packed(heads.keys, heads.values)
            part.output = keys.nbytes + values.nbytes
        return Heads(heads.queries, keys, values)

    def activated(self, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
        """Return the activated half of one matrix's product times its other half, in two kernels."""
        return Parts.activated(self, name, hidden, width, targets)

    def activation(self, name: str, entered: Array, width: int) -> Array:
        """Return the activation, for a gated model of a half and times the other half."""
        if not self.model.gated:
            return Parts.activation(self, name, entered, width)
        with self.tape.named(name) as part:
            gate, raised = joined_gradients(entered, [width, width])
            product = aten.mul(aten.silu(gate), raised)
            part.output = product.nbytes
        return product


PARTS: Final = NanotronParts
