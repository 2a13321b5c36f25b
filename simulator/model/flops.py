"""FLOPs of a training step by the formulas that the field quotes, and the utilisation that follows.

Rule: formulas of a model and a sequence length; what kernels really compute stands on the kernels. Three choices hide
in any printed MFU, and each is an argument here: which parameters P counts, whether attention is counted in full or
only below the diagonal, and what is computed twice.

    model FLOPs per token = 6 P + 12 L (heads x head_dim) s

Each parameter of a matrix costs a multiplication and an addition forward and twice that backward: 6. Each of the s keys
costs a query 2 (QK^T) and 2 (PV) for each of heads x head_dim, three times over: 12.
"""

from __future__ import annotations

from typing import Final, Literal

from simulator.model.parameters import active, embedding_parameters, layer_parameters
from simulator.model.shape import Transformer

Count = Literal["all", "without_embedding", "matrices"]
Scores = Literal["full", "causal"]
Recompute = Literal["none", "attention", "layers", "forward"]

COUNTS: Final[tuple[Count, ...]] = ("all", "without_embedding", "matrices")
SCORES: Final[tuple[Scores, ...]] = ("full", "causal")
RECOMPUTES: Final[tuple[Recompute, ...]] = ("none", "attention", "layers", "forward")


def counted_parameters(model: Transformer, count: Count = "all") -> int:
    """Count the parameters that stand for P; of experts only the active ones.

    Parameters
    ----------
    model : Transformer
    count : {"all", "without_embedding", "matrices"}
        "all": every one, tables, biases and norms too, a tied table once (PaLM, llm-foundry). "without_embedding":
        without the tables that are only looked up, so without positions, and without tokens unless the head is the
        same table (torchtitan). "matrices": what a matmul multiplies by, head included (Megatron-LM's equation 3).

    Raises
    ------
    ValueError
        Another word.
    """
    _refuse("count", count, COUNTS)
    if count == "matrices":
        return _layers(model, count) + model.vocab_size * model.hidden_size
    if count == "all":
        return active(model)
    looked_up = sum(p.elements for p in embedding_parameters(model) if not (model.tied and p.name == "token"))
    return active(model) - looked_up


def model_flops_per_token(model: Transformer, seq_len: int, *, scores: Scores = "full", count: Count = "all") -> float:
    """Count what training on a token takes, nothing twice: the numerator of MFU.

    Parameters
    ----------
    model : Transformer
    seq_len : int
    scores : {"full", "causal"}
        Whether a token's attention counts all s keys, as PaLM and llm-foundry do, or half of them.
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
    return 6.0 * counted_parameters(model, count) + 3.0 * _attention_forward(model, seq_len, scores)


def hardware_flops_per_token(
    model: Transformer,
    seq_len: int,
    *,
    recompute: Recompute = "none",
    flash: bool = False,
    scores: Scores = "full",
    count: Count = "all",
) -> float:
    """Count what training on a token takes with all that is computed twice: the numerator of HFU.

    Parameters
    ----------
    model : Transformer
    seq_len : int
    recompute : {"none", "attention", "layers", "forward"}
        What the backward pass computes again: nothing; scores, softmax and their product with V; every layer, but not
        the head (Megatron-LM's equation 3); or, the rule of thumb, the whole forward pass: 4/3 (llm-foundry).
    flash : bool
        Whether flash attention's own second QK^T in the backward pass counts: 7/6 of attention.
    scores, count
        As in `model_flops_per_token`.

    Returns
    -------
    float
        [FLOP]

    References
    ----------
    .. [1] Narayanan et al., "Efficient Large-Scale Language Model Training ...", SC21, equation 3.
    .. [2] Korthikanti et al., "Reducing activation recomputation ...", MLSys 2023, appendix A.
    """
    _refuse("recompute", recompute, RECOMPUTES)
    attention = _attention_forward(model, seq_len, scores)
    again = {
        "none": 0.0,
        "attention": attention,
        "layers": 2.0 * _layers(model, count) + attention,
        "forward": 2.0 * counted_parameters(model, count) + attention,
    }[recompute]
    # QK^T is half of a forward pass of attention.
    return model_flops_per_token(model, seq_len, scores=scores, count=count) + again + (attention / 2 if flash else 0)


def utilization(tokens_per_s: float, flops_per_token: float, peak_flops: float) -> float:
    """Share of the peak that is reached: MFU of model FLOPs, HFU of hardware FLOPs.

    Parameters
    ----------
    tokens_per_s : float
        Of all GPUs together [1/s].
    flops_per_token : float
        [FLOP]
    peak_flops : float
        Of all GPUs together, in the dtype of the matmuls [FLOP/s].

    Returns
    -------
    float
        0 to 1.
    """
    if peak_flops <= 0:
        raise ValueError(f"peak_flops: got {peak_flops}; must be more than 0")
    return tokens_per_s * flops_per_token / peak_flops


def _attention_forward(model: Transformer, seq_len: int, scores: Scores) -> float:
    """QK^T and PV of all layers for one token [FLOP]."""
    _refuse("scores", scores, SCORES)
    if seq_len < 1:
        raise ValueError(f"seq_len: got {seq_len}; must be at least 1")
    full = 4.0 * model.num_layers * model.attention_width * seq_len
    return full if scores == "full" else full / 2


def _layers(model: Transformer, count: Count) -> int:
    """Parameters of all layers that work on a token."""
    dense = model.dense_layers * _layer(model.of_layer(0), count) if model.dense_layers else 0
    return dense + (model.num_layers - model.dense_layers) * _layer(model, count)


def _layer(model: Transformer, count: Count) -> int:
    """Parameters of one layer that work on a token; for "matrices" those of two dimensions."""
    parameters = [p for p in layer_parameters(model) if count != "matrices" or len(p.shape) > 1]
    expert = sum(p.elements for p in parameters if p.name.startswith("expert 0."))
    return sum(p.elements for p in parameters) - (model.num_experts - model.active_experts) * expert


def _refuse(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}; must be one of {', '.join(allowed)}")
