"""Parts of a layer as torchtitan of 2024 launched them: eager norms in float32, rotary positions as complex numbers.

Source: pytorch/torchtitan 3faaa1a0, torchtitan/models/norms.py (`RMSNorm`, the default) and models/llama/model.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.model.programs.tape import Array
from simulator.model.programs.torchtitan import complex_rotary
from simulator.model.programs.torchtune import TorchtuneParts
from simulator.model.programs.transformers import TransformersParts, rms_norm


@dataclass(frozen=True, slots=True)
class Torchtitan2024Parts(TorchtuneParts):
    """Writes the parts of a layer as torchtitan's Llama of 2024 computed them."""

    def rms_norm(self, hidden: Array, weight: Array) -> Array:
        """Return the norm in float32, times its weight."""
        return rms_norm(hidden, weight)

    def rotary(self, queries: Array, keys: Array, turned: int) -> tuple[Array, Array]:
        """Return queries and keys with rotary positions."""
        return complex_rotary(self, queries, keys)

    def residual(self, name: str, stream: Array, *blocks: Array) -> Array:
        """Return the sum of the residual stream and a block's output."""
        return TransformersParts.residual(self, name, stream, *blocks)


PARTS: Final = Torchtitan2024Parts
