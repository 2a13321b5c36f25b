"""Parts of a layer as InternEvo launches them: fused norms of float32 copies, packed queries, keys and values, and a
gated activation that TorchScript merges.

Source: InternLM/InternEvo c628a8c874, internlm/model/modeling_internlm.py, model/utils.py (`try_import_RMSNorm`,
`Silu`) and modules (embedding.py, mlp.py, multi_head_attention.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.adapters import Target
from simulator.model.programs.bare import Heads, Parts
from simulator.model.programs.foak import gated
from simulator.model.programs.tape import Array
from simulator.model.programs.transformers import TransformersParts


def widened_norm(hidden: Array, weight: Array) -> Array:
    """Return Apex' RMSNorm of a float32 copy (`norm1(_residual.float())`), which the backward pass computes again
    (`dropout_selective_checkpoint`), with a kernel for the gradient of the input, one for that of the weight, and a
    cast.
    """
    tape = hidden.storage.tape
    result, saved = tape.array(hidden.shape, hidden.dtype), (hidden.view(), weight.view())

    def widened() -> tuple[Array, Array]:
        wide, statistics = tape.array(hidden_shape, "float32"), tape.array((*hidden_shape[:-1], 1), "float32")
        tape.moved("_to_copy", [saved[0]], [wide])
        tape.moved("rms_norm", [wide, saved[1]], [result_like(), statistics], reduces=True)
        return wide, statistics

    def result_like() -> Array:
        return tape.array(hidden_shape, saved[0].dtype) if tape.is_backward else result

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        wide, statistics = widened()
        of_wide, of_weight = tape.array(hidden_shape, "float32"), tape.array(saved[1].shape, saved[1].dtype)
        narrow = tape.array(hidden_shape, saved[0].dtype)
        tape.moved("rms_norm_backward", [gradients[0], wide, statistics], [of_wide], reduces=True)
        tape.moved("rms_norm_backward of the weight", [gradients[0], wide], [of_weight], reduces=True)
        tape.moved("_to_copy", [of_wide], [narrow])
        return [narrow, of_weight]

    hidden_shape = hidden.shape
    widened()
    tape.node([hidden, weight], [result], saved, formula)
    return result


@dataclass(frozen=True, slots=True)
class InternevoParts(TransformersParts):
    """Writes the parts of a layer as InternEvo's modules compute them."""

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm of a float32 copy."""
        return widened_norm(hidden, weight)

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values, which stay together in the product of one matrix."""
        return Parts.queries_keys_values(self, hidden)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions, changed in their place."""
        return Parts.rotary(self, queries, keys, turned)

    def activated(self, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
        """Return the activated gate times the second product, each made by a matrix, multiplied by one kernel."""
        if not self.model.gated:
            return Parts.activated(self, name, hidden, width, targets)
        bias = self.model.mlp_bias
        gate = self.product(f"{name}gating", "gate" if targets else None, hidden, width, bias=bias, first=True)
        raised = self.product(f"{name}up", "up" if targets else None, hidden, width, bias=bias, first=False)
        with self.tape.named(f"{name}activation") as part:
            product = gated(gate, raised)
            part.output = product.nbytes
        return product


PARTS: Final = InternevoParts
