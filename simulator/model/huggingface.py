"""Reads Hugging Face's config.json as a Transformer.

Only keys that change parameters, FLOPs or bytes are read; other keys are ignored, so files from the hub work unchanged.
A null key counts as missing, as in Hugging Face's code.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Final

from simulator.basics.document import Document, Fault
from simulator.basics.errors import ScenarioError, one_of
from simulator.model.config_keys import ConfigKeys
from simulator.model.families import FAMILIES
from simulator.model.shape import Transformer

# Families with two stacks of layers and attention between the stacks, which the form of `Transformer` does not have.
_TWO_STACKS: Final = ("bart", "marian", "mbart", "mt5", "pegasus", "t5", "umt5", "whisper")
# Families with few features of their own, which a message names first.
_PLAIN: Final = ("llama", "gpt2", "mixtral", "bert")
# Places of a layer's norms, in words.
_PLACES: Final = MappingProxyType(
    {
        "pre": "before attention and MLP",
        "post": "after attention and MLP",
        "both": "before and after attention and MLP",
        "sum": "after the residual additions",
        "parallel": "before attention and MLP, which stand side by side",
        "shared": "before attention and MLP, which stand side by side after a single norm",
    }
)


def read_transformer(document: Document, name: str, seq_len: int | None = None) -> Transformer:
    """Return the model that a config.json describes.

    Parameters
    ----------
    document : Document
        The file's data with the place of each key.
    name : str
        The model's name.
    seq_len : int, optional
        Sequence length of the training; MPT's position table has this many rows.

    Raises
    ------
    ScenarioError
        A line per fault: an unknown family, a missing or impossible size, a sequence longer than the table of learned
        positions.

    Notes
    -----
    Differences without parameters and with little effect on a step's time are ignored: the kind of activation (but for
    `gelu_new`, which takes eight kernels), rope scaling and scales without parameters, GPT-NeoX's parallel residual.
    """
    if not isinstance(document.data, dict):
        raise ScenarioError(f"{document.source}: got {type(document.data).__name__}; must be a mapping (key: value)")
    family = document.data.get("model_type")
    config = ConfigKeys(document, seq_len)
    if not isinstance(family, str) or family not in FAMILIES:
        config.fault(("model_type",), _no_family(family, config))
        document.refuse(config.faults)
    facts = FAMILIES[str(family)](config)
    document.refuse(config.faults)
    activation = document.data.get("activation_function", document.data.get("hidden_act"))
    composed = activation == "gelu_new" or (activation is None and family == "gpt2")
    # Families with RMSNorm have no GELU by its formula.
    fused = not composed and not facts.get("gated", False) and facts.get("norm") != "rmsnorm"
    model = Transformer(name=name, fused_activation=fused, **facts)
    positions = model.max_positions - model.position_offset
    if model.patches is not None and seq_len not in (None, positions):
        raise ScenarioError(
            f"{document.source}: seq_len: got {seq_len}; {name} has {positions} tokens: {model.patches.count} patches "
            f"and a class token; write seq_len: {positions}"
        )
    if model.positions == "learned" and seq_len is not None and seq_len > positions:
        raise ScenarioError(
            f"{document.source}: seq_len: got {seq_len}; {name} has learned {positions} positions; take at "
            "most that, or give a config.json with more"
        )
    return model


def _no_family(family: object, config: ConfigKeys) -> str:
    """Return the error message for a config.json with an unknown or missing model family.

    The message names the known family that reads the most of the file's keys, and the features that the model's layers
    must have for an equal count.
    """
    if family is None:
        return f"is missing; {one_of(FAMILIES, '')}"
    if family in _TWO_STACKS:
        return (
            f"got {family!r}; not modelled, because an encoder and a decoder with attention between them are two "
            "stacks of layers, and a model here is one stack"
        )
    message = f"got {family!r}; {one_of(FAMILIES, family)}"
    read = {name: replace(config, faults=list[Fault](), used=set[str]()) for name in FAMILIES}
    facts = {name: FAMILIES[name](keys) for name, keys in read.items()}
    able = [name for name in (*_PLAIN, *FAMILIES) if not read[name].faults]
    if "did you mean" in message or not able:
        return message
    # Of families that read equally many keys, the plainest.
    nearest = max(able, key=lambda name: len(read[name].used))
    return (
        f"got {family!r}, an unknown family; write model_type: {nearest} if its layers have "
        f"{_features(Transformer('', **facts[nearest]))}, and these keys mean the same as in {nearest}: "
        f"{', '.join(sorted(read[nearest].used))}"
    )


def _features(model: Transformer) -> str:
    """Return the features of a model's layers that no size tells, as text."""
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "unweighted": "LayerNorm without weights"}[model.norm]
    biases = {"Q, K and V": model.attention_bias, "the MLP": model.mlp_bias}
    biased = [name for name, has in biases.items() if has]
    positions = {"rotary": "rotary positions", "learned": "learned positions", "none": "no table of positions"}
    return ", ".join(
        (
            f"{norm} {_PLACES[model.form]}",
            "a gated MLP" if model.gated else "an MLP of two matrices",
            positions[model.positions],
            f"biases of {' and '.join(biased)}" if biased else "no biases",
        )
    )
