"""Trained parameters of a model whose other parameters are frozen, and the paths that name parameters.

A path is a module, a block and a parameter: "layers.3.attention.qkv.weight", "layers.3.norm1.weight",
"layers.3.feed_forward.experts.up.weight" (all experts of the layer), "embedding.token", "head.weight".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

# First words of a layer's parameters outside the feed-forward block.
_ATTENTION: Final = ("qkv", "proj", "query", "key", "kv", "sinks")
_FEED_FORWARD: Final = ("mlp", "router", "expert", "shared", "latent")
# Operations whose names differ from the names of their parameters.
_OPERATIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "token": "token embedding.weight",
        "position": "position embedding.weight",
        "token type": "token type embedding.weight",
        "patch.weight": "patch embedding.weight",
        "patch.bias": "patch embedding.bias",
        "head.weight": "logits.weight",
        "head.bias": "logits.bias",
        "sinks": "attention.sinks",
        "class token": "patch embedding.class",
    }
)


@dataclass(frozen=True, slots=True)
class TrainedParts:
    """Trained parameters of a model; all others are frozen."""

    # Modules with a trained parameter (embedding, layers, head), in forward order, each with the names of its trained
    # parameters.
    modules: tuple[tuple[str, frozenset[str]], ...]

    @property
    def first(self) -> str:
        """The first module with a trained parameter: no gradient passes to the modules before it."""
        return self.modules[0][0]

    @property
    def names(self) -> frozenset[str]:
        """Names of the modules with a trained parameter."""
        return frozenset(name for name, _ in self.modules)

    def of(self, module: str) -> frozenset[str]:
        """Return the names of a module's trained parameters."""
        return next((names for name, names in self.modules if name == module), frozenset())


def parameter_path(module: str, parameter: str) -> str:
    """Return the path of a parameter; all experts of a layer have the same path.

    >>> parameter_path("layer 3", "mlp.up.weight"), parameter_path("layer 3", "expert 7.up.weight")
    ('layers.3.feed_forward.up.weight', 'layers.3.feed_forward.experts.up.weight')
    >>> parameter_path("head", "head.weight"), parameter_path("layer 0", "query norm.weight")
    ('head.weight', 'layers.0.attention.query_norm.weight')
    """
    begin = re.sub(r"^layer (\d+)$", r"layers.\1", module)
    name = re.sub(r"expert \d+", "experts", parameter).replace(" ", "_")
    word = re.split(r"[ .]", parameter)[0]
    if word in _FEED_FORWARD:
        begin, name = f"{begin}.feed_forward", name.removeprefix("mlp.")
    elif parameter.startswith("mamba") and not parameter.startswith("mamba norm"):
        begin, name = f"{begin}.mamba", name.removeprefix("mamba_")
    elif word in _ATTENTION and parameter != "token":
        begin = f"{begin}.attention"
    return f"{begin}.{name.removeprefix('head.') if module == 'head' else name}"


def operation_parameter(parameter: str) -> str:
    """Return the name of a parameter as its operation has it: the operation's name, and "weight" or "bias".

    >>> operation_parameter("expert 7.up.weight"), operation_parameter("qkv.bias"), operation_parameter("head.weight")
    ('up.weight', 'qkv.bias', 'logits.weight')
    """
    name = re.sub(r"^(mlp|expert \d+)\.", "", parameter)
    return _OPERATIONS.get(name, re.sub(r"^shared expert \d+\.", "shared ", name))
