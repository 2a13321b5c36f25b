"""A transformer, described by its shape. A record.

Rule: only what changes parameters, FLOPs, bytes or activations is here; no dtype, no batch, no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention [1]_: keys and values are made from a short vector a token; queries from another.

    Attributes
    ----------
    query_rank, kv_rank : int
        Widths of the short vectors.
    plain_dim, rotary_dim, value_dim : int
        Of a head's queries and keys the parts without and with positions; the width of its values. The part of the keys
        that has positions is the same for all heads.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1.
    """

    query_rank: int
    kv_rank: int
    plain_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def key_dim(self) -> int:
        """Width of a head's queries, and of its keys."""
        return self.plain_dim + self.rotary_dim


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
    shared_experts : int
        Experts that see every token, beside those that are chosen.
    router_bias : bool
        Whether a number an expert is added to what chooses it.
    dense_layers, dense_ffn_size : int
        Of a model with experts the first layers, which have a dense MLP of this width.
    qk_norm : bool
        Whether queries and keys are normed, head by head.
    latent : LatentAttention or None
        Where keys and values are made from a short vector; head_dim is then the width that attention's FLOPs go by, the
        mean of a key's and a value's.
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
    shared_experts: int = 0
    router_bias: bool = False
    dense_layers: int = 0
    dense_ffn_size: int = 0
    qk_norm: bool = False
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}; must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: got {self.num_kv_heads}; must divide num_heads {self.num_heads}")
        if not 0 <= self.active_experts <= self.num_experts or (self.num_experts > 0) != (self.active_experts > 0):
            raise ValueError(f"active_experts: got {self.active_experts}; must be 1 .. num_experts {self.num_experts}")
        if not 0 <= self.dense_layers <= self.num_layers or (self.dense_layers and not self.num_experts):
            raise ValueError(f"dense_layers: got {self.dense_layers}; must be 0 .. {self.num_layers}, beside experts")

    def of_layer(self, layer: int) -> Transformer:
        """The model whose layers are all like this one: dense where the first layers of one with experts are."""
        if layer >= self.dense_layers:
            return self
        return replace(
            self, num_experts=0, active_experts=0, shared_experts=0, dense_layers=0, ffn_size=self.dense_ffn_size
        )

    @property
    def attention_width(self) -> int:
        """Width of all query heads together."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_kv_heads * self.head_dim
