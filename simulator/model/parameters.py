"""The parameters of a transformer, tensor by tensor.

Exact: every tensor that a framework would register, in the order of use. With a cut, the parameters of a single rank:
first matrices of a pair are cut by rows of their weight (columns of the output), second matrices by columns of their
weight, tables by rows; norms, and biases added to a whole output, stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import cast

from simulator.model.adapters import Target
from simulator.model.partition import WHOLE, ModelPartition
from simulator.model.shape import LatentAttention, Mamba, Transformer


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter tensor."""

    name: str  # name within its module
    shape: tuple[int, ...]
    trained: bool = True  # whether the parameter has a gradient and optimizer states; False for a frozen one
    # Bits per element of a quantised parameter, scales included; None for the dtype of working parameters
    bits: float | None = None

    @property
    def elements(self) -> int:
        """Number of elements in the parameter tensor."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Module:
    """A block of a model with its parameters: the embedding, a layer, or the head with the last norm."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def elements(self) -> int:
        """Number of elements in the module's parameters together."""
        return sum(p.elements for p in self.parameters)

    def frozen(self, itemsize: int) -> int:
        """Return the size of the module's frozen parameters together, in elements of `itemsize` bytes: quantised
        parameters count for less.
        """
        narrow = [p for p in self.parameters if p.bits is not None]
        bits = sum(p.elements * (p.bits or 0.0) for p in narrow)
        others = sum(p.elements for p in self.parameters if not p.trained) - sum(p.elements for p in narrow)
        return others + math.ceil(bits / (8 * itemsize))

    def held(self, itemsize: int) -> int:
        """Return the size of the module's parameters together, in elements of `itemsize` bytes."""
        return sum(p.elements for p in self.parameters if p.trained) + self.frozen(itemsize)


def is_expert(name: str) -> bool:
    """Return True if the parameter tensor with this name belongs to a routed expert.

    >>> is_expert("expert 0.up.weight"), is_expert("shared expert 0.up.weight")
    (True, False)
    """
    return name.startswith("expert ")


def modules(model: Transformer, cut: ModelPartition = WHOLE) -> tuple[Module, ...]:
    """Return embedding, layers and head of a model with their parameters on a rank, in forward order."""
    # Layers that differ only in their windows have equal parameters; compute each kind once.
    kinds = [(layer_parameters(replace(kind, windows=()), cut), places) for kind, places in model.kinds.items()]
    by_layer = {layer: parameters for parameters, places in kinds for layer in places}
    layers = tuple(Module(f"layer {i}", by_layer[i]) for i in range(model.num_layers))
    ends = Module("embedding", embedding_parameters(model, cut)), Module("head", head_parameters(model, cut))
    return (ends[0], *layers, ends[1])


def total(model: Transformer) -> int:
    """Return the number of parameter elements in a model; a tied head counts once."""
    return sum(module.elements for module in modules(model))


def active(model: Transformer) -> int:
    """Return the number of parameter elements that a token uses in a model: active experts only."""
    # Each expert layer holds `idle` experts that a token does not use.
    idle = model.num_experts - model.active_experts
    expert = sum(p.elements for p in _mlp(model, "expert 0", 1))
    return total(model) - idle * expert * model.expert_layers


