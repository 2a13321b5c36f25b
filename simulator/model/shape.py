"""A transformer, described by its shape. A record.

Rule: only what changes parameters, FLOPs, bytes or activations is here; no dtype, no batch, no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer.

    Attributes
    ----------
    name : str
    num_layers, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size, vocab_size : int
        ffn_size is that of one expert where there are experts.
    max_positions : int
        Rows of the learned position table; for rotary positions no parameters follow from it.
    norm : {"layernorm", "rmsnorm"}
    gated : bool
        Whether the MLP multiplies two projections (SwiGLU: three matrices) or not (two).
    positions : {"learned", "rotary", "none"}
        "none" where nothing is kept for them (ALiBi).
    attention_bias, output_bias, mlp_bias, norm_bias : bool
        Of Q, K and V; of attention's output projection; of the MLP; of LayerNorm.
    tied : bool
        Whether the head is the embedding.
    num_experts, active_experts : int
        0 and 0 for a dense MLP.
    """

    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    max_positions: int
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    gated: bool = False
    positions: Literal["learned", "rotary", "none"] = "learned"
    attention_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    tied: bool = True
    num_experts: int = 0
    active_experts: int = 0

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}; must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: got {self.num_kv_heads}; must divide num_heads {self.num_heads}")
        if not 0 <= self.active_experts <= self.num_experts or (self.num_experts > 0) != (self.active_experts > 0):
            raise ValueError(f"active_experts: got {self.active_experts}; must be 1 .. num_experts {self.num_experts}")

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim
