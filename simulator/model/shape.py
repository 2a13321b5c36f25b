"""A transformer, described by its shape.

Only sizes that change parameters, FLOPs, bytes or activations; no dtype, no batch, no GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from simulator.model.adapters import Adapters, Target


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention [1]_: keys and values from a short vector per token, queries from another.

    Attributes
    ----------
    query_rank, kv_rank : int
        Widths of the short vectors.
    plain_dim, rotary_dim, value_dim : int
        Widths of a head's query and key parts without and with positions; width of its values. All heads share the
        keys' rotary part.

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
        """Width of a head's queries and keys: parts without and with positions together."""
        return self.plain_dim + self.rotary_dim


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer.

    Attributes
    ----------
    num_layers, hidden_size, num_heads, num_kv_heads, head_dim, ffn_size, vocab_size : int
        Sizes as in Hugging Face's config.json; with experts, ffn_size is an expert's width.
    max_positions : int
        Rows of the learned position table; rotary positions have no parameters.
    norm : {"layernorm", "rmsnorm"}
    gated : bool
        True if the MLP multiplies two projections (SwiGLU: three matrices), False for two matrices.
    positions : {"learned", "rotary", "none"}
        "none" for ALiBi, which saves nothing.
    attention_bias, output_bias, mlp_bias, norm_bias : bool
        Biases of Q, K and V; of attention's output projection; of the MLP; of LayerNorm.
    tied : bool
        True if the head uses the embedding's table.
    num_experts, active_experts : int
        Routed experts, and experts per token; 0 and 0 for a dense MLP.
    shared_experts : int
        Experts that see every token, beside the routed experts.
    router_bias : bool
        True if the router adds a number per expert to the scores for choosing.
    dense_layers, dense_ffn_size : int
        First layers with a dense MLP in a model with experts, and this MLP's width.
    qk_norm : bool
        True if queries and keys are normed, head by head.
    latent : LatentAttention or None
        Latent attention; head_dim is then the width for attention's FLOPs, the mean of a key's and a value's.
    adapters : Adapters or None
        Low-rank adapters, which alone are trained; None if every parameter is trained.
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
    adapters: Adapters | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for impossible or contradictory sizes of the model."""
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
        """Return a copy of the model in which every layer is like the given layer: dense for the first `dense_layers`
        layers.
        """
        if layer >= self.dense_layers:
            return self
        return replace(
            self, num_experts=0, active_experts=0, shared_experts=0, dense_layers=0, ffn_size=self.dense_ffn_size
        )

    @property
    def adapter_targets(self) -> tuple[Target, ...]:
        """Matrices of a layer that may have adapters; none with latent attention, and no experts' matrices."""
        if self.latent is not None:
            return ()
        gate: tuple[Target, ...] = ("gate",) if self.gated else ()
        return ("q", "k", "v", "o", *(() if self.num_experts else (*gate, "up", "down")))

    @property
    def attention_width(self) -> int:
        """Total width of a layer's query heads: num_heads x head_dim."""
        return self.num_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Total width of a layer's key (or value) heads: num_kv_heads x head_dim."""
        return self.num_kv_heads * self.head_dim