def embedding_parameters(model: Transformer, cut: ModelPartition = WHOLE) -> tuple[Parameter, ...]:
    """Return the parameters in the embedding on a rank: the token table, tables of learned positions and of token
    types, and a norm; with patches a matrix with bias and the class token instead of the token table.
    """
    d = model.hidden_size
    if model.patches is None:
        tables = [Parameter("token", (cut.vocabulary(model) // cut.tensor, d))]
    else:
        tables = [Parameter("patch.weight", (d, model.patches.width)), Parameter("patch.bias", (d,))]
        tables.append(Parameter("class token", (d,)))
    if model.positions == "learned":
        tables.append(Parameter("position", (model.max_positions, d)))
    if model.token_types:
        tables.append(Parameter("token type", (model.token_types, d)))
    return _with_adapters(model, tables + (_norm(model, "embedding norm") if model.embedding_norm else []))


@lru_cache(maxsize=64)
def layer_parameters(model: Transformer, cut: ModelPartition = WHOLE) -> tuple[Parameter, ...]:
    """Return the parameters in a layer on a rank, for a model of equal layers (see `Transformer.of_layer`)."""
    parameters: tuple[Parameter, ...] = ()
    for letter in model.layer_blocks:
        if letter == "M":
            parameters += (*_norm(model, "mamba norm"), *_mamba(model, cut))
        elif letter == "*":
            attention = _attention(model, cut) if model.latent is None else _latent_attention(model, model.latent, cut)
            parameters += (*_norms(model, norm_names(model)[0]), *attention)
        else:
            parameters += (*_norms(model, norm_names(model)[1]), *_feed_forward(model, cut))
    if model.mtp_layers:
        # The matrix that joins hidden states and embeddings is whole on every rank.
        joined = Parameter("join.weight", (model.hidden_size, 2 * model.hidden_size))
        parameters = (
            *_norms(model, ("hidden norm", "next token norm")),
            joined,
            *parameters,
            *_norm(model, "prediction norm"),
        )
    if model.adapters is not None:
        form = model.adapters.base_format
        if form is not None:
            parameters = tuple(
                replace(parameter, bits=form.bits_per_element(parameter.shape[-1]))
                if len(parameter.shape) > 1
                else parameter
                for parameter in parameters
            )
    return _with_adapters(model, parameters, _adapters(model, cut))


def _with_adapters(
    model: Transformer, parameters: Sequence[Parameter], adapters: Sequence[Parameter] = ()
) -> tuple[Parameter, ...]:
    """Return a module's own parameters; beside adapters they are frozen, and the adapters' parameters follow."""
    if model.adapters is None:
        return (*parameters,)
    return (*(replace(parameter, trained=False) for parameter in parameters), *adapters)


def _adapters(model: Transformer, cut: ModelPartition) -> list[Parameter]:
    """Return the parameters of a layer's adapters on a rank: A (rank x inputs), B (outputs x rank) and, with DoRA, the
    lengths (outputs) of each target.

    The side that lies along the cut of the adapted matrix is cut like the matrix; the other side is whole.
    """
    if model.adapters is None:
        return []
    d, width, f, t, rank = model.hidden_size, model.attention_width, model.ffn_size, cut.tensor, model.adapters.rank
    # Inputs and outputs of each matrix on a rank.
    sizes: dict[Target, tuple[int, int]] = {
        "q": (d, width // t), "k": (d, model.kv_width // t), "v": (d, model.kv_width // t), "o": (width // t, d),
        "gate": (d, f // t), "up": (d, f // t), "down": (f // t, d),
    }  # fmt: skip
    parameters = []
    for target in model.adapters.targets:
        inputs, outputs = sizes[target]
        parameters += [Parameter(f"{target}.lora_a", (rank, inputs)), Parameter(f"{target}.lora_b", (outputs, rank))]
        parameters += [Parameter(f"{target}.lora_magnitude", (outputs,))] if model.adapters.dora else []
    return parameters


def _attention(model: Transformer, cut: ModelPartition) -> list[Parameter]:
    """Return the parameters in a layer's standard attention on a rank."""
    d = model.hidden_size
    # Queries, keys and values are a single matrix.
    qkv = (model.attention_width + 2 * model.kv_width) // cut.tensor
    tensors = [Parameter("qkv.weight", (qkv, d))]
    tensors += [Parameter("qkv.bias", (qkv,))] if model.attention_bias else []
    if model.qk_norm in ("head", "width"):
        widths = [width // cut.tensor for width in (model.attention_width, model.kv_width)]
        # The heads share the norm's weights, one per element of a head, or have weights of their own.
        widths = [model.head_dim] * 2 if model.qk_norm == "head" else widths
        tensors += [Parameter(f"{which} norm.weight", (n,)) for which, n in zip(("query", "key"), widths, strict=True)]
    tensors += [Parameter("sinks", (model.num_heads // cut.tensor,))] if model.sinks else []
    tensors += [Parameter("proj.weight", (d, model.attention_width // cut.tensor))]
    # Added after the sum over ranks, hence whole.
    return tensors + ([Parameter("proj.bias", (d,))] if model.output_bias else [])


def _latent_attention(model: Transformer, latent: LatentAttention, cut: ModelPartition) -> list[Parameter]:
    """Return the parameters in a layer's latent attention on a rank; the down matrices are whole on every rank."""
    d, heads = model.hidden_size, model.num_heads // cut.tensor
    queries = [
        Parameter("query down.weight", (latent.query_rank, d)),
        Parameter("query norm.weight", (latent.query_rank,)),
        Parameter("query up.weight", (heads * latent.key_dim, latent.query_rank)),
    ]
    return [
        *(queries if latent.query_rank else [Parameter("query.weight", (heads * latent.key_dim, d))]),
        Parameter("kv down.weight", (latent.kv_rank + latent.rotary_dim, d)),
        Parameter("kv norm.weight", (latent.kv_rank,)),
        Parameter("kv up.weight", (heads * (latent.plain_dim + latent.value_dim), latent.kv_rank)),
        Parameter("proj.weight", (d, heads * latent.value_dim)),
    ]


def _mamba(model: Transformer, cut: ModelPartition) -> list[Parameter]:
    """Return the parameters in a layer's Mamba-2 mixer on a rank, which has a part of the heads and groups."""
    sizes = cast("Mamba", model.mamba).over(cut.tensor)
    return [
        Parameter("mamba in.weight", (sizes.projected, model.hidden_size)),
        Parameter("mamba scan.conv_weight", (sizes.convolved, 1, sizes.taps)),
        Parameter("mamba scan.conv_bias", (sizes.convolved,)),
        *(Parameter(f"mamba scan.{name}", (sizes.heads,)) for name in ("dt_bias", "a_log", "d")),
        Parameter("mamba scan.norm_weight", (sizes.inner,)),
        Parameter("mamba out.weight", (model.hidden_size, sizes.inner)),
    ]


def _feed_forward(model: Transformer, cut: ModelPartition) -> list[Parameter]:
    """Return the parameters in a layer's MLP on a rank, or in the router and experts."""
    if not model.num_experts:
        return _mlp(model, "mlp", cut.tensor)
    tensors = [Parameter("router.weight", (model.num_experts, model.hidden_size))]
    tensors += [Parameter("router.bias", (model.num_experts,))] if model.router_bias else []
    if model.expert_latent:
        # Whole on every rank.
        tensors += [Parameter("latent down.weight", (model.expert_latent, model.hidden_size))]
        tensors += [Parameter("latent up.weight", (model.hidden_size, model.expert_latent))]
    for i in range(model.num_experts // cut.experts.ranks):
        tensors += _mlp(model, f"expert {i}", cut.experts.tensor)
    for i in range(model.shared_experts):
        tensors += _mlp(model, f"shared expert {i}", cut.tensor)
    return tensors + ([Parameter("shared gate.weight", (1, model.hidden_size))] if model.shared_gate else [])


def head_parameters(model: Transformer, cut: ModelPartition = WHOLE) -> tuple[Parameter, ...]:
    """Return the parameters in the head on a rank: a square matrix if the head has one, the last norm, the output
    matrix unless tied to the embedding, and its bias.
    """
    rows, d = cut.vocabulary(model) // cut.tensor, model.hidden_size
    # Whole on every rank, like the norm behind it.
    transform = [Parameter("transform.weight", (d, d)), Parameter("transform.bias", (d,))]
    return _with_adapters(
        model,
        (
            *(transform if model.head_transform else ()),
            *_norm(model, "norm"),
            *(() if model.tied else (Parameter("head.weight", (rows, d)),)),
            *((Parameter("head.bias", (rows,)),) if model.head_bias else ()),
        ),
    )


def norm_names(model: Transformer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the norms in a layer: those around attention, and those around the feed-forward block.

    >>> from simulator.model.load import load_model
    >>> norm_names(load_model("llama3_8b")), norm_names(load_model("gemma2_9b"))
    ((('norm1',), ('norm2',)), (('norm1', 'norm1 after'), ('norm2', 'norm2 after')))
    """
    if model.form == "shared":
        return ("norm1",), ()
    if model.form == "both":
        return ("norm1", "norm1 after"), ("norm2", "norm2 after")
    return ("norm1",), ("norm2",)


def _norms(model: Transformer, names: tuple[str, ...]) -> list[Parameter]:
    """Return the parameters in the norms with these names."""
    return [parameter for name in names for parameter in _norm(model, name)]


def _norm(model: Transformer, name: str) -> list[Parameter]:
    """Return the parameters in the norm with this name: weight, and bias if the model's norms have one."""
    if model.norm == "unweighted":
        return []
    weight = Parameter(f"{name}.weight", (model.hidden_size,))
    has_bias = model.norm == "layernorm" and model.norm_bias
    return [weight, Parameter(f"{name}.bias", (model.hidden_size,))] if has_bias else [weight]


def _mlp(model: Transformer, name: str, ranks: int) -> list[Parameter]:
    """Return the parameters in an MLP on a rank, with matrices cut over `ranks` ranks; names begin with `name`."""
    d, f = model.expert_width if is_expert(name) else model.hidden_size, model.ffn_size // ranks
    # A gated MLP's two first matrices are stored as a single matrix.
    up = 2 * f if model.gated else f
    tensors = [Parameter(f"{name}.up.weight", (up, d))]
    tensors += [Parameter(f"{name}.up.bias", (up,))] if model.mlp_bias else []
    tensors += [Parameter(f"{name}.down.weight", (d, f))]
    return tensors + ([Parameter(f"{name}.down.bias", (d,))] if model.mlp_bias else [])
