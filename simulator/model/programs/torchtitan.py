"""Parts of a layer as torchtitan launches them, in eager PyTorch.

The norm is one kernel, one matrix makes queries, keys and values, and rotary positions are complex numbers.

Sources: torchtitan 0.3.0, models/common; tests/recordings has what its layers launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.programs import aten
from simulator.model.programs.bare import Heads, Parts
from simulator.model.programs.tape import Array
from simulator.model.programs.transformers import TransformersParts


def fused_rms_norm(hidden: Array, weight: Array) -> Array:
    """Return the norm times its weight, by one kernel that saves its input and a statistic for each row."""
    tape = hidden.storage.tape
    result, statistics = tape.array(hidden.shape, hidden.dtype), tape.array((*hidden.shape[:-1], 1), "float32")
    tape.moved("_fused_rms_norm", [hidden, weight], [result, statistics], reduces=True)
    saved = hidden.view(), statistics.view(), weight.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        of_hidden, of_weight = (tape.array(array.shape, array.dtype) for array in (saved[0], saved[2]))
        tape.moved("_fused_rms_norm_backward", [gradients[0], *saved], [of_hidden, of_weight], reduces=True)
        return [of_hidden, of_weight]

    tape.node([hidden, weight], [result], saved, formula)
    return result


def turned(x: Array, rotations: Array) -> Array:
    """Return complex numbers times rotations, whose conjugate the backward pass copies."""
    tape = x.storage.tape
    result, saved = tape.array(x.shape, x.dtype, x.order), rotations.view()
    tape.moved("mul", [x, rotations], [result])

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        (gradient,) = gradients
        conjugate = tape.array(saved.shape, saved.dtype)
        of_x = tape.array(gradient.shape, gradient.dtype, gradient.order)
        tape.moved("clone", [saved], [conjugate])
        tape.moved("mul", [gradient, conjugate], [of_x])
        return [of_x]

    tape.node([x], [result], [saved], formula)
    return result


def joined_gradients(x: Array, widths: Sequence[int], *, copied: bool = False) -> list[Array]:
    """Return parts of the last dimension, as views or as copies; backward their gradients are joined by a copy."""
    tape, shape = x.storage.tape, x.shape
    parts = [x.view((*shape[:-1], width), dense=False) for width in widths]
    if copied:
        views, parts = parts, [tape.array(part.shape, x.dtype) for part in parts]
        for view, part in zip(views, parts, strict=True):
            tape.moved("clone", [view], [part])

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        joined = tape.array(shape, gradients[0].dtype)
        tape.moved("cat", gradients, [joined])
        return [joined]

    tape.node([x], parts, (), formula)
    return parts


def complex_rotary(parts: Parts, queries: Array, keys: Array) -> tuple[Array, Array]:
    """Return queries and keys, with heads as a dimension, with rotary positions computed in float32."""
    with parts.tape.named("rotary") as part:
        tokens = parts.batch.tokens // parts.batch.sequences
        # One rotation for each token and pair, whether tokens come before heads or after.
        shape = tuple(size if size == tokens else 1 for size in queries.shape[1:-1])
        rotations = parts.tape.leaf("rotations", (1, *shape, queries.shape[-1]), "float32", trained=False)
        queries, keys = (
            aten.to(turned(aten.to(array, "float32"), rotations), array.dtype) for array in (queries, keys)
        )
        part.output = queries.nbytes + keys.nbytes
    return queries, keys


@dataclass(frozen=True, slots=True)
class TorchtitanParts(TransformersParts):
    """Writes the parts of a layer as torchtitan's modules compute them."""

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm by PyTorch's own kernel."""
        return fused_rms_norm(hidden, weight)

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values, copied out of the product of one matrix, with heads as a dimension."""
        (product,) = self.projected(hidden, [sum(self.head_widths)])
        with self.tape.named("qkv"):
            return Heads(*(self._by_heads(array) for array in joined_gradients(product, self.head_widths, copied=True)))

    def rotary(self, queries: Array, keys: Array, turned_bytes: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions."""
        return complex_rotary(self, queries, keys)


PARTS: Final = TorchtitanParts
