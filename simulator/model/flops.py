"""FLOPs of a training step by the field's usual formulas: the numerator of MFU.

Formulas of a model and a sequence length; kernels carry their real FLOPs themselves. Any printed MFU depends on three
choices, which are arguments here: the parameters counted in P, full or causal attention, and recomputed work.

    model FLOPs per token = 6 P + 12 L (heads x head_dim) s + 21 L' (heads x head_dim x state)

Each matrix parameter costs a multiplication and an addition forward and twice as much backward: 6. For each of s keys a
query costs 2 (QK^T) and 2 (PV) per element of heads x head_dim, and three times this in total: 12. A frozen matrix has
no weight gradient and costs 4. L are the layers with attention, L' those with a Mamba-2 mixer, whose scan costs 7 per
element of the state forward (NVIDIA/Megatron-LM, training/training.py, `mamba_layer_flops`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from simulator.model.kernel import keys_of_query
from simulator.model.parameters import active, embedding_parameters, layer_parameters
from simulator.model.shape import Transformer

Count = Literal["all", "without_embedding", "matrices"]
Scores = Literal["full", "causal"]
COUNTS: Final[tuple[Count, ...]] = ("all", "without_embedding", "matrices")
SCORES: Final[tuple[Scores, ...]] = ("full", "causal")


def counted_parameters(model: Transformer, count: Count = "all") -> int:
    """Return the number of parameters P that FLOP formulas count, with active experts only.

    Parameters
    ----------
    count : {"all", "without_embedding", "matrices"}
        "all": every parameter, including tables, biases and norms, a tied table once (PaLM, llm-foundry).
        "without_embedding": without lookup tables, i.e. without positions, and without tokens unless the head uses the
        same table (torchtitan). "matrices": only matmul weights, including the head (Megatron-LM's equation 3).

    Raises
    ------
    ValueError
        Unknown `count`.
    """
    _refuse("count", count, COUNTS)
    # A layer that predicts a further token multiplies by the output matrix once more.
    again = model.mtp_layers * model.vocab_size * model.hidden_size
    if count == "matrices":
        return _layers(model, count) + _ends(model) + again
    if count == "all":
        return active(model) + again
    # A tied token table is also the head's matrix, and patches are multiplied by their matrix: neither is looked up.
    tables = {"position", "token type", *(() if model.tied else ("token",))}
    return active(model) + again - sum(p.elements for p in embedding_parameters(model) if p.name in tables)


def model_flops_per_token(model: Transformer, seq_len: int, *, scores: Scores = "full", count: Count = "all") -> float:
    """Return the training FLOPs per token without recomputation: the numerator of MFU.

    Parameters
    ----------
    seq_len : int
        Tokens of a sequence.
    scores : {"full", "causal"}
        A token's attention counts all s keys (PaLM, llm-foundry), or half of them; in layers with a window the keys of
        the window, or those that the token really sees.
    count : {"all", "without_embedding", "matrices"}
        See `counted_parameters`.

    Returns
    -------
    float
        [FLOP]

    References
    ----------
    .. [1] Chowdhery et al., "PaLM", 2022, arXiv:2204.02311, appendix B.

    Examples
    --------
    >>> from simulator.model.load import load_model
    >>> model_flops_per_token(load_model("gpt2"), 1024) == 6 * 124_439_808 + 12 * 12 * 768 * 1024
    True
    """
    counted = 6.0 * counted_parameters(model, count)
    # A frozen parameter has no weight gradient: a third less.
    if model.adapters is not None:
        counted -= 2.0 * counted_parameters(replace(model, adapters=None), count)
    return counted + 3.0 * (_attention_forward(model, seq_len, scores) + _scan_forward(model))


def utilization(tokens_per_s: float, flops_per_token: float, peak_flops: float) -> float:
    """Return the share of the peak: MFU for model FLOPs, HFU for hardware FLOPs.

    Parameters
    ----------
    tokens_per_s : float
        Tokens per second on all GPUs together [1/s].
    flops_per_token : float
        [FLOP]
    peak_flops : float
        Peak of all GPUs together, in the dtype of the matmuls [FLOP/s].

    Returns
    -------
    float
        0 to 1.

    Examples
    --------
    >>> utilization(1000.0, 6e9, 1e13)
    0.6
    """
    if peak_flops <= 0:
        raise ValueError(f"peak_flops: got {peak_flops}; must be more than 0")
    return tokens_per_s * flops_per_token / peak_flops


def _attention_forward(model: Transformer, seq_len: int, scores: Scores) -> float:
    """Return the forward FLOP for QK^T and PV per token, over all layers [FLOP]."""
    _refuse("scores", scores, SCORES)
    if seq_len < 1:
        raise ValueError(f"seq_len: got {seq_len}; must be at least 1")
    # 2 matmuls, 2 FLOPs per multiplication and addition.
    attending = [(kind, len(layers)) for kind, layers in model.kinds.items() if "*" in kind.layer_blocks]
    return 4.0 * model.attention_width * sum(count * _keys(kind, seq_len, scores) for kind, count in attending)


def _scan_forward(model: Transformer) -> float:
    """Return the forward FLOP for the scans of Mamba-2 mixers per token, over all layers [FLOP]."""
    if model.mamba is None:
        return 0.0
    return 7.0 * model.mamba.inner * model.mamba.state * sum("M" in blocks for blocks in model.blocks)


def _keys(model: Transformer, seq_len: int, scores: Scores) -> float:
    """Return the mean number of keys that a token's attention counts, for a model of equal layers: at most the window's
    under "full", and without later keys under "causal".
    """
    if scores == "full" or not model.causal:
        return float(min(model.window or seq_len, seq_len))
    return keys_of_query(seq_len, model.window, chunked=model.chunked)


def _layers(model: Transformer, count: Count) -> int:
    """Return the number of parameters used by a token in the layers together (active experts only)."""
    return sum(len(layers) * _layer(kind, count) for kind, layers in model.kinds.items())


def _layer(model: Transformer, count: Count) -> int:
    """Return the number of a layer's parameters used by a token; for "matrices" only tensors with two dimensions."""
    parameters = [p for p in layer_parameters(model) if count != "matrices" or len(p.shape) == 2]
    # Experts have equal sizes: subtract the first expert's size once per inactive expert.
    expert = sum(p.elements for p in parameters if p.name.startswith("expert 0."))
    return sum(p.elements for p in parameters) - (model.num_experts - model.active_experts) * expert


def _ends(model: Transformer) -> int:
    """Return the number of weights in the matmuls of embedding and head, per token; the lookup of a token is no matmul.

    With patches only the class token passes the head, whose share per token is neglected.
    """
    if model.patches is not None:
        return model.patches.width * model.hidden_size
    square = model.hidden_size**2 if model.head_transform else 0
    return square + model.vocab_size * model.hidden_size


def _refuse(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, naming the argument `name`, if the value is not among the allowed values."""
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}; must be one of {', '.join(allowed)}")
