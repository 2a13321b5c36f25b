"""A transformer, described by its shape.

Only sizes that change parameters, FLOPs, bytes or activations; no dtype, no batch, no GPU.

Layers of a model may differ in three ways: their blocks (a hybrid has one block in most layers), the MLP (dense or
experts) and the window of attention. `of_layer` returns a model in which every layer is like a given layer, and all
code about layers takes such a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal

from simulator.basics.work_unit import TOKEN
from simulator.model.adapters import Lora, Target


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention [1]_: keys and values from a short vector per token, queries from another or from the
    input.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V2", 2024, arXiv:2405.04434, section 2.1.
    """

    # `query_rank`, `kv_rank`: Widths of the short vectors; a query_rank of 0 stands for queries from the input.
    query_rank: int
    kv_rank: int
    # `plain_dim`, `rotary_dim`, `value_dim`: Widths of a head's query and key parts without and with positions; width
    # of its values. All heads share the keys' rotary part.
    plain_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def key_dim(self) -> int:
        """Width of a head's queries and keys: parts without and with positions together."""
        return self.plain_dim + self.rotary_dim


@dataclass(frozen=True, slots=True)
class Mamba:
    """Sizes of Mamba-2 mixers [1]_.

    References
    ----------
    .. [1] Dao & Gu, "Transformers are SSMs", 2024, arXiv:2405.21060.
    """

    # `heads`, `head_dim`, `groups`, `state`: Heads, each with a state of head_dim x state numbers; heads of a group
    # share the vectors B and C of a token.
    heads: int
    head_dim: int
    groups: int
    state: int
    # `taps`, `chunk`: Tokens under a filter of the convolution; tokens of a chunk, inside which the scan is a product
    # of matrices.
    taps: int
    chunk: int

    @property
    def inner(self) -> int:
        """Total width of the heads."""
        return self.heads * self.head_dim

    @property
    def convolved(self) -> int:
        """Channels of the convolution: heads, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def projected(self) -> int:
        """Outputs of the first matrix: gates, channels of the convolution, a step size per head."""
        return self.inner + self.convolved + self.heads

    def over(self, ranks: int) -> Mamba:
        """Return the sizes on a tensor-parallel rank, which has a part of the heads and groups."""
        return replace(self, heads=self.heads // ranks, groups=self.groups // ranks)


@dataclass(frozen=True, slots=True)
class Patches:
    """Square patches of an image in place of tokens (ViT); a class token comes first, and alone is classified."""

    # `image`, `side`, `channels`: Side of the image and of a patch [pixels]; numbers per pixel.
    image: int
    side: int
    channels: int

    @property
    def count(self) -> int:
        """Number of patches of an image."""
        return (self.image // self.side) ** 2

    @property
    def width(self) -> int:
        """Numbers in a patch, the inputs of the patch embedding."""
        return self.channels * self.side**2


# The places of a layer's norms, for the input x, attention A and the MLP F:
#   pre       x + A(norm x), then the same with F          GPT-2, Llama
#   post      x + norm(A x), then the same with F          OLMo 2
#   both      x + norm(A(norm x)), then the same with F    Gemma 2, GLM-4
#   sum       norm(x + A x), then the same with F          BERT
#   parallel  x + A(norm x) + F(norm' x)                   Falcon 40B
#   shared    x + A(norm x) + F(norm x), with one norm     Phi-2, Cohere
Form = Literal["pre", "post", "both", "sum", "parallel", "shared"]


@dataclass(frozen=True, slots=True)
class Transformer:
    """A transformer with one stack of layers: a decoder, or an encoder if not causal.

    References
    ----------
    .. [1] DeepSeek-AI, "DeepSeek-V3 technical report", 2024, arXiv:2412.19437, section 2.2.
    """

    name: str
    # `num_layers`, `hidden_size`, `num_heads`, `num_kv_heads`, `head_dim`, `ffn_size`, `vocab_size`: Sizes as in
    # Hugging Face's config.json; with experts, ffn_size is an expert's width. With patches, vocab_size is the number of
    # classes.
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    # Rows of the learned position table; rotary positions have no parameters.
    max_positions: int
    # "unweighted": a LayerNorm without parameters.
    norm: Literal["layernorm", "rmsnorm", "unweighted"] = "layernorm"
    # True if the MLP multiplies two projections (SwiGLU: three matrices), False for two matrices.
    gated: bool = False
    positions: Literal["learned", "rotary", "none"] = "learned"  # "none" for ALiBi, which saves nothing
    # `attention_bias`, `output_bias`, `mlp_bias`, `norm_bias`: Biases of Q, K and V; of attention's output projection;
    # of the MLP; of LayerNorm.
    attention_bias: bool = True
    output_bias: bool = True
    mlp_bias: bool = True
    norm_bias: bool = True
    tied: bool = True  # True if the head uses the embedding's table
    # `num_experts`, `active_experts`: Routed experts, and experts per token; 0 and 0 for a dense MLP.
    num_experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0  # experts that see every token, beside the routed experts
    router_bias: bool = False  # True if the router adds a number per expert to the scores for choosing
    # `dense_layers`, `dense_ffn_size`: First layers with a dense MLP in a model with experts, and this MLP's width.
    dense_layers: int = 0
    dense_ffn_size: int = 0
    # Norms of queries and keys: with a weight per element of a head, which all heads share; with a weight per element
    # of all heads; without weights.
    qk_norm: Literal["none", "head", "width", "unweighted"] = "none"
    # Latent attention; head_dim is then the width for attention's FLOPs, the mean of a key's and a value's.
    latent: LatentAttention | None = None
    # Low-rank adapters, which alone are trained; None if every parameter is trained.
    adapters: Lora | None = None
    # k: after the first `dense_layers`, layers k - 1, 2 k - 1, ... have experts, other layers a dense MLP.
    expert_every: int = 1
    # True if a number per token, the product with a vector, scales the shared experts' output.
    shared_gate: bool = False
    # Keys that a query sees, 0 for every key; layer i has entry i modulo the length. Empty: every key.
    windows: tuple[int, ...] = ()
    chunked: bool = False  # True if windows cut a sequence into chunks, and a query sees the keys of its own chunk
    causal: bool = True  # True if a query sees no later key
    # Places of a layer's norms; see `Form`.
    form: Form = "pre"
    sinks: bool = False  # True if each head has a learned score beside the scores of the keys
    # `score_cap`, `logit_cap`: True if a scaled tanh limits attention's scores; the logits.
    score_cap: bool = False
    logit_cap: bool = False
    embedding_norm: bool = False  # True if the embedding ends with a norm
    token_types: int = 0  # rows of a table for the segment of a token (BERT)
    position_offset: int = 0  # first rows of the position table that belong to no token
    # True if Transformers computes an activation without a gate by one kernel, not by the eight of GPT-2's `gelu_new`
    fused_activation: bool = False
    head_transform: bool = False  # True if the head begins with a square matrix and an activation, before the last norm
    head_bias: bool = False  # True if the head's last matrix has a bias
    patches: Patches | None = None  # patches of images in place of tokens
    # `expert_groups`, `active_groups`: Groups of consecutive routed experts, and groups per token: the router first
    # chooses groups, then experts of these groups (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, section 2.1.2:
    # node-limited routing).
    expert_groups: int = 1
    active_groups: int = 1
    # Last layers, among `num_layers`, that each predict a further token (multi-token prediction [1]_): such a layer
    # joins its input with the embedding of the next token by a matrix, and ends with a norm, logits and a loss.
    # Embedding and output matrix are the model's.
    mtp_layers: int = 0
    # Blocks of each layer, in order: "M" Mamba-2 mixer, "*" attention, "-" MLP, "E" experts, each after a norm and with
    # a residual addition; layer i has entry i modulo the length. Empty: attention, then MLP or experts.
    blocks: tuple[str, ...] = ()
    mamba: Mamba | None = None  # sizes of Mamba-2 mixers
    # Width of the tokens that routed experts take and return, made from the hidden states and back by a matrix each
    # (latent experts); 0 for the hidden size.
    expert_latent: int = 0

    def __post_init__(self) -> None:
        """Raise ValueError for impossible or contradictory sizes of the model."""
        for field in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "vocab_size"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field}: got {getattr(self, field)}; must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads: got {self.num_kv_heads}; must divide num_heads {self.num_heads}")
        if not 0 <= self.active_experts <= self.num_experts or (self.num_experts > 0) != (self.active_experts > 0):
            raise ValueError(f"active_experts: got {self.active_experts}; must be 1 .. num_experts {self.num_experts}")
        if self.expert_groups < 1 or (self.num_experts or 1) % self.expert_groups:
            raise ValueError(f"expert_groups: got {self.expert_groups}; must divide num_experts {self.num_experts}")
        most = self.active_groups * (self.num_experts // self.expert_groups)
        if not 1 <= self.active_groups <= self.expert_groups or most < self.active_experts:
            raise ValueError(
                f"active_groups: got {self.active_groups}; must be 1 .. expert_groups {self.expert_groups}, with at "
                f"least active_experts {self.active_experts} experts"
            )
        if not 0 <= self.dense_layers <= self.num_layers or (self.dense_layers and not self.num_experts):
            raise ValueError(f"dense_layers: got {self.dense_layers}; must be 0 .. {self.num_layers}, beside experts")
        if self.expert_every < 1 or (self.expert_every > 1 and not self.num_experts):
            raise ValueError(f"expert_every: got {self.expert_every}; must be at least 1, beside experts")

    def of_layer(self, layer: int) -> Transformer:
        """Return a copy of the model in which every layer is like the layer with this number."""
        window = self._window_of(layer)
        facts: dict[str, Any] = {"windows": (window,) if window else (), "dense_layers": 0, "expert_every": 1}
        facts["mtp_layers"] = int(layer >= self.num_layers - self.mtp_layers)
        facts["blocks"] = self.blocks[layer : layer + 1]
        if self.num_experts and not self._has_experts(layer):
            facts |= {"num_experts": 0, "active_experts": 0, "shared_experts": 0, "ffn_size": self.dense_ffn_size}
            facts |= {"expert_groups": 1, "active_groups": 1}
        return replace(self, **facts)

    def _window_of(self, layer: int) -> int:
        """Return the window of the layer with this number; 0 for every key."""
        return self.windows[layer % len(self.windows)] if self.windows else 0

    def _has_experts(self, layer: int) -> bool:
        """Return True if the layer with this number has experts, in a model with experts."""
        if self.blocks:
            return "E" in self.blocks[layer % len(self.blocks)]
        return layer >= self.dense_layers and (layer + 1) % self.expert_every == 0

    def predicting(self, layers: int) -> Transformer:
        """Return the model with `layers` further layers that each predict a further token, with attention and MLP or
        experts.
        """
        blocks = (*self.blocks, *["*E" if self.num_experts else "*-"] * layers) if self.blocks else ()
        return replace(self, num_layers=self.num_layers + layers, mtp_layers=self.mtp_layers + layers, blocks=blocks)

    @property
    def kinds(self) -> Mapping[Transformer, tuple[int, ...]]:
        """Kinds of layers in order of their first layer: a model with only such layers, and their numbers."""
        return _kinds(self)

    @property
    def work_unit(self) -> str:
        """The unit in which work and speed are told: the tokens of sequences, also if these are patches of images."""
        return TOKEN

    @property
    def window(self) -> int:
        """Window of the last layer, 0 for every key; in a model of equal layers the window of every layer."""
        return self._window_of(self.num_layers - 1)

    @property
    def layer_blocks(self) -> str:
        """Blocks of the last layer; in a model of equal layers the blocks of every layer."""
        return self.blocks[-1] if self.blocks else "*-"

    @property
    def expert_width(self) -> int:
        """Width of the tokens that routed experts take and return."""
        return self.expert_latent or self.hidden_size

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        return sum(map(self._has_experts, range(self.num_layers))) if self.num_experts else 0

    @property
    def adapter_targets(self) -> tuple[Target, ...]:
        """Matrices of a layer that may have adapters; none with latent attention or in a hybrid, and no experts'
        matrices.
        """
        if self.latent is not None or self.blocks:
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


@lru_cache(maxsize=64)
def _kinds(model: Transformer) -> Mapping[Transformer, tuple[int, ...]]:
    """Return the kinds of a model's layers, with their layers' numbers; cached: long models have few kinds."""
    layers_of: dict[Transformer, list[int]] = {}
    for layer in range(model.num_layers):
        layers_of.setdefault(model.of_layer(layer), []).append(layer)
    return MappingProxyType({kind: tuple(layers) for kind, layers in layers_of.items()})
