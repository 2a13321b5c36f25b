"""Parts of a layer as torchtune launches them: eager PyTorch, norms and rotary positions in float32.

Sources: torchtune 0.6.1, modules/rms_norm.py, position_embeddings.py and attention.py; tests/recordings has what its
layers launch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.model.programs import aten
from simulator.model.programs.bare import Heads, Parts
from simulator.model.programs.tape import Array
from simulator.model.programs.transformers import TransformersParts


def composite_rms_norm(hidden: Array, weight: Array) -> Array:
    """Return the norm as PyTorch composes it of kernels in float32, where it has no fused kernel (aten/src/ATen/native/
    layer_norm.cpp, `rms_norm_composite`).
    """
    wide = aten.to(hidden, "float32")
    variance = aten.plus(aten.mean(aten.square(wide)), in_place=True)
    normed = aten.mul(aten.mul(wide, aten.rsqrt(variance)), weight)
    return aten.to(normed, hidden.dtype)


def rotated_pairs(x: Array, cache: Array) -> Array:
    """Return neighbours turned as pairs, in float32; `cache` has a cosine and a sine for each pair."""
    half = x.shape[-1] // 2
    wide = aten.to(x, "float32")

    def side() -> Array:
        return aten.mul(aten.part_of_last(wide, half), aten.part_of_last(cache, half))

    return aten.to(aten.cat_last(aten.sub(side(), side()), aten.add(side(), side()), name="stack"), x.dtype)


@dataclass(frozen=True, slots=True)
class TorchtuneParts(TransformersParts):
    """Writes the parts of a layer as torchtune's modules compute them."""

    @property
    def kv_heads(self) -> int:
        """Number of key heads that attention reads: keys and values are copied for each head."""
        return self.model.num_heads // self.batch.cut.tensor

    def _by_heads(self, array: Array) -> Array:
        """Return queries, keys or values with tokens before heads, as rotary positions read them."""
        return self._with_heads(array)

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm of PyTorch's composed kernels."""
        return composite_rms_norm(hidden, weight)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions."""
        if self.model.norm != "rmsnorm":
            return Parts.rotary(self, queries, keys, turned)
        with self.tape.named("rotary") as part:
            _, tokens, _, width = queries.shape
            cache = self.tape.leaf("cache", (1, tokens, 1, width), "float32", trained=False)
            arrays = rotated_pairs(queries, cache), rotated_pairs(keys, cache)
            part.output = sum(array.nbytes for array in arrays)
        return arrays

    def attended(self, heads: Heads) -> Heads:
        """Return queries, and keys and values copied for each head of the queries."""
        if self.model.norm != "rmsnorm":
            return heads
        with self.tape.named("repeated heads") as part:
            queries, keys, values = (aten.transposed(array, 1, 2) for array in heads)
            if self.kv_heads != keys.shape[1]:
                keys, values = (aten.repeated_heads(array, self.kv_heads) for array in (keys, values))
            part.output = keys.nbytes + values.nbytes
        return Heads(queries, keys, values)

    def residual(self, name: str, stream: Array, *blocks: Array) -> Array:
        """Return the sum of the residual stream and a block's output, which has a name until the layer ends."""
        self.alive.extend(blocks)
        return TransformersParts.residual(self, name, stream, *blocks)


PARTS: Final = TorchtuneParts
