"""Families of encoders: which fields of a Transformer does a config.json of BERT, RoBERTa or ViT mean?

An encoder's attention is not causal. BERT and RoBERTa have the head of masked language modelling, without the pooler,
which that training does not use.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.model.config_keys import ConfigKeys
from simulator.model.shape import Patches

# Classes of ImageNet.
_CLASSES: Final = 1000


def bert(config: ConfigKeys, *, offset: int = 0) -> dict[str, Any]:
    """Return the Transformer fields for a BERT config.json; the first `offset` positions belong to no token."""
    config.must_be("is_decoder", False, "attention to an encoder is not modelled")
    return _encoder(config) | {
        "vocab_size": config.size("vocab_size"),
        "max_positions": config.size("max_position_embeddings", default=512),
        "position_offset": offset,
        "tied": config.flag("tie_word_embeddings", default=True),
        "token_types": config.size("type_vocab_size", default=2),
        "form": "sum",
        "embedding_norm": True,
        "head_transform": True,
    }


def roberta(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a RoBERTa config.json: positions begin behind the padding token's number."""
    return bert(config, offset=config.size("pad_token_id", default=1, least=0) + 1)


def vit(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields for a ViT config.json; the classes are num_labels, or the entries of id2label."""
    patches = Patches(
        image=config.size("image_size", default=224),
        side=config.size("patch_size", default=16),
        channels=config.size("num_channels", default=3),
    )
    config.divides(("patch_size",), patches.side, "image_size", patches.image)
    labels = config.get(("id2label",))
    classes = len(labels) if isinstance(labels, dict) and labels else _CLASSES
    return _encoder(config) | {
        "vocab_size": config.size("num_labels", default=classes),
        "max_positions": patches.count + 1,
        "tied": False,
        "attention_bias": config.flag("qkv_bias", default=True),
        "patches": patches,
    }


def _encoder(config: ConfigKeys) -> dict[str, Any]:
    """Return the Transformer fields that the families of encoders share."""
    hidden, heads = config.size("hidden_size"), config.size("num_attention_heads")
    config.divides(("num_attention_heads",), heads, "hidden_size", hidden)
    return {
        "num_layers": config.layers("num_hidden_layers"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": max(1, hidden // heads),
        "ffn_size": config.size("intermediate_size"),
        "causal": False,
        "head_bias": True,
    }
