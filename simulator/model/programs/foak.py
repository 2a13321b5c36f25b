"""Parts of a layer as Transformers launches them with fused kernels for norms, rotary positions and, beside adapters,
the gated activation: Unsloth's of January 2024, which fms-acceleration contains (FOAK).

Sources: foundation-model-stack/fms-acceleration 06a1af97f5, plugins/fused-ops-and-kernels/README.md; Triton kernels
are no operations of PyTorch, hence no recording.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.adapters import Target
from simulator.model.programs.bare import Parts
from simulator.model.programs.tape import Array
from simulator.model.programs.torchtitan import fused_rms_norm
from simulator.model.programs.transformers import HuggingFaceParts, TransformersParts


def gated(gate: Array, raised: Array) -> Array:
    """Return the activated gate times the second product, by one kernel that saves both (`swiglu_fg_kernel`);
    backward one kernel overwrites them with their gradients.
    """
    tape = gate.storage.tape
    result, saved = tape.array(gate.shape, gate.dtype), (gate.view(), raised.view())
    tape.moved("swiglu", [gate, raised], [result])

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        tape.moved("swiglu backward", [gradients[0], *saved], saved)
        return [*saved]

    tape.node([gate, raised], [result], saved, formula)
    return result


@dataclass(frozen=True, slots=True)
class FoakParts(HuggingFaceParts):
    """Writes the parts of a layer with fused kernels in Transformers' modules."""

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm by one kernel."""
        return fused_rms_norm(hidden, weight)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions, which change both in their place."""
        return Parts.rotary(self, queries, keys, turned)

    def activated(self, name: str, hidden: Array, width: int, targets: tuple[tuple[Target, int], ...]) -> Array:
        """Return the activated gate times the second product; a single kernel multiplies them beside adapters on
        both matrices.
        """
        bias, adapters = self.model.mlp_bias, self.batch.adapters
        if not self.model.gated or not targets or adapters is None or "up" not in adapters.targets:
            return TransformersParts.activated(self, name, hidden, width, targets)
        gate = self.product(f"{name}gating", "gate", hidden, width, bias=bias, first=True)
        raised = self.product(f"{name}up", "up", hidden, width, bias=bias, first=False)
        with self.tape.named(f"{name}activation") as part:
            product = gated(gate, raised)
            part.output = product.nbytes
        return product


PARTS: Final = FoakParts
